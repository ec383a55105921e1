"""Replicas behind a load balancer, and rolls from one arm to another, on the event clock.

A roll renews a quarter of the replicas at a time, as a Deployment does by default. Each takes no new requests, finishes
those it has, is away for the start-up time and comes back with the new arm; the others serve the load meanwhile. A fleet
of one replica is rolled with a surge pod: the old one serves until the new one is ready. Requests are spread at random,
as a Kubernetes Service does, so that Poisson arrivals stay Poisson on every replica.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from breakeven.arm import Arm
from breakeven_sim.engine.configuration import EngineConfig
from breakeven_sim.engine.core import Engine
from breakeven_sim.engine.drafting import DraftedText
from breakeven_sim.engine.requests import Request


class Texts(Protocol):
    """Source of a method's drafts."""

    def draw(self, number: int, total: int, prompt_tokens: int = 0) -> DraftedText:
        """The text of request `number` with `total` output tokens after its prompt; equal for equal arguments."""


class Arms(Protocol):
    """Engines and texts with which a fleet runs an arm."""

    def config(self, arm: Arm) -> EngineConfig:
        """The engine of one replica under this arm."""

    def texts(self, arm: Arm) -> Texts | None:
        """Texts of the arm's drafter; `None` where nothing is drafted."""


@dataclass(slots=True)
class _Replica:
    arm: Arm
    engine: Engine
    texts: Texts | None
    serves: bool = True

    def text_of(self, request: Request) -> DraftedText | None:
        """A request's text under this replica's arm."""
        if self.texts is None:
            return None
        return self.texts.draw(request.number, request.output_tokens, request.prompt_tokens)


def renewed_at_once(replicas: int) -> int:
    """Replicas that a roll renews at a time: 25 % rounded down, the default `maxUnavailable` of a Deployment; at least one."""
    return max(1, replicas // 4)


def waves(replicas: int) -> int:
    """Number of start-up times that a roll takes."""
    return math.ceil(replicas / renewed_at_once(replicas))


@dataclass(slots=True)
class _Roll:
    arm: Arm
    left: list[int]
    ready_s: dict[int, float] = field(default_factory=dict)
    """Replicas being renewed, and when each comes back."""


@dataclass(slots=True)
class Fleet:
    """R replicas; drive it forward in time with `to`, `offer` and `roll`.

    Attributes:
        arms: how to run an arm.
        arm: what runs, or is being rolled out.
        replicas: how many there are.
        roll_s: a replica's start-up time; 0: an arm changes in place without a drain (what hindsight may do).
        seed: of the load balancer.
        finished: requests in the order in which they were found finished, not cleared by the fleet.
        switches: rolls begun.
        away_s: replica-seconds lost to start-ups.
    """

    arms: Arms
    arm: Arm
    replicas: int
    roll_s: float
    seed: int = 0
    finished: list[Request] = field(default_factory=list)
    switches: int = 0
    away_s: float = 0.0
    _members: list[_Replica] = field(init=False)
    _roll: _Roll | None = field(init=False, default=None)
    _chance: Callable[[], float] = field(init=False)

    def __post_init__(self) -> None:
        self._members = [self._new(self.arm, 0.0) for _ in range(self.replicas)]
        draws = np.random.default_rng((self.seed, 2))
        buffer: list[float] = []

        def chance() -> float:
            if not buffer:
                buffer.extend(draws.random(4096).tolist())
            return buffer.pop()

        self._chance = chance

    @property
    def rolling(self) -> bool:
        """Whether a roll is under way."""
        return self._roll is not None

    @property
    def serving(self) -> int:
        """Replicas that take requests."""
        return sum(member.serves for member in self._members)

    @property
    def waiting(self) -> int:
        """Requests that no replica has admitted, as of each replica's clock."""
        return sum(member.engine.waiting for member in self._members)

    @property
    def running(self) -> int:
        """Requests that are admitted to the replicas that run now."""
        return sum(member.engine.running for member in self._members)

    def to(self, now_s: float) -> None:
        """Let everything happen that ends by `now_s`; infinity: run out."""
        self._renew(now_s)
        for member in self._members:
            self.finished += member.engine.advance(now_s)

    def offer(self, request: Request) -> None:
        """Route a request at its arrival; arrivals must not go back in time."""
        if self._roll is not None:
            self._renew(request.arrival_s)
        members = self._members
        if self._roll is not None:
            members = [member for member in members if member.serves]
        member = members[int(self._chance() * len(members))]
        request.text = member.text_of(request)
        self.finished += member.engine.advance(request.arrival_s)
        member.engine.submit(request)

    def roll(self, arm: Arm, now_s: float) -> None:
        """Begin to roll the fleet to another arm.

        Raises:
            RuntimeError: a roll is under way.
        """
        if self._roll is not None:
            raise RuntimeError("one roll at a time")
        if arm == self.arm:
            return
        self.arm = arm
        self.switches += 1
        if self.roll_s == 0:
            self._change_in_place(now_s)
            return
        self._roll = _Roll(arm, list(range(self.replicas)))
        for _ in range(renewed_at_once(self.replicas)):
            self._take_next(self._roll, now_s)
        self._renew(now_s)

    def _renew(self, now_s: float) -> None:
        """Bring the roll forward to `now_s`: replicas come back, the next ones go."""
        while (roll := self._roll) is not None:
            index, ready_s = min(roll.ready_s.items(), key=lambda item: item[1])
            if ready_s > now_s:
                return
            # A surge roll's old pod drains beside the new one.
            self.finished += self._members[index].engine.advance(math.inf)
            self._members[index] = self._new(roll.arm, ready_s)
            del roll.ready_s[index]
            if roll.left:
                self._take_next(roll, ready_s)
            elif not roll.ready_s:
                self._roll = None

    def _take_next(self, roll: _Roll, now_s: float) -> None:
        """Begin to renew the next replica."""
        index = roll.left.pop(0)
        member = self._members[index]
        self.finished += member.engine.advance(now_s)
        begun_s = now_s
        if self.replicas > 1:
            # No request comes to it any more, so that its future is settled now.
            member.serves = False
            self.finished += member.engine.advance(math.inf)
            begun_s = max(now_s, member.engine.clock_s)
            self.away_s += begun_s - now_s + self.roll_s
        roll.ready_s[index] = begun_s + self.roll_s

    def _new(self, arm: Arm, now_s: float) -> _Replica:
        return _Replica(arm, Engine(self.arms.config(arm), now_s), self.arms.texts(arm))

    def _change_in_place(self, now_s: float) -> None:
        for member in self._members:
            self.finished += member.engine.advance(now_s)
            member.arm, member.texts = self.arm, self.arms.texts(self.arm)
            member.engine.reconfigure(self.arms.config(self.arm), member.text_of)

"""Controllers of a replayed fleet's arm: nobody, a plan, or the operator's own decision code."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np

from breakeven.arm import NO_SPECULATION, Arm
from breakeven.planning.decision import Action, Situation, decide, with_acceptance
from breakeven.planning.decision_memory import DecisionMemory
from breakeven.planning.evaluation import evaluate_live
from breakeven.planning.forecast import PastRates
from breakeven.planning.learned_laws import FittedLaw, fitted_law
from breakeven.planning.objective import Policy
from breakeven.profile import Profile
from breakeven.serving.counted_window import Load
from breakeven_sim.engine.requests import Request
from breakeven_sim.replay.fleet import Fleet
from breakeven_sim.replay.stepping import ReplayedWindow, SteppedFleet
from breakeven_sim.replay.traces import RateTrace, RequestTrace

_ROUNDED = 0.05
"""Lengths and acceptance that differ by less (1) have one law in a replay."""


class Controller(Protocol):
    """Drives a fleet on the event clock.

    Attributes:
        next_s: when it wants to act next (s); infinity: never.
    """

    next_s: float

    def act(self, fleet: Fleet) -> None:
        """Look at the fleet at `next_s`, maybe begin a roll, and move `next_s` on."""


@dataclass(slots=True)
class Nobody:
    """A static arm."""

    next_s: float = math.inf

    def act(self, fleet: Fleet) -> None:
        """Never called."""


@dataclass(slots=True)
class Planned:
    """Follows a sequence of arms; a change that comes while a roll is under way waits for its end.

    Attributes:
        changes: (s, arm), ascending.
        next_s: see `Controller`.
    """

    changes: Sequence[tuple[float, Arm]]
    next_s: float = field(init=False)

    def __post_init__(self) -> None:
        self.changes = list(self.changes)
        self.next_s = self.changes[0][0] if self.changes else math.inf

    def act(self, fleet: Fleet) -> None:
        """Begin the change that is due."""
        fleet.to(self.next_s)
        if fleet.rolling:
            self.next_s += 1.0
            return
        due = [arm for at_s, arm in self.changes if at_s <= self.next_s]
        self.changes = [change for change in self.changes if change[0] > self.next_s]
        if due:
            fleet.roll(due[-1], self.next_s)
        self.next_s = self.changes[0][0] if self.changes else math.inf


@dataclass(slots=True)
class SeenRates:
    """Rates seen so far, as the operator reads them from Prometheus.

    Attributes:
        lookback_s: how far back they are known (s); 0: only the present load is expected.
        end_s: ends of the intervals that were seen (s), ascending.
        rps: rates per replica in them (1/s).
    """

    lookback_s: float
    end_s: list[float] = field(default_factory=list)
    rps: list[float] = field(default_factory=list)

    def add(self, end_s: float, rps: float) -> None:
        """Remember the interval that ended at `end_s`, and forget what is older than the lookback."""
        self.end_s.append(end_s)
        self.rps.append(rps)
        # The newest one is the load of now, however short the memory.
        old = min(bisect_right(self.end_s, end_s - self.lookback_s), len(self.end_s) - 1)
        del self.end_s[:old], self.rps[:old]

    def mean_rps(self, since_s: float) -> float | None:
        """Mean rate after a time; None if none is known."""
        recent = self.rps[bisect_right(self.end_s, since_s) :]
        return math.fsum(recent) / len(recent) if recent else None


@dataclass(slots=True)
class Decider:
    """`planning.decision` with its memory.

    Attributes:
        profile: the fits in force.
        policy: what must be gained and may be risked.
        candidates: arms that may run.
        past: rates so far; the caller adds the newest ones before each question.
        memory: from the last decision.
        reasons: how often each reason was given.
    """

    profile: Profile
    policy: Policy
    candidates: Sequence[Arm]
    past: SeenRates
    memory: DecisionMemory = field(default_factory=lambda: DecisionMemory(NO_SPECULATION))
    reasons: dict[str, int] = field(default_factory=dict)
    _laws: dict[tuple[object, ...], tuple[FittedLaw, ...]] = field(default_factory=dict)

    def wish(self, load: Load, now_s: float) -> Arm | None:
        """The arm to switch to now, if any."""
        # The rate of the whole fleet: the higher load on the remaining replicas ends with the roll.
        rps = self.past.mean_rps(now_s - load.window_s)
        whole = load if rps is None else replace(load, rps=rps)
        past = PastRates(self.past.end_s, self.past.rps)
        memory = with_acceptance(self.profile, self.memory, whole, now_s)
        decision = decide(Situation(self._at(whole, memory), whole, memory, self.policy, now_s, past))
        self.memory = decision.memory
        self.reasons[decision.reason.value] = self.reasons.get(decision.reason.value, 0) + 1
        return decision.arm if decision.action is Action.SWITCH else None

    def _at(self, load: Load, memory: DecisionMemory) -> tuple[FittedLaw, ...]:
        """Every arm's law under conditions that are rounded: a table takes longer to make than a decision."""
        like = replace(
            load, prompt_tokens=_rounded(load.prompt_tokens), output_tokens=_rounded(load.output_tokens)
        )
        seen = tuple(
            replace(one, tokens_per_step=_rounded(one.tokens_per_step) or 1.0) for one in memory.seen
        )
        key = (memory.running, like.prompt_tokens, like.output_tokens, seen)
        if key not in self._laws:
            found = evaluate_live(self.profile, like, memory.running, self.candidates, seen, self.policy.slo)
            self._laws[key] = tuple(fitted_law(one) for one in found.arms)
        return self._laws[key]


def _rounded(value: float | None) -> float | None:
    return None if not value else math.exp(round(math.log(value) / _ROUNDED) * _ROUNDED)


@dataclass(slots=True)
class Deciding:
    """Decides every `every_s` by the last `window_s`, as the operator does from Prometheus.

    Attributes:
        decider: the decision and its memory.
        trace: where arrivals are counted.
        past: rates so far.
        every_s: between two evaluations (s).
        window_s: that an evaluation looks back on (s).
        next_s: see `Controller`.
    """

    decider: Decider
    trace: RequestTrace
    past: SeenRates
    every_s: float = 60.0
    window_s: float = 300.0
    next_s: float = field(init=False)
    _read: int = 0
    _recent: list[Request] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.next_s = self.every_s

    def act(self, fleet: Fleet) -> None:
        """Evaluate, unless a roll is under way."""
        now_s = self.next_s
        self.next_s += self.every_s
        fleet.to(now_s)
        self._recent += fleet.finished[self._read :]
        self._read = len(fleet.finished)
        self.past.add(now_s, self._arrivals(now_s - self.every_s, now_s) / fleet.replicas)
        if fleet.rolling:
            return
        arm = self.decider.wish(self._observe(fleet, now_s), now_s)
        if arm is not None:
            fleet.roll(arm, now_s)

    def _arrivals(self, from_s: float, to_s: float) -> float:
        """Rate of the whole fleet (1/s)."""
        first, last = np.searchsorted(self.trace.arrival_s, [from_s, to_s])
        return float(last - first) / (to_s - from_s)

    def _observe(self, fleet: Fleet, now_s: float) -> Load:
        window_s = min(self.window_s, now_s)
        self._recent = [r for r in self._recent if r.finished_s > now_s - window_s]
        # A replica that drains is run ahead of time: what it will finish is not known yet.
        seen = [r for r in self._recent if r.finished_s <= now_s]
        rps = self._arrivals(now_s - window_s, now_s) / fleet.serving
        if not seen:
            return Load(rps, window_s, 0)
        steps = sum(r.steps for r in seen)
        gained = sum(r.generated - 1 for r in seen)
        latency_s = sum(r.finished_s - r.arrival_s for r in seen) / len(seen)
        return Load(
            rps=rps,
            window_s=window_s,
            requests=len(seen),
            inflight=rps * latency_s,
            latency_s=latency_s,
            tokens_per_step=gained / steps if steps and any(r.drafted for r in seen) else None,
            prompt_tokens=sum(r.prompt_tokens for r in seen) / len(seen),
            output_tokens=sum(r.output_tokens for r in seen) / len(seen),
            saturated=fleet.waiting > max(fleet.serving, 0.1 * fleet.running),
        )


def decide_after(
    decider: Decider, past: SeenRates, fleet: SteppedFleet, window: ReplayedWindow, trace: RateTrace
) -> None:
    """Decide from one window of a stepped fleet.

    Args:
        decider: the decision and its memory.
        past: rates so far.
        fleet: at the end of the window.
        window: its figures.
        trace: times of windows and rates of the whole fleet.
    """
    window_s = float(trace.length_s[window.index])
    end_s = float(trace.start_s[window.index]) + window_s
    past.add(end_s, float(trace.rate_rps[window.index]) / fleet.replicas)
    if fleet.rolling(end_s):
        return
    load = Load(
        rps=window.rps,
        window_s=window_s,
        requests=window.rps * window_s * fleet.replicas,
        inflight=window.inflight,
        latency_s=window.latency_s,
        saturated=window.saturated,
    )
    arm = decider.wish(load, end_s)
    if arm is not None:
        fleet.roll(arm, end_s)


def follow(changes: list[tuple[float, Arm]], fleet: SteppedFleet, end_s: float) -> None:
    """Begin the planned change that is due at the end of a window of a stepped fleet."""
    if fleet.rolling(end_s):
        return
    due = None
    while changes and changes[0][0] <= end_s + 1e-9:
        due = changes.pop(0)[1]
    if due is not None:
        fleet.roll(due, end_s)

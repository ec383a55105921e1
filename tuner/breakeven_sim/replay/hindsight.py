"""The best that a fleet could have done under a load that is known beforehand, with free rolls and with rolls that cost.

Both rest on the fluid model of `stepping`, in which less in flight is never worse, neither now nor later. A choice per
window from the latency at rest would be wrong. Near saturation the backlog that an arm leaves behind costs more than its
own window.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from breakeven.arm import Arm
from breakeven_sim.replay.fleet import Fleet, waves
from breakeven_sim.replay.stepping import SUBSTEPS, PiecewiseLaw, ReplayedWindow, at_rest, implicit
from breakeven_sim.replay.traces import RateTrace

_Floats = NDArray[np.float64]
_Ints = NDArray[np.int64]
_ALIKE = 1e-6
"""Relative difference below which two numbers in flight are the same: they have forgotten where they came from."""
_LONG_AGO_S = -1e15
KEPT_PER_ARM = 16
STARTS_PER_ROLL = 32
"""See `best_plan`."""


# Without paying for rolls ---------------------------------------------------------------------------------


def free_windows(
    trace: RateTrace, laws: Mapping[Arm, PiecewiseLaw], replicas: int
) -> tuple[list[ReplayedWindow], int]:
    """All windows of a fleet that always runs the arm that leaves the least in flight, and its changes of arm.

    Nothing is planned. At equal numbers in flight the arm with the lowest latency also completes the most requests.
    So the greedy choice has fewer in flight than every other sequence of arms, at every moment. It is made per
    substep, because a window may begin on one side of a break-even and end on the other.
    """
    arms, by_place = list(laws), list(laws.values())
    # Free to change at once: from the arm that begins with the least.
    n = min((at_rest(one, float(trace.rate_rps[0]) / replicas) for one in by_place), default=0.0)
    windows, changes, chosen = [], 0, -1
    rows = zip(trace.length_s.tolist(), trace.rate_rps.tolist(), strict=True)
    for index, (length_s, rate) in enumerate(rows):
        rps, h = rate / replicas, length_s / SUBSTEPS
        inflight = latency_s = p95_s = 0.0
        for _ in range(SUBSTEPS):
            # Among equally good arms the running one stays.
            n, other, place = min(
                (implicit(n, rps, one, h), place != chosen, place) for place, one in enumerate(by_place)
            )
            changes += other and chosen >= 0
            chosen = place
            inflight += n
            latency_s += by_place[place].mean_s(n)
            p95_s += by_place[place].p95_s(n)
        saturated = all(rps * one.c2_s >= 1.0 for one in by_place)
        windows.append(
            ReplayedWindow(
                index,
                rps,
                inflight / SUBSTEPS,
                latency_s / SUBSTEPS,
                p95_s / SUBSTEPS,
                arms[chosen],
                saturated,
            )
        )
    return windows, changes


@dataclass(slots=True)
class Greedy:
    """The same choice on the event clock, from the number in flight: a controller for rolls that are free.

    Attributes:
        laws: of the arms to choose from.
        every_s: between two choices (s).
        next_s: see `controllers.Controller`.
    """

    laws: Mapping[Arm, PiecewiseLaw]
    every_s: float
    next_s: float = 0.0

    def act(self, fleet: Fleet) -> None:
        """Run the arm that is fastest among so many."""
        now_s = self.next_s
        self.next_s += self.every_s
        fleet.to(now_s)
        inflight = (fleet.running + fleet.waiting) / fleet.replicas
        fleet.roll(min(self.laws, key=lambda arm: self.laws[arm].mean_s(inflight)), now_s)


# Paying for rolls -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SwitchPlan:
    """A sequence of arms with the times of their rolls.

    Attributes:
        changes: (s from which to run or to roll out, arm), ascending, the first at 0.
        spent_s: total latency of all requests under it (s), as `stepping` replays it.
    """

    changes: tuple[tuple[float, Arm], ...]
    spent_s: float


def best_plan(
    trace: RateTrace,
    laws: Mapping[Arm, PiecewiseLaw],
    replicas: int,
    roll_s: float,
    *,
    kept_per_arm: int = KEPT_PER_ARM,
    starts_per_roll: int = STARTS_PER_ROLL,
) -> SwitchPlan:
    """The plan with the least total latency of requests. Any arm may run at the start; rolls begin where windows end.

    A dynamic program whose states are fleets: (arm, number in flight, total latency so far). Every fleet goes through a
    window exactly as a `SteppedFleet` does, rolls included. Of two fleets with the same arm, the one with more total latency
    and more in flight is given up.

    Args:
        trace: rates of the fleet.
        laws: of the arms to choose from.
        replicas: of the fleet.
        roll_s: start-up time of a replica; 0: changes are free.
        kept_per_arm: fleets kept at the end of a window, evenly from the one with the least total latency to the one with
            the least in flight; real weeks have 2.
        starts_per_roll: moments at which a roll may begin within the time that one takes: seldom enough for traces of
            short windows.
    """
    arms = list(laws)
    search = _Search(list(laws.values()), replicas, waves(replicas) * roll_s)
    fleets = search.beginning(float(trace.rate_rps[0]))
    rows = list(zip(trace.start_s.tolist(), trace.length_s.tolist(), trace.rate_rps.tolist(), strict=True))
    next_s = -math.inf
    for start_s, length_s, rate in rows[:-1]:
        fleets = search.through(fleets, start_s, length_s, rate)
        end_s = start_s + length_s
        fleets, resting = search.worth_keeping(fleets, end_s, kept_per_arm)
        if end_s >= next_s:
            fleets = fleets.and_these(search.rolls(resting, end_s))
            next_s = end_s + search.roll_s / starts_per_roll
    fleets = search.through(fleets, *rows[-1])
    best = int(fleets.spent_s.argmin())
    return SwitchPlan(
        tuple((at_s, arms[place]) for at_s, place in search.history(int(fleets.node[best]))),
        float(fleets.spent_s[best]),
    )


@dataclass(slots=True)
class _Fleets:
    """Fleets with different histories; all arrays of shape (fleets,).

    Attributes:
        spent_s: total latency of their requests.
        inflight: per replica, over all replicas.
        begun_s: when the last roll began; long ago if none is under way.
        arm: place of the arm that runs or is being rolled out.
        old: place of the arm before the last roll.
        node: place in the search's history.
    """

    spent_s: _Floats
    inflight: _Floats
    begun_s: _Floats
    arm: _Ints
    old: _Ints
    node: _Ints

    def only(self, which: NDArray[np.bool_] | _Ints) -> _Fleets:
        """The fleets at these positions."""
        return _Fleets(
            self.spent_s[which],
            self.inflight[which],
            self.begun_s[which],
            self.arm[which],
            self.old[which],
            self.node[which],
        )

    def and_these(self, *others: _Fleets) -> _Fleets:
        """These fleets followed by the others."""
        every = (self, *others)
        return _Fleets(
            np.concatenate([one.spent_s for one in every]),
            np.concatenate([one.inflight for one in every]),
            np.concatenate([one.begun_s for one in every]),
            np.concatenate([one.arm for one in every]),
            np.concatenate([one.old for one in every]),
            np.concatenate([one.node for one in every]),
        )


@dataclass(slots=True)
class _Search:
    """Moves fleets on, and remembers what was done to each.

    Attributes:
        laws: by the place of the arm.
        replicas: of every fleet.
        roll_s: that a whole roll takes.
    """

    laws: Sequence[PiecewiseLaw]
    replicas: int
    roll_s: float
    _starts: _Floats = field(init=False)
    """Begin of each piece of any law, shape (pieces,): laws on the same pieces mix like lines."""
    _a: _Floats = field(init=False)
    """Intercept a of a + b*others, shape (arms, pieces)."""
    _b: _Floats = field(init=False)
    _first_nodes: list[int] = field(default_factory=list)
    _begun: list[tuple[float, _Ints, _Ints]] = field(default_factory=list)
    """Per moment: when, the arms, and the nodes before."""

    def __post_init__(self) -> None:
        starts = sorted({start for law in self.laws for start, _, _ in law.pieces})
        pieces = np.array([[law.piece(start) for start in starts] for law in self.laws])
        self._starts, self._a, self._b = np.array(starts), pieces[:, :, 0], pieces[:, :, 1]

    def beginning(self, fleet_rps: float) -> _Fleets:
        """One fleet per arm, at rest where there is one."""
        places = np.arange(len(self.laws))
        return _Fleets(
            np.zeros(len(places)),
            np.array([at_rest(law, fleet_rps / self.replicas) for law in self.laws]),
            np.full(len(places), _LONG_AGO_S),
            places,
            places,
            self._remember(0.0, places, np.full(len(places), -1)),
        )

    def through(self, fleets: _Fleets, start_s: float, length_s: float, fleet_rps: float) -> _Fleets:
        """All fleets at the end of a window: `SteppedFleet.step` on arrays."""
        # See `SteppedFleet._mixture`: the share of the window in which a roll goes on, and the part still to be rolled.
        ends_s = fleets.begun_s + self.roll_s
        rolled_s = np.clip(ends_s - start_s, 0.0, length_s)
        going = rolled_s / length_s
        left = (ends_s - start_s - rolled_s / 2) / (self.roll_s or 1.0)
        share = 1.0 - going * left
        # A single replica is renewed with a surge pod.
        serving = self.replicas - going * (self.replicas / waves(self.replicas) if self.replicas > 1 else 0.0)
        old, new = (1.0 - share)[:, None], share[:, None]
        a = old * self._a[fleets.old] + new * self._a[fleets.arm]
        b = old * self._b[fleets.old] + new * self._b[fleets.arm]
        begin = fleets.inflight * self.replicas / serving
        n, mean = self._along(begin, fleet_rps / serving, a, b, length_s / SUBSTEPS)
        rows, piece = np.arange(len(mean)), np.searchsorted(self._starts, mean, side="right") - 1
        latency_s = a[rows, piece] + b[rows, piece] * mean
        return _Fleets(
            fleets.spent_s + fleet_rps * length_s * latency_s,
            n * serving / self.replicas,
            fleets.begun_s,
            fleets.arm,
            fleets.old,
            fleets.node,
        )

    def _along(self, n: _Floats, rps: _Floats, a: _Floats, b: _Floats, h: float) -> tuple[_Floats, _Floats]:
        """Numbers in flight at the end of a window and on average over it: `implicit` on arrays.

        Args:
            n: at the start, shape (fleets,).
            rps: per serving replica, shape (fleets,).
            a: of a + b*others on every piece, shape (fleets, pieces).
            b: likewise.
            h: length of a substep (s).
        """
        come, total, rows = h * rps, np.zeros_like(n), np.arange(len(n))
        rest, twice, by = a + h, 2.0 * a, 4.0 * a * b
        # From so many, with those that come, a substep ends at the start of the piece.
        levels = self._starts + h * self._starts / (a + b * self._starts)
        of = (rows, np.zeros_like(rows))
        b_of, rest_of, twice_of, by_of = b[of], rest[of], twice[of], by[of]
        for _ in range(SUBSTEPS):
            m = n + come
            if len(self._starts) > 1:
                of = rows, (m[:, None] >= levels).sum(axis=1) - 1
                b_of, rest_of, twice_of, by_of = b[of], rest[of], twice[of], by[of]
            c = rest_of - m * b_of
            # The same root as in `implicit`, in the form that needs no b above 0.
            n = m * twice_of / (c + np.sqrt(c * c + by_of * m))
            total += n
        return n, total / SUBSTEPS

    def worth_keeping(self, fleets: _Fleets, now_s: float, per_arm: int) -> tuple[_Fleets, _Fleets]:
        """The fleets that may still turn out best, and which of them are free to roll."""
        rolling = fleets.begun_s + self.roll_s > now_s
        resting = _undominated(fleets.only(~rolling), per_arm)
        return resting.and_these(fleets.only(rolling)), resting

    def rolls(self, resting: _Fleets, now_s: float) -> _Fleets:
        """Each of the fleets with a roll to every other arm begun."""
        count, others = len(resting.arm), np.arange(1, len(self.laws))
        begun = resting.only(np.repeat(np.arange(count), len(others)))
        begun.old = begun.arm
        begun.arm = (resting.arm[:, None] + others[None, :]).ravel() % len(self.laws)
        begun.begun_s = np.full(len(begun.arm), now_s)
        begun.node = self._remember(now_s, begun.arm, begun.node)
        return begun

    def history(self, node: int) -> list[tuple[float, int]]:
        """(s, place of the arm) that led to a node, ascending."""
        done = []
        while node >= 0:
            block = bisect_right(self._first_nodes, node) - 1
            at_s, arms, before = self._begun[block]
            place = node - self._first_nodes[block]
            done.append((at_s, int(arms[place])))
            node = int(before[place])
        return done[::-1]

    def _remember(self, now_s: float, arms: _Ints, before: _Ints) -> _Ints:
        first = self._first_nodes[-1] + len(self._begun[-1][1]) if self._begun else 0
        self._first_nodes.append(first)
        self._begun.append((now_s, arms, before))
        return np.arange(first, first + len(arms))


def _undominated(fleets: _Fleets, per_arm: int) -> _Fleets:
    """Fleets of which none with the same arm has spent no more and has no more in flight."""
    if len(fleets.arm) < 2:
        return fleets
    cheapest_first = fleets.only(np.argsort(fleets.spent_s, kind="stable"))
    n, arm = cheapest_first.inflight, cheapest_first.arm
    better = (n[:, None] <= n[None, :] * (1.0 + _ALIKE)) & (arm[:, None] == arm[None, :])
    kept = cheapest_first.only(~np.triu(better, 1).any(axis=0))
    if len(kept.arm) <= per_arm:
        return kept
    places = [np.flatnonzero(kept.arm == one) for one in np.unique(kept.arm)]
    evenly = [np.linspace(0, len(own) - 1, min(len(own), per_arm)).astype(np.int64) for own in places]
    return kept.only(np.concatenate([own[some] for own, some in zip(places, evenly, strict=True)]))

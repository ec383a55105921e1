"""A fleet window by window, without requests: for traces of a week that are rates.

Between two changes of the rate, the number in flight n of one replica follows dn/dt = rate - n / (C1 + n*C2): arrivals
less departures under the law. Its rest point is the law's n = rate * L. Without a rest point the queue grows until a
later window drains it. The means of the law's queue are exact at rest; in between they are a fluid approximation. Rolls
renew as many replicas at a time as on the event clock, the others sharing the load.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise, zip_longest

import numpy as np
from numpy.typing import NDArray

from breakeven.arm import Arm
from breakeven_sim.replay.fleet import waves
from breakeven_sim.replay.traces import RateTrace

SUBSTEPS = 12
"""Implicit steps per window."""


@dataclass(frozen=True, slots=True)
class PiecewiseLaw:
    """Latency among others in flight, and its 95th percentile where that is known.

    Attributes:
        c1_s: latency of a lone request (s).
        c2_s: cost of one other (s); beyond the last knot where there are knots.
        knots: (others, latency in s), ascending, where the arm does not follow one line; the first at 0 others.
        p95_c1_s: of the 95th percentile; `None`: not known.
        p95_c2_s: likewise.
        pieces: (from others, a, b): latency a + b*others from there on.
    """

    c1_s: float
    c2_s: float
    knots: tuple[tuple[float, float], ...] = ()
    p95_c1_s: float | None = None
    p95_c2_s: float | None = None
    pieces: tuple[tuple[float, float, float], ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "pieces", self._pieces())

    def _pieces(self) -> tuple[tuple[float, float, float], ...]:
        if not self.knots:
            return ((0.0, self.c1_s, self.c2_s),)
        found = []
        for (n0, t0), (n1, t1) in pairwise(self.knots):
            slope = (t1 - t0) / (n1 - n0)
            found.append((n0, t0 - slope * n0, slope))
        n, t = self.knots[-1]
        return (*found, (n, t - self.c2_s * n, self.c2_s))

    def mean_s(self, others: float) -> float:
        """Mean latency among others in flight."""
        a, b = self.piece(others)
        return a + b * others

    def piece(self, others: float) -> tuple[float, float]:
        """Intercept and slope of the piece among so many others in flight."""
        return next((a, b) for start, a, b in reversed(self.pieces) if others >= start)

    def p95_s(self, others: float) -> float:
        """95th percentile, never below the mean; the mean where none is known."""
        mean_s = self.mean_s(others)
        if self.p95_c1_s is None or self.p95_c2_s is None:
            return mean_s
        return max(mean_s, self.p95_c1_s + self.p95_c2_s * others)

    def at_rps(self, rps: float) -> float:
        """Mean latency at rest under Poisson arrivals; infinity where there is no rest."""
        for (start, a, b), following in zip_longest(self.pieces, self.pieces[1:]):
            if rps * b < 1.0:
                latency_s = a / (1.0 - rps * b)
                if rps * latency_s <= (following[0] if following else math.inf):
                    # Below the piece's start only where a piece before it had no rest: its start is the rest then.
                    return max(latency_s, a + b * start)
        return math.inf

    def scaled_to(self, share: float, other: PiecewiseLaw) -> PiecewiseLaw:
        """Requests meet `other` with probability `share`, else this law."""

        def mix(mine: float | None, theirs: float | None) -> float | None:
            return None if mine is None or theirs is None else (1.0 - share) * mine + share * theirs

        # Taking a law with knots as one line here would make it another law during a roll, and rolling a gain in itself.
        starts = sorted({start for start, _, _ in (*self.pieces, *other.pieces)})
        knots = tuple((n, (1.0 - share) * self.mean_s(n) + share * other.mean_s(n)) for n in starts)
        return PiecewiseLaw(
            (1.0 - share) * self.c1_s + share * other.c1_s,
            (1.0 - share) * self.c2_s + share * other.c2_s,
            knots if len(knots) > 1 else (),
            mix(self.p95_c1_s, other.p95_c1_s),
            mix(self.p95_c2_s, other.p95_c2_s),
        )


@dataclass(frozen=True, slots=True)
class ReplayedWindow:
    """One window of a stepped fleet.

    Attributes:
        index: its place in the trace.
        rps: rate per serving replica.
        inflight: mean number in flight per serving replica.
        latency_s: mean latency of its requests.
        p95_s: 95th percentile of them.
        arm: what ran, or was being rolled out.
        saturated: whether more came than could leave.
    """

    index: int
    rps: float
    inflight: float
    latency_s: float
    p95_s: float
    arm: Arm
    saturated: bool


@dataclass(slots=True)
class SteppedFleet:
    """R replicas with the same law each; the window-by-window counterpart of `fleet.Fleet`.

    Attributes:
        law: an arm's law.
        arm: what runs, or is being rolled out.
        replicas: how many there are.
        roll_s: a replica's start-up time; 0: arms change in place.
        switches: rolls begun.
    """

    law: Callable[[Arm], PiecewiseLaw]
    arm: Arm
    replicas: int
    roll_s: float
    switches: int = 0
    _old: Arm | None = None
    _roll_from_s: float = -math.inf
    _inflight: float | None = field(default=None)

    def rolling(self, now_s: float) -> bool:
        """Whether a roll is under way."""
        return self._old is not None and now_s < self._roll_ends_s

    @property
    def _roll_ends_s(self) -> float:
        return self._roll_from_s + waves(self.replicas) * self.roll_s

    def roll(self, arm: Arm, now_s: float) -> None:
        """Begin to roll the fleet to another arm; one roll at a time."""
        if arm == self.arm:
            return
        self._old, self._roll_from_s = self.arm, now_s
        self.arm = arm
        self.switches += 1

    def step(self, index: int, start_s: float, length_s: float, fleet_rps: float) -> ReplayedWindow:
        """Go through one window at a rate of the whole fleet."""
        law, serving = self._mixture(start_s, length_s)
        rps = fleet_rps / serving
        saturated = rps * law.c2_s >= 1.0
        times = np.full(SUBSTEPS, length_s / SUBSTEPS)
        total = 0.0
        if self._inflight is None:
            self._inflight = at_rest(law, rps)
        n = self._inflight * self.replicas / serving
        for h in times.tolist():
            n = implicit(n, rps, law, h)
            total += n
        mean = total / SUBSTEPS
        self._inflight = n * serving / self.replicas
        return ReplayedWindow(index, rps, mean, law.mean_s(mean), law.p95_s(mean), self.arm, saturated)

    def _mixture(self, start_s: float, length_s: float) -> tuple[PiecewiseLaw, float]:
        """The law of the replicas that serve in a window, on average over them, and how many serve."""
        new = self.law(self.arm)
        if self._old is None or self.roll_s == 0:
            return new, float(self.replicas)
        ends_s = self._roll_ends_s
        if start_s >= ends_s:
            self._old = None
            return new, float(self.replicas)
        # Share of the window in which the roll goes on, and the mean progress of the roll in that time.
        rolled_s = min(ends_s, start_s + length_s) - start_s
        progress = (start_s + rolled_s / 2 - self._roll_from_s) / (ends_s - self._roll_from_s)
        going = rolled_s / length_s
        # A single replica is renewed with a surge pod.
        away = going * self.replicas / waves(self.replicas) if self.replicas > 1 else 0.0
        share = 1.0 - going * (1.0 - progress)
        return self.law(self._old).scaled_to(share, new), self.replicas - away


def at_rest(law: PiecewiseLaw, rps: float) -> float:
    """In flight per replica at a trace's begin, in the middle of a service's life: at rest if there is a rest point, else 0."""
    rest_s = law.at_rps(rps)
    return rps * rest_s if math.isfinite(rest_s) else 0.0


def implicit(n: float, rps: float, law: PiecewiseLaw, h: float) -> float:
    """One implicit Euler step of dn/dt = rps - n/L(n): stable whatever h, and at rest exactly the law.

    On a piece L = a + b*n, n1 is the positive root of b*n1^2 + (a + h - m*b)*n1 - m*a = 0 with m = n + h*rps. L(n)/n falls,
    so only one root lies on its own piece.
    """
    m = n + h * rps
    n1 = m
    for start, a, b in reversed(law.pieces):
        c = a + h - m * b
        square = c * c + 4.0 * b * m * a
        if square < 0.0:
            # A piece so steep that its line meets no such load.
            continue
        n1 = (-c + math.sqrt(square)) / (2.0 * b) if b > 0.0 else m * a / (a + h)
        if n1 >= start:
            break
    return n1


def step_through(
    fleet: SteppedFleet, trace: RateTrace, act: Callable[[ReplayedWindow, float], None]
) -> list[ReplayedWindow]:
    """All windows of a trace; `act` sees each window at its end and may roll the fleet."""
    windows = []
    starts: NDArray[np.float64] = trace.start_s
    for index, (start_s, length_s, rate) in enumerate(
        zip(starts.tolist(), trace.length_s.tolist(), trace.rate_rps.tolist(), strict=True)
    ):
        windows.append(fleet.step(index, start_s, length_s, rate))
        act(windows[-1], start_s + length_s)
    return windows

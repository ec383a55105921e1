"""The decision that a calibration serves, and the knowledge about it after some points."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from breakeven.arm import NO_SPECULATION, Arm
from breakeven.errors import InputError
from breakeven.fitting.observations import observe, ramp_share_of
from breakeven.load_driver.beliefs import Belief, Latency, Seen, after_points, before_any_point
from breakeven.load_driver.design import SweepSettings, of_the_sweep, saturated_rps
from breakeven.planning.evaluation import TRUSTED_UTILISATION
from breakeven.points.point import Point

FEWEST_POINTS, FEWEST_POINTS_OF_A_BEND = 3, 5
"""Usable points that an arm is given before its place among the others counts: for a line, and for a law that bends."""

EXPECTED_SHARES = (0.15, 0.3, 0.45, 0.6, 0.75)
"""Expected loads if none are given, as shares of the capacity without speculation."""

ROUNDING = 1.001  # a load this little beyond the last point is at it
_STRAIGHT = 0.1  # a law is taken for a line while it bends less than this


@dataclass(frozen=True, slots=True)
class Question:
    """A decision between arms, and the price of measuring them.

    Attributes:
        arms: arms that can be measured; at least one. Points of others count as they are.
        settings: shape of a point. `loads` is the most points per arm; `reference_rps` are rates worth repeating.
        expected_rps: loads (1/s) for which the decision is made, equally likely; empty for `EXPECTED_SHARES`.
        target_regret: expected regret (share of latency) at which nothing more is bought.
        running: the arm whose engine is up; every other one costs a start.
        startup_s: GPU time of a start (s).
        lone_s: guess at a lone request's latency without speculation (s), used until there is a point.
    """

    arms: tuple[Arm, ...]
    settings: SweepSettings = field(default_factory=SweepSettings)
    expected_rps: tuple[float, ...] = ()
    target_regret: float = 0.005
    running: Arm | None = None
    startup_s: float = 0.0
    lone_s: float = 1.0

    def __post_init__(self) -> None:
        if not self.arms:
            raise InputError("arms", "none given", "at least one arm to measure")
        if not all(0 < rate < math.inf for rate in self.expected_rps):
            raise InputError("expected loads", str(self.expected_rps), "rates above 0")
        if not self.target_regret > 0:
            raise InputError("target regret", f"{self.target_regret:g}", "a share above 0")


class MorePoints(NamedTuple):
    """Points of one arm: how many, and the highest mean number of others that their requests meet."""

    arm: int
    points: int
    others: float


@dataclass(frozen=True, slots=True, eq=False)
class Knowledge:
    """Knowledge from the points so far.

    Attributes:
        belief: of all arms in question or measured; no speculation first.
        measured: points by arm.
        usable: number of usable points by arm.
        met: by arm the mean number of others that requests of its usable points met, a number a point.
        ceilings: lowest rate (1/s) by arm at which it was seen saturated.
        latencies: by arm the believed latency at these loads.
    """

    question: Question
    belief: Belief
    measured: tuple[tuple[Point, ...], ...]
    usable: tuple[int, ...]
    met: tuple[tuple[float, ...], ...]
    ceilings: tuple[float, ...]
    rates: tuple[float, ...] = ()
    latencies: tuple[tuple[Latency, ...], ...] = ()

    @property
    def in_question(self) -> list[int]:
        """Arms that are measured or can be; no speculation may be neither."""
        arms = self.belief.arms
        return [i for i, arm in enumerate(arms) if arm in self.question.arms or self.usable[i]]

    def wanted(self, arm: int) -> int:
        """Usable points that the arm is given first: with few, the straight line through a law that bends looks right."""
        return FEWEST_POINTS if abs(self.belief.curvature(arm)) < _STRAIGHT else FEWEST_POINTS_OF_A_BEND

    def trusted(self, arm: int, at: int) -> bool:
        """Whether a law of the arm that reaches far enough would be trusted at an expected load, by its index."""
        rate, most = self.rates[at], min(1.0 / self.belief.c2_s(arm), self.ceilings[arm])
        # No speculation needs no roll: it stays if it can serve the load.
        return rate < most * (1.0 if self.belief.arms[arm] == NO_SPECULATION else TRUSTED_UTILISATION)

    def may_recommend(self, arm: int, at: int, more: MorePoints | None = None) -> bool:
        """Whether the arm may be recommended at an expected load, by its index: it has its first points, and they reach it.

        Beyond them `plan` calls it an extrapolation. `more` points are taken as measured.
        """
        points, reached = self.usable[arm], max(self.met[arm], default=0.0)
        if more is not None and more.arm == arm:
            points, reached = points + more.points, max(reached, more.others)
        needs_reach = self.belief.arms[arm] != NO_SPECULATION
        within = not needs_reach or self.latencies[arm][at].others <= reached * ROUNDING
        return points >= self.wanted(arm) and within and self.trusted(arm, at)

    def recommendable(self, at: int) -> list[int]:
        """Arms that may be recommended at an expected load, by its index."""
        return [arm for arm in self.in_question if self.may_recommend(arm, at)]

    def kept(self, at: int) -> list[int]:
        """Arms that may be kept or recommended; the first arm in question if no arm may be recommended."""
        return self.recommendable(at) or self.in_question[:1]


def known_from(question: Question, measured: Sequence[Point]) -> Knowledge:
    """The knowledge from every point so far, of all arms, flagged ones included; independent of their order."""
    others = sorted({point.arm for point in measured} | set(question.arms), key=lambda arm: (arm.family, arm))
    arms = (NO_SPECULATION, *(arm for arm in others if arm != NO_SPECULATION))
    ordered = sorted(
        measured, key=lambda point: (point.arm, point.load.mode, point.load.value, point.mean_latency_s)
    )
    by_arm = tuple(tuple(of_the_sweep([point for point in ordered if point.arm == arm])) for arm in arms)
    ramp_share = ramp_share_of([point for points in by_arm for point in points])
    seen, usable, met = list[Seen](), list[int](), list[tuple[float, ...]]()
    for index, points in enumerate(by_arm):
        used, _ = observe(points, ramp_share)
        seen += [Seen(index, one.others, one.latency_s, one.point.requests or 1.0) for one in used]
        usable.append(len(used))
        met.append(tuple(one.others for one in used))
    belief = after_points(before_any_point(arms, question.lone_s), seen)
    ceilings = tuple(saturated_rps(points) for points in by_arm)
    state = Knowledge(question, belief, by_arm, tuple(usable), tuple(met), ceilings)
    capacity_rps = 1.0 / belief.c2_s(state.in_question[0])
    rates = question.expected_rps or tuple(share * capacity_rps for share in EXPECTED_SHARES)
    latencies = tuple(
        tuple(belief.at_rps(arm, rate, ceiling) for rate in rates) for arm, ceiling in enumerate(ceilings)
    )
    return replace(state, rates=rates, latencies=latencies)

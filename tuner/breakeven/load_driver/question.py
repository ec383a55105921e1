"""The decision that a calibration serves, and the knowledge about it after some points: a joint Gaussian over three coefficients of each arm.

    ln L = ln(C1 + n*C2) + b*4*s*(1 - s),   s = n*C2/(C1 + n*C2)

b bends the law between its ends, a lone request and the ceiling. It bends up if few requests already load most experts,
and down if arithmetic hides behind reading weights. A sweep needs more than a fit. Before an arm has any point there is
already a belief about it, because arms with neighbouring draft lengths resemble each other. A point that was not measured
yet has a known effect on the uncertainty (the law's Fisher information), whatever its latency will be. Laws that are
reported come from `breakeven.fitting`; these only choose loads.

The prior: no speculation costs about `lone_s`, within a factor of twenty. Another arm costs exp(ratio) of it, where the
ratios of one drafter are a smooth function of ln(k + 1) around a common level.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from breakeven.arm import NO_SPECULATION, Arm
from breakeven.errors import InputError
from breakeven.fitting.observations import observe, ramp_share_of
from breakeven.laws.arrays import FloatArray
from breakeven.load_driver.design import SweepSettings, of_the_sweep, saturated_rps
from breakeven.planning.evaluation import TRUSTED_UTILISATION
from breakeven.points.point import Point

BEND = 0.02
"""Standard deviation (1) of a steady engine from the straight law at one load."""

REQUEST_SPREAD = 0.2
"""Standard deviation of a request's latency over its mean at given other requests in flight: acceptance differs between texts."""

COEFFICIENTS = 3
"""Per arm: ln C1, ln C2, b."""

_HIGHEST = 0.95
"""Share s of the other requests above which a law predicts no figure, only that the load is not worth having."""

_UNKNOWN_SCALE = (3.0, 1.2, 0.15)
_COMPANY_SHARE = 1.0 / 30.0
_RATIO = np.array([-0.3, 0.1, 0.0])
_OWN_BEND = 0.07
_FAMILY, _SMOOTH, _OWN = 0.35, 0.35, 0.05
_LENGTHS_ALIKE = 0.7
_BELIEVED_BENDS = 4.0
_ROUNDS = 30
_CLOSE = 1e-9


@dataclass(frozen=True, slots=True)
class Seen:
    """One usable point: index of its arm, mean number of others that a request met, mean latency and requests behind it."""

    arm: int
    others: float
    latency_s: float
    requests: float


@dataclass(frozen=True, slots=True)
class Latency:
    """A latency among a mean number of others, with its dependence on the coefficients.

    `share` is s, the part that the other requests in flight cause, 0 to 1; slopes are of its logarithm by ln C1, ln C2 and b.
    """

    latency_s: float
    others: float
    share: float
    slopes: tuple[float, float, float]


@dataclass(frozen=True, slots=True, eq=False)
class Belief:
    """Three coefficients of every arm, arm after arm; no speculation is the first.

    Attributes:
        mean: shape (3 * arms,): ln C1, ln C2 (seconds) and b of each.
        covariance: shape (3 * arms, 3 * arms).
        bend: how far a point is off the law without chance (1), as the points so far show.
    """

    arms: tuple[Arm, ...]
    mean: FloatArray
    covariance: FloatArray
    bend: float = BEND

    def c2_s(self, arm: int) -> float:
        """Cost of another request in flight near the ceiling (s)."""
        return float(np.exp(self.mean[COEFFICIENTS * arm + 1]))

    def curvature(self, arm: int) -> float:
        """b: how far the law bends between its ends (1)."""
        return float(self.mean[COEFFICIENTS * arm + 2])

    def among(self, arm: int, others: float) -> Latency:
        """Latency of a request that meets so many others."""
        log_c1, log_c2, b = self.mean[COEFFICIENTS * arm : COEFFICIENTS * arm + COEFFICIENTS].tolist()
        alone_s, company_s = math.exp(log_c1), others * math.exp(log_c2)
        line_s = alone_s + company_s
        s = company_s / line_s
        moved = 4.0 * b * (1.0 - 2.0 * s) * s * (1.0 - s)
        hump = 4.0 * s * (1.0 - s)
        return Latency(line_s * math.exp(b * hump), others, s, (1.0 - s - moved, s + moved, hump))

    def at_rps(self, arm: int, rps: float, ceiling_rps: float = math.inf) -> Latency:
        """Open-loop latency, and how it moves; at and beyond saturation the latency of the fullest engine that is predicted.

        `ceiling_rps` is the lowest rate at which the arm was seen saturated.
        """
        log_c1, log_c2, _ = self.mean[COEFFICIENTS * arm : COEFFICIENTS * arm + COEFFICIENTS].tolist()
        least, most = 1e-9, _HIGHEST / (1.0 - _HIGHEST) * math.exp(log_c1 - log_c2)
        full = self.among(arm, most)
        if rps >= ceiling_rps:
            return replace(full, slopes=(1.0, 0.0, 0.0))
        if most <= rps * full.latency_s:
            return replace(full, slopes=_amplified(full))
        # ln n - ln L(n) grows with n; where a step of Newton's leaves the bracket, its middle is taken.
        others = math.sqrt(least * most)
        for _ in range(_ROUNDS):
            found = self.among(arm, others)
            off = math.log(others / (rps * found.latency_s))
            least, most = (others, most) if off < 0.0 else (least, others)
            if abs(off) < _CLOSE:
                break
            nearer = others * math.exp(-off / max(1.0 - found.slopes[1], 1.0 - _HIGHEST))
            others = nearer if least < nearer < most else math.sqrt(least * most)
        return replace(found, slopes=_amplified(found))

    def row(self, arm: int, latency: Latency) -> FloatArray:
        """The latency's derivative by all coefficients, shape (3 * arms,)."""
        found = np.zeros_like(self.mean)
        found[COEFFICIENTS * arm : COEFFICIENTS * arm + COEFFICIENTS] = latency.slopes
        return found

    def noise(self, requests: float) -> float:
        """Relative standard deviation of a point of so many requests around the law."""
        return float(np.hypot(self.bend, REQUEST_SPREAD / np.sqrt(max(requests, 1.0))))

    def step(self, arm: int, others: float, requests: float) -> FloatArray:
        """One standard deviation by which a future point will move the mean, shape (3 * arms,).

        The covariance falls by the outer product of this vector with itself, whatever the result of the point.
        """
        row = self.row(arm, self.among(arm, others))
        along = self.covariance @ row
        return np.asarray(along / np.sqrt(row @ along + self.noise(requests) ** 2))

    def after(self, step: FloatArray) -> Belief:
        """The belief once a point has been measured, its mean unmoved."""
        return Belief(self.arms, self.mean, self.covariance - np.outer(step, step), self.bend)

    def given(self, known: Sequence[int]) -> Belief:
        """The belief if some arms' laws were known exactly."""
        fixed = [COEFFICIENTS * arm + which for arm in known for which in range(COEFFICIENTS)]
        across = self.covariance[:, fixed]
        inverse = np.linalg.pinv(self.covariance[np.ix_(fixed, fixed)], hermitian=True)
        return Belief(self.arms, self.mean, self.covariance - across @ inverse @ across.T, self.bend)


def _amplified(latency: Latency) -> tuple[float, float, float]:
    """Slopes at a given rate from those among given others: at an imposed rate a slower engine also fills up."""
    own = max(1.0 - latency.slopes[1], 1.0 - _HIGHEST)
    first, second, third = latency.slopes
    return first / own, second / own, third / own


def before_any_point(arms: Sequence[Arm], lone_s: float) -> Belief:
    """The belief about arms before any point; no speculation is the first.

    `lone_s` is a guess at a lone request's latency without speculation (s), good to a factor of twenty.
    """
    others = arms[1:]
    depth = np.log1p([arm.k for arm in others])
    # A schedule drafts less the fuller the batch is: it resembles no single draft length.
    kinds = [(arm.family, arm.scheduled) for arm in others]
    alike = np.array([[float(one == other) for other in kinds] for one in kinds], dtype=float)
    alike = alike.reshape(len(kinds), len(kinds))
    near = np.exp(-0.5 * ((depth[:, None] - depth[None, :]) / _LENGTHS_ALIKE) ** 2)
    ratios = alike * (_FAMILY**2 + _SMOOTH**2 * near) + _OWN**2 * np.eye(len(others))
    count = len(arms)
    mean, covariance = np.empty((count, COEFFICIENTS)), np.zeros((count, COEFFICIENTS, count, COEFFICIENTS))
    mean[0] = np.log(lone_s), np.log(lone_s * _COMPANY_SHARE), 0.0
    mean[1:] = mean[0] + _RATIO
    for which, scale in enumerate(_UNKNOWN_SCALE):
        covariance[:, which, :, which] = scale**2
    for which in (0, 1):
        covariance[1:, which, 1:, which] += ratios
    covariance[1:, 2, 1:, 2] += _OWN_BEND**2 * np.eye(len(others))
    size = COEFFICIENTS * count
    return Belief(tuple(arms), mean.reshape(-1), covariance.reshape(size, size))


def after_points(prior: Belief, seen: Sequence[Seen]) -> Belief:
    """The belief after some points: the Gaussian at the mode (Gauss and Newton), its noise learned from residuals."""
    if not seen:
        return prior
    found = _mode(prior, seen)
    squares, spare = 0.0, max(len(seen) - 2.0 * len({one.arm for one in seen}), 0.0)
    for one in seen:
        residual = np.log(one.latency_s / found.among(one.arm, one.others).latency_s)
        squares += float(max(residual**2 - REQUEST_SPREAD**2 / one.requests, 0.0))
    bend = float(np.sqrt((_BELIEVED_BENDS * BEND**2 + squares) / (_BELIEVED_BENDS + spare)))
    return _mode(Belief(prior.arms, prior.mean, prior.covariance, bend), seen)


def _mode(prior: Belief, seen: Sequence[Seen]) -> Belief:
    precision = np.linalg.inv(prior.covariance)
    weights = np.array([prior.noise(one.requests) ** -2 for one in seen])
    measured = np.log([one.latency_s for one in seen])
    belief = prior
    for _ in range(_ROUNDS):
        found = [belief.among(one.arm, one.others) for one in seen]
        rows = np.stack([belief.row(one.arm, latency) for one, latency in zip(seen, found, strict=True)])
        now = np.log([latency.latency_s for latency in found])
        information = precision + rows.T @ (weights[:, None] * rows)
        covariance = np.linalg.inv(information)
        pull = rows.T @ (weights * (measured - now)) + precision @ (prior.mean - belief.mean)
        move = np.clip(covariance @ pull, -1.0, 1.0)
        belief = Belief(prior.arms, belief.mean + move, 0.5 * (covariance + covariance.T), prior.bend)
        if np.max(np.abs(move)) < 1e-9:
            break
    return belief


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

    def may_recommend(self, arm: int, at: int, more: int = 0, others: float = 0.0) -> bool:
        """Whether the arm may be recommended at an expected load, by its index: it has its first points, and they reach it.

        Beyond them `plan` calls it an extrapolation. So many more points, whose requests meet at most that mean number of others, are
        taken as measured.
        """
        points, reached = self.usable[arm] + more, max(self.met[arm], default=0.0)
        reached = max(reached, others)
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

"""The best arm at one load without a memory, as `plan` names it, and why; and the fastest arm at each load.

Without a required gain `plan` uses the expected latency. It may then name an arm on an extrapolation or for a gain that is
not significant; `kept` is the arm that needs neither.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from breakeven.arm import NO_SPECULATION, Arm
from breakeven.errors import NotIdentifiedError
from breakeven.laws.arrays import FloatArray
from breakeven.planning.evaluation import ArmEvaluation, Evaluations
from breakeven.planning.objective import Slo
from breakeven.profile import Curve
from breakeven.reasons import Reason


@dataclass(frozen=True, slots=True)
class BestArm:
    """The recommended arm with the word why, and the best arm that needs no extrapolation; None if the chosen one needs none."""

    chosen: ArmEvaluation
    reason: Reason
    kept: Arm | None

    @property
    def arm(self) -> Arm:
        """The chosen arm."""
        return self.chosen.arm


def best_arm(evaluations: Evaluations, slo: Slo, min_gain: float = 0.0) -> BestArm:
    """Choose the arm with the lowest expected latency.

    No speculation has the most measurements, and needs no entering: it is kept on an extrapolation too. With a `min_gain` above
    0, an arm is only chosen if the lower bound of its speedup exceeds 1 + min_gain.

    Raises:
        NotIdentifiedError: no arm has a law, or an objective is about a figure that no arm was measured for.
    """
    arms = evaluations.arms
    if not arms:
        raise NotIdentifiedError(next(iter(evaluations.left_out.values()), "the profile holds no arm"))
    if (slo.tpot_s, slo.ttft_s) != (None, None) and all(one.meets_slo is None for one in arms):
        raise NotIdentifiedError("an objective is about TTFT or TPOT, which was measured for no arm")
    # However few or scattered an arm's points are, a saturated arm is not faster than it.
    steady = [one for one in arms if not one.prediction.saturated]
    if not steady:
        return BestArm(max(arms, key=lambda one: one.saturation_rps), Reason.SATURATED, None)
    best, reason = _best(steady, arms, min_gain)
    if not best.arm.k or not best.extrapolated:
        return BestArm(best, reason, None)
    enterable = [one for one in steady if not one.arm.k or not one.extrapolated]
    kept = _best(enterable, arms, min_gain)[0].arm if enterable else None
    return BestArm(best, Reason.EXTRAPOLATED, kept)


def _best(
    steady: Sequence[ArmEvaluation], arms: Sequence[ArmEvaluation], min_gain: float
) -> tuple[ArmEvaluation, Reason]:
    """Lowest expected latency among arms that carry the load, of those that keep the objectives and gain enough."""
    # In this order: arms whose measured figures keep the objectives; those for which a mean was taken for a quantile;
    # those whose objective cannot be checked; all that carry the load.
    keeping = (
        [one for one in steady if one.meets_slo and not one.unmeasured]
        or [one for one in steady if one.meets_slo]
        or [one for one in steady if one.meets_slo is None]
        or steady
    )
    eligible = [one for one in keeping if one.arm == NO_SPECULATION or _gains(one, min_gain)] or keeping
    best = min(eligible, key=lambda one: one.latency_s)
    return best, _reason(best, arms, keeping, min_gain)


def _gains(one: ArmEvaluation, min_gain: float) -> bool:
    if min_gain <= 0 or one.against_none is None:
        return True
    # The speedup is at most E, whatever a law promises.
    most = one.tokens_per_step or one.calibrated_tokens_per_step or math.inf
    # If only one arm is saturated, the speedup is 0 or infinite, and has no bounds.
    alone = one.against_none.speedup if one.against_none.speedup in (0.0, math.inf) else None
    surely, _ = _interval(one) or (alone or 0.0, math.inf)
    return min(surely, most) > 1.0 + min_gain


def _reason(
    best: ArmEvaluation, arms: Sequence[ArmEvaluation], keeping: Sequence[ArmEvaluation], min_gain: float
) -> Reason:
    if best.meets_slo is False:
        return Reason.SLO_VIOLATED
    if best.arm == NO_SPECULATION:
        return _reason_for_none(best, arms, keeping, min_gain)
    if (known := _interval(best)) is not None and known[0] <= 1.0 <= known[1]:
        return Reason.WIDE_BOUNDS
    if not _gains(best, min_gain):
        return Reason.SLO_VIOLATED  # chosen for an objective that no speculation misses, not for its gain
    return Reason.ALREADY_BEST if best.against_none is None else Reason.GAIN_ABOVE_THRESHOLD


def _reason_for_none(
    none: ArmEvaluation, arms: Sequence[ArmEvaluation], keeping: Sequence[ArmEvaluation], min_gain: float
) -> Reason:
    if len(arms) == 1:
        return Reason.ALREADY_BEST
    if all(one.against_none is not None and one.against_none.verdict == "never" for one in arms[1:]):
        return Reason.NEVER_PAYS
    if min_gain > 0 and any(one.latency_s < none.latency_s for one in keeping):
        return Reason.GAIN_BELOW_THRESHOLD
    known = [bounds for bounds in map(_interval, keeping) if bounds is not None]
    return Reason.WIDE_BOUNDS if any(upper > 1.0 for _, upper in known) else Reason.BEYOND_BREAK_EVEN


def _interval(one: ArmEvaluation) -> tuple[float, float] | None:
    """Bounds of the speedup over no speculation; None where there are none."""
    if one.against_none is None or one.against_none.speedup_ci is None:
        return None
    lower, upper = one.against_none.speedup_ci
    return (0.0 if lower is None else lower, math.inf if upper is None else upper)


_GRID = 400


@dataclass(frozen=True, slots=True)
class Stretch:
    """A range of rates in which one arm is fastest."""

    from_rps: float
    to_rps: float
    arm: Arm


def envelope(curves: Sequence[tuple[Arm, Curve]], rps_range: tuple[float, float]) -> tuple[Stretch, ...]:
    """The fastest arm over a range of rates, the lower envelope of the curves; crossings are found by bisection.

    The order of the break-evens against no speculation does not give it: with D (1.20 s, 0.070), A (0.78, 0.085) and B
    (0.92, 0.072), A is best below 6.35 requests per second, B up to 12.73, D above; A breaks even with D at 8.86.
    """
    low, high = rps_range
    if not 0 <= low < high:
        raise ValueError(f"load range {low!r} to {high!r} is empty or negative")
    last = int(np.argmax([curve.saturation_rps for _, curve in curves]))

    def fastest(rps: FloatArray) -> NDArray[np.intp]:
        latencies = np.array([curve.latencies_at_rps(rps) for _, curve in curves])
        # If every arm is saturated, the one that saturates last is taken.
        latencies[last] = np.where(np.all(np.isnan(latencies), axis=0), 0.0, latencies[last])
        return np.asarray(np.nanargmin(latencies, axis=0))

    grid = np.linspace(low, high, _GRID)
    leaders = fastest(grid)
    stretches: list[Stretch] = []
    start = low
    for index in range(1, _GRID):
        if leaders[index] == leaders[index - 1]:
            continue
        left, right = float(grid[index - 1]), float(grid[index])
        for _ in range(50):
            middle = 0.5 * (left + right)
            stays = fastest(np.asarray(middle)) == leaders[index - 1]
            left, right = (middle, right) if stays else (left, middle)
        stretches.append(Stretch(start, right, curves[leaders[index - 1]][0]))
        start = right
    return (*stretches, Stretch(start, high, curves[leaders[-1]][0]))

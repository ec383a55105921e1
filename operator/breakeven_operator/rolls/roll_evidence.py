"""Evidence of a roll: what is known of it, and the measured speedup that it holds beside the promise for the same load."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from breakeven.arm import Arm
from breakeven.errors import BreakevenError
from breakeven.estimate import Estimate
from breakeven.laws.arrays import FloatArray
from breakeven.phrases import counted, figure, ratio_text, spoken
from breakeven.planning.arm_blocks import LatencyAt
from breakeven.planning.roll_experiment import MeasuredSpeedup, RollExperiment, SpeedupBounds, experiment
from breakeven.profile import Curve, speedups_at_rps
from breakeven.reasons import Witness
from breakeven_operator.case import Case
from breakeven_operator.cluster_reasons import ClusterReason
from breakeven_operator.observing.roll_metrics import RolledPods, both_arms
from breakeven_operator.resources.figures import bounded
from breakeven_operator.resources.targetstatus import HistoryResult, Rollout

# Beyond this share of an arm's saturation its law has no slope to move a latency by: a saturation that is a few percent off
# makes any number of it, and an arm that was left because it was saturated would look fast.
_NEAR_SATURATION = 0.9
_HOW = {
    Witness.SIDE_BY_SIDE: "side by side",
    Witness.BEFORE_AFTER: "before and after",
    Witness.BOTH: "side by side, before and after",
}


class RollFinding(NamedTuple):
    """A measured speedup beside what was promised for its load, and the word about the roll that follows.

    Attributes:
        bounds: of the speedup; those that the word rests on.
        result, reason: the word; None if it was not asked for.
        remark: what is said beside the figures.
    """

    measured: MeasuredSpeedup
    promise: Estimate
    bounds: SpeedupBounds
    result: HistoryResult | None = None
    reason: ClusterReason | None = None
    remark: str = ""

    @property
    def said(self) -> str:
        """Both figures in words."""
        one = self.measured
        return (
            f"measured {ratio_text(Estimate(one.speedup, *self.bounds))} against promised {ratio_text(self.promise)} at "
            f"{figure(one.rps)} rps per replica, from {counted(round(one.requests), 'request')} {_HOW[one.witness]}"
        )

    def kept_in(self, rollout: Rollout) -> Rollout:
        """The change with promise and measurement, for the history."""
        one, promise = self.measured, self.promise
        return rollout.replace(
            **bounded("predicted_speedup", promise),
            load_rps=one.rps,
            **bounded("measured_speedup", Estimate(one.speedup, *self.bounds)),
            measured_requests=round(one.requests),
            witness=one.witness,
        )


def so_far(rollout: Rollout, case: Case) -> Rollout:
    """The change with what was measured of it until now, for one that ends before its last word."""
    found = find_speedup(rollout, case, RolledPods.of(rollout, case.workload, case.model_name))
    return rollout if isinstance(found, str) else found.kept_in(rollout)


def find_speedup(rollout: Rollout, case: Case, rolled: RolledPods | None) -> RollFinding | str:
    """The measurement beside the promise; or why there is none, as the end of a sentence.

    Acceptance is as calibrated: what is accepted now shows in the measurement, and no slope hangs on it much.
    """
    reading, profile = case.roll.latencies, case.profile
    if reading is None or reading.error is not None:
        return f"Prometheus gives no figures of it ({reading.error if reading else 'it was not asked'})"
    if rolled is None:
        return "which pods run which arm was not seen"
    others = sorted({*case.workload.gpu_products} - {rollout.gpu_product})
    if rollout.gpu_product is not None and others:
        return f"its pods run on {', '.join(others)} too, and it began on {rollout.gpu_product} alone: classes would be compared, not arms"
    arms = {fit.arm.name: fit.arm for fit in profile.arms} if profile is not None else {}
    old, new = arms.get(rollout.from_arm or ""), arms.get(rollout.to_arm or "")
    if profile is None or old is None or new is None:
        return "the profile in force does not hold both arms"
    try:
        curves = [profile.curve(arm, case.live.conditions) for arm in (old, new)]
        result = experiment(*both_arms(reading, rolled), *map(law_of, curves))
        if result.found is None:
            return why_nothing(result, old, new)
        promise = _promise(rollout, curves[0], curves[1], result.found.rps, profile.confidence)
        return RollFinding(result.found, promise, result.found.bounds(CONFIDENCE))
    except BreakevenError as error:
        return str(error)


def why_nothing(result: RollExperiment, old: Arm, new: Arm) -> str:
    """Why the pods of two arms show no speedup, as the end of a sentence."""
    for arm, blocks, saturated in (
        (old, result.old_blocks, result.old_saturated),
        (new, result.new_blocks, result.new_saturated),
    ):
        if not blocks:
            return f"hardly any requests were served on {spoken(arm)}"
        if saturated == blocks:
            return f"{spoken(arm)} was saturated at this load, or nearly, where no latency is its own"
    return "no block of time was steady"


def _promise(rollout: Rollout, old: Curve, new: Curve, rps: float, confidence: float) -> Estimate:
    """The promise, at the measured rate.

    The decision's own figure includes the live acceptance of both arms. The laws move this figure to the measured rate;
    without a figure the laws alone promise.
    """
    speedup, lower, upper = (float(end[0]) for end in speedups_at_rps(new, old, np.array([rps]), confidence))
    if not 0.0 < speedup < math.inf:
        return Estimate(1.0)
    now = Estimate(speedup, *(None if math.isnan(end) else end for end in (lower, upper)))
    if rollout.load_rps is None or rollout.predicted_speedup is None:
        return now
    # NaN if either arm is saturated there.
    decided = old.at_rps(rollout.load_rps) / new.at_rps(rollout.load_rps)
    return now.times(rollout.predicted_speedup / decided) if 0.0 < decided < math.inf else now


def law_of(curve: Curve) -> LatencyAt:
    """The latency of an arm by its law; NaN next to its saturation."""

    def at(rps: FloatArray) -> FloatArray:
        rates = np.asarray(rps, dtype=float)
        near = rates > _NEAR_SATURATION * curve.saturation_rps
        return np.where(near, np.nan, curve.latencies_at_rps(np.where(near, 0.0, rates)))

    return at


# Requests that waited through the roll are worked off in two windows, and a third window measures.
JUDGED_WINDOWS = 3
GIVE_UP_WINDOWS = 6
CONFIDENCE = 0.95
# Of looks in every cycle: one roll in a hundred that loses nothing may be undone.
_CONFIDENCE_OF_ALL_LOOKS = 0.98
# An arm is no worse than another if its bounds exclude a greater loss than this share. Bounds that hold 1 and a greater loss prove nothing:
# they hold 1 for many arms that lose a tenth.
_NO_LOSS = 0.05
# Logarithm of what cold pods may gain from which it is said.
_MATTERS = 0.02


def outcome(measured: MeasuredSpeedup, promise: Estimate, windows: float) -> RollFinding | None:
    """The word, or None while it is too early for one.

    A loss that is sure by bounds that hold at all looks together is said at any time. Everything else is said once, when
    three windows have passed since the roll finished. Bounds that hold a gain and a loss are waited for: after six
    windows they are said to prove nothing. `windows` is below 0 before all pods run the new arm.
    """

    def ended(
        result: HistoryResult, reason: ClusterReason, bounds: SpeedupBounds, remark: str = ""
    ) -> RollFinding:
        return RollFinding(measured, promise, bounds, result, reason, remark)

    bar = _bar(promise)
    at_any_look = measured.always_valid(_CONFIDENCE_OF_ALL_LOOKS)
    if at_any_look.upper < bar:
        return ended(HistoryResult.DISPROVED, ClusterReason.ROLL_DISPROVED, at_any_look)
    if windows < JUDGED_WINDOWS:
        return None
    bounds = measured.bounds(CONFIDENCE)
    if bounds.lower > 1.0:
        if promise.lower is not None and bounds.upper < promise.lower:
            remark = "; it gains, and significantly less than was promised"
            return ended(HistoryResult.NOT_WORSE, ClusterReason.ROLL_NOT_WORSE, bounds, remark)
        return ended(HistoryResult.CONFIRMED, ClusterReason.ROLL_CONFIRMED, bounds)
    if bounds.upper < bar:
        return ended(HistoryResult.DISPROVED, ClusterReason.ROLL_DISPROVED, bounds)
    if bounds.upper < 1.0:
        remark = "; no gain was promised at this load, and the loads for which one was promised have not come"
        return ended(HistoryResult.UNMEASURED, ClusterReason.ROLL_UNPROVEN, bounds, remark)
    if bounds.lower >= 1.0 - _NO_LOSS:
        return ended(HistoryResult.NOT_WORSE, ClusterReason.ROLL_NOT_WORSE, bounds)
    if windows < GIVE_UP_WINDOWS:
        return None
    return ended(HistoryResult.UNPROVEN, ClusterReason.ROLL_UNPROVEN, bounds, _still_cold(measured))


def _bar(promise: Estimate) -> float:
    """The speedup that a roll must not fall short of significantly: 1, or the lower end of the promise if that is below 1.

    An arm that is entered for a peak may lose until then, as far as that was promised.
    """
    least = promise.value if promise.lower is None else promise.lower
    return 1.0 if least is None else min(1.0, least)


def _still_cold(measured: MeasuredSpeedup) -> str:
    """Which pods may not be warm yet, as the end of a sentence; empty if none matters."""
    if measured.new_cold > _MATTERS:
        return f"; its new pods may gain up to {100.0 * math.expm1(measured.new_cold):.0f} % more once their prefix caches are filled"
    if measured.old_cold > _MATTERS:
        return "; the other arm's pods had begun shortly before, and their prefix caches may have been empty"
    return ""

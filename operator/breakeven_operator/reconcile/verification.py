"""Every roll is an experiment: was the new arm measured to be faster, and is what was promised for this load true?

The measurement compares the pods of both arms (`breakeven.planning.roll_experiment`). The model contributes the promise
that it is held against, made for the very load of the measurement, and nothing else. While the roll goes on and is
measured, bounds that hold at all looks together undo it as soon as it loses significantly; the last verdict is given once.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import NamedTuple

import numpy as np

from breakeven.arm import NO_SPECULATION, Arm
from breakeven.errors import BreakevenError
from breakeven.estimate import Estimate
from breakeven.laws.arrays import FloatArray
from breakeven.planning.arm_blocks import LatencyAt
from breakeven.planning.roll_experiment import (
    MeasuredSpeedup,
    RollExperiment,
    SpeedupBounds,
    Witness,
    experiment,
)
from breakeven.profile import Conditions, Curve, speedups_at_rps
from breakeven.reasons import Reason
from breakeven_operator.cluster_reasons import ClusterReason
from breakeven_operator.reconcile.barred_arms import acquitted, barred
from breakeven_operator.reconcile.calibration_state import ProfileEntry
from breakeven_operator.reconcile.first_wave import is_held, is_late, release
from breakeven_operator.reconcile.leaving import LEAVING, crashing, fails_without
from breakeven_operator.reconcile.roll_answers import AnswerShift, find_answers
from breakeven_operator.reconcile.roll_failures import FailureFinding, find_failures
from breakeven_operator.reconcile.roll_metrics import RolledPods, RollReading, both_arms
from breakeven_operator.reconcile.roll_outcome import (
    CONFIDENCE,
    GIVE_UP_WINDOWS,
    JUDGED_WINDOWS,
    outcome,
    wave_outcome,
)
from breakeven_operator.reconcile.rollout import deadline_s, end, undo
from breakeven_operator.reconcile.steps import Event, RolloutContext, RolloutStep
from breakeven_operator.reconcile.suspicion import suspected
from breakeven_operator.reconcile.target import Refusal
from breakeven_operator.resources.figures import bounded
from breakeven_operator.resources.memorystatus import MemoryStatus, RequestsBefore
from breakeven_operator.resources.rolloutstatus import MEASURED_PHASES, HistoryResult, Rollout
from breakeven_operator.workloads.workload import Workload

# Requests that waited through the roll are worked off in so many windows.
_SETTLED_WINDOWS = 2
_MOST_DISPROVED = 3
# Beyond this share of an arm's saturation its law has no slope to move a latency by: a saturation that is a few percent off
# makes any number of it, and an arm that was left because it was saturated would look fast.
_NEAR_SATURATION = 0.9
_HOW = {
    Witness.SIDE_BY_SIDE: "side by side",
    Witness.BEFORE_AFTER: "before and after",
    Witness.BOTH: "side by side, before and after",
}


@dataclass(frozen=True, slots=True)
class RollEvidence:
    """Evidence by which a roll is measured.

    Attributes:
        reading: blocks of its pods; None: not asked.
        workload: the target. model_name: of the service.
        entry: the profile in force, if any.
        conditions: lengths and dispersion of present requests. Acceptance is as calibrated: what is accepted now shows in the
            measurement, and no slope hangs on it much.
        window_s: of the service.
        failures: HTTP requests of its pods; None: not asked.
    """

    reading: RollReading | None
    workload: Workload
    model_name: str
    entry: ProfileEntry | None
    conditions: Conditions
    window_s: float
    failures: RollReading | None = None


class _Finding(NamedTuple):
    """A measured speedup beside what was promised for its load."""

    measured: MeasuredSpeedup
    promise: Estimate

    def said(self, bounds: SpeedupBounds) -> str:
        """Both in words."""
        one, promise = self.measured, self.promise
        ends = (
            f" ({promise.lower:.2f} to {promise.upper:.2f})"
            if promise.lower is not None and promise.upper is not None
            else ""
        )
        return (
            f"measured {one.speedup:.2f}x ({bounds.lower:.2f} to {bounds.upper:.2f}) against promised "
            f"{promise.value:.2f}x{ends} at {one.rps:.3g} rps per replica, from {one.requests:.0f} requests "
            f"{_HOW[one.witness]}"
        )

    def kept_in(self, rollout: Rollout, bounds: SpeedupBounds) -> Rollout:
        """The change with promise and measurement, for the history."""
        one, promise = self.measured, self.promise
        return rollout.replace(
            **bounded("predicted_speedup", promise),
            load_rps=one.rps,
            **bounded("measured_speedup", Estimate(one.speedup, *bounds)),
            measured_requests=round(one.requests),
            witness=one.witness,
        )


def verify(context: RolloutContext, evidence: RollEvidence) -> RolloutStep | None:
    """Judge a roll by what was measured of it so far; None: too early to say, or nothing is measured.

    - Undone: its speedup is significantly below 1 and below the promise for this load; from the first blocks on, in
      the middle of the roll too. An arm that a person pinned stays, and is said to lose.
    - Released, if its first wave is held: as soon as a loss of more than 5 % is excluded. Undone if it is not at the deadline.
    - Its last word: three windows after the roll has finished; up to six while nothing is proved or too few requests came.
    """
    rollout = context.rollout
    if rollout is None or rollout.phase not in MEASURED_PHASES:
        return None
    windows = _windows_since(context, rollout, evidence.window_s)
    crash = crashing(context.workload, context.now) if windows >= 0.0 else None
    if crash is not None and _kept(context, rollout) is None:
        return _left(context, rollout, ClusterReason.ARM_CRASHES, crash, evidence.entry)
    rolled = RolledPods.of(rollout, evidence.workload, evidence.model_name)
    failing = find_failures(evidence.failures, rolled)
    # An arm that is left for its failures was left too late for these to be compared with those of the next one.
    left = rollout.reason in LEAVING
    if not left and not isinstance(failing, str) and failing.fails(last_look=_last_look(context, windows)):
        return _fails_requests(context, rollout, failing, evidence.entry)
    found = _find(rollout, evidence)
    remark = f"; failures not measured: {failing}" if isinstance(failing, str) else ""
    if is_held(context):
        return _judge_wave(context, rollout, evidence, found, remark)
    return _last_word(context, rollout, evidence, found, failing, remark)


def _last_word(
    context: RolloutContext,
    rollout: Rollout,
    evidence: RollEvidence,
    found: _Finding | str,
    failing: FailureFinding | str,
    remark: str,
) -> RolloutStep | None:
    """End the measurement of a roll, or undo it; None: it goes on."""
    windows = _windows_since(context, rollout, evidence.window_s)
    if isinstance(found, str):
        if windows < GIVE_UP_WINDOWS:
            return None
        message = f"{rollout.from_arm} -> {rollout.to_arm} was not measured: {found}{remark}"
        step = end(context, HistoryResult.UNMEASURED, ClusterReason.ROLL_UNMEASURED, message)
        return _with_requests(step, rollout, failing)
    word = outcome(found.measured, found.promise, windows)
    if word is None:
        return None
    remark = f"{word.remark}{remark}"
    if word.result is HistoryResult.DISPROVED:
        kept = _kept(context, rollout)
        if kept is None:
            return _disproved(context, rollout, evidence, found, word.bounds)
        if windows < JUDGED_WINDOWS:
            return None
        remark = f"{kept}{remark}"
    message = f"{rollout.from_arm} -> {rollout.to_arm}: {found.said(word.bounds)}{remark}"
    answers = find_answers(evidence.failures, RolledPods.of(rollout, evidence.workload, evidence.model_name))
    measured = replace(context, rollout=found.kept_in(rollout, word.bounds))
    step = end(measured, word.result, word.reason, f"{message}{f'; {answers.said}' if answers else ''}")
    return _with_answers(_with_requests(step, rollout, failing), answers)


def _with_answers(step: RolloutStep, answers: AnswerShift | None) -> RolloutStep:
    """The step with an event if live answers of the new arm differ from those of the old one in the same time."""
    if answers is None or not answers.differing:
        return step
    event = Event(Reason.ANSWERS_DIFFER, answers.said, warning=True)
    return replace(step, events=(*step.events, event))


def _judge_wave(
    context: RolloutContext, rollout: Rollout, evidence: RollEvidence, found: _Finding | str, remark: str
) -> RolloutStep | None:
    """Release the first wave of a roll, or undo it; None: it is held."""
    late = is_late(context)
    reason, windows = ClusterReason.FIRST_WAVE_UNPROVEN, _windows_since(context, rollout, evidence.window_s)
    if isinstance(found, str):
        if not late:
            return None
        return undo(context, rollout, reason, f"its first wave was not measured: {found}{remark}")
    word = wave_outcome(found.measured, found.promise, windows, last_look=late)
    if word is None:
        return None
    if word.result is HistoryResult.DISPROVED:
        return _disproved(context, rollout, evidence, found, word.bounds)
    said, measured = f"{found.said(word.bounds)}{word.remark}{remark}", found.kept_in(rollout, word.bounds)
    if word.result is HistoryResult.UNPROVEN:
        return undo(context, measured, reason, f"its first wave proves nothing: {said}")
    # The promise stays that of the decision: a word about the wave is none about the whole roll.
    return release(context, rollout, said, context.now + timedelta(seconds=deadline_s(context)))


def _with_requests(step: RolloutStep, rollout: Rollout, failing: FailureFinding | str) -> RolloutStep:
    """The lesson of the requests: the figures that the new arm's are compared with from now on, or that the old arm was not to blame."""
    if isinstance(failing, str) or rollout.to_arm is None:
        return step
    if rollout.to_arm != NO_SPECULATION.name:
        posts, refusals, served = map(round, failing.old)
        before = RequestsBefore(arm=rollout.to_arm, posts=posts, refusals=refusals, served=served)
        return replace(step, memory=step.memory.replace(requests_before=before))
    arm, earlier = rollout.from_arm or "", step.memory.requests_before
    memory = step.memory.replace(requests_before=None)
    if rollout.reason != ClusterReason.ROLL_FAILS_REQUESTS or not fails_without(earlier, arm, failing.new):
        return replace(step, memory=memory)
    message = (
        f"requests fail without {arm} too, which were answered before it was entered; it may be entered again"
    )
    event = Event(ClusterReason.ARM_ACQUITTED, message)
    return replace(step, memory=acquitted(memory, arm), events=(*step.events, event))


def so_far(rollout: Rollout, evidence: RollEvidence) -> Rollout:
    """The change with what was measured of it until now, for one that ends before its last word."""
    found = _find(rollout, evidence)
    return rollout if isinstance(found, str) else found.kept_in(rollout, found.measured.bounds(CONFIDENCE))


def settled(context: RolloutContext, window_s: float) -> bool:
    """Whether a window's mean latency belongs to its load: not while it holds what a roll has left behind."""
    rollout = context.rollout
    if rollout is None:
        return True
    if rollout.finished_time is None:
        return False
    return _windows_since(context, rollout, window_s) > _SETTLED_WINDOWS


def rolls_stopped(memory: MemoryStatus, profile_name: str) -> Refusal | None:
    """Why this profile's word starts no roll any more; None: it does."""
    if memory.disproved < _MOST_DISPROVED or memory.disproved_profile != profile_name:
        return None
    return Refusal(
        ClusterReason.ROLLS_STOPPED,
        f"the last {memory.disproved} rolls that profile {profile_name} asked for were measured to lose: none begins until a "
        "new profile is in force, or the annotation breakeven.dev/resume of the SpeculativeService gets a new value",
    )


def _last_look(context: RolloutContext, windows: float) -> bool:
    """Whether bounds of one look count. A first wave is looked at in every cycle for hours, until its deadline."""
    return is_late(context) if is_held(context) else windows >= JUDGED_WINDOWS


def _windows_since(context: RolloutContext, rollout: Rollout, window_s: float) -> float:
    """Windows since all pods ran the new arm, or all of a first wave that is held; below 0 before."""
    since = rollout.wave_time if is_held(context) else rollout.finished_time
    if since is None:
        return -1.0
    return (context.now - since).total_seconds() / window_s


def _find(rollout: Rollout, evidence: RollEvidence) -> _Finding | str:
    """The measurement beside the promise; or why there is none, as the end of a sentence."""
    reading, entry = evidence.reading, evidence.entry
    rolled = RolledPods.of(rollout, evidence.workload, evidence.model_name)
    if reading is None or reading.error is not None:
        return f"Prometheus gives no figures of it ({reading.error if reading else 'it was not asked'})"
    if rolled is None:
        return "which pods run which arm was not seen"
    others = sorted({*evidence.workload.gpu_products} - {rollout.gpu_product})
    if rollout.gpu_product is not None and others:
        return f"its pods run on {', '.join(others)} too, and it began on {rollout.gpu_product} alone: classes would be compared, not arms"
    profile = entry.profile if entry is not None else None
    arms = {fit.arm.name: fit.arm for fit in profile.arms} if profile is not None else {}
    old, new = arms.get(rollout.from_arm or ""), arms.get(rollout.to_arm or "")
    if profile is None or old is None or new is None:
        return "the profile in force does not hold both arms"
    pods = both_arms(reading, rolled)
    try:
        curves = [profile.curve(arm, evidence.conditions) for arm in (old, new)]
        result = experiment(pods.old, pods.new, *map(_law, curves))
        if result.found is None:
            return _why_nothing(result, old, new)
        return _Finding(
            result.found, _promise(rollout, curves[0], curves[1], result.found.rps, profile.confidence)
        )
    except BreakevenError as error:
        return str(error)


def _why_nothing(result: RollExperiment, old: Arm, new: Arm) -> str:
    for arm, blocks, saturated in (
        (old, result.old_blocks, result.old_saturated),
        (new, result.new_blocks, result.new_saturated),
    ):
        if not blocks:
            return f"hardly any requests were served on {arm}"
        if saturated == blocks:
            return f"{arm} was saturated at this load, or nearly, where no latency is its own"
    return "no block of time was steady"


def _promise(rollout: Rollout, old: Curve, new: Curve, rps: float, confidence: float) -> Estimate:
    """The promise, at the measured rate.

    The decision's own figure includes the live acceptance of both arms. The laws move this figure to the measured rate;
    without a figure the laws alone promise.
    """

    def compared(at_rps: float) -> Estimate:
        found = speedups_at_rps(new, old, np.array([at_rps]), confidence)
        speedup, lower, upper = (float(end[0]) for end in found)
        if not 0.0 < speedup < math.inf:
            return Estimate()
        return Estimate(speedup, *(None if math.isnan(end) else end for end in (lower, upper)))

    now = compared(rps)
    if now.value is None:
        return Estimate(1.0)
    decided = compared(rollout.load_rps) if rollout.load_rps is not None else Estimate()
    if rollout.predicted_speedup is None or decided.value is None:
        return now
    return now.times(rollout.predicted_speedup / decided.value)


def _disproved(
    context: RolloutContext,
    rollout: Rollout,
    evidence: RollEvidence,
    found: _Finding,
    bounds: SpeedupBounds,
) -> RolloutStep:
    """Undo the roll, suspect the profile that asked for it, and stop after three in a row."""
    said = found.said(bounds)
    step = undo(context, found.kept_in(rollout, bounds), ClusterReason.ROLL_DISPROVED, said)
    entry = evidence.entry
    if step.write is None or entry is None:
        return step
    memory = step.memory
    count = (memory.disproved if memory.disproved_profile == entry.name else 0) + 1
    memory = memory.replace(disproved=count, disproved_profile=entry.name)
    memory = suspected(
        memory,
        entry.name,
        ClusterReason.ROLL_DISPROVED,
        f"{rollout.from_arm} -> {rollout.to_arm}: {said}",
        context.now,
    )
    stop = rolls_stopped(memory, entry.name)
    events = (
        (*step.events, Event(stop.reason, stop.message, warning=True)) if stop is not None else step.events
    )
    return replace(step, memory=memory, events=events)


def _kept(context: RolloutContext, rollout: Rollout) -> str | None:
    """Why a roll that lost is not undone, as the end of a sentence; None: it is."""
    if rollout.reason == ClusterReason.PINNED:
        return "; it stays, for a person pinned it"
    for one in context.memory.barred:
        if one.arm == rollout.from_arm:
            return f"; it stays, because {one.arm} is not entered again ({one.reason})"
    return None


def _fails_requests(
    context: RolloutContext, rollout: Rollout, failing: FailureFinding, entry: ProfileEntry | None
) -> RolloutStep:
    """Undo a roll whose new arm fails requests, and bar that arm."""
    kept = _kept(context, rollout)
    if kept is None:
        return _left(context, rollout, ClusterReason.ROLL_FAILS_REQUESTS, failing.said, entry)
    message = f"{rollout.from_arm} -> {rollout.to_arm}: {failing.said}{kept}"
    return end(context, HistoryResult.DISPROVED, ClusterReason.ROLL_FAILS_REQUESTS, message)


def _left(
    context: RolloutContext, rollout: Rollout, reason: ClusterReason, said: str, entry: ProfileEntry | None
) -> RolloutStep:
    """Undo a roll, and bar its new arm."""
    step = undo(context, rollout, reason, said)
    if step.write is None:
        return step
    profile = entry.name if entry is not None else None
    return replace(step, memory=barred(step.memory, rollout.to_arm or "", reason, said, profile, context.now))


def _law(curve: Curve) -> LatencyAt:
    def at(rps: FloatArray) -> FloatArray:
        rates = np.asarray(rps, dtype=float)
        near = rates > _NEAR_SATURATION * curve.saturation_rps
        return np.where(near, np.nan, curve.latencies_at_rps(np.where(near, 0.0, rates)))

    return at

"""The status of one arm after a look at its Job: under way, worth another start, or over; and whether it is measured at all."""

from __future__ import annotations

import json
from datetime import datetime

from breakeven.methods import ADAPTIVE_KEY
from breakeven.phrases import counted
from breakeven.reasons import Reason
from breakeven.serving.vllm_versions import arm_hindrances, unknown_words, version_of
from breakeven.tiers import Schedule
from breakeven_operator.calibration import schedule_making
from breakeven_operator.calibration.transition import measured_of, usable_points
from breakeven_operator.calibration.trial_state import TrialStage, TrialState
from breakeven_operator.cluster_reasons import ClusterReason
from breakeven_operator.resources.base import AGAIN
from breakeven_operator.resources.calibrationrun import (
    ArmPhase,
    ArmStatus,
    CalibrationRunStatus,
    PlannedArm,
)
from breakeven_operator.resources.candidates import Candidates, SpeculativeMethod
from breakeven_operator.workloads.served_engine import ServedEngine

# Jobs that vanish (deleted by hand, by TTL while the operator was away) are made again this often.
_MAX_ATTEMPTS = 3
# An engine that dies while it is measured is tried once more: its points so far are kept.
_MAX_CRASHES = 1


def word_of(arm: ArmStatus, otherwise: ClusterReason) -> ClusterReason:
    """The reason word of an arm; another one if it has none, or one of another version."""
    return ClusterReason.named(arm.reason) or otherwise


def over(
    arm: ArmStatus, phase: ArmPhase, reason: Reason | ClusterReason, message: str, ended: datetime
) -> ArmStatus:
    """The status of an arm of which nothing more is measured."""
    return arm.replace(phase=phase, reason=str(reason), message=message[:1024], finished_time=ended)


def seen(arm: ArmStatus, trial: TrialState, gpus: int) -> ArmStatus:
    """Pod, times and GPU-seconds as far as they are known; each pod holds `gpus`."""
    return arm.replace(
        pod=trial.pod or arm.pod,
        started_time=arm.started_time or trial.scheduled,
        ready_time=arm.ready_time or trial.ready,
        # Pods that are gone are no longer seen; what they used stays used.
        gpu_seconds_used=max(
            arm.gpu_seconds_used or 0.0,
            (arm.earlier_gpu_seconds or 0.0) + trial.held_s * gpus,
        ),
    )


def followed(arm: ArmStatus, trial: TrialState, status: CalibrationRunStatus, now: datetime) -> ArmStatus:
    """The status of an arm after a look at its Job."""
    if trial.stage is TrialStage.DONE:
        return _measured(arm, trial, status, now)
    if trial.stage is TrialStage.BROKEN:
        if trial.reason is ClusterReason.BUDGET_EXHAUSTED:
            return _measured(arm, trial, status, now)
        reason = trial.reason or ClusterReason.DRIVER_FAILED
        return over(arm, ArmPhase.FAILED, reason, trial.message, trial.ended or now)
    if trial.stage is TrialStage.ABSENT:
        if arm.attempts >= _MAX_ATTEMPTS:
            message = f"its Job disappeared {arm.attempts} times"
            return over(arm, ArmPhase.FAILED, ClusterReason.DRIVER_FAILED, message, now)
        return arm
    phase = ArmPhase.MEASURING if trial.stage is TrialStage.MEASURING else ArmPhase.STARTING
    reason_word = str(trial.reason) if trial.reason is not None else None
    return arm.replace(phase=phase, reason=reason_word, message=trial.message[:1024] or None)


def worth_another_start(arm: ArmStatus, trial: TrialState) -> bool:
    """Whether the arm's Job is worth another start while the budget lasts.

    It is if the pod is gone with its node. It also is if the engine died for the first time, after it had answered.
    """
    if trial.stage is not TrialStage.BROKEN:
        return False
    if trial.reason is ClusterReason.POD_DISRUPTED:
        return arm.attempts < _MAX_ATTEMPTS
    crashed = trial.reason is ClusterReason.ENGINE_CRASHED and trial.ready is not None
    return crashed and arm.attempts <= _MAX_CRASHES


def stopped(arm: ArmStatus, status: CalibrationRunStatus, message: str, now: datetime) -> ArmStatus:
    """The status of an arm when the budget is used up: its measured points are kept."""
    if arm.arm.endswith(AGAIN) and arm.job is None:
        return over(arm, ArmPhase.SKIPPED, ClusterReason.ARM_SKIPPED, message, now)
    judged = _judges(arm, status) and bool(status.answers)
    enough = judged or usable_points(status.points_of(arm.arm))
    phase = ArmPhase.DONE if enough else ArmPhase.FAILED
    return over(arm, phase, ClusterReason.BUDGET_EXHAUSTED, message, now)


def _measured(arm: ArmStatus, trial: TrialState, status: CalibrationRunStatus, now: datetime) -> ArmStatus:
    """The arm's Job came to its end: the arm is done if it left a usable point."""
    points, ended = status.points_of(arm.arm), trial.ended or now
    if _judges(arm, status):
        return _judged(arm, trial, status, ended)
    if arm.schedule is not None:
        deaf = schedule_making.ignored(measured_of(points), Schedule.parse(arm.schedule, arm.arm))
        if deaf is not None:
            return over(arm, ArmPhase.FAILED, ClusterReason.SCHEDULE_IGNORED, deaf, ended)
    usable, beside = usable_points(points), f"; {trial.message}" if trial.message else ""
    if usable:
        reason = trial.reason or ClusterReason.ARM_MEASURED
        return over(arm, ArmPhase.DONE, reason, f"{counted(usable, 'usable point')}{beside}", ended)
    reason = trial.reason or ClusterReason.DRIVER_FAILED
    message = f"no usable point{beside}"
    return over(arm, ArmPhase.FAILED, reason, message, ended)


def _judges(arm: ArmStatus, status: CalibrationRunStatus) -> bool:
    return status.plan is not None and arm.arm == status.plan.judge


def _judged(arm: ArmStatus, trial: TrialState, status: CalibrationRunStatus, ended: datetime) -> ArmStatus:
    """The judge's Job came to its end: it is done if it left a word about an arm."""
    if not status.answers:
        reason = trial.reason or ClusterReason.ANSWERS_NOT_JUDGED
        return over(arm, ArmPhase.FAILED, reason, trial.message or "no answers were kept to judge", ended)
    message = ", ".join(f"{one.arm}: {one.word}" for one in status.answers)
    return over(arm, ArmPhase.DONE, ClusterReason.ARM_MEASURED, message, ended)


_RUNNER = "VLLM_USE_V2_MODEL_RUNNER"


def is_asked_for(planned: PlannedArm, candidates: Candidates) -> bool:
    """Whether an arm is still a candidate: somebody may have taken it out since the plan was made, to spare its GPU time."""
    if planned.k == 0:
        return True
    method = _method_of(planned, candidates)
    if method is None or planned.scheduled:
        return method is not None
    return (planned.k, planned.adaptive) in method.lengths


def refusal_of(planned: PlannedArm, engine: ServedEngine, candidates: Candidates) -> str | None:
    """Reason why an engine does not start with an arm, by what is known of its version; None if none is known.

    A method with unknownMethod Allow is left to the engine.
    """
    config = json.loads(planned.speculative_config)
    method = _method_of(planned, candidates)
    if config is None or (method is not None and method.unknown_method == "Allow"):
        return None
    version = version_of(str(engine.container.get("image") or ""))
    found = [] if version is None else unknown_words((), config, version)
    found += arm_hindrances(engine.words, config, version)
    if config.get(ADAPTIVE_KEY) is True and _runs_v1(engine):
        found.append(f"{_RUNNER} 0: {ADAPTIVE_KEY} needs model runner V2; remove the variable")
    return found[0][:1024] if found else None


def _method_of(planned: PlannedArm, candidates: Candidates) -> SpeculativeMethod | None:
    """The method of an arm as the service names it now; None if it names it no longer."""
    family = planned.candidate or planned.method
    return next((one for one in candidates.methods if one.name == family), None)


def _runs_v1(engine: ServedEngine) -> bool:
    return any(
        one.get("name") == _RUNNER and str(one.get("value") or "").strip() in {"0", "false", "False"}
        for one in engine.container.get("env") or []
    )

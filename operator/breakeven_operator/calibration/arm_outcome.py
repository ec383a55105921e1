"""An arm's status after a look at its Job: how far it is, and how it ended. Pure."""

from __future__ import annotations

from datetime import datetime

from breakeven.tiers import Schedule
from breakeven_operator.calibration import schedule_making
from breakeven_operator.calibration.measurements import MIN_POINTS, measured_of, usable_points
from breakeven_operator.calibration.trial_state import TrialStage, TrialState
from breakeven_operator.cluster_reasons import ClusterReason
from breakeven_operator.resources.base import JUDGE, WINNER_AGAIN
from breakeven_operator.resources.calibrationrun import ArmPhase, ArmStatus, CalibrationRunStatus

# Jobs that vanish (deleted by hand, by TTL while the operator was away) are made again this often.
_MAX_ATTEMPTS = 3
# An engine that dies while it is measured is tried once more: its points so far are kept.
_MAX_CRASHES = 1
_WORDS = {reason.value: reason for reason in ClusterReason}


def is_over(arm: ArmStatus) -> bool:
    """Whether nothing more is measured of an arm."""
    return arm.phase is not None and arm.phase.over


def word_of(arm: ArmStatus, otherwise: ClusterReason) -> ClusterReason:
    """The reason word of an arm; another one if it has none, or one of another version."""
    return _WORDS.get(arm.reason or "", otherwise)


def over(arm: ArmStatus, phase: ArmPhase, reason: ClusterReason, message: str, ended: datetime) -> ArmStatus:
    """The status of an arm of which nothing more is measured."""
    return arm.replace(phase=phase, reason=str(reason), message=message[:1024], finished_time=ended)


def seen(arm: ArmStatus, trial: TrialState, gpus: int) -> ArmStatus:
    """Pod, times and GPU-seconds as far as they are known.

    Args:
        arm: how it went so far.
        trial: its Job now.
        gpus: that each of its pods holds.
    """
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
    """The status of an arm after a look at its Job.

    Args:
        arm: as it was seen.
        trial: its Job now.
        status: of the run, with points and answers.
        now: the present.
    """
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
    """The status of an arm when the budget is used up: its measured points are kept.

    Args:
        arm: how it went so far.
        status: of the run, with points and answers.
        message: how much was used.
        now: the present.
    """
    if arm.arm == WINNER_AGAIN and arm.job is None:
        return over(arm, ArmPhase.SKIPPED, ClusterReason.ARM_SKIPPED, message, now)
    enough = usable_points(status.points_of(arm.arm)) >= _needed(arm) or (
        arm.arm == JUDGE and bool(status.answers)
    )
    phase = ArmPhase.DONE if enough else ArmPhase.FAILED
    return over(arm, phase, ClusterReason.BUDGET_EXHAUSTED, message, now)


def _measured(arm: ArmStatus, trial: TrialState, status: CalibrationRunStatus, now: datetime) -> ArmStatus:
    """The arm's Job came to its end: the arm is done if it left enough points for a law."""
    points, ended = status.points_of(arm.arm), trial.ended or now
    if arm.arm == JUDGE:
        return _judged(arm, trial, status, ended)
    if arm.schedule is not None:
        deaf = schedule_making.ignored(measured_of(points), Schedule.parse(arm.schedule, arm.arm))
        if deaf is not None:
            return over(arm, ArmPhase.FAILED, ClusterReason.SCHEDULE_IGNORED, deaf, ended)
    usable, beside = usable_points(points), f"; {trial.message}" if trial.message else ""
    if usable >= _needed(arm):
        reason = trial.reason or ClusterReason.ARM_MEASURED
        return over(arm, ArmPhase.DONE, reason, f"{usable} usable points{beside}", ended)
    reason = trial.reason or ClusterReason.DRIVER_FAILED
    message = f"only {usable} usable points; expected {_needed(arm)} or more{beside}"
    return over(arm, ArmPhase.FAILED, reason, message, ended)


def _judged(arm: ArmStatus, trial: TrialState, status: CalibrationRunStatus, ended: datetime) -> ArmStatus:
    """The judge's Job came to its end: it is done if it left a word about an arm."""
    if not status.answers:
        reason = trial.reason or ClusterReason.ANSWERS_NOT_JUDGED
        return over(arm, ArmPhase.FAILED, reason, trial.message or "no answers were kept to judge", ended)
    message = ", ".join(f"{one.arm}: {one.word}" for one in status.answers)
    return over(arm, ArmPhase.DONE, ClusterReason.ARM_MEASURED, message, ended)


def _needed(arm: ArmStatus) -> int:
    """Usable points with which a trial is done; a second start adds to the points of the first."""
    return 1 if arm.arm == WINNER_AGAIN else MIN_POINTS

"""Runs of a service: those that ended are counted in its status, and the one that is under way is put into words."""

from __future__ import annotations

from collections.abc import Iterable

from breakeven_operator.cluster_reasons import ClusterReason
from breakeven_operator.resources import CalibrationRun, SpeculativeService
from breakeven_operator.resources.calibrationrun import RunPhase, Trigger
from breakeven_operator.resources.servicestatus import CalibrationStatus
from breakeven_operator.resources.updatepolicy import Mode

_LONGEST_SAYING = 500
_WORDS = {reason.value: reason for reason in ClusterReason}
# A run that ended for these has not answered what it was asked.
_OPEN = frozenset({str(ClusterReason.TARGET_CHANGED), str(ClusterReason.TARGET_NOT_FOUND)})
# Reasons why a calibration's pod waits, which a person may mend.
_STUCK = frozenset(
    str(reason)
    for reason in (
        ClusterReason.IMAGE_PULL_FAILED,
        ClusterReason.ENGINE_NOT_STARTING,
        ClusterReason.VOLUME_NOT_SHAREABLE,
        ClusterReason.UNSCHEDULABLE,
        ClusterReason.QUOTA_EXCEEDED,
        ClusterReason.ADMISSION_DENIED,
    )
)
# Triggers that mode Disabled still follows.
_ASKED_FOR = frozenset({Trigger.MANUAL, Trigger.REQUESTED, Trigger.SCHEDULE})


def account_of(
    service: SpeculativeService, runs: Iterable[CalibrationRun]
) -> tuple[CalibrationStatus, tuple[CalibrationRun, ...]]:
    """Count runs that ended; a run is marked as finished only after the status that counts it is written."""
    status = service.status.calibration or CalibrationStatus()
    ended = tuple(sorted((run for run in runs if _final(run)), key=lambda run: run.metadata.name))
    for run in ended:
        if run.status.phase is RunPhase.SUPERSEDED:
            continue
        finished = run.status.finished_time
        if finished is None or (status.last_run_time is not None and finished <= status.last_run_time):
            continue
        status = status.replace(
            last_run_time=finished,
            failures=0 if run.status.phase is RunPhase.SUCCEEDED else status.failures + 1,
            total_gpu_seconds=(status.total_gpu_seconds or 0.0) + (run.status.gpu_seconds_used or 0.0),
            last_run=run.metadata.name,
            last_reason=run.status.reason,
            last_message=run.status.message,
        )
    return status, ended


def to_measure_again(service: SpeculativeService, ended: Iterable[CalibrationRun]) -> CalibrationRun | None:
    """A run that ended because its target changed or was gone, and whose question is still open.

    It is seen as long as it is not marked as finished, which follows the creation of the next one.
    """
    changed = [run for run in ended if run.status.reason in _OPEN]
    if service.spec.update_policy.mode is Mode.DISABLED:
        changed = [run for run in changed if run.spec.trigger in _ASKED_FOR]
    return changed[-1] if changed else None


def failure_of(status: CalibrationStatus) -> ClusterReason | None:
    """The word for which the last run failed; None if it did not."""
    if not status.failures:
        return None
    return _WORDS.get(status.last_reason or "", ClusterReason.CALIBRATION_FAILED)


def failure_words(status: CalibrationStatus) -> str:
    """Why the last run failed, as the middle of a sentence; empty if it did not."""
    reason = failure_of(status)
    if reason is None or status.last_run is None:
        return ""
    said = (status.last_message or reason.meaning).rstrip(".")
    return f"; run {status.last_run} failed: {reason}: {said[:_LONGEST_SAYING]}"


def _final(run: CalibrationRun) -> bool:
    return run.status.phase is not None and run.status.phase.final


def unfinished(runs: Iterable[CalibrationRun]) -> CalibrationRun | None:
    """The run that is under way; None if all have ended."""
    return next((run for run in runs if not _final(run)), None)


def progress_of(run: CalibrationRun | None) -> dict[str, object]:
    """Points, GPU-seconds of the unfinished run; nothing of a finished one."""
    if run is None or run.status.plan is None:
        return {"points_done": None, "points_planned": None, "gpu_seconds_used": None}
    return {
        "points_done": len(run.status.points),
        "points_planned": run.status.planned_points,
        "gpu_seconds_used": run.status.gpu_seconds_used,
    }


def running_word(run: CalibrationRun) -> ClusterReason:
    """The word for an unfinished run: what keeps its pod from coming, or that it is under way."""
    return _WORDS[_stuck(run) or ClusterReason.CALIBRATION_RUNNING]


def phase_words(run: CalibrationRun) -> str:
    """Phase of an unfinished run, with what keeps its pod from coming and how far it is, as the end of a sentence."""
    words = str(run.status.phase or RunPhase.PENDING).lower()
    if (stuck := _stuck(run)) is not None:
        words += f" ({stuck}: {run.status.message or _WORDS[stuck].meaning})"
    display = run.status.display
    if display is not None and display.points:
        words += f", {display.points} points"
    if display is not None and display.left:
        words += f", {display.left} left"
    return words


def _stuck(run: CalibrationRun) -> str | None:
    """The word for what keeps an unfinished run's pod from coming; None if nothing does."""
    return run.status.reason if run.status.reason in _STUCK else None

"""The arms of a run as they are about to be written: what of the budget they used, and how the run's status says it."""

from __future__ import annotations

from collections.abc import Container, Iterable
from dataclasses import dataclass, field
from datetime import datetime
from itertools import takewhile
from typing import NamedTuple

from breakeven.phrases import counted
from breakeven.tiers import Schedule
from breakeven_operator.actions import Action, Delete, EmitEvent
from breakeven_operator.calibration import schedule_making
from breakeven_operator.calibration.jobs import TrialLimits
from breakeven_operator.calibration.run_plan import budget_left_s, needed_s, trial_limits
from breakeven_operator.calibration.transition import (
    Transition,
    human_time,
    job_ref,
    measured_of,
    usable_points,
)
from breakeven_operator.calibration.trial_state import TrialStage, TrialState, outlives
from breakeven_operator.cluster_reasons import ClusterReason
from breakeven_operator.resources.base import AGAIN
from breakeven_operator.resources.calibrationrun import (
    ArmPhase,
    ArmStatus,
    CalibrationPlan,
    CalibrationRunStatus,
    PlannedArm,
    RunPhase,
)

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


class ArmLeftOut(NamedTuple):
    """Word and sentence why an arm is not measured, or not any further."""

    reason: ClusterReason
    message: str


@dataclass
class ArmsProgress:
    """Progress of a run in one cycle: its arms in the plan's order, as they are about to be written."""

    transition: Transition
    plan: CalibrationPlan
    arms: list[ArmStatus] = field(init=False)

    def __post_init__(self) -> None:
        known = {arm.arm: arm for arm in self.transition.run.status.arm_statuses}
        self.arms = [
            known.get(arm.arm) or ArmStatus(arm=arm.arm, phase=ArmPhase.WAITING) for arm in self.plan.arms
        ]

    @property
    def left_s(self) -> float:
        """Seconds of one pod for which the budget lasts; below 0 once it is overdrawn."""
        return budget_left_s(self.plan, self._used_gpu_s, self._elapsed_s)

    @property
    def spent(self) -> bool:
        """Whether the budget is used up."""
        return self.left_s <= 0

    @property
    def to_fit(self) -> list[str]:
        """Names of the arms whose points are fitted, second starts included."""
        return [arm.arm for arm in self.arms if arm.reason != ClusterReason.SCHEDULE_IGNORED]

    @property
    def fittable(self) -> list[str]:
        """Names of the arms with a usable point."""
        return [arm for arm in self.to_fit if not arm.endswith(AGAIN) and self.has_law(arm)]

    def has_law(self, arm: str) -> bool:
        """Whether an arm has a usable point."""
        return usable_points(self.transition.run.status.points_of(arm)) > 0

    def limits(self, index: int) -> TrialLimits:
        """How long the trial of an arm may take."""
        return trial_limits(self.plan, tuple(self.arms), index, self._used_gpu_s, self._elapsed_s)

    def no_second_start(self, planned: PlannedArm) -> ArmLeftOut | None:
        """Why an arm is not started a second time; None if it is."""
        judge, first = self.plan.judge, self._status_of(planned.first)
        if len(self.fittable) < 2:
            word = ClusterReason.ANSWERS_NOT_JUDGED if planned.arm == judge else ClusterReason.ARM_SKIPPED
            return ArmLeftOut(word, "there are no two arms to compare")
        if first.phase is not ArmPhase.DONE:
            return ArmLeftOut(ClusterReason.ARM_SKIPPED, "its first start was not measured")
        # Without a word about its answers an arm may be barred, so their judge has whatever is left.
        short = "" if planned.arm == judge else self._short_of({planned.arm, judge})
        return ArmLeftOut(ClusterReason.ARM_SKIPPED, f"second starts {short}") if short else None

    def leave_turns(self, index: int) -> str:
        """Give the second starts of speculative arms up if the budget does not hold them, before a first start; how the run says so.

        The arms that are still to come are measured as a whole then.
        """
        if not index or self.plan.arms[index].second_start or self.arms[index].attempts:
            return ""
        again = [at for at, one in enumerate(self.plan.arms) if one.second_start and one.k]
        again = [at for at in again if not is_over(self.arms[at])]
        if not again or not (short := self._short_of(None)):
            return ""
        message = f"one after the other from here: arms in turns {short}"
        for at in again:
            self.skip(at, ArmLeftOut(ClusterReason.ARM_SKIPPED, message))
        return message

    def _short_of(self, trials: Container[str | None] | None) -> str:
        """What these trials still take and the budget has, as a clause; empty if the budget has enough."""
        status = self.transition.run.status.replace(arm_statuses=tuple(self.arms))
        needs_s, left_s = needed_s(status, self.plan, self.transition.now, trials), self.left_s
        if needs_s <= left_s:
            return ""
        return f"take {human_time(needs_s)}, and the budget has {human_time(max(0.0, left_s))} left"

    def schedule_of(self, planned: PlannedArm) -> str | None:
        """The schedule that was made for an arm; None without one, or before it is made."""
        return self._status_of(planned.first).schedule

    def _status_of(self, name: str) -> ArmStatus:
        return next(arm for arm in self.arms if arm.arm == name)

    def skip(self, index: int, why: ArmLeftOut) -> None:
        """Measure nothing, or nothing more, of an arm; the other arms stand."""
        self.arms[index] = over(self.arms[index], ArmPhase.SKIPPED, *why, self.transition.now)

    def stop(self, index: int) -> None:
        """The budget is used up: keep the measured points and measure nothing more; every arm is over then."""
        budget = self.plan.budget
        message = (
            f"{self._used_gpu_s:.0f} of {budget.max_gpu_seconds} GPU-seconds and {human_time(self._elapsed_s)} of"
            f" {human_time(budget.max_duration_seconds)} used"
        )
        status, now = self.transition.run.status, self.transition.now
        self.arms[index:] = [stopped(arm, status, message, now) for arm in self.arms[index:]]

    def write(
        self,
        message: str,
        planned: PlannedArm,
        reason: ClusterReason | None = None,
        *,
        measuring: bool = False,
    ) -> tuple[Action, ...]:
        """Write the progress of each arm; a run that has measured anything stays in Measuring between its arms."""
        measuring = measuring or bool(self.transition.run.status.points)
        phase = RunPhase.MEASURING if measuring else RunPhase.STARTING
        return self._write(phase, reason or ClusterReason.CALIBRATION_RUNNING, f"{planned.arm}: {message}")

    def write_fitting(self, message: str) -> tuple[Action, ...]:
        """Write that every arm is over, and its points are fitted."""
        return self._write(RunPhase.FITTING, ClusterReason.CALIBRATION_RUNNING, message)

    def _write(self, phase: RunPhase, reason: ClusterReason, message: str) -> tuple[Action, ...]:
        changes = {"phase": phase, "reason": str(reason), "message": message[:1024]}
        return self.transition.write({**self._counts(), **changes})

    def fail(self, reason: ClusterReason, message: str) -> tuple[Action, ...]:
        """End the run without a profile."""
        return self.transition.finish(RunPhase.FAILED, reason, message, self._counts())

    def said(self, index: int) -> tuple[Action, ...]:
        """The events about arms that ended before this one: the measured arm, and those skipped after it."""
        before = self.arms[:index]
        skipped = list(takewhile(lambda arm: arm.phase is ArmPhase.SKIPPED, reversed(before)))
        return tuple(
            EmitEvent(
                self.transition.ref,
                str(word_of(arm, ClusterReason.ARM_MEASURED)),
                f"{arm.arm}: {arm.message}"[:1024],
                warning=arm.phase is ArmPhase.FAILED,
            )
            for arm in before[-1 - len(skipped) :]
        )

    def delete_jobs(self, keep: str | None) -> tuple[Action, ...]:
        """Delete all Jobs but one, and but those whose answers are still to be judged: answers go with their Job."""
        kept = {keep, *self._unjudged_jobs()}
        jobs = self.transition.view.jobs
        return tuple(Delete(job_ref(job)) for job in jobs if job["metadata"]["name"] not in kept)

    def _unjudged_jobs(self) -> Iterable[str | None]:
        waits = any(arm.arm == self.plan.judge and not is_over(arm) for arm in self.arms)
        # Answers are worth no engine that nobody asks any more.
        view, now = self.transition.view, self.transition.now
        holding = {pod["metadata"]["name"] for pod in view.pods if outlives(pod, now)}
        done = (arm for arm in self.arms if waits and arm.phase is ArmPhase.DONE)
        return (arm.job for arm in done if arm.pod not in holding and not arm.arm.endswith(AGAIN))

    def _counts(self) -> dict[str, object]:
        return {"arm_statuses": tuple(self.arms), "gpu_seconds_used": self._used_gpu_s}

    @property
    def _used_gpu_s(self) -> float:
        return sum(arm.gpu_seconds_used or 0.0 for arm in self.arms)

    @property
    def _elapsed_s(self) -> float:
        started = self.transition.run.status.started_time or self.transition.now
        return (self.transition.now - started).total_seconds()

"""The arms of a run as they are about to be written: what of the budget they used, and how the run's status says it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import takewhile
from typing import NamedTuple

from breakeven_operator.actions import Action, Delete, EmitEvent
from breakeven_operator.calibration.arm_outcome import is_over, over, stopped, word_of
from breakeven_operator.calibration.display import human_time
from breakeven_operator.calibration.jobs import TrialLimits
from breakeven_operator.calibration.measurements import MIN_POINTS, usable_points
from breakeven_operator.calibration.run_plan import budget_left_s, trial_limits
from breakeven_operator.calibration.transition import Transition, job_ref
from breakeven_operator.calibration.trial_state import outlives
from breakeven_operator.cluster_reasons import ClusterReason
from breakeven_operator.resources.base import JUDGE
from breakeven_operator.resources.calibrationrun import (
    ArmPhase,
    ArmStatus,
    CalibrationPlan,
    PlannedArm,
    RunPhase,
)


class ArmLeftOut(NamedTuple):
    """Word and sentence why an arm is not measured, or not any further."""

    reason: ClusterReason
    message: str


@dataclass
class ArmsProgress:
    """Progress of a run in one cycle.

    Attributes:
        transition: the cycle.
        plan: what is measured.
        arms: how each arm goes, in the plan's order, as it is about to be written.
    """

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
        """Names of the arms with enough points for a law."""
        return [arm for arm in self.to_fit if self.has_law(arm)]

    def has_law(self, arm: str) -> bool:
        """Whether an arm has enough points for a law."""
        return usable_points(self.transition.run.status.points_of(arm)) >= MIN_POINTS

    def limits(self, index: int) -> TrialLimits:
        """How long the trial of an arm may take."""
        return trial_limits(self.plan, tuple(self.arms), index, self._used_gpu_s, self._elapsed_s)

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
        return self.transition.write(
            {
                **self._counts(),
                "phase": RunPhase.MEASURING if measuring else RunPhase.STARTING,
                "reason": str(reason or ClusterReason.CALIBRATION_RUNNING),
                "message": f"{planned.arm}: {message}"[:1024],
            }
        )

    def write_fitting(self, message: str) -> tuple[Action, ...]:
        """Write that every arm is over, and its points are fitted."""
        return self.transition.write(
            {
                **self._counts(),
                "phase": RunPhase.FITTING,
                "reason": str(ClusterReason.CALIBRATION_RUNNING),
                "message": message[:1024],
            }
        )

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
        waits = any(arm.arm == JUDGE and not is_over(arm) for arm in self.arms)
        # Answers are worth no engine that nobody asks any more.
        view, now = self.transition.view, self.transition.now
        holding = {pod["metadata"]["name"] for pod in view.pods if outlives(pod, now)}
        done = (arm for arm in self.arms if waits and arm.phase is ArmPhase.DONE)
        return (arm.job for arm in done if arm.pod not in holding)

    def _counts(self) -> dict[str, object]:
        return {"arm_statuses": tuple(self.arms), "gpu_seconds_used": self._used_gpu_s}

    @property
    def _used_gpu_s(self) -> float:
        return sum(arm.gpu_seconds_used or 0.0 for arm in self.arms)

    @property
    def _elapsed_s(self) -> float:
        started = self.transition.run.status.started_time or self.transition.now
        return (self.transition.now - started).total_seconds()

"""The Job of one arm, from its start to its end; started once more if its engine or its pod died."""

from __future__ import annotations

from dataclasses import dataclass

from breakeven_operator.actions import Action, Create, EmitEvent
from breakeven_operator.calibration.arm_outcome import followed, is_over, seen, worth_another_start
from breakeven_operator.calibration.arms_progress import ArmsProgress
from breakeven_operator.calibration.display import human_time
from breakeven_operator.calibration.jobs import build_job, job_name
from breakeven_operator.calibration.podcopy import NotCopyableError
from breakeven_operator.calibration.trial_reading import kept_words, place_is_held, trial_of
from breakeven_operator.calibration.trial_state import TrialStage, TrialState
from breakeven_operator.cluster_reasons import ClusterReason
from breakeven_operator.kinds import JOBS
from breakeven_operator.resources.calibrationrun import ArmPhase, PlannedArm


@dataclass(frozen=True, slots=True)
class JobFollower:
    """Follows the Job of one arm in one cycle.

    Attributes:
        progress: of the run.
        index: number of the arm.
        planned: the arm as its engine runs it.
    """

    progress: ArmsProgress
    index: int
    planned: PlannedArm

    def go(self) -> tuple[Action, ...] | None:
        """Follow an arm's Job, or make it; None if the arm is over."""
        progress, status = self.progress, self.progress.transition.run.status
        trial, digest = (
            trial_of(progress.transition, progress.plan, self.planned.arm),
            progress.plan.image_digest,
        )
        if digest is not None and trial.images - {digest}:
            return self._other_image(trial)
        arm = progress.arms[self.index]
        again = not progress.spent and worth_another_start(arm, trial)
        arm = progress.arms[self.index] = seen(arm, trial, progress.plan.gpus_per_pod)
        if again:
            return self._start_over(trial)
        progress.arms[self.index] = followed(arm, trial, status, progress.transition.now)
        if progress.spent and trial.stage is not TrialStage.DONE:
            progress.stop(self.index)
            return None
        if is_over(progress.arms[self.index]):
            return None
        return self._start() if trial.stage is TrialStage.ABSENT else self._go_on(trial)

    def _other_image(self, trial: TrialState) -> tuple[Action, ...]:
        """The tag was moved after the target's pods started: the measured image is not the one that serves."""
        plan = self.progress.plan
        message = (
            f"{self.planned.arm}: image {plan.image} is {', '.join(sorted(trial.images))} on the calibration pod and"
            f" {plan.image_digest} on the target's pods: roll the target (kubectl rollout restart), or name the image"
            " by digest"
        )
        return self.progress.fail(ClusterReason.IMAGE_CHANGED, message)

    def _start_over(self, trial: TrialState) -> tuple[Action, ...]:
        """Take the Job away whose engine or pod is dead; the next cycle makes it again, and its driver goes on after its points."""
        message = f"{trial.message}; starting it once more"
        self._note(phase=ArmPhase.STARTING, reason=str(trial.reason), message=message[:1024])
        progress = self.progress
        return (*progress.write(message, self.planned, trial.reason), *progress.delete_jobs(keep=None))

    def _start(self) -> tuple[Action, ...]:
        """Make the arm's Job, once nothing of the run before it still holds a GPU."""
        progress, transition = self.progress, self.progress.transition
        if not transition.view.may_start:
            return self._wait("waits: spec.paused is true")
        if place_is_held(transition):
            return self._wait("waits for the arm before it to stop")
        limits = progress.limits(self.index)
        try:
            job = build_job(transition.view, progress.plan, self.planned, limits)
        except NotCopyableError as refusal:
            return progress.fail(refusal.reason, refusal.message)
        name, arm = job["metadata"]["name"], progress.arms[self.index]
        self._note(
            phase=ArmPhase.STARTING,
            job=name,
            attempts=arm.attempts + 1,
            earlier_gpu_seconds=arm.gpu_seconds_used or 0.0,
            reason=str(ClusterReason.ARM_STARTING),
            message=f"at most {human_time(limits.sweep_s)} of measuring",
        )
        return (
            *progress.write("the engine starts", self.planned),
            *progress.delete_jobs(keep=name),
            Create(JOBS, job),
            *progress.said(self.index),
        )

    def _wait(self, message: str) -> tuple[Action, ...]:
        return (*self.progress.write(message, self.planned), *self.progress.delete_jobs(keep=None))

    def _note(self, **changes: object) -> None:
        self.progress.arms[self.index] = self.progress.arms[self.index].replace(**changes)

    def _go_on(self, trial: TrialState) -> tuple[Action, ...]:
        """Follow the Job while it runs."""
        progress, run, planned = self.progress, self.progress.transition.run, self.planned
        measuring = trial.stage is TrialStage.MEASURING
        if measuring:
            message = f"{len(run.status.points_of(planned.arm))} of {progress.plan.points_of(planned)} points"
            if planned.judges:
                message = "the answers of all arms are judged"
        elif trial.stage is TrialStage.QUEUED:
            kept = kept_words(progress.transition.view.pods, progress.transition.now)
            message = "; ".join(filter(None, (trial.message or "its pod waits for a place", kept)))
        else:
            message = trial.message or "the engine starts"
        return (
            *progress.write(message, planned, trial.reason, measuring=measuring),
            *progress.delete_jobs(keep=job_name(run.metadata.name, planned.arm)),
            *self._waits(trial),
        )

    def _waits(self, trial: TrialState) -> tuple[Action, ...]:
        """The event about what the arm's pod has begun to wait for."""
        transition = self.progress.transition
        if trial.reason in {None, ClusterReason.ARM_STARTING, ClusterReason.ARM_MEASURING}:
            return ()
        if transition.run.status.reason == trial.reason:
            return ()
        message = f"{self.planned.arm}: {trial.message}"[:1024]
        return (EmitEvent(transition.ref, str(trial.reason), message, warning=True, throttled=True),)

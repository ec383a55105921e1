"""The arms of a run, one after the other: follow the present one's Job, start the next, fit when all are over."""

from __future__ import annotations

from collections.abc import Container, Iterable
from dataclasses import dataclass, field
from datetime import datetime
from itertools import takewhile

from breakeven.arm import NO_SPECULATION
from breakeven.tiers import Schedule
from breakeven_operator.actions import Action, Create, Delete, DoneFit, EmitEvent, Fit
from breakeven_operator.calibration import podcopy, schedule_making, second_start
from breakeven_operator.calibration.display import human_time
from breakeven_operator.calibration.jobs import TrialLimits, arm_label, build_job, job_name
from breakeven_operator.calibration.measurements import measured_of, points_csv, sweep_of
from breakeven_operator.calibration.refused_arms import refusal_of
from breakeven_operator.calibration.run_plan import budget_left_s, second_start_s, trial_limits
from breakeven_operator.calibration.run_view import RunView
from breakeven_operator.calibration.transition import Transition, job_ref
from breakeven_operator.calibration.trial_state import TrialStage, TrialState, is_gone, read_trial
from breakeven_operator.cluster_reasons import ClusterReason
from breakeven_operator.kinds import JOBS
from breakeven_operator.labels import ARM_LABEL
from breakeven_operator.ports import Manifest
from breakeven_operator.resources.base import JUDGE, WINNER_AGAIN
from breakeven_operator.resources.calibrationrun import (
    ArmPhase,
    ArmStatus,
    CalibrationPlan,
    PlannedArm,
    RunPhase,
)
from breakeven_operator.resources.speculativeservice import SpeculativeServiceSpec
from breakeven_operator.workloads.object_facts import owner_uid
from breakeven_operator.workloads.presence import is_finished

MIN_POINTS = 3
"""Usable points below which an arm has no law worth fitting."""

# Jobs that vanish (deleted by hand, by TTL while the operator was away) are made again this often.
_MAX_ATTEMPTS = 3
# An engine that dies while it is measured is tried once more: its points so far are kept.
_MAX_CRASHES = 1
_WORDS = {reason.value: reason for reason in ClusterReason}


@dataclass
class Trials:
    """One cycle of a run that has its plan.

    Attributes:
        transition: the cycle.
        plan: what is measured.
        spec: what the service asks for by now.
        fitted: a fit from which the present arm is to be settled; None without one.
        arms: how each arm goes, in the plan's order, as it is about to be written.
    """

    transition: Transition
    plan: CalibrationPlan
    spec: SpeculativeServiceSpec
    fitted: DoneFit | None = None
    arms: list[ArmStatus] = field(init=False)

    def __post_init__(self) -> None:
        known = {arm.arm: arm for arm in self.transition.run.status.arm_statuses}
        self.arms = [
            known.get(arm.arm) or ArmStatus(arm=arm.arm, phase=ArmPhase.WAITING) for arm in self.plan.arms
        ]

    def go(self) -> tuple[Action, ...]:
        """Follow the present arm, or start the next one, or fit."""
        for index, planned in enumerate(self.plan.arms):
            if _is_over(self.arms[index]):
                continue
            if left_out := self._left_out(index, planned):
                self._skip(index, *left_out)
                continue
            settled = self._settled(index, planned)
            if settled is not None:
                actions = self._follow(index, settled)
            elif planned.wins_again:
                actions = self._choose_winner(index, planned)
            else:
                actions = self._make_schedule(index, planned)
            if actions is not None:
                return actions
            if self._hopeless(planned):
                break
        return self._end()

    def _left_out(self, index: int, planned: PlannedArm) -> tuple[ClusterReason, str] | None:
        """Word and sentence why an arm is not measured, or not any further; None if it is."""
        arm = self.arms[index]
        if not self._is_asked_for(self._named(arm.repeats) or planned):
            message = "the service no longer names it: what was measured of it is left out"
            return ClusterReason.CANDIDATES_CHANGED, message
        if planned.judges and sum(one.phase is ArmPhase.DONE for one in self.arms) < 2:
            return ClusterReason.ANSWERS_NOT_JUDGED, "there are no answers of two arms to compare"
        if planned.wins_again and arm.job is None:
            needed_s, left_s = second_start_s(self.plan, self.arms), self._left_s
            if len(self._fittable) < 2:
                return ClusterReason.SECOND_START_SKIPPED, "there are no two arms to compare"
            if needed_s > left_s:
                message = (
                    f"it takes {human_time(needed_s)}, and the budget has {human_time(max(0.0, left_s))} left"
                )
                return ClusterReason.SECOND_START_SKIPPED, message
        refused = self._refused(index, planned)
        return None if refused is None else (ClusterReason.ENGINE_CONFIG_REFUSED, refused)

    def _settled(self, index: int, planned: PlannedArm) -> PlannedArm | None:
        """The arm as its engine runs it; None if that is still to be found from the arms before it."""
        table, repeats = self.arms[index].schedule, self.arms[index].repeats
        if planned.wins_again:
            return second_start.started_again(self.plan, self.arms, repeats or "")
        if planned.scheduled:
            return None if table is None else schedule_making.with_schedule(planned, table)
        return planned

    def _named(self, name: str | None) -> PlannedArm | None:
        """The arm of the plan with this name; None without one."""
        return next((arm for arm in self.plan.arms if arm.arm == name), None)

    def _follow(self, index: int, planned: PlannedArm) -> tuple[Action, ...] | None:
        """Follow an arm's Job, or make it; None if the arm is over."""
        seen = self._read_trial(planned)
        if self.plan.image_digest is not None and seen.images - {self.plan.image_digest}:
            return self._other_image(planned, seen)
        if self._worth_another_start(self.arms[index], seen):
            return self._start_over(index, planned, seen)
        self.arms[index] = self._followed(self.arms[index], seen)
        if self._spent and seen.stage is not TrialStage.DONE:
            self._stop(index)
            return None
        if _is_over(self.arms[index]):
            return None
        return self._start(index, planned) if seen.stage is TrialStage.ABSENT else self._go_on(planned, seen)

    def _make_schedule(self, index: int, planned: PlannedArm) -> tuple[Action, ...] | None:
        """Settle which schedule an arm measures, and write it down before anything is made of it; None if the arm is over."""
        if self._spent:
            self._stop(index)
            return None
        view, sources = self._view, schedule_making.points_for(self.plan.arms, planned)
        assert view.target is not None  # noqa: S101 - a run without its target has ended before it comes here
        engine = podcopy.engine_of(view.target.engine)
        deaf = schedule_making.ignores_schedules(engine)
        measured = [name for name in sources if self._usable(name) >= MIN_POINTS]
        if deaf is not None:
            self._skip(index, ClusterReason.SCHEDULE_IGNORED, deaf)
            return None
        if len(measured) < 2:
            message = f"a schedule is made from no speculation and one draft length at least; measured: {', '.join(measured)}"
            self._skip(index, ClusterReason.SCHEDULE_NOT_MADE, message)
            return None
        if self.fitted is None or self.fitted.fit.settles != planned.arm:
            return (
                *self._write(f"its schedule is made from {', '.join(measured)}", planned),
                *self._delete_jobs(keep=None),
                self._fit(measured, settles=planned.arm),
            )
        family = planned.candidate or planned.method
        found = schedule_making.drafted(
            self.fitted.outcome,
            family,
            schedule_making.largest_batch(engine),
            schedule_making.zero_draft_tax(view.in_force, family),
            schedule_making.running_schedule(view.target.value, planned),
        )
        if found.schedule is None:
            self._skip(index, found.reason or ClusterReason.SCHEDULE_NOT_MADE, found.message)
            return None
        self.arms[index] = self.arms[index].replace(
            schedule=str(found.schedule), message=found.message[:1024]
        )
        made = EmitEvent(
            self.transition.ref, str(ClusterReason.SCHEDULE_MADE), f"{planned.arm}: {found.message}"[:1024]
        )
        return (
            *self._write(f"schedule {found.message}", planned, ClusterReason.SCHEDULE_MADE),
            *self._delete_jobs(keep=None),
            made,
        )

    def _choose_winner(self, index: int, planned: PlannedArm) -> tuple[Action, ...] | None:
        """Settle which arm starts a second time, and write it down before its Job is made; None if none would win."""
        if self.fitted is None or self.fitted.fit.settles != planned.arm:
            return (
                *self._write(f"chosen from {', '.join(self._fittable)}", planned),
                *self._delete_jobs(keep=None),
                self._fit(self._to_fit, settles=planned.arm),
            )
        answers = self.transition.run.status.answers
        arm, message = second_start.would_win(self.fitted.outcome, answers, self.plan, self.spec)
        if arm is None:
            self._skip(index, ClusterReason.SECOND_START_SKIPPED, message)
            return None
        self.arms[index] = self.arms[index].replace(repeats=arm, message=message[:1024])
        return (
            *self._write(message, planned, ClusterReason.SECOND_START),
            *self._delete_jobs(keep=None),
            EmitEvent(self.transition.ref, str(ClusterReason.SECOND_START), message[:1024]),
        )

    def _skip(self, index: int, reason: ClusterReason, message: str) -> None:
        """Measure nothing, or nothing more, of an arm; the other arms stand."""
        now = self.transition.now
        self.arms[index] = _over(self.arms[index], ArmPhase.SKIPPED, reason, message, now)

    def _refused(self, index: int, planned: PlannedArm) -> str | None:
        """Reason why the target's engine would not start with an arm that was not started yet; None if none is known."""
        target, started = self._view.target, self.arms[index].started_time
        if target is None or started is not None:
            return None
        return refusal_of(planned, podcopy.engine_of(target.engine), self.spec.candidates)

    def _is_asked_for(self, planned: PlannedArm) -> bool:
        """Whether an arm is still a candidate: somebody may have taken it out since the plan was made, to spare its GPU time."""
        if planned.k == 0:
            return True
        family = planned.candidate or planned.method
        method = next((one for one in self.spec.candidates.methods if one.name == family), None)
        if method is None or planned.scheduled:
            return method is not None
        return (planned.k, planned.adaptive) in method.lengths

    def _fit(self, arms: Container[str], settles: str = "") -> Fit:
        return Fit(
            self.transition.ref,
            points_csv(self.transition.run.status, self.plan, arms),
            ("--confidence", f"{self.plan.confidence_percent / 100:g}"),
            settles,
        )

    def _other_image(self, planned: PlannedArm, seen: TrialState) -> tuple[Action, ...]:
        """The tag was moved after the target's pods started: the measured image is not the one that serves."""
        message = (
            f"{planned.arm}: image {self.plan.image} is {', '.join(sorted(seen.images))} on the calibration pod and"
            f" {self.plan.image_digest} on the target's pods: roll the target (kubectl rollout restart), or name the image"
            " by digest"
        )
        return self.transition.finish(RunPhase.FAILED, ClusterReason.IMAGE_CHANGED, message, self._counts())

    @property
    def _view(self) -> RunView:
        return self.transition.view

    @property
    def _used_gpu_s(self) -> float:
        return sum(arm.gpu_seconds_used or 0.0 for arm in self.arms)

    @property
    def _elapsed_s(self) -> float:
        started = self.transition.run.status.started_time or self.transition.now
        return (self.transition.now - started).total_seconds()

    @property
    def _left_s(self) -> float:
        return budget_left_s(self.plan, self._used_gpu_s, self._elapsed_s)

    @property
    def _spent(self) -> bool:
        return self._left_s <= 0

    @property
    def _to_fit(self) -> list[str]:
        """Names of the arms whose points are fitted, second starts included."""
        return [arm.arm for arm in self.arms if arm.reason != ClusterReason.SCHEDULE_IGNORED]

    @property
    def _fittable(self) -> list[str]:
        """Names of the arms with enough points for a law."""
        return [arm for arm in self._to_fit if self._usable(arm) >= MIN_POINTS]

    def _usable(self, arm: str) -> int:
        return sum(point.usable for point in sweep_of(self.transition.run.status.points_of(arm)))

    def _read_trial(self, planned: PlannedArm) -> TrialState:
        job = next(
            (job for job in self._view.jobs if job["metadata"]["name"] == self._job_name(planned)), None
        )
        pods = [
            pod
            for pod in self._view.pods
            if _label(pod, ARM_LABEL) == arm_label(planned.arm) and job is not None and _may_be_of(pod, job)
        ]
        return read_trial(self._view, job, pods, self.plan, self.transition.now)

    def _job_name(self, planned: PlannedArm) -> str:
        return job_name(self.transition.run.metadata.name, planned.arm)

    def _worth_another_start(self, arm: ArmStatus, seen: TrialState) -> bool:
        """Whether the arm's Job is worth another start.

        It is if the pod is gone with its node. It also is if the engine died for the first time, after it had answered, and the
        budget lasts.
        """
        if seen.stage is not TrialStage.BROKEN or self._spent:
            return False
        if seen.reason is ClusterReason.POD_DISRUPTED:
            return arm.attempts < _MAX_ATTEMPTS
        crashed = seen.reason is ClusterReason.ENGINE_CRASHED and seen.ready is not None
        return crashed and arm.attempts <= _MAX_CRASHES

    def _start_over(self, index: int, planned: PlannedArm, seen: TrialState) -> tuple[Action, ...]:
        """Take the Job away whose engine or pod is dead; the next cycle makes it again, and its driver goes on after its points."""
        arm = self._seen(self.arms[index], seen)
        message = f"{seen.message}; starting it once more"
        self.arms[index] = arm.replace(
            phase=ArmPhase.STARTING, reason=str(seen.reason), message=message[:1024]
        )
        return (*self._write(message, planned, seen.reason), *self._delete_jobs(keep=None))

    def _followed(self, arm: ArmStatus, seen: TrialState) -> ArmStatus:
        """The arm's status after a look at its Job."""
        arm = self._seen(arm, seen)
        if seen.stage is TrialStage.DONE:
            return self._measured(arm, seen)
        if seen.stage is TrialStage.BROKEN:
            if seen.reason is ClusterReason.BUDGET_EXHAUSTED:
                return self._measured(arm, seen)
            return _over(
                arm,
                ArmPhase.FAILED,
                seen.reason or ClusterReason.DRIVER_FAILED,
                seen.message,
                seen.ended or self.transition.now,
            )
        if seen.stage is TrialStage.ABSENT:
            if arm.attempts >= _MAX_ATTEMPTS:
                message = f"its Job disappeared {arm.attempts} times"
                return _over(arm, ArmPhase.FAILED, ClusterReason.DRIVER_FAILED, message, self.transition.now)
            return arm
        phase = ArmPhase.MEASURING if seen.stage is TrialStage.MEASURING else ArmPhase.STARTING
        reason = str(seen.reason) if seen.reason is not None else None
        return arm.replace(phase=phase, reason=reason, message=seen.message[:1024] or None)

    def _seen(self, arm: ArmStatus, seen: TrialState) -> ArmStatus:
        """Pod, times and GPU-seconds as far as they are known."""
        return arm.replace(
            pod=seen.pod or arm.pod,
            started_time=arm.started_time or seen.scheduled,
            ready_time=arm.ready_time or seen.ready,
            # Pods that are gone are no longer seen; what they used stays used.
            gpu_seconds_used=max(
                arm.gpu_seconds_used or 0.0,
                (arm.earlier_gpu_seconds or 0.0) + seen.held_s * self.plan.gpus_per_pod,
            ),
        )

    def _measured(self, arm: ArmStatus, seen: TrialState) -> ArmStatus:
        """The arm's Job came to its end: the arm is done if it left enough points for a law."""
        usable = self._usable(arm.arm)
        ended = seen.ended or self.transition.now
        if arm.arm == JUDGE:
            return self._judged(arm, seen, ended)
        if arm.schedule is not None:
            points = measured_of(self.transition.run.status.points_of(arm.arm))
            deaf = schedule_making.ignored(points, Schedule.parse(arm.schedule, arm.arm))
            if deaf is not None:
                return _over(arm, ArmPhase.FAILED, ClusterReason.SCHEDULE_IGNORED, deaf, ended)
        if usable >= _needed(arm):
            reason = seen.reason or ClusterReason.ARM_MEASURED
            return _over(arm, ArmPhase.DONE, reason, f"{usable} usable points", ended)
        reason = seen.reason or ClusterReason.DRIVER_FAILED
        message = f"only {usable} usable points; expected {_needed(arm)} or more"
        return _over(arm, ArmPhase.FAILED, reason, message, ended)

    def _judged(self, arm: ArmStatus, seen: TrialState, ended: datetime) -> ArmStatus:
        """The judge's Job came to its end: it is done if it left a word about an arm."""
        found = self.transition.run.status.answers
        if not found:
            reason = seen.reason or ClusterReason.ANSWERS_NOT_JUDGED
            return _over(arm, ArmPhase.FAILED, reason, seen.message or "no answers were kept to judge", ended)
        message = ", ".join(f"{one.arm}: {one.word}" for one in found)
        return _over(arm, ArmPhase.DONE, ClusterReason.ANSWERS_JUDGED, message, ended)

    def _stop(self, index: int) -> None:
        """The budget is used up: keep the measured points and measure nothing more; every arm is over then."""
        budget = self.plan.budget
        message = (
            f"{self._used_gpu_s:.0f} of {budget.max_gpu_seconds} GPU-seconds and {human_time(self._elapsed_s)} of"
            f" {human_time(budget.max_duration_seconds)} used"
        )
        for later in range(index, len(self.arms)):
            arm = self.arms[later]
            if arm.arm == WINNER_AGAIN and arm.job is None:
                self._skip(later, ClusterReason.SECOND_START_SKIPPED, message)
                continue
            enough = self._usable(arm.arm) >= _needed(arm) or (
                arm.arm == JUDGE and bool(self.transition.run.status.answers)
            )
            phase = ArmPhase.DONE if enough else ArmPhase.FAILED
            self.arms[later] = _over(arm, phase, ClusterReason.BUDGET_EXHAUSTED, message, self.transition.now)

    def _hopeless(self, planned: PlannedArm) -> bool:
        """Without the arm that does not speculate there is nothing to compare with."""
        return planned.arm == NO_SPECULATION.name and self._phase_of(planned) is ArmPhase.FAILED

    def _phase_of(self, planned: PlannedArm) -> ArmPhase | None:
        return next(arm.phase for arm in self.arms if arm.arm == planned.arm)

    def _start(self, index: int, planned: PlannedArm) -> tuple[Action, ...]:
        """Make the arm's Job, once nothing of the run before it still holds a GPU."""
        if not self._view.may_start:
            return (*self._write("waits: spec.paused is true", planned), *self._delete_jobs(keep=None))
        if any(self._holds_a_place(pod) for pod in self._view.pods):
            return (
                *self._write("waits for the arm before it to stop", planned),
                *self._delete_jobs(keep=None),
            )
        limits = self._limits(index)
        try:
            job = build_job(self._view, self.plan, planned, limits)
        except podcopy.NotCopyableError as refusal:
            return self.transition.finish(RunPhase.FAILED, refusal.reason, refusal.message, self._counts())
        name = job["metadata"]["name"]
        self.arms[index] = self.arms[index].replace(
            phase=ArmPhase.STARTING,
            job=name,
            attempts=self.arms[index].attempts + 1,
            earlier_gpu_seconds=self.arms[index].gpu_seconds_used or 0.0,
            reason=str(ClusterReason.ARM_STARTING),
            message=f"at most {human_time(limits.sweep_s)} of measuring",
        )
        return (
            *self._write("the engine starts", planned),
            *self._delete_jobs(keep=name),
            Create(JOBS, job),
            *self._said(index),
        )

    def _holds_a_place(self, pod: Manifest) -> bool:
        """Whether a pod has its GPUs still: not once it has ended, nor when its node is lost."""
        return not is_finished(pod) and not is_gone(pod, self._view.lost_nodes, self.transition.now)

    def _limits(self, index: int) -> TrialLimits:
        return trial_limits(self.plan, tuple(self.arms), index, self._used_gpu_s, self._elapsed_s)

    def _said(self, index: int) -> tuple[Action, ...]:
        """The events about arms that ended before this one: the measured arm, and those skipped after it."""
        before = self.arms[:index]
        skipped = list(takewhile(lambda arm: arm.phase is ArmPhase.SKIPPED, reversed(before)))
        return tuple(
            EmitEvent(
                self.transition.ref,
                str(_WORDS.get(arm.reason or "", ClusterReason.ARM_MEASURED)),
                f"{arm.arm}: {arm.message}"[:1024],
                warning=arm.phase is ArmPhase.FAILED,
            )
            for arm in before[-1 - len(skipped) :]
        )

    def _go_on(self, planned: PlannedArm, seen: TrialState) -> tuple[Action, ...]:
        """Follow the present arm's Job."""
        if seen.stage is TrialStage.MEASURING:
            done = len(self.transition.run.status.points_of(planned.arm))
            message = f"{done} of {self.plan.points_of(planned)} points"
            if planned.judges:
                message = "the answers of all arms are judged"
        elif seen.stage is TrialStage.QUEUED:
            message = seen.message or "its pod waits for a place"
        else:
            message = seen.message or "the engine starts"
        return (
            *self._write(message, planned, seen.reason, measuring=seen.stage is TrialStage.MEASURING),
            *self._delete_jobs(keep=self._job_name(planned)),
            *self._waits(planned, seen),
        )

    def _waits(self, planned: PlannedArm, seen: TrialState) -> tuple[Action, ...]:
        """The event about what an arm's pod has begun to wait for."""
        if seen.reason in {None, ClusterReason.ARM_STARTING, ClusterReason.ARM_MEASURING}:
            return ()
        if self.transition.run.status.reason == seen.reason:
            return ()
        message = f"{planned.arm}: {seen.message}"[:1024]
        return (EmitEvent(self.transition.ref, str(seen.reason), message, warning=True, throttled=True),)

    def _write(
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
                "reason": str(reason or ClusterReason.ARM_STARTING),
                "message": f"{planned.arm}: {message}"[:1024],
            }
        )

    def _end(self) -> tuple[Action, ...]:
        """Every arm is over: fit the points, or say why there is nothing to fit."""
        failed = [arm for arm in self.arms if arm.phase is ArmPhase.FAILED]
        missing = [arm for arm in self.arms if arm.phase in {ArmPhase.FAILED, ArmPhase.SKIPPED}]
        fittable = self._fittable
        if "none" not in fittable or len(fittable) < 2:
            worst = next((arm for arm in failed if arm.arm == "none"), failed[0] if failed else self.arms[0])
            reason = _WORDS.get(worst.reason or "", ClusterReason.CALIBRATION_FAILED)
            message = f"{worst.arm}: {worst.message or reason.meaning}"
            return self.transition.finish(RunPhase.FAILED, reason, message, self._counts())
        names = ", ".join(f"{arm.arm} ({arm.reason})" for arm in missing)
        message = f"fitting {', '.join(fittable)}" + (f"; without {names}" if names else "")
        known = self.transition.run.status.phase is RunPhase.FITTING
        return (
            *self.transition.write(
                {
                    **self._counts(),
                    "phase": RunPhase.FITTING,
                    "reason": str(ClusterReason.CALIBRATION_RUNNING),
                    "message": message[:1024],
                }
            ),
            *self._delete_jobs(keep=None),
            *(() if known else self._said(len(self.arms))),
            self._fit(self._to_fit),
        )

    def _counts(self) -> dict[str, object]:
        return {"arm_statuses": tuple(self.arms), "gpu_seconds_used": self._used_gpu_s}

    def _delete_jobs(self, keep: str | None) -> Iterable[Action]:
        """Delete all Jobs but one, and but those whose answers are still to be judged: answers go with their Job."""
        kept = {keep, *self._unjudged_jobs()}
        return tuple(Delete(job_ref(job)) for job in self._view.jobs if job["metadata"]["name"] not in kept)

    def _unjudged_jobs(self) -> Iterable[str | None]:
        waits = any(arm.arm == JUDGE and not _is_over(arm) for arm in self.arms)
        return (arm.job for arm in self.arms if waits and arm.phase is ArmPhase.DONE)


def _is_over(arm: ArmStatus) -> bool:
    return arm.phase is not None and arm.phase.over


def _needed(arm: ArmStatus) -> int:
    """Usable points with which a trial is done; a second start adds to the points of the first."""
    return 1 if arm.arm == WINNER_AGAIN else MIN_POINTS


def _over(arm: ArmStatus, phase: ArmPhase, reason: ClusterReason, message: str, ended: datetime) -> ArmStatus:
    return arm.replace(phase=phase, reason=str(reason), message=message[:1024], finished_time=ended)


def _label(manifest: Manifest, name: str) -> str | None:
    labels = manifest["metadata"].get("labels") or {}
    return labels.get(name)


def _may_be_of(pod: Manifest, job: Manifest) -> bool:
    """The pod is this Job's, and not one of an earlier Job of the same name that is still being removed."""
    return owner_uid(pod) in {"", job["metadata"].get("uid")}

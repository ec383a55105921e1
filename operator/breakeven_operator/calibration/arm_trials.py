"""The trials of a run in their order: follow the Job of the present one, start the next, fit when all are over."""

from __future__ import annotations

import json
from collections.abc import Container
from dataclasses import dataclass, field

from breakeven.arm import NO_SPECULATION
from breakeven.methods import ADAPTIVE_KEY
from breakeven.phrases import spoken
from breakeven.serving.vllm_versions import arm_hindrances, unknown_words, version_of
from breakeven_operator.actions import Action, Create, DoneFit, EmitEvent, Fit
from breakeven_operator.calibration import schedule_making
from breakeven_operator.calibration.arms_progress import (
    ArmLeftOut,
    ArmsProgress,
    followed,
    is_over,
    seen,
    word_of,
    worth_another_start,
)
from breakeven_operator.calibration.jobs import build_job, job_name
from breakeven_operator.calibration.podcopy import NotCopyableError, engine_of
from breakeven_operator.calibration.transition import Transition, human_time, points_csv
from breakeven_operator.calibration.trial_state import (
    TrialStage,
    TrialState,
    kept_words,
    place_is_held,
    trial_of,
)
from breakeven_operator.cluster_reasons import ClusterReason
from breakeven_operator.kinds import JOBS
from breakeven_operator.resources.calibrationrun import (
    ArmPhase,
    CalibrationPlan,
    PlannedArm,
    RunPhase,
)
from breakeven_operator.resources.candidates import Candidates, SpeculativeMethod, UnknownMethod
from breakeven_operator.resources.speculativeservice import SpeculativeServiceSpec
from breakeven_operator.workloads.served_engine import ServedEngine


@dataclass
class Trials:
    """One cycle of a run that has its plan; `spec` is what the service asks for by now.

    `fitted` is a fit from which the present arm is to be settled; None without one.
    """

    transition: Transition
    plan: CalibrationPlan
    spec: SpeculativeServiceSpec
    fitted: DoneFit | None = None
    progress: ArmsProgress = field(init=False)

    def __post_init__(self) -> None:
        self.progress = ArmsProgress(self.transition, self.plan)

    def go(self) -> tuple[Action, ...]:
        """Follow the present arm, or start the next one, or fit."""
        for index, planned in enumerate(self.plan.arms):
            if is_over(self.progress.arms[index]):
                continue
            if left_out := self._left_out(index, planned):
                self.progress.skip(index, left_out)
                continue
            runs = settled(self.progress, planned)
            if runs is None:
                actions = self._make_schedule(index)
            else:
                actions = JobFollower(self.progress, index, runs).go()
            if actions is not None:
                return actions
            if planned.arm == NO_SPECULATION.name and self.progress.arms[index].phase is ArmPhase.FAILED:
                # Without the arm that does not speculate there is nothing to compare with.
                break
        return self._end()

    def _left_out(self, index: int, planned: PlannedArm) -> ArmLeftOut | None:
        """Why an arm is not measured, or not any further; None if it is."""
        arm = self.progress.arms[index]
        if not is_asked_for(planned, self.spec.candidates):
            message = "the service no longer names it: what was measured of it is left out"
            return ArmLeftOut(ClusterReason.CANDIDATES_CHANGED, message)
        if planned.second_start and arm.job is None and (why := self.progress.no_second_start(planned)):
            return why
        target = self.transition.view.target
        if target is None or arm.started_time is not None:
            return None
        refused = refusal_of(planned, engine_of(target.engine), self.spec.candidates)
        return None if refused is None else ArmLeftOut(ClusterReason.ENGINE_CONFIG_REFUSED, refused)

    def _make_schedule(self, index: int) -> tuple[Action, ...] | None:
        """Choose the schedule that an arm measures, from a fit; None if the arm is over.

        It is written down one cycle before a Job is made of it, so that an operator that dies in between goes on with it.
        """
        progress, planned, fitted = self.progress, self.plan.arms[index], self.fitted
        target = self.transition.view.target
        assert target is not None  # noqa: S101 - a run without its target has ended before it comes here
        engine, family = engine_of(target.engine), planned.candidate or planned.method
        measured = [
            one for one in schedule_making.points_for(self.plan.arms, planned) if progress.has_law(one)
        ]
        if progress.spent:
            progress.stop(index)
            return None
        if deaf := schedule_making.ignores_schedules(engine):
            progress.skip(index, ArmLeftOut(ClusterReason.SCHEDULE_IGNORED, deaf))
            return None
        if len(measured) < 2:
            message = "a schedule is made from no speculation and one draft length at least; measured: "
            progress.skip(index, ArmLeftOut(ClusterReason.FIT_REJECTED, message + ", ".join(measured)))
            return None
        if fitted is None or fitted.fit.settles != planned.arm:
            return (
                *progress.write(f"its schedule is made from {', '.join(measured)}", planned),
                *progress.delete_jobs(keep=None),
                self._fit(measured, settles=planned.arm),
            )
        found = schedule_making.drafted(
            fitted.outcome,
            family,
            schedule_making.largest_batch(engine),
            schedule_making.zero_draft_tax(self.transition.view.in_force, family),
            schedule_making.running_schedule(target.value, planned),
        )
        if found.schedule is None:
            progress.skip(index, ArmLeftOut(found.reason or ClusterReason.FIT_REJECTED, found.message))
            return None
        changes = {"schedule": str(found.schedule), "message": found.message[:1024]}
        progress.arms[index] = progress.arms[index].replace(**changes)
        event = f"{planned.arm}: {found.message}"[:1024]
        return (
            *progress.write(f"schedule {found.message}", planned),
            *progress.delete_jobs(keep=None),
            EmitEvent(self.transition.ref, str(ClusterReason.CALIBRATION_RUNNING), event),
        )

    def _fit(self, arms: Container[str], settles: str = "") -> Fit:
        return Fit(
            self.transition.ref,
            points_csv(self.transition.run.status, self.plan, arms),
            ("--confidence", f"{self.plan.confidence_percent / 100:g}"),
            settles,
        )

    def _end(self) -> tuple[Action, ...]:
        """Every arm is over: fit the points, or say why there is nothing to fit."""
        progress, arms, fittable = self.progress, self.progress.arms, self.progress.fittable
        failed = [arm for arm in arms if arm.phase is ArmPhase.FAILED]
        missing = [arm for arm in arms if arm.phase in {ArmPhase.FAILED, ArmPhase.SKIPPED}]
        if "none" not in fittable or len(fittable) < 2:
            worst = next((arm for arm in failed if arm.arm == "none"), failed[0] if failed else arms[0])
            reason = word_of(worst, ClusterReason.CALIBRATION_FAILED)
            return progress.fail(reason, f"{worst.arm}: {worst.message or reason.meaning}")
        names = ", ".join(f"{spoken(arm.arm)} ({arm.reason})" for arm in missing)
        message = f"fitting {', '.join(map(spoken, fittable))}" + (f"; without {names}" if names else "")
        known = self.transition.run.status.phase is RunPhase.FITTING
        return (
            *progress.write_fitting(message),
            *progress.delete_jobs(keep=None),
            *(() if known else progress.said(len(arms))),
            self._fit(progress.to_fit),
        )


def settled(progress: ArmsProgress, planned: PlannedArm) -> PlannedArm | None:
    """An arm as its engine runs it; None if its schedule is still to be made from the arms before it."""
    if not planned.scheduled:
        return planned
    schedule = progress.schedule_of(planned)
    return None if schedule is None else schedule_making.with_schedule(planned, schedule)


@dataclass(frozen=True, slots=True)
class JobFollower:
    """Follows the Job of one arm in one cycle; the arm is planned as its engine runs it."""

    progress: ArmsProgress
    index: int
    planned: PlannedArm

    def go(self) -> tuple[Action, ...] | None:
        """Follow an arm's Job, or make it; None if the arm is over."""
        progress, status = self.progress, self.progress.transition.run.status
        trial = trial_of(progress.transition, progress.plan, self.planned.arm)
        digest = progress.plan.image_digest
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
        """The tag was moved after the target's pods started: the measured image is not the serving one."""
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
        way, limits = progress.leave_turns(self.index), progress.limits(self.index)
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
            reason=None,
            message=f"at most {human_time(limits.sweep_s)} of measuring",
        )
        return (
            *progress.write("; ".join(filter(None, ("the engine starts", way))), self.planned),
            *progress.delete_jobs(keep=name),
            Create(JOBS, job),
            *([EmitEvent(transition.ref, str(ClusterReason.CALIBRATION_RUNNING), way)] if way else []),
            *progress.said(self.index),
        )

    def _wait(self, message: str) -> tuple[Action, ...]:
        return (*self.progress.write(message, self.planned), *self.progress.delete_jobs(keep=None))

    def _note(self, **changes: object) -> None:
        self.progress.arms[self.index] = self.progress.arms[self.index].replace(**changes)

    def _go_on(self, trial: TrialState) -> tuple[Action, ...]:
        progress, run, planned = self.progress, self.progress.transition.run, self.planned
        measuring = trial.stage is TrialStage.MEASURING
        if measuring:
            wanted = progress.plan.points_of(planned, progress.arms)
            message = f"{len(run.status.points_of(planned.arm))} of {wanted} points"
            if planned.arm == progress.plan.judge:
                message += ", then the answers of all arms are judged"
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
        if trial.reason is None:
            return ()
        if transition.run.status.reason == trial.reason:
            return ()
        message = f"{self.planned.arm}: {trial.message}"[:1024]
        return (EmitEvent(transition.ref, str(trial.reason), message, warning=True, throttled=True),)


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
    if config is None or (method is not None and method.unknown_method is UnknownMethod.ALLOW):
        return None
    version = version_of(str(engine.container.get("image") or ""))
    found = [] if version is None else unknown_words((), config, version)
    found += arm_hindrances(engine.words, config)
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

"""The arms of a run, one after the other: follow the present one's Job, start the next, fit when all are over."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Container, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from breakeven.arm import NO_SPECULATION, Arm
from breakeven.errors import BreakevenError
from breakeven.load_driver.question import EXPECTED_SHARES
from breakeven.methods import ADAPTIVE_KEY
from breakeven.phrases import spoken
from breakeven.planning.best_arm import best_arm
from breakeven.planning.evaluation import LoadQuestion, evaluate
from breakeven.planning.objective import Slo
from breakeven.profile import LoadPoint, Profile
from breakeven.serving.hindrances import arm_hindrances, unknown_words
from breakeven.serving.vllm_versions import version_of
from breakeven_operator.actions import Action, Create, DoneFit, EmitEvent, Fit
from breakeven_operator.calibration import podcopy, schedule_making
from breakeven_operator.calibration.arms_progress import (
    ArmLeftOut,
    ArmsProgress,
    followed,
    is_over,
    seen,
    word_of,
    worth_another_start,
)
from breakeven_operator.calibration.conclusion import with_words
from breakeven_operator.calibration.jobs import build_job, job_name
from breakeven_operator.calibration.measurements import points_csv
from breakeven_operator.calibration.podcopy import NotCopyableError, engine_of
from breakeven_operator.calibration.run_plan import second_start_s
from breakeven_operator.calibration.transition import Transition, human_time
from breakeven_operator.calibration.trial_state import (
    TrialStage,
    TrialState,
    kept_words,
    place_is_held,
    trial_of,
)
from breakeven_operator.cluster_reasons import ClusterReason
from breakeven_operator.kinds import JOBS
from breakeven_operator.reconcile.barred_arms import refuse_answers
from breakeven_operator.reconcile.questions import policy_of
from breakeven_operator.reconcile.steps import RollCost
from breakeven_operator.resources.base import WINNER_AGAIN
from breakeven_operator.resources.calibrationrun import (
    ArmPhase,
    ArmStatus,
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
            runs = settled(self.progress, index)
            if runs is None:
                actions = self._choose(index, planned)
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
        arm, arms = self.progress.arms[index], self.progress.arms
        first = next((one for one in self.plan.arms if one.arm == arm.repeats), planned)
        if not is_asked_for(first, self.spec.candidates):
            message = "the service no longer names it: what was measured of it is left out"
            return ArmLeftOut(ClusterReason.CANDIDATES_CHANGED, message)
        if planned.judges and sum(one.phase is ArmPhase.DONE for one in arms) < 2:
            return ArmLeftOut(ClusterReason.ANSWERS_NOT_JUDGED, "there are no answers of two arms to compare")
        if planned.wins_again and arm.job is None and (hindrance := no_second_start(self.progress)):
            return hindrance
        target = self.transition.view.target
        if target is None or arm.started_time is not None:
            return None
        refused = refusal_of(planned, engine_of(target.engine), self.spec.candidates)
        return None if refused is None else ArmLeftOut(ClusterReason.ENGINE_CONFIG_REFUSED, refused)

    def _choose(self, index: int, planned: PlannedArm) -> tuple[Action, ...] | None:
        """Settle how an arm runs, and write it down before its Job is made; None if the arm is over."""
        progress = self.progress
        if progress.spent:
            progress.stop(index)
            return None
        if planned.wins_again:
            choice = choose_winner(progress, index, self.fitted, self.spec)
        else:
            choice = choose_schedule(progress, index, self.fitted)
        if isinstance(choice, ArmLeftOut):
            progress.skip(index, choice)
            return None
        if isinstance(choice, FitFirst):
            return (
                *progress.write(choice.message, planned),
                *progress.delete_jobs(keep=None),
                self._fit(choice.arms, settles=planned.arm),
            )
        progress.arms[index] = choice.arm
        return (
            *progress.write(choice.message, planned),
            *progress.delete_jobs(keep=None),
            EmitEvent(self.transition.ref, str(ClusterReason.CALIBRATION_RUNNING), choice.event[:1024]),
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


# Arms that are chosen from those measured before them: the schedule of a method, and the arm that starts a second time.
#
# A choice is written down one cycle before a Job is made of it, so that an operator that dies in between goes on with it.


class FitFirst(NamedTuple):
    """Arms whose points are to be fitted before a choice, and how the run says so."""

    arms: Sequence[str]
    message: str


class ChosenArm(NamedTuple):
    """A choice: the arm's status with it, and how the run and an event say it."""

    arm: ArmStatus
    message: str
    event: str


def settled(progress: ArmsProgress, index: int) -> PlannedArm | None:
    """An arm as its engine runs it; None if that is still to be found from the arms before it."""
    planned, arm = progress.plan.arms[index], progress.arms[index]
    if planned.wins_again:
        first = next((at for at, one in enumerate(progress.plan.arms) if one.arm == arm.repeats), None)
        again = settled(progress, first) if first is not None else None
        return again.replace(arm=WINNER_AGAIN) if again is not None else None
    if planned.scheduled:
        return None if arm.schedule is None else schedule_making.with_schedule(planned, arm.schedule)
    return planned


def no_second_start(progress: ArmsProgress) -> ArmLeftOut | None:
    """Why no arm is started a second time; None if one may be."""
    needed_s, left_s = second_start_s(progress.plan, progress.arms), progress.left_s
    if len(progress.fittable) < 2:
        return ArmLeftOut(ClusterReason.ARM_SKIPPED, "there are no two arms to compare")
    if needed_s > left_s:
        message = f"it takes {human_time(needed_s)}, and the budget has {human_time(max(0.0, left_s))} left"
        return ArmLeftOut(ClusterReason.ARM_SKIPPED, message)
    return None


def choose_schedule(
    progress: ArmsProgress, index: int, fitted: DoneFit | None
) -> FitFirst | ArmLeftOut | ChosenArm:
    """Choose the schedule that an arm measures."""
    view, planned = progress.transition.view, progress.plan.arms[index]
    assert view.target is not None  # noqa: S101 - a run without its target has ended before it comes here
    engine = podcopy.engine_of(view.target.engine)
    deaf = schedule_making.ignores_schedules(engine)
    measured = [
        name for name in schedule_making.points_for(progress.plan.arms, planned) if progress.has_law(name)
    ]
    if deaf is not None:
        return ArmLeftOut(ClusterReason.SCHEDULE_IGNORED, deaf)
    if len(measured) < 2:
        message = f"a schedule is made from no speculation and one draft length at least; measured: {', '.join(measured)}"
        return ArmLeftOut(ClusterReason.FIT_REJECTED, message)
    if fitted is None or fitted.fit.settles != planned.arm:
        return FitFirst(measured, f"its schedule is made from {', '.join(measured)}")
    family = planned.candidate or planned.method
    found = schedule_making.drafted(
        fitted.outcome,
        family,
        schedule_making.largest_batch(engine),
        schedule_making.zero_draft_tax(view.in_force, family),
        schedule_making.running_schedule(view.target.value, planned),
    )
    if found.schedule is None:
        return ArmLeftOut(found.reason or ClusterReason.FIT_REJECTED, found.message)
    return ChosenArm(
        progress.arms[index].replace(schedule=str(found.schedule), message=found.message[:1024]),
        f"schedule {found.message}",
        f"{planned.arm}: {found.message}",
    )


def choose_winner(
    progress: ArmsProgress, index: int, fitted: DoneFit | None, spec: SpeculativeServiceSpec
) -> FitFirst | ArmLeftOut | ChosenArm:
    """Choose the arm that starts a second time: of the speculative ones, the winner at most of the expected loads.

    Of equal ones it is the winner at the lowest load. With answers required an arm needs AnswersAgree to be entered. The luck
    of its first start is part of the gain for which an arm is chosen. The points of a second start were chosen by nobody.
    """
    plan, left_out = progress.plan, ClusterReason.ARM_SKIPPED
    if fitted is None or fitted.fit.settles != plan.arms[index].arm:
        return FitFirst(progress.to_fit, f"chosen from {', '.join(progress.fittable)}")
    if fitted.outcome.profile_json is None:
        return ArmLeftOut(left_out, fitted.outcome.error or "the fit gave no reason")
    answers = {one.arm: one for one in progress.transition.run.status.answers}
    try:
        profile = with_words(Profile.from_json(fitted.outcome.profile_json, "fit"), answers)
        arms = [
            fit.arm
            for fit in profile.arms
            if refuse_answers(spec.calibration.answers.check, profile, fit.arm) is None
        ]
        none = next((fit for fit in profile.arms if not fit.k and fit.points), None)
        if none is None or none.saturation_rps is None:
            return ArmLeftOut(left_out, "no speculation has no law to compare with")
        loads = plan.expected_rps or tuple(share * none.saturation_rps for share in EXPECTED_SHARES)
        best = [_best(profile, arms, rps, policy_of(spec, RollCost()).slo) for rps in loads]
    except BreakevenError as error:
        return ArmLeftOut(left_out, str(error))
    speculating = Counter(arm.name for arm in best if arm.k)
    shown = ", ".join(f"{rps:.3g}" for rps in loads)
    if not speculating:
        return ArmLeftOut(left_out, f"no arm would win over no speculation at {shown} requests/s per replica")
    ((name, wins),) = speculating.most_common(1)
    message = f"{name} would win at {wins} of {len(best)}: {shown} requests/s per replica"
    arm = progress.arms[index].replace(repeats=name, message=message[:1024])
    return ChosenArm(arm, message, message)


def _best(profile: Profile, arms: Sequence[Arm], rps: float, slo: Slo) -> Arm:
    """The arm that `plan` would name at a load without an extrapolation.

    Raises:
        NotIdentifiedError: no arm has a law.
    """
    found = best_arm(evaluate(profile, arms, LoadQuestion(LoadPoint(rps=rps), slo=slo)), slo)
    return found.kept or found.arm


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
            reason=None,
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

"""The trials of a run in their order: follow the Job of the present one, start the next, fit when all are over."""

from __future__ import annotations

import json
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import takewhile
from typing import Any

from breakeven.arm import NO_SPECULATION
from breakeven.methods import ADAPTIVE_KEY
from breakeven.phrases import spoken
from breakeven.serving.vllm_versions import arm_hindrances, unknown_words, version_of
from breakeven_operator.actions import Action, Create, Delete, DoneFit, EmitEvent, Fit
from breakeven_operator.calibration import schedule_making
from breakeven_operator.calibration.jobs import TrialLimits, build_job, job_name
from breakeven_operator.calibration.podcopy import NotCopyableError, engine_of
from breakeven_operator.calibration.run_plan import budget_left_s, needed_s, trial_limits
from breakeven_operator.calibration.transition import (
    Transition,
    human_time,
    job_ref,
    points_csv,
    usable_points,
)
from breakeven_operator.calibration.trial_state import (
    HELD_BACK,
    UNDER_WAY,
    TrialStage,
    TrialState,
    followed,
    held_back,
    is_held_back,
    kept_words,
    outlives,
    over,
    place_is_held,
    seen,
    seen_beside,
    stopped,
    trial_of,
    word_of,
    worth_another_start,
)
from breakeven_operator.cluster_reasons import ClusterReason
from breakeven_operator.kinds import JOBS
from breakeven_operator.resources.base import AGAIN
from breakeven_operator.resources.calibrationrun import (
    ArmPhase,
    ArmStatus,
    CalibrationPlan,
    PlannedArm,
    RunPhase,
)
from breakeven_operator.resources.candidates import Candidates, SpeculativeMethod
from breakeven_operator.resources.speculativeservice import SpeculativeServiceSpec
from breakeven_operator.workloads.object_facts import parse_time
from breakeven_operator.workloads.served_engine import ServedEngine
from breakeven_operator.workloads.target import Refusal

# So long a pod may wait for a place while others of its run hold theirs.
_PATIENCE_S = 120


@dataclass
class Trials:
    """One cycle of a run that has its plan: its arms in the plan's order, as they are about to be written.

    `spec` is what the service asks for by now. `fitted` is a fit from which the present arm is to be settled; None without one.
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
            if self.arms[index].over:
                continue
            if left_out := self._left_out(index, planned):
                self._skip(index, left_out)
                continue
            if self.plan.pods_at_once and not planned.scheduled:
                actions = self._go_beside(planned)
            else:
                runs = self._settled(planned)
                actions = self._make_schedule(index) if runs is None else self._follow(index, runs)
            if actions is not None:
                return actions
            if self._without_none:
                # Without the arm that does not speculate there is nothing to compare with.
                break
        return self._end()

    def _left_out(self, index: int, planned: PlannedArm) -> Refusal | None:
        """Why an arm is not measured, or not any further; None if it is."""
        arm = self.arms[index]
        if not is_asked_for(planned, self.spec.candidates):
            message = "the service no longer names it: what was measured of it is left out"
            return Refusal(ClusterReason.CANDIDATES_CHANGED, message)
        if planned.second_start and arm.job is None and (why := self._no_second_start(planned)):
            return why
        target = self.transition.view.target
        if target is None or arm.started_time is not None:
            return None
        refused = refusal_of(planned, engine_of(target.engine), self.spec.candidates)
        return None if refused is None else Refusal(ClusterReason.ENGINE_CONFIG_REFUSED, refused)

    def _make_schedule(self, index: int) -> tuple[Action, ...] | None:
        """Choose the schedule that an arm measures, from a fit; None if the arm is over.

        It is written down one cycle before a Job is made of it, so that an operator that dies in between goes on with it.
        """
        planned, fitted = self.plan.arms[index], self.fitted
        target = self.transition.view.target
        assert target is not None  # noqa: S101 - a run without its target has ended before it comes here
        engine, family = engine_of(target.engine), planned.candidate or planned.method
        measured = [one for one in schedule_making.points_for(self.plan.arms, planned) if self._has_law(one)]
        if self._spent:
            self._stop(index)
            return None
        if deaf := schedule_making.ignores_schedules(engine):
            self._skip(index, Refusal(ClusterReason.SCHEDULE_IGNORED, deaf))
            return None
        if len(measured) < 2:
            message = "a schedule is made from no speculation and one draft length at least; measured: "
            self._skip(index, Refusal(ClusterReason.FIT_REJECTED, message + ", ".join(measured)))
            return None
        if fitted is None or fitted.fit.settles != planned.arm:
            return (
                *self._write(f"its schedule is made from {', '.join(measured)}", planned),
                *self._delete_jobs(),
                self._fit(measured, settles=planned.arm),
            )
        found = schedule_making.drafted(
            fitted.outcome,
            family,
            schedule_making.largest_batch(engine),
            schedule_making.zero_draft_tax(self.transition.view.in_force, family),
            schedule_making.running_schedule(target.value, planned),
        )
        if isinstance(found, Refusal):
            self._skip(index, found)
            return None
        chosen, said = found
        self._note(index, schedule=str(chosen), message=said[:1024])
        event = f"{planned.arm}: {said}"[:1024]
        return (
            *self._write(f"schedule {said}", planned),
            *self._delete_jobs(),
            EmitEvent(self.transition.ref, str(ClusterReason.CALIBRATION_RUNNING), event),
        )

    def _fit(self, arms: Container[str], settles: str = "") -> Fit:
        target = self.transition.view.target
        engine = target.engine if target is not None else None
        most = engine.number("--max-num-seqs") if engine is not None else None
        return Fit(
            self.transition.ref,
            points_csv(self.transition.run.status, self.plan, arms, most),
            ("--confidence", f"{self.plan.confidence_percent / 100:g}"),
            settles,
        )

    def _end(self) -> tuple[Action, ...]:
        """Every arm is over: fit the points, or say why there is nothing to fit."""
        arms, fittable = self.arms, self._fittable
        failed = [arm for arm in arms if arm.phase is ArmPhase.FAILED]
        missing = [arm for arm in arms if arm.phase in {ArmPhase.FAILED, ArmPhase.SKIPPED}]
        if "none" not in fittable or len(fittable) < 2:
            worst = next((arm for arm in failed if arm.arm == "none"), failed[0] if failed else arms[0])
            reason = word_of(worst, ClusterReason.CALIBRATION_FAILED)
            return self._fail(reason, f"{worst.arm}: {worst.message or reason.meaning}")
        names = ", ".join(f"{spoken(arm.arm)} ({arm.reason})" for arm in missing)
        message = f"fitting {', '.join(map(spoken, fittable))}" + (f"; without {names}" if names else "")
        known = self.transition.run.status.phase is RunPhase.FITTING
        return (
            *self._put(RunPhase.FITTING, ClusterReason.CALIBRATION_RUNNING, message),
            *self._delete_jobs(),
            *(() if known else self._said(len(arms))),
            self._fit(self._to_fit),
        )

    # Arms side by side: the Jobs of a stage are made together, and each is followed by itself.

    def _go_beside(self, planned: PlannedArm) -> tuple[Action, ...] | None:
        """Follow the Jobs of all arms beside this one, and make those that are missing; None if all of them are over."""
        trials: dict[int, TrialState] = {}
        beside = set(self.plan.beside(planned))
        for at, one in enumerate(self.plan.arms):
            if one not in beside or self.arms[at].over:
                continue
            if left_out := self._left_out(at, one):
                self._skip(at, left_out)
                continue
            trial = trial_of(self.transition, self.plan, one.arm)
            if self.plan.image_digest and trial.images - {self.plan.image_digest}:
                return self._other_image(one, trial)
            self.arms[at], trials[at] = seen_beside(self.arms[at], trial, self.plan, self.transition)
        for at, trial in trials.items():
            if not self._spent and worth_another_start(self.arms[at], trial):
                message = f"{trial.message}; starting it once more"[:1024]
                self._note(at, phase=ArmPhase.STARTING, reason=str(trial.reason), message=message)
            else:
                status = self.transition.run.status
                self.arms[at] = followed(self.arms[at], trial, status, self.transition.now)
        if self._spent:
            self._stop(0)
        left = {at: trial for at, trial in trials.items() if not self.arms[at].over}
        if not left or self._without_none:
            return None
        held = self._hold_back(left)
        return self._started_beside(left, held)

    def _hold_back(self, left: Mapping[int, TrialState]) -> str:
        """Let arms whose pods get no place beside the others wait until these are over; how the run says so."""
        made = {
            job["metadata"]["name"]: parse_time(job["metadata"].get("creationTimestamp"))
            for job in self.transition.view.jobs
        }
        patience = timedelta(seconds=min(_PATIENCE_S, self.plan.pending_deadline_seconds // 2))
        waiting = [at for at, one in left.items() if one.stage is TrialStage.QUEUED and one.scheduled is None]
        placed = [at for at, one in left.items() if one.stage in UNDER_WAY and at not in waiting]
        late = [
            at
            for at in (waiting if placed else waiting[1:])
            if (since := made.get(str(self.arms[at].job))) and self.transition.now - since > patience
        ]
        self.arms = [held_back(arm) if at in late else arm for at, arm in enumerate(self.arms)]
        return f"{', '.join(self.arms[at].arm for at in late)}: {HELD_BACK}" if late else ""

    def _started_beside(self, left: Mapping[int, TrialState], held: str) -> tuple[Action, ...]:
        """Make the missing Jobs of arms side by side, and write how far each of them is."""
        transition, jobs, said = self.transition, list[dict[str, Any]](), list[str]()
        kept = {at for at, one in left.items() if one.stage in UNDER_WAY and self.arms[at].job}
        absent = [at for at, one in left.items() if one.stage is TrialStage.ABSENT]
        # Arms that found no place come by themselves when the others are over.
        wanted = [at for at in absent if not is_held_back(self.arms[at])]
        wanted = wanted or ([] if kept or held else absent[:1])
        for at, trial in left.items():
            planned = self.plan.arms[at]
            others = [self.plan.arms[other].arm for other in (*kept, *wanted) if other != at]
            if at in wanted and transition.view.may_start and not place_is_held(transition, others):
                limits = trial_limits(self.plan, tuple(self.arms), at, self._used_gpu_s, self._elapsed_s)
                try:
                    jobs.append(build_job(transition.view, self.plan, planned, limits))
                except NotCopyableError as refusal:
                    return self._fail(refusal.reason, refusal.message)
                self._announce(at, jobs[-1]["metadata"]["name"], limits)
                said.append(f"{planned.arm}: the engine starts")
            elif at in kept:
                said.append(f"{planned.arm}: {self._progress(planned, trial)}")
            else:
                said.append(f"{planned.arm}: {self.arms[at].message or 'waits for a place'}")
        reason = next((one.reason for one in left.values() if one.reason is not None), None)
        phase = ArmPhase.MEASURING
        measuring = bool(transition.run.status.points) or any(self.arms[at].phase is phase for at in left)
        names = {str(self.arms[at].job) for at in kept} | {job["metadata"]["name"] for job in jobs}
        return (
            *self._put(
                RunPhase.MEASURING if measuring else RunPhase.STARTING,
                reason or ClusterReason.CALIBRATION_RUNNING,
                "; ".join(said),
            ),
            *self._delete_jobs(*names),
            *(Create(JOBS, job) for job in jobs),
            *([EmitEvent(transition.ref, str(ClusterReason.UNSCHEDULABLE), held[:1024])] if held else []),
        )

    def _settled(self, planned: PlannedArm) -> PlannedArm | None:
        """An arm as its engine runs it; None if its schedule is still to be made from the arms before it."""
        if not planned.scheduled:
            return planned
        schedule = self._status_of(planned.first).schedule
        return None if schedule is None else schedule_making.with_schedule(planned, schedule)

    def _follow(self, index: int, planned: PlannedArm) -> tuple[Action, ...] | None:
        """Follow an arm's Job, or make it; None if the arm is over. The arm is planned as its engine runs it."""
        status = self.transition.run.status
        trial = trial_of(self.transition, self.plan, planned.arm)
        digest = self.plan.image_digest
        if digest is not None and trial.images - {digest}:
            return self._other_image(planned, trial)
        arm = self.arms[index]
        if trial.stage is not TrialStage.ABSENT or arm.attempts:
            again = not self._spent and worth_another_start(arm, trial)
            arm = self.arms[index] = seen(arm, trial, self.plan.gpus_per_pod)
            if again:
                return self._start_over(index, planned, trial)
            self.arms[index] = followed(arm, trial, status, self.transition.now)
        if self._spent and trial.stage is not TrialStage.DONE:
            self._stop(index)
            return None
        if self.arms[index].over:
            return None
        return (
            self._start(index, planned) if trial.stage is TrialStage.ABSENT else self._go_on(planned, trial)
        )

    def _other_image(self, planned: PlannedArm, trial: TrialState) -> tuple[Action, ...]:
        """The tag was moved after the target's pods started: the measured image is not the serving one."""
        plan = self.plan
        message = (
            f"{planned.arm}: image {plan.image} is {', '.join(sorted(trial.images))} on the calibration pod and"
            f" {plan.image_digest} on the target's pods: roll the target (kubectl rollout restart), or name the image"
            " by digest"
        )
        return self._fail(ClusterReason.IMAGE_CHANGED, message)

    def _start_over(self, index: int, planned: PlannedArm, trial: TrialState) -> tuple[Action, ...]:
        """Take the Job away whose engine or pod is dead; the next cycle makes it again, and its driver goes on after its points."""
        message = f"{trial.message}; starting it once more"
        self._note(index, phase=ArmPhase.STARTING, reason=str(trial.reason), message=message[:1024])
        return (*self._write(message, planned, trial.reason), *self._delete_jobs())

    def _start(self, index: int, planned: PlannedArm) -> tuple[Action, ...]:
        """Make the arm's Job, once nothing of the run before it still holds a GPU."""
        transition = self.transition
        if not transition.view.may_start:
            return self._wait(planned, "waits: spec.paused is true")
        if place_is_held(transition):
            return self._wait(planned, "waits for the arm before it to stop")
        way = self._leave_turns(index)
        limits = trial_limits(self.plan, tuple(self.arms), index, self._used_gpu_s, self._elapsed_s)
        try:
            job = build_job(transition.view, self.plan, planned, limits)
        except NotCopyableError as refusal:
            return self._fail(refusal.reason, refusal.message)
        name = job["metadata"]["name"]
        self._announce(index, name, limits)
        return (
            *self._write("; ".join(filter(None, ("the engine starts", way))), planned),
            *self._delete_jobs(name),
            Create(JOBS, job),
            *([EmitEvent(transition.ref, str(ClusterReason.CALIBRATION_RUNNING), way)] if way else []),
            *self._said(index),
        )

    def _announce(self, index: int, job: str, limits: TrialLimits) -> None:
        """Say that an arm's Job is made: in the status before there is one."""
        arm = self.arms[index]
        self._note(
            index,
            phase=ArmPhase.STARTING,
            job=job,
            attempts=arm.attempts + 1,
            earlier_gpu_seconds=arm.gpu_seconds_used or 0.0,
            reason=None,
            message=f"at most {human_time(limits.sweep_s)} of measuring",
        )

    def _wait(self, planned: PlannedArm, message: str) -> tuple[Action, ...]:
        return (*self._write(message, planned), *self._delete_jobs())

    def _note(self, index: int, **changes: object) -> None:
        self.arms[index] = self.arms[index].replace(**changes)

    def _go_on(self, planned: PlannedArm, trial: TrialState) -> tuple[Action, ...]:
        message, measuring = self._progress(planned, trial), trial.stage is TrialStage.MEASURING
        return (
            *self._write(message, planned, trial.reason, measuring=measuring),
            *self._delete_jobs(job_name(self.transition.run.metadata.name, planned.arm)),
            *self._waits(planned, trial),
        )

    def _progress(self, planned: PlannedArm, trial: TrialState) -> str:
        if trial.stage is TrialStage.MEASURING:
            wanted = self.plan.points_of(planned, self.arms)
            message = f"{len(self.transition.run.status.points_of(planned.arm))} of {wanted} points"
            if planned.arm == self.plan.judge:
                message += ", then the answers of all arms are judged"
            return message
        if trial.stage is TrialStage.QUEUED:
            kept = kept_words(self.transition.view.pods, self.transition.now)
            return "; ".join(filter(None, (trial.message or "its pod waits for a place", kept)))
        return trial.message or "the engine starts"

    def _waits(self, planned: PlannedArm, trial: TrialState) -> tuple[Action, ...]:
        """The event about what the arm's pod has begun to wait for."""
        transition = self.transition
        if trial.reason is None:
            return ()
        if transition.run.status.reason == trial.reason:
            return ()
        message = f"{planned.arm}: {trial.message}"[:1024]
        return (EmitEvent(transition.ref, str(trial.reason), message, warning=True, throttled=True),)

    @property
    def _without_none(self) -> bool:
        """Whether no speculation failed; beside others it may have left points to compare with."""
        failed = self._status_of(NO_SPECULATION.name).phase is ArmPhase.FAILED
        return failed and not (self.plan.pods_at_once and self._has_law(NO_SPECULATION.name))

    @property
    def _left_s(self) -> float:
        """Seconds of one pod for which the budget lasts; below 0 once it is overdrawn."""
        return budget_left_s(self.plan, self._used_gpu_s, self._elapsed_s)

    @property
    def _spent(self) -> bool:
        """Whether the budget is used up."""
        return self._left_s <= 0

    @property
    def _to_fit(self) -> list[str]:
        """Names of the arms whose points are fitted, second starts included."""
        return [arm.arm for arm in self.arms if arm.reason != ClusterReason.SCHEDULE_IGNORED]

    @property
    def _fittable(self) -> list[str]:
        """Names of the arms with a usable point."""
        return [arm for arm in self._to_fit if not arm.endswith(AGAIN) and self._has_law(arm)]

    def _has_law(self, arm: str) -> bool:
        """Whether an arm has a usable point."""
        return usable_points(self.transition.run.status.points_of(arm)) > 0

    def _no_second_start(self, planned: PlannedArm) -> Refusal | None:
        """Why an arm is not started a second time; None if it is."""
        judge, first = self.plan.judge, self._status_of(planned.first)
        if len(self._fittable) < 2:
            word = ClusterReason.ANSWERS_NOT_JUDGED if planned.arm == judge else ClusterReason.ARM_SKIPPED
            return Refusal(word, "there are no two arms to compare")
        if first.phase is not ArmPhase.DONE:
            return Refusal(ClusterReason.ARM_SKIPPED, "its first start was not measured")
        # Without a word about its answers an arm may be barred, so their judge has whatever is left.
        short = "" if planned.arm == judge else self._short_of({planned.arm, judge})
        return Refusal(ClusterReason.ARM_SKIPPED, f"second starts {short}") if short else None

    def _leave_turns(self, index: int) -> str:
        """Give the second starts of speculative arms up if the budget does not hold them, before a first start; how the run says so.

        The arms that are still to come are measured as a whole then.
        """
        if not index or self.plan.arms[index].second_start or self.arms[index].attempts:
            return ""
        again = [at for at, one in enumerate(self.plan.arms) if one.second_start and one.k]
        again = [at for at in again if not self.arms[at].over]
        if not again or not (short := self._short_of(None)):
            return ""
        message = f"one after the other from here: arms in turns {short}"
        for at in again:
            self._skip(at, Refusal(ClusterReason.ARM_SKIPPED, message))
        return message

    def _short_of(self, trials: Container[str | None] | None) -> str:
        """What these trials still take and the budget has, as a clause; empty if the budget has enough."""
        status = self.transition.run.status.replace(arm_statuses=tuple(self.arms))
        needs_s, left_s = needed_s(status, self.plan, self.transition.now, trials), self._left_s
        if needs_s <= left_s:
            return ""
        return f"take {human_time(needs_s)}, and the budget has {human_time(max(0.0, left_s))} left"

    def _status_of(self, name: str) -> ArmStatus:
        return next(arm for arm in self.arms if arm.arm == name)

    def _skip(self, index: int, why: Refusal) -> None:
        """Measure nothing, or nothing more, of an arm; the other arms stand."""
        self.arms[index] = over(
            self.arms[index], ArmPhase.SKIPPED, why.reason, why.message, self.transition.now
        )

    def _stop(self, index: int) -> None:
        """The budget is used up: keep the measured points and measure nothing more; every arm is over then."""
        budget = self.plan.budget
        message = (
            f"{self._used_gpu_s:.0f} of {budget.max_gpu_seconds} GPU-seconds and {human_time(self._elapsed_s)} of"
            f" {human_time(budget.max_duration_seconds)} used"
        )
        status, now = self.transition.run.status, self.transition.now
        self.arms[index:] = [
            arm if arm.over else stopped(arm, status, message, now) for arm in self.arms[index:]
        ]

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
        phase = RunPhase.MEASURING if measuring else RunPhase.STARTING
        return self._put(phase, reason or ClusterReason.CALIBRATION_RUNNING, f"{planned.arm}: {message}")

    def _put(self, phase: RunPhase, reason: ClusterReason, message: str) -> tuple[Action, ...]:
        changes = {"phase": phase, "reason": str(reason), "message": message[:1024]}
        written = self.transition.write({**self._counts(), **changes})
        if self.plan.pods_at_once is None:
            return written
        before = {arm.arm for arm in self.transition.run.status.arm_statuses if arm.over}
        return (*written, *self._events(arm for arm in self.arms if arm.over and arm.arm not in before))

    def _fail(self, reason: ClusterReason, message: str) -> tuple[Action, ...]:
        """End the run without a profile."""
        return self.transition.finish(RunPhase.FAILED, reason, message, self._counts())

    def _said(self, index: int) -> tuple[Action, ...]:
        """The events about arms that ended before this one: the measured arm, and those skipped after it."""
        if self.plan.pods_at_once is not None:
            return ()
        before = self.arms[:index]
        skipped = list(takewhile(lambda arm: arm.phase is ArmPhase.SKIPPED, reversed(before)))
        return self._events(before[-1 - len(skipped) :])

    def _events(self, ended: Iterable[ArmStatus]) -> tuple[Action, ...]:
        return tuple(
            EmitEvent(
                self.transition.ref,
                str(word_of(arm, ClusterReason.ARM_MEASURED)),
                f"{arm.arm}: {arm.message}"[:1024],
                warning=arm.phase is ArmPhase.FAILED,
            )
            for arm in ended
        )

    def _delete_jobs(self, *keep: str) -> tuple[Action, ...]:
        """Delete all other Jobs but those whose answers are still to be judged: answers go with their Job."""
        kept = {*keep, *self._unjudged_jobs()}
        jobs = self.transition.view.jobs
        return tuple(Delete(job_ref(job)) for job in jobs if job["metadata"]["name"] not in kept)

    def _unjudged_jobs(self) -> Iterable[str | None]:
        judge = any(arm.arm == self.plan.judge and not arm.over for arm in self.arms)
        # Second starts look for other machines than the pods of the first ones had.
        again = any(arm.arm.endswith(AGAIN) and not (arm.job or arm.over) for arm in self.arms)
        waits = judge or (again and self.plan.pods_at_once is not None)
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

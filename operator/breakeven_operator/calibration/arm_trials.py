"""The arms of a run, one after the other: follow the present one's Job, start the next, fit when all are over."""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass, field

from breakeven.arm import NO_SPECULATION
from breakeven.phrases import spoken
from breakeven_operator.actions import Action, DoneFit, EmitEvent, Fit
from breakeven_operator.calibration.arm_choices import (
    FitFirst,
    choose_schedule,
    choose_winner,
    no_second_start,
    settled,
)
from breakeven_operator.calibration.arm_outcome import is_over, word_of
from breakeven_operator.calibration.arms_progress import ArmLeftOut, ArmsProgress
from breakeven_operator.calibration.job_following import JobFollower
from breakeven_operator.calibration.measurements import points_csv
from breakeven_operator.calibration.podcopy import engine_of
from breakeven_operator.calibration.refused_arms import is_asked_for, refusal_of
from breakeven_operator.calibration.transition import Transition
from breakeven_operator.cluster_reasons import ClusterReason
from breakeven_operator.resources.calibrationrun import ArmPhase, CalibrationPlan, PlannedArm, RunPhase
from breakeven_operator.resources.speculativeservice import SpeculativeServiceSpec


@dataclass
class Trials:
    """One cycle of a run that has its plan.

    Attributes:
        transition: the cycle.
        plan: what is measured.
        spec: what the service asks for by now.
        fitted: a fit from which the present arm is to be settled; None without one.
        progress: how each arm goes.
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
            *progress.write(choice.message, planned, choice.reason),
            *progress.delete_jobs(keep=None),
            EmitEvent(self.transition.ref, str(choice.reason), choice.event[:1024]),
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

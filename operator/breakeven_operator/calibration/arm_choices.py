"""Arms that are chosen from those measured before them: the schedule of a method, and the arm that starts a second time.

A choice is written down one cycle before a Job is made of it, so that an operator that dies in between goes on with it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from breakeven_operator.actions import DoneFit
from breakeven_operator.calibration import podcopy, schedule_making
from breakeven_operator.calibration.arms_progress import ArmLeftOut, ArmsProgress
from breakeven_operator.calibration.display import human_time
from breakeven_operator.calibration.run_plan import second_start_s
from breakeven_operator.calibration.second_start import would_win
from breakeven_operator.cluster_reasons import ClusterReason
from breakeven_operator.resources.base import WINNER_AGAIN
from breakeven_operator.resources.calibrationrun import ArmStatus, PlannedArm
from breakeven_operator.resources.speculativeservice import SpeculativeServiceSpec


class FitFirst(NamedTuple):
    """Arms whose points are to be fitted before a choice, and how the run says so."""

    arms: Sequence[str]
    message: str


class ChosenArm(NamedTuple):
    """A choice.

    Attributes:
        arm: status of the arm, with the choice.
        reason: word of the choice.
        message: how the run says it.
        event: how an event says it.
    """

    arm: ArmStatus
    reason: ClusterReason
    message: str
    event: str


def settled(progress: ArmsProgress, index: int) -> PlannedArm | None:
    """An arm as its engine runs it; None if that is still to be found from the arms before it."""
    planned, arm = progress.plan.arms[index], progress.arms[index]
    if planned.wins_again:
        return _started_again(progress, arm.repeats)
    if planned.scheduled:
        return None if arm.schedule is None else schedule_making.with_schedule(planned, arm.schedule)
    return planned


def _started_again(progress: ArmsProgress, repeats: str | None) -> PlannedArm | None:
    """The arm of this name as it is started a second time; None if the run has no such arm."""
    for first, arm in zip(progress.plan.arms, progress.arms, strict=True):
        if first.arm == repeats:
            table = arm.schedule
            whole = first if table is None else schedule_making.with_schedule(first, table)
            return whole.replace(arm=WINNER_AGAIN)
    return None


def no_second_start(progress: ArmsProgress) -> ArmLeftOut | None:
    """Why no arm is started a second time; None if one may be."""
    needed_s, left_s = second_start_s(progress.plan, progress.arms), progress.left_s
    if len(progress.fittable) < 2:
        return ArmLeftOut(ClusterReason.SECOND_START_SKIPPED, "there are no two arms to compare")
    if needed_s > left_s:
        message = f"it takes {human_time(needed_s)}, and the budget has {human_time(max(0.0, left_s))} left"
        return ArmLeftOut(ClusterReason.SECOND_START_SKIPPED, message)
    return None


def choose_schedule(
    progress: ArmsProgress, index: int, fitted: DoneFit | None
) -> FitFirst | ArmLeftOut | ChosenArm:
    """Choose the schedule that an arm measures.

    Args:
        progress: of the run.
        index: number of the arm.
        fitted: a fit from which the present arm is to be settled; None without one.
    """
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
        return ArmLeftOut(ClusterReason.SCHEDULE_NOT_MADE, message)
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
        return ArmLeftOut(found.reason or ClusterReason.SCHEDULE_NOT_MADE, found.message)
    return ChosenArm(
        progress.arms[index].replace(schedule=str(found.schedule), message=found.message[:1024]),
        ClusterReason.SCHEDULE_MADE,
        f"schedule {found.message}",
        f"{planned.arm}: {found.message}",
    )


def choose_winner(
    progress: ArmsProgress, index: int, fitted: DoneFit | None, spec: SpeculativeServiceSpec
) -> FitFirst | ArmLeftOut | ChosenArm:
    """Choose the arm that starts a second time.

    Args:
        progress: of the run.
        index: number of the second start among the arms.
        fitted: a fit from which the present arm is to be settled; None without one.
        spec: what the service asks for by now.
    """
    if fitted is None or fitted.fit.settles != progress.plan.arms[index].arm:
        return FitFirst(progress.to_fit, f"chosen from {', '.join(progress.fittable)}")
    answers = progress.transition.run.status.answers
    name, message = would_win(fitted.outcome, answers, progress.plan, spec)
    if name is None:
        return ArmLeftOut(ClusterReason.SECOND_START_SKIPPED, message)
    arm = progress.arms[index].replace(repeats=name, message=message[:1024])
    return ChosenArm(arm, ClusterReason.SECOND_START, message, message)

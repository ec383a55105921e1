"""Columns that `kubectl get calrun` prints while a run goes on."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

from breakeven.load_driver.design import LOADS_AGAIN, Line, line_through
from breakeven.phrases import figure
from breakeven_operator.calibration.measurements import sweep_of
from breakeven_operator.resources.base import SECOND_STARTS
from breakeven_operator.resources.calibrationrun import (
    ArmPhase,
    CalibrationPlan,
    CalibrationRunStatus,
    RunDisplay,
    RunPhase,
)


def run_display(status: CalibrationRunStatus, now: datetime, break_even: str | None = None) -> RunDisplay:
    """The columns of one run.

    Args:
        status: as it is about to be written.
        now: the present.
        break_even: the fitted figure with its bounds, once there is one.
    """
    plan = status.plan
    if plan is None:
        return RunDisplay()
    current = next(
        (
            arm.arm if arm.repeats is None else f"{arm.repeats} again"
            for arm in status.arm_statuses
            if arm.phase in {ArmPhase.STARTING, ArmPhase.MEASURING}
        ),
        None,
    )
    over = status.phase is not None and status.phase.final
    return RunDisplay(
        arm=None if over else current,
        points=f"{len(status.points)}/{status.planned_points}",
        gpu_seconds=f"{status.gpu_seconds_used or 0:.0f}/{plan.budget.max_gpu_seconds}",
        break_even=break_even or (None if over else rough_break_even(status, plan)),
        left=None if over else human_time(seconds_left(status, plan, now)),
    )


def seconds_left(status: CalibrationRunStatus, plan: CalibrationPlan, now: datetime) -> float:
    """Estimate of the time to the end of measuring, from how long engines and points took so far."""
    starts = [
        (arm.ready_time - arm.started_time).total_seconds()
        for arm in status.arm_statuses
        if arm.ready_time and arm.started_time
    ]
    start_s = sum(starts) / len(starts) if starts else 0.0
    durations: list[float] = []
    for arm in status.arm_statuses:
        points = status.points_of(arm.arm)
        times = [point.time for point in points if point.time is not None]
        # The short points at other lengths count as part of the others: arms to come have them too.
        if arm.ready_time and times and (loads := len(sweep_of(points))):
            durations.append((max(times) - arm.ready_time).total_seconds() / loads)
    point_s = sum(durations) / len(durations) if durations else plan.point_seconds + plan.warmup_seconds
    left_s = 0.0
    for arm in status.arm_statuses:
        if arm.phase is not None and arm.phase.over:
            continue
        points = status.points_of(arm.arm)
        wanted = LOADS_AGAIN if arm.arm in SECOND_STARTS else plan.loads
        left_s += max(0, wanted - len(sweep_of(points))) * point_s
        if arm.phase is not ArmPhase.MEASURING:
            left_s += start_s
        elif points and (last := points[-1].time) is not None:
            left_s -= min(point_s, max(0.0, (now - last).total_seconds()))
    if status.phase is RunPhase.FITTING:
        return 1.0
    gpus = max(1, plan.gpus_per_pod)
    budget_s = (plan.budget.max_gpu_seconds - (status.gpu_seconds_used or 0.0)) / gpus
    return max(0.0, min(left_s, budget_s))


def rough_break_even(status: CalibrationRunStatus, plan: CalibrationPlan) -> str | None:
    """The break-even of the best arm so far by straight lines through its points, marked as rough; no bounds yet."""
    lines: Mapping[str, Line] = {
        arm.arm: line
        for arm in plan.arms
        if len(points := sweep_of(status.points_of(arm.arm))) >= 3
        and (line := line_through(points)) is not None
    }
    dense = lines.get("none")
    rates = [
        (dense.c1_s - line.c1_s) / slope
        for arm, line in lines.items()
        if dense is not None
        and arm != "none"
        and line.c1_s < dense.c1_s
        and (slope := dense.c1_s * line.c2_s - line.c1_s * dense.c2_s) > 0
    ]
    reachable = [rate for rate in rates if dense is not None and rate < dense.saturation_rps]
    return f"~{figure(max(reachable), 2)} rps" if reachable else None


def human_time(seconds: float) -> str:
    """`40s`, `3m`, `1h20m`: as kubectl prints ages."""
    if seconds < 90:
        return f"{seconds:.0f}s"
    minutes = round(seconds / 60)
    return f"{minutes}m" if minutes < 90 else f"{minutes // 60}h{minutes % 60:02d}m"

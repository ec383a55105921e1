"""Worth of speculation to a service: request time by the comparisons of its rolls, GPUs by the capacities of its arms. Pure.

Nothing here is a promise. Request time counts only for an arm whose last roll was measured. The operator changes no number of
replicas, so GPUs that are not needed are saved only if an autoscaler or a person removes them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import pairwise

from breakeven.arm import NO_SPECULATION
from breakeven.estimate import Estimate
from breakeven.planning.capacity import replicas_for
from breakeven_operator.board.load_trail import LoadSample
from breakeven_operator.resources import SpeculativeService
from breakeven_operator.resources.capacitystatus import ArmCapacity
from breakeven_operator.resources.rolloutstatus import HistoryEntry

# Two samples that are further apart are no course of a load.
_LONGEST_GAP_S = 3600.0
_NOTHING = Estimate(0.0, 0.0, 0.0)


@dataclass(frozen=True, slots=True)
class RequestTime:
    """Request time that the running arm has saved; below 0 it was lost.

    Attributes:
        seconds: sum over all requests.
        against: the arm that ran before.
        since: begin of the loads that were seen: the roll, or the start of this operator.
        until: the newest load.
    """

    seconds: Estimate
    against: str
    since: datetime
    until: datetime


@dataclass(frozen=True, slots=True)
class GpuNeed:
    """GPUs that a load does not need because of an arm; below 0 it needs more.

    Attributes:
        gpus: with bounds from both capacities.
        arm: the arm. runs: whether it runs already.
        fleet_rps: the load of all replicas together.
        expected: whether that is the highest load that is expected, or the present one.
    """

    gpus: Estimate
    arm: str
    runs: bool
    fleet_rps: float
    expected: bool


@dataclass(frozen=True, slots=True)
class ServiceWorth:
    """Gain and cost of one service.

    Attributes:
        request_time: None: no roll to the running arm was measured, or no load was seen since.
        gpu_need: None: capacities or load are not known.
        calibration_gpu_hours: of the last calibration; None: not known.
        rolls: that ended and that the status still lists. roll_hours: how long they took together.
    """

    request_time: RequestTime | None
    gpu_need: GpuNeed | None
    calibration_gpu_hours: float | None
    rolls: int
    roll_hours: float


@dataclass(frozen=True, slots=True)
class FleetWorth:
    """Sums over services.

    Attributes:
        request_seconds: lower bounds and upper bounds are summed: all services at their worst, and at their best.
        measured: services behind it.
        gpus: of services that speculate. counted: services behind it.
        calibration_gpu_hours: of each service's last calibration; None: none is known. calibrated: services behind it.
    """

    request_seconds: Estimate
    measured: int
    gpus: Estimate
    counted: int
    calibration_gpu_hours: float | None
    calibrated: int


def worth_of(service: SpeculativeService, trail: Sequence[LoadSample]) -> ServiceWorth:
    """Gain and cost of a service by its status and the loads that were seen."""
    state, history = service.status.calibration, service.status.history
    used = state.gpu_seconds_used if state is not None else None
    return ServiceWorth(
        request_time=request_time(service, trail),
        gpu_need=gpu_need(service),
        calibration_gpu_hours=None if used is None else used / 3600.0,
        rolls=len(history),
        roll_hours=sum(one.seconds or 0.0 for one in history) / 3600.0,
    )


def sum_of(worths: Iterable[ServiceWorth]) -> FleetWorth:
    """Gain and cost of many services."""
    every = tuple(worths)
    times = [one.request_time.seconds for one in every if one.request_time is not None]
    gpus = [one.gpu_need.gpus for one in every if one.gpu_need is not None and one.gpu_need.runs]
    used = [one.calibration_gpu_hours for one in every if one.calibration_gpu_hours is not None]
    return FleetWorth(
        request_seconds=_sum(times),
        measured=len(times),
        gpus=_sum(gpus),
        counted=len(gpus),
        calibration_gpu_hours=sum(used) if used else None,
        calibrated=len(used),
    )


def request_time(service: SpeculativeService, trail: Sequence[LoadSample]) -> RequestTime | None:
    """Request time saved since the last roll: requests in flight, times the measured speedup less 1, over time.

    With the arm a load keeps `inflight` requests in flight; with the arm before it kept speedup times as many (Little's law).
    """
    roll = _measured_roll(service)
    if roll is None or roll.measured_speedup is None:
        return None
    seen = [one for one in trail if one.time_s >= roll.time.timestamp() and math.isfinite(one.inflight)]
    inflight_s = sum(
        (later.time_s - earlier.time_s) * (earlier.inflight + later.inflight) / 2.0
        for earlier, later in pairwise(seen)
        if later.time_s - earlier.time_s <= _LONGEST_GAP_S
    )
    if len(seen) < 2 or inflight_s <= 0.0:
        return None
    ends = (roll.measured_speedup, roll.measured_speedup_lower, roll.measured_speedup_upper)
    saved = (None if end is None or not math.isfinite(end) else inflight_s * (end - 1.0) for end in ends)
    first, last = (datetime.fromtimestamp(one.time_s, UTC) for one in (seen[0], seen[-1]))
    return RequestTime(Estimate(*saved), roll.from_arm or "?", first, last)


def _measured_roll(service: SpeculativeService) -> HistoryEntry | None:
    """The last roll, if it led to the arm that runs and was measured."""
    current, history = service.status.current, service.status.history
    if current is None or not history or service.status.rollout is not None:
        return None
    last = history[0]
    stays = last.to_arm == current.arm and last.measured_speedup is not None
    return last if stays and math.isfinite(last.measured_speedup or math.nan) else None


def gpu_need(service: SpeculativeService) -> GpuNeed | None:
    """GPUs that the expected load does not need because of the running arm, else because of the recommended one."""
    status = service.status
    capacities = {one.arm: one for one in status.capacity.arms} if status.capacity is not None else {}
    plain = capacities.get(NO_SPECULATION.name)
    running = status.current.arm if status.current is not None else None
    wanted = status.decision.arm if status.decision is not None else None
    arm = running if running not in {None, NO_SPECULATION.name} else wanted
    load = _load_to_carry(service)
    if arm is None or arm == NO_SPECULATION.name or plain is None or arm not in capacities or load is None:
        return None
    fleet_rps, expected = load
    gpus_each = (status.target.gpus_per_pod if status.target is not None else None) or 0
    spared = _spared(fleet_rps, plain, capacities[arm])
    if not gpus_each or spared is None:
        return None
    return GpuNeed(spared.times(gpus_each), arm, arm == running, fleet_rps, expected)


def _load_to_carry(service: SpeculativeService) -> tuple[float, bool] | None:
    """Load of all replicas together, and whether it is the highest that is expected; None where none is known."""
    status = service.status
    replicas = (status.target.ready_replicas if status.target is not None else None) or 0
    peak = status.decision.expected_peak_rps if status.decision is not None else None
    if peak is not None and replicas and math.isfinite(peak) and peak > 0.0:
        return peak * replicas, True
    now = status.capacity.fleet_load_rps if status.capacity is not None else None
    return (now, False) if now is not None and math.isfinite(now) and now > 0.0 else None


def _spared(fleet_rps: float, plain: ArmCapacity, arm: ArmCapacity) -> Estimate | None:
    """Replicas fewer with the arm; the worst case takes the bounds of both that are against it."""

    def replicas(rps: float | None) -> int | None:
        return replicas_for(fleet_rps, rps) if rps is not None and rps > 0.0 and math.isfinite(rps) else None

    def fewer(without: float | None, with_it: float | None) -> float | None:
        more, less = replicas(without), replicas(with_it)
        return None if more is None or less is None else float(more - less)

    value = fewer(plain.capacity_rps, arm.capacity_rps)
    if value is None:
        return None
    return Estimate(value, fewer(plain.upper_rps, arm.lower_rps), fewer(plain.lower_rps, arm.upper_rps))


def _sum(parts: Sequence[Estimate]) -> Estimate:
    """Sum of figures, of lower and of upper bounds; a bound that one of them lacks is lacking."""

    def total(ends: Sequence[float | None]) -> float | None:
        known = [end for end in ends if end is not None]
        return sum(known) if len(known) == len(ends) else None

    if not parts:
        return _NOTHING
    return Estimate(
        total([one.value for one in parts]),
        total([one.lower for one in parts]),
        total([one.upper for one in parts]),
    )

"""Worth of speculation to a service: request time by the comparison of its last roll, GPUs by the capacities of its arms. Pure.

Nothing here is a promise. Request time counts only for an arm whose last roll was measured. The operator changes no number of
replicas, so GPUs that are not needed are saved only if an autoscaler or a person removes them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from breakeven.arm import NO_SPECULATION
from breakeven.estimate import Estimate
from breakeven.phrases import column, spoken
from breakeven.planning.capacity import replicas_for
from breakeven.serving.counted_window import Load
from breakeven_operator.cluster_reasons import ClusterReason
from breakeven_operator.resources import SpeculativeServiceStatus
from breakeven_operator.resources.figures import bounded
from breakeven_operator.resources.memorystatus import InflightTime
from breakeven_operator.resources.servicestatus import ArmCapacity, SavingsStatus
from breakeven_operator.resources.targetstatus import ControlStatus, HistoryEntry, HistoryResult

# Two windows that are further apart are no course of a load.
_LONGEST_GAP_S = 3600.0


@dataclass(frozen=True, slots=True)
class GpuNeed:
    """GPUs that a load does not need because of an arm, with bounds from both capacities; below 0 it needs more.

    `runs` is whether the arm runs already. `fleet_rps` is the highest load of all replicas that is `expected`, or the present one.
    """

    gpus: Estimate
    arm: str
    runs: bool
    fleet_rps: float
    expected: bool


def inflight_time(
    status: SpeculativeServiceStatus, before: InflightTime | None, figures: Load | None, now: datetime
) -> InflightTime | None:
    """Requests in flight over time since the last roll, with this window; None if that roll's gain is not known.

    `before` reaches up to the last window; `figures` are of all pods.
    """
    if status.current is None:
        # The target could not be read: its pods go on.
        return before
    roll = measured_roll(status)
    if roll is None:
        return None
    if before is not None and before.since < roll.time:
        before = None
    if figures is None or figures.inflight is None or not math.isfinite(figures.inflight):
        return before
    time, inflight = now - timedelta(seconds=figures.age_s), figures.inflight * figures.replicas
    if time < roll.time or (before is not None and time <= before.until):
        return before
    if before is None:
        return InflightTime(since=time, until=time, inflight=inflight, request_seconds=0.0)
    passed_s = (time - before.until).total_seconds()
    more = passed_s * (before.inflight + inflight) / 2.0 if passed_s <= _LONGEST_GAP_S else 0.0
    return before.replace(until=time, inflight=inflight, request_seconds=before.request_seconds + more)


def measured_roll(status: SpeculativeServiceStatus) -> HistoryEntry | None:
    """The last roll, if it led to the arm that runs and was measured; in its place what a standing control has measured since."""
    current, history, control = status.current, status.history, status.control
    if current is None or status.rollout is not None:
        return None
    if control is not None and control.speedup is not None and control.arm == current.arm:
        return _by_control(control)
    if not history:
        return None
    last = history[0]
    stays = last.to_arm == current.arm and last.measured_speedup is not None
    return last if stays and math.isfinite(last.measured_speedup or math.nan) else None


def _by_control(control: ControlStatus) -> HistoryEntry:
    """The measurement of a standing control as of a roll that ended when its speedup began to be such."""
    return HistoryEntry(
        time=control.since_time,
        from_arm=control.against,
        to_arm=control.arm,
        reason=str(ClusterReason.CONTROL),
        result=HistoryResult.CONFIRMED,
        **bounded(
            "measured_speedup", Estimate(control.speedup, control.speedup_lower, control.speedup_upper)
        ),
    )


def worth_of(status: SpeculativeServiceStatus, gpu_price_per_hour: float | None) -> SavingsStatus | None:
    """Gain and cost of a service by the rest of its status and memory; None if there is nothing to say. Without a price no money is said."""
    roll, need = measured_roll(status), gpu_need(status)
    state = status.memory.inflight_time if status.memory is not None else None
    spent = request_time(roll, state)
    rolls_s = sum(one.seconds or 0.0 for one in status.history)
    sentences = [
        *_gains(roll, spent, need, gpu_price_per_hour),
        *_costs(status, rolls_s, gpu_price_per_hour),
    ]
    if not sentences:
        return None
    return SavingsStatus(
        since=state.since if spent is not None and state is not None else None,
        against=roll.from_arm if spent is not None and roll is not None else None,
        gpus_arm=need.arm if need is not None else None,
        gpus_basis=None if need is None else "Running" if need.runs else "Recommended",
        rolls_seconds=rolls_s if status.history else None,
        message="; ".join(sentences)[:1024],
        **bounded("request_saved_seconds", spent),
        **bounded("gpus_not_needed", need.gpus if need is not None else None),
    )


def request_time(roll: HistoryEntry | None, state: InflightTime | None) -> Estimate | None:
    """Request time (s) saved since the last roll, below 0 lost: requests in flight over time, times its measured speedup less 1.

    With the arm a load keeps `inflight` requests in flight; with the arm before it kept speedup times as many (Little's law).
    """
    if roll is None or state is None or not state.request_seconds > 0.0:
        return None
    ends = (roll.measured_speedup, roll.measured_speedup_lower, roll.measured_speedup_upper)
    return Estimate(
        *(
            None if end is None or not math.isfinite(end) else state.request_seconds * (end - 1.0)
            for end in ends
        )
    )


def gpu_need(status: SpeculativeServiceStatus) -> GpuNeed | None:
    """GPUs that the expected load does not need because of the running arm, else because of the recommended one."""
    capacities = {one.arm: one for one in status.capacity.arms} if status.capacity is not None else {}
    plain = capacities.get(NO_SPECULATION.name)
    running = status.current.arm if status.current is not None else None
    wanted = status.decision.arm if status.decision is not None else None
    arm = running if running not in {None, NO_SPECULATION.name} else wanted
    load = _load_to_carry(status)
    if arm is None or arm == NO_SPECULATION.name or plain is None or arm not in capacities or load is None:
        return None
    fleet_rps, expected = load
    gpus_each = (status.target.gpus_per_pod if status.target is not None else None) or 0
    spared = _spared(fleet_rps, plain, capacities[arm])
    if not gpus_each or spared is None:
        return None
    return GpuNeed(spared.times(gpus_each), arm, arm == running, fleet_rps, expected)


def _load_to_carry(status: SpeculativeServiceStatus) -> tuple[float, bool] | None:
    """Load of all replicas together, and whether it is the highest that is expected; None if no load is known."""
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


def bounded_text(known: Estimate, unit: str = "") -> str:
    """`3 GPUs [1,4]`; an open end shows as three dots."""
    ends = ",".join("-" if end is None else column(end) for end in (known.lower, known.upper))
    return f"{column(known.value, unit)} [{ends}]"


def time_text(known: Estimate) -> str:
    """Time (s) with its bounds, in hours from one hour on."""
    widest_s = max(
        (abs(end) for end in (known.value, known.lower, known.upper) if end is not None), default=0.0
    )
    return (
        bounded_text(known.times(1.0 / 3600.0), "hours") if widest_s >= 3600.0 else bounded_text(known, "s")
    )


def _signed(known: Estimate) -> tuple[Estimate, bool] | None:
    """The size of a gain or a loss, and whether it is a loss; None while its bounds, or else the figure, hold 0: then nothing is said."""
    ends = [known.value if end is None else end for end in (known.lower, known.upper)]
    if known.value is None or any(end is None or end * known.value <= 0.0 for end in ends):
        return None
    if known.value > 0.0:
        return known, False
    turned = (None if end is None else -end for end in (known.value, known.upper, known.lower))
    return Estimate(*turned), True


def _since(roll: HistoryEntry) -> str:
    if roll.reason == ClusterReason.CONTROL:
        return f"{roll.time:%Y-%m-%d %H:%M} UTC, by the standing control's measured speedup"
    return "the last roll, by its measured speedup"


def _gains(
    roll: HistoryEntry | None, saved: Estimate | None, need: GpuNeed | None, price: float | None
) -> Sequence[str]:
    said: list[str] = []
    if saved is not None and roll is not None and (gain := _signed(saved)) is not None:
        size, lost = gain
        said.append(
            f"{time_text(size)} of waiting {'lost' if lost else 'saved'} against {spoken(roll.from_arm)} since {_since(roll)}"
        )
    if need is not None and (spared := _signed(need.gpus)) is not None:
        size, lost = spared
        a_day = size.times(24.0)
        money = f", {bounded_text(a_day.times(price))} a day at {price:g} per GPU-hour" if price else ""
        said.append(
            f"{bounded_text(size, 'GPUs')} {'more' if lost else 'not'} needed "
            f"{'with' if need.runs else 'if it ran with'} {need.arm} at the "
            f"{'highest expected' if need.expected else 'present'} load ({column(need.fleet_rps, 'rps')} of all replicas): "
            f"{bounded_text(a_day, 'GPU-hours a day')}{money}"
        )
    return said


def _costs(status: SpeculativeServiceStatus, rolls_s: float, price: float | None) -> Sequence[str]:
    said: list[str] = []
    used_s = status.calibration.total_gpu_seconds if status.calibration is not None else None
    if used_s is not None and math.isfinite(used_s):
        money = f" ({column(used_s / 3600.0 * price)} at {price:g} per GPU-hour)" if price else ""
        said.append(f"calibrations cost {column(used_s / 3600.0, 'GPU-hours')}{money}")
    if status.history:
        said.append(f"the listed rolls took {column(rolls_s, 's')} together")
    return said

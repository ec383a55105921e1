"""Worth of speculation to a service now: GPUs by the capacities of its arms, and what measuring cost. Pure.

Nothing here is a promise. The operator changes no number of replicas, so GPUs that are not needed are saved only if an autoscaler
or a person removes them. What was saved is said by receipts alone (`breakeven.past.receipts`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from breakeven.arm import NO_SPECULATION
from breakeven.estimate import Estimate
from breakeven.phrases import column
from breakeven.planning.capacity import replicas_for
from breakeven_operator.resources import SpeculativeServiceStatus
from breakeven_operator.resources.figures import bounded
from breakeven_operator.resources.servicestatus import ArmCapacity, SavingsStatus


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


def worth_of(status: SpeculativeServiceStatus, gpu_price_per_hour: float | None) -> SavingsStatus | None:
    """Gain and cost of a service by the rest of its status and memory; None if there is nothing to say. Without a price no money is said."""
    need = gpu_need(status)
    rolls_s = sum(one.seconds or 0.0 for one in status.history)
    sentences = [*_gains(need, gpu_price_per_hour), *_costs(status, rolls_s, gpu_price_per_hour)]
    if not sentences:
        return None
    return SavingsStatus(
        gpus_arm=need.arm if need is not None else None,
        gpus_basis=None if need is None else "Running" if need.runs else "Recommended",
        rolls_seconds=rolls_s if status.history else None,
        message="; ".join(sentences)[:1024],
        **bounded("gpus_not_needed", need.gpus if need is not None else None),
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


def _signed(known: Estimate) -> tuple[Estimate, bool] | None:
    """The size of a gain or a loss, and whether it is a loss; None while its bounds, or else the figure, hold 0: then nothing is said."""
    ends = [known.value if end is None else end for end in (known.lower, known.upper)]
    if known.value is None or any(end is None or end * known.value <= 0.0 for end in ends):
        return None
    if known.value > 0.0:
        return known, False
    turned = (None if end is None else -end for end in (known.value, known.upper, known.lower))
    return Estimate(*turned), True


def _gains(need: GpuNeed | None, price: float | None) -> Sequence[str]:
    spared = _signed(need.gpus) if need is not None else None
    if need is None or spared is None:
        return ()
    size, lost = spared
    a_day = size.times(24.0)
    money = f", {bounded_text(a_day.times(price))} a day at {price:g} per GPU-hour" if price else ""
    said = (
        f"{bounded_text(size, 'GPUs')} {'more' if lost else 'not'} needed "
        f"{'with' if need.runs else 'if it ran with'} {need.arm} at the "
        f"{'highest expected' if need.expected else 'present'} load ({column(need.fleet_rps, 'rps')} of all replicas): "
        f"{bounded_text(a_day, 'GPU-hours a day')}{money}"
    )
    return (said,)


def _costs(status: SpeculativeServiceStatus, rolls_s: float, price: float | None) -> Sequence[str]:
    said: list[str] = []
    used_s = status.calibration.total_gpu_seconds if status.calibration is not None else None
    if used_s is not None and math.isfinite(used_s):
        money = f" ({column(used_s / 3600.0 * price)} at {price:g} per GPU-hour)" if price else ""
        said.append(f"calibrations cost {column(used_s / 3600.0, 'GPU-hours')}{money}")
    if status.history:
        said.append(f"the listed rolls took {column(rolls_s, 's')} together")
    return said

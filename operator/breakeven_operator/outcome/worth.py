"""Worth of speculation to a service now: GPUs by the capacities of its arms, and what measuring cost. Pure.

Nothing here is a promise. The operator changes no number of replicas, so GPUs that are not needed are saved only if an autoscaler
or a person removes them. What was saved is said by receipts alone (`breakeven.past.receipts`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from breakeven.arm import NO_SPECULATION
from breakeven.estimate import Estimate
from breakeven.phrases import bounded_text, column
from breakeven.planning.capacity import replicas_between
from breakeven_operator.resources import SpeculativeServiceStatus
from breakeven_operator.resources.figures import bounded
from breakeven_operator.resources.servicestatus import ArmCapacity, SavingsStatus


def worth_of(status: SpeculativeServiceStatus, gpu_price_per_hour: float | None) -> SavingsStatus | None:
    """Gain and cost of a service by the rest of its status and memory; None if there is nothing to say. Without a price no money is said."""
    gpus, arm = gpus_not_needed(status), _in_question(status)
    rolls_s = sum(one.seconds or 0.0 for one in status.history)
    sentences = [
        *_gains(status, gpus, gpu_price_per_hour),
        *_costs(status, rolls_s, gpu_price_per_hour),
    ]
    if not sentences:
        return None
    return SavingsStatus(
        gpus_arm=arm if gpus is not None else None,
        gpus_basis=None if gpus is None else "Running" if arm == _running(status) else "Recommended",
        rolls_seconds=rolls_s if status.history else None,
        message="; ".join(sentences)[:1024],
        **bounded("gpus_not_needed", gpus),
    )


def _running(status: SpeculativeServiceStatus) -> str | None:
    return status.current.arm if status.current is not None else None


def _in_question(status: SpeculativeServiceStatus) -> str | None:
    """The running arm if it speculates, else the recommended one."""
    running, wanted = _running(status), status.decision.arm if status.decision is not None else None
    return running if running not in {None, NO_SPECULATION.name} else wanted


def gpus_not_needed(status: SpeculativeServiceStatus) -> Estimate | None:
    """GPUs that the load to carry does not need because of the arm in question; below 0 it needs more. None if that is not known."""
    capacities = {one.arm: one for one in status.capacity.arms} if status.capacity is not None else {}
    plain, arm, load = capacities.get(NO_SPECULATION.name), _in_question(status), _load_to_carry(status)
    if arm is None or arm == NO_SPECULATION.name or plain is None or arm not in capacities or load is None:
        return None
    gpus_each = (status.target.gpus_per_pod if status.target is not None else None) or 0
    spared = _spared(load[0], plain, capacities[arm])
    return spared.times(gpus_each) if gpus_each and spared is not None else None


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
    without, with_it = (
        replicas_between(fleet_rps, Estimate(one.capacity_rps, one.lower_rps, one.upper_rps))
        for one in (plain, arm)
    )

    def fewer(more: float | None, less: float | None) -> float | None:
        return None if more is None or less is None else float(more - less)

    value = fewer(without.value, with_it.value)
    if value is None:
        return None
    return Estimate(value, fewer(without.lower, with_it.upper), fewer(without.upper, with_it.lower))


def _signed(known: Estimate) -> tuple[Estimate, bool] | None:
    """The size of a gain or a loss, and whether it is a loss; None while its bounds, or else the figure, hold 0: then nothing is said."""
    ends = [known.value if end is None else end for end in (known.lower, known.upper)]
    if known.value is None or any(end is None or end * known.value <= 0.0 for end in ends):
        return None
    if known.value > 0.0:
        return known, False
    turned = (None if end is None else -end for end in (known.value, known.upper, known.lower))
    return Estimate(*turned), True


def _gains(status: SpeculativeServiceStatus, gpus: Estimate | None, price: float | None) -> Iterator[str]:
    load, arm = _load_to_carry(status), _in_question(status)
    spared = _signed(gpus) if gpus is not None else None
    if load is None or spared is None:
        return
    (fleet_rps, expected), (size, lost) = load, spared
    a_day = size.times(24.0)
    money = f", {bounded_text(a_day.times(price))} a day at {price:g} per GPU-hour" if price else ""
    yield (
        f"{bounded_text(size, 'GPUs')} {'more' if lost else 'not'} needed "
        f"{'with' if arm == _running(status) else 'if it ran with'} {arm} at the "
        f"{'highest expected' if expected else 'present'} load ({column(fleet_rps, 'rps')} of all replicas): "
        f"{bounded_text(a_day, 'GPU-hours a day')}{money}"
    )


def _costs(status: SpeculativeServiceStatus, rolls_s: float, price: float | None) -> Iterator[str]:
    used_s = status.calibration.total_gpu_seconds if status.calibration is not None else None
    if used_s is not None and math.isfinite(used_s):
        money = f" ({column(used_s / 3600.0 * price)} at {price:g} per GPU-hour)" if price else ""
        yield f"calibrations cost {column(used_s / 3600.0, 'GPU-hours')}{money}"
    if status.history:
        yield f"the listed rolls took {column(rolls_s, 's')} together"

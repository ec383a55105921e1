"""Worth of speculation to many services: sums of the figures of their statuses. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from breakeven.estimate import Estimate
from breakeven_operator.resources import SpeculativeServiceStatus

_NOTHING = Estimate(0.0, 0.0, 0.0)


@dataclass(frozen=True, slots=True)
class FleetWorth:
    """Sums over services.

    Attributes:
        request_seconds: lower bounds and upper bounds are summed: all services at their worst, and at their best.
        measured: services behind it.
        gpus: of services that speculate. counted: services behind it.
        calibration_gpu_hours: of all calibrations that ended; None: none is known. calibrated: services behind it.
    """

    request_seconds: Estimate
    measured: int
    gpus: Estimate
    counted: int
    calibration_gpu_hours: float | None
    calibrated: int


def sum_of(statuses: Iterable[SpeculativeServiceStatus]) -> FleetWorth:
    """Gain and cost of many services."""
    every = tuple(statuses)
    worths = [one.savings for one in every if one.savings is not None]
    times = [one.request_time for one in worths if one.request_saved_seconds is not None]
    gpus = [one.gpus for one in worths if one.gpus_not_needed is not None and one.gpus_basis == "Running"]
    used = [
        one.calibration.total_gpu_seconds / 3600.0
        for one in every
        if one.calibration is not None and one.calibration.total_gpu_seconds is not None
    ]
    return FleetWorth(
        request_seconds=_sum(times),
        measured=len(times),
        gpus=_sum(gpus),
        counted=len(gpus),
        calibration_gpu_hours=sum(used) if used else None,
        calibrated=len(used),
    )


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

"""Schedules that were measured for a service, as candidates that may run."""

from __future__ import annotations

from collections.abc import Iterable

from breakeven.arm import ADAPTIVE
from breakeven.tiers import Schedule
from breakeven_operator.reconcile.calibration_state import ProfileEntry
from breakeven_operator.resources import SpeculativeService
from breakeven_operator.resources.candidates import MeasuredCandidates


def with_measured_schedules(
    service: SpeculativeService, in_force: ProfileEntry | None, profiles: Iterable[ProfileEntry]
) -> SpeculativeService:
    """The service with the schedules that were measured for it, as candidates that may run.

    Args:
        service: as its spec says.
        in_force: the profile in force; None without one.
        profiles: of this service: without one in force the newest still tells what its pods run.
    """
    newest = max(profiles, key=lambda entry: (entry.created, entry.name), default=None)
    entry = in_force or newest
    candidates = service.spec.candidates
    schedules = {
        method.name: Schedule.parse(fit.schedule, f"schedule of {fit.arm}")
        for fit in (entry.profile.arms if entry is not None and entry.profile is not None else ())
        if fit.schedule not in {None, ADAPTIVE} and (method := candidates.method_of(fit.arm)) is not None
    }
    if not schedules:
        return service
    return service.with_candidates(MeasuredCandidates.of(candidates, schedules))

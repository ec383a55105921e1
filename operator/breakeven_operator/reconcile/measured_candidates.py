"""Candidates as they were measured for a service: schedules that may run, and drafters that stand under an arm's name."""

from __future__ import annotations

from collections.abc import Iterable

from breakeven.arm import ADAPTIVE
from breakeven.tiers import Schedule
from breakeven_operator.reconcile.calibration_state import ProfileEntry
from breakeven_operator.resources import SpeculativeService
from breakeven_operator.resources.candidates import MeasuredCandidates


def with_measured_candidates(
    service: SpeculativeService,
    in_force: ProfileEntry | None,
    profiles: Iterable[ProfileEntry],
) -> SpeculativeService:
    """The service with the schedules and drafters that were measured for it.

    Args:
        service: as its spec says.
        in_force: the profile in force; None without one.
        profiles: of this service: without one in force the newest still tells what its pods run.
    """
    newest = sorted(profiles, key=lambda entry: (entry.created, entry.name), reverse=True)
    entry = in_force or next(iter(newest), None)
    candidates = service.spec.candidates
    fits = entry.profile.arms if entry is not None and entry.profile is not None else ()
    schedules = {
        method.name: Schedule.parse(fit.schedule, f"schedule of {fit.arm}")
        for fit in fits
        if fit.schedule not in {None, ADAPTIVE} and (method := candidates.method_of(fit.arm)) is not None
    }
    if entry is None:
        return service
    drafters = {
        name: (
            entry.drafters.get(name, own),
            *(one.drafters[name] for one in newest if name in one.drafters),
        )
        for name, own in candidates.drafters().items()
    }
    return service.with_candidates(MeasuredCandidates.of(candidates, schedules, drafters))

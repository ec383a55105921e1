"""State of a service's calibration: the profile in force, the account of its runs, and the run that is due."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import datetime

from breakeven_operator.kinds import RUNS
from breakeven_operator.labels import RECALIBRATE_ANNOTATION
from breakeven_operator.reconcile.calibration_state import Calibrated, Doubt, ProfileEntry
from breakeven_operator.reconcile.due_run import (
    DOUBTS,
    DueRun,
    held_back,
    once_more,
    requested_run,
    spared,
    too_soon,
)
from breakeven_operator.reconcile.known_runs import (
    account_of,
    failure_of,
    failure_words,
    phase_words,
    progress_of,
    running_word,
    to_measure_again,
    unfinished,
)
from breakeven_operator.reconcile.observation import ServiceObservation
from breakeven_operator.reconcile.profile_in_force import InForce, answers_in_force, find_in_force, former_of
from breakeven_operator.refused_writes import of_creation
from breakeven_operator.resources import CalibrationRun, SpeculativeService
from breakeven_operator.resources.calibrationrun import Trigger
from breakeven_operator.resources.memorystatus import LONGEST_VALUE
from breakeven_operator.resources.servicestatus import CalibrationStatus
from breakeven_operator.workloads.fingerprint import Identity


def calibrated(
    service: SpeculativeService,
    observation: ServiceObservation,
    identity: Identity | None,
    startup_s: float | None,
    now: datetime,
    doubt: Callable[[ProfileEntry], Doubt] | None = None,
) -> Calibrated:
    """Find the profile in force, account for runs that ended, and ask for a new run when one is due.

    Args:
        service: whose it is.
        observation: its profiles, its runs, and attempts to create one that were refused.
        identity: of the target with serving pods; None while that is unknown (then nothing is in force).
        startup_s: start of the target's own pods.
        now: time of the observation.
        doubt: gives the reason of live traffic to measure a profile again.
    """
    profiles, runs = observation.profiles, observation.runs
    interval_s = observation.timing.calibration_interval_seconds
    refused = of_creation(observation.failures, RUNS, now)
    status, ended = account_of(service, runs)
    if startup_s is not None and startup_s > (status.startup_seconds or 0.0):
        status = status.replace(startup_seconds=startup_s)
    run = unfinished(runs)
    again = to_measure_again(service, ended)
    asked = service.metadata.annotations.get(RECALIBRATE_ANNOTATION, "")[:LONGEST_VALUE] or None
    seen = service.status.memory.recalibrate if service.status.memory else None
    found = find_in_force(service, identity, profiles, status.failures, now, doubt)
    entry, trigger = found.entry, found.trigger
    if asked and asked != seen:
        trigger = Trigger.REQUESTED
    elif trigger is Trigger.INITIAL and identity is None:
        trigger = None
    due = DueRun()
    if run is not None:
        due = DueRun(said=f"; {run.metadata.name} is {phase_words(run)}", reason=running_word(run))
    elif again is not None:
        due = DueRun(once_more(service, again), again.spec.trigger).announced(refused)
    elif trigger is not None and (
        held := held_back(service, trigger, identity) or too_soon(status, trigger, entry, interval_s, now)
    ):
        due = DueRun(said=f"; {held}", reason=failure_of(status))
    elif trigger is Trigger.INITIAL and (waits := spared(observation.first)) is not None:
        due = waits
    elif trigger is not None:
        known = frozenset(one.uid for one in profiles)
        create = replace(requested_run(service, trigger, identity, asked, status), known_profiles=known)
        due = DueRun(create, trigger).announced(refused)
    reason = found.reason if entry is not None else due.reason or found.reason
    message = f"{found.message}{failure_words(status)}{due.said}"
    status = _with_findings(service, status, found, run, due)
    # A run that is under way answers the request.
    handled = asked if due.trigger is Trigger.REQUESTED or (run is not None and asked) else seen
    former = former_of(profiles, identity) if entry is None else None
    return Calibrated(entry, reason, message, run, due.create, due.trigger, status, handled, ended, former)


def _with_findings(
    service: SpeculativeService,
    status: CalibrationStatus,
    found: InForce,
    run: CalibrationRun | None,
    due: DueRun,
) -> CalibrationStatus:
    """The status with the profile in force and the run that is under way or due."""
    entry, doubted = found.entry, due.trigger in DOUBTS
    return status.replace(
        run=run.metadata.name if run else due.name or status.run,
        profile=entry.name if entry else None,
        profile_time=entry.created if entry else None,
        fingerprint=entry.fingerprint if entry else None,
        answers=answers_in_force(service.spec.candidates, entry),
        doubts=0 if found.dispelled else status.doubts + doubted,
        **progress_of(run),
    )

"""Which profile is in force for a service, and whether its arms must be measured (anew)."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from breakeven.profile import Profile
from breakeven_operator.plan import RUNS, Create
from breakeven_operator.reasons import ClusterReason
from breakeven_operator.reconcile.fingerprint import Identity
from breakeven_operator.resources import API_VERSION, CalibrationRun, SpeculativeService
from breakeven_operator.resources.calibrationrun import Phase, Trigger
from breakeven_operator.resources.servicestatus import CalibrationStatus
from breakeven_operator.resources.updatepolicy import Mode

RECALIBRATE_ANNOTATION = "breakeven.dev/recalibrate"
_MAX_PAUSE_FACTOR = 16


@dataclass(frozen=True, slots=True)
class ProfileEntry:
    """A SpeculationProfile, parsed once.

    Attributes:
        arms: names of the arms that were measured.
        profile: None when it cannot be read; `problem` says why.
    """

    name: str
    uid: str
    service: str
    fingerprint: str
    gpu_product: str
    created: datetime
    arms: frozenset[str]
    profile: Profile | None
    problem: str | None = None
    in_force: bool | None = None


@dataclass(frozen=True, slots=True)
class Calibrated:
    """Where a service stands with its profile.

    Attributes:
        entry: the profile in force; None without one that may be used.
        reason, message: of the condition Calibrated.
        run: the unfinished run, None when none is.
        create: a run to create.
        trigger: why.
        status: for the service's status.
        ended: runs that ended since the last cycle and are accounted for in `status`.
    """

    entry: ProfileEntry | None
    reason: ClusterReason
    message: str
    run: CalibrationRun | None
    create: Create | None
    trigger: Trigger | None
    status: CalibrationStatus
    recalibrate: str | None
    ended: tuple[CalibrationRun, ...] = ()


def calibrated(
    service: SpeculativeService,
    identity: Identity | None,
    profiles: Sequence[ProfileEntry],
    runs: Sequence[CalibrationRun],
    startup_s: float | None,
    now: datetime,
) -> Calibrated:
    """Find the profile in force, account for runs that ended, and ask for a new run when one is due.

    Args:
        service: whose it is.
        identity: of the target with serving pods; None while that cannot be told (then nothing is in force).
        profiles: of this service.
        runs: of this service, unfinished or not yet accounted for.
        startup_s: longest start of the target's own pods.
        now: time of the observation.
    """
    status, ended = _account(service, runs)
    if startup_s is not None and startup_s > (status.startup_seconds or 0.0):
        status = status.model_copy(update={"startup_seconds": startup_s})
    run = next((run for run in runs if not _final(run)), None)
    asked = service.metadata.annotations.get(RECALIBRATE_ANNOTATION) or None
    seen = service.status.memory.recalibrate if service.status.memory else None
    entry, reason, message, trigger = _in_force(service, identity, profiles, now)
    if asked and asked != seen:
        trigger = Trigger.REQUESTED
    elif trigger is Trigger.INITIAL and identity is None:
        trigger = None
    progress = ""
    create = None
    if run is not None:
        progress = f"; {run.metadata.name} is {_phase_words(run)}"
        reason = ClusterReason.CALIBRATION_RUNNING if entry is None else reason
        trigger = None
    elif trigger is not None:
        held = _held_back(service, status, trigger, identity, now)
        if held is None:
            create = _create(service, trigger, identity, asked, status)
            reason = ClusterReason.CALIBRATION_REQUESTED if entry is None else reason
            progress = f"; run {create.body['metadata']['name']} is created"
        else:
            progress = f"; {held}"
            trigger = None
    status = status.model_copy(
        update={
            "run": run.metadata.name if run else (create.body["metadata"]["name"] if create else status.run),
            "profile": entry.name if entry else None,
            "profile_time": entry.created if entry else None,
            "fingerprint": entry.fingerprint if entry else None,
            **_progress(run),
        }
    )
    handled = asked if (create is not None and trigger is Trigger.REQUESTED) else seen
    if run is not None and asked and asked != seen:
        handled = asked  # a run that is under way answers the request
    return Calibrated(entry, reason, message + progress, run, create, trigger, status, handled, ended)


def _in_force(
    service: SpeculativeService,
    identity: Identity | None,
    profiles: Sequence[ProfileEntry],
    now: datetime,
) -> tuple[ProfileEntry | None, ClusterReason, str, Trigger | None]:
    newest = sorted(profiles, key=lambda entry: (entry.created, entry.name), reverse=True)
    if not newest:
        return None, ClusterReason.NO_PROFILE, "the arms were never measured", Trigger.INITIAL
    if identity is None:
        return None, ClusterReason.NO_PROFILE, "no serving pod tells which profile counts", None
    own = [entry for entry in newest if entry.fingerprint == identity.fingerprint]
    if not own:
        return (
            None,
            ClusterReason.FINGERPRINT_CHANGED,
            (
                f"{newest[0].name} was measured on {newest[0].fingerprint}, the target is {identity.fingerprint} "
                "(image, model, arguments, GPU class or parallelism differ)"
            ),
            Trigger.FINGERPRINT_CHANGED,
        )
    entry = own[0]
    if entry.profile is None:
        return None, ClusterReason.PROFILE_UNREADABLE, f"{entry.name}: {entry.problem}", Trigger.REQUESTED
    age_s = (now - entry.created).total_seconds()
    limit_s = service.spec.calibration.profile_max_age_seconds
    if age_s > limit_s:
        return (
            None,
            ClusterReason.PROFILE_EXPIRED,
            f"{entry.name} is {age_s / 86400:.1f} days old (allowed: {limit_s / 86400:.3g})",
            Trigger.PROFILE_EXPIRED,
        )
    missing = sorted({arm.name for arm in service.spec.candidates.arms()} - entry.arms)
    if missing:
        return (
            entry,
            ClusterReason.CANDIDATES_CHANGED,
            f"{entry.name} is in force without {', '.join(missing)}, not yet measured",
            Trigger.CANDIDATES_CHANGED,
        )
    return entry, ClusterReason.PROFILE_IN_FORCE, _summary(entry), None


def _held_back(
    service: SpeculativeService,
    status: CalibrationStatus,
    trigger: Trigger,
    identity: Identity | None,
    now: datetime,
) -> str | None:
    """Why a run that is due is not created now."""
    if service.spec.paused:
        return "no run starts while paused"
    if identity is None or identity.gpu_product is None:
        return "no run starts before a serving pod tells the GPU class"
    if trigger is Trigger.REQUESTED:
        return None
    if service.spec.update_policy.mode is Mode.DISABLED:
        return "mode Disabled measures on request only"
    if status.last_run_time is None:
        return None
    factor = min(2**status.failures, _MAX_PAUSE_FACTOR)
    next_time = status.last_run_time + timedelta(
        seconds=service.spec.calibration.min_interval_seconds * factor
    )
    # The first failure already waits the interval; a first success never ran before, so nothing waits for it.
    if now >= next_time:
        return None
    left_s = (next_time - now).total_seconds()
    return f"the next run may start in {left_s:.0f} s ({status.failures} failed in a row)"


def _create(
    service: SpeculativeService,
    trigger: Trigger,
    identity: Identity | None,
    asked: str | None,
    status: CalibrationStatus,
) -> Create:
    """A run whose name follows from what it is for: a cycle that is repeated after a crash makes it once."""
    meta = service.metadata
    last = status.last_run_time.isoformat() if status.last_run_time else ""
    seed = f"{meta.uid}/{trigger}/{identity.fingerprint if identity else ''}/{asked if trigger is Trigger.REQUESTED else ''}/{last}"
    name = f"{meta.name}-{hashlib.sha256(seed.encode()).hexdigest()[:5]}"
    return Create(
        RUNS,
        {
            "apiVersion": API_VERSION,
            "kind": RUNS.kind,
            "metadata": {
                "name": name,
                "namespace": meta.namespace,
                "labels": {"breakeven.dev/service": meta.name, "app.kubernetes.io/managed-by": "breakeven"},
                "ownerReferences": [owner_reference(service)],
            },
            "spec": {"serviceRef": {"name": meta.name}, "trigger": str(trigger)},
        },
    )


def owner_reference(service: SpeculativeService) -> dict[str, object]:
    """A dependent of the service is deleted with it; OpenShift lets nobody block deletion without a right to it."""
    return {
        "apiVersion": API_VERSION,
        "kind": "SpeculativeService",
        "name": service.metadata.name,
        "uid": service.metadata.uid,
        "controller": True,
        "blockOwnerDeletion": False,
    }


def _account(
    service: SpeculativeService, runs: Iterable[CalibrationRun]
) -> tuple[CalibrationStatus, tuple[CalibrationRun, ...]]:
    """Count runs that ended; a run is marked as finished only after the status that counts it is written."""
    status = service.status.calibration or CalibrationStatus()
    ended = tuple(sorted((run for run in runs if _final(run)), key=lambda run: run.metadata.name))
    for run in ended:
        if run.status.phase is Phase.SUPERSEDED:
            continue
        finished = run.status.finished_time
        if finished is None or (status.last_run_time is not None and finished <= status.last_run_time):
            continue
        status = status.model_copy(
            update={
                "last_run_time": finished,
                "failures": 0 if run.status.phase is Phase.SUCCEEDED else status.failures + 1,
            }
        )
    return status, ended


def _final(run: CalibrationRun) -> bool:
    return run.status.phase is not None and run.status.phase.final


def _progress(run: CalibrationRun | None) -> dict[str, object]:
    """Points, GPU-seconds of the unfinished run; nothing of a finished one."""
    if run is None or run.status.plan is None:
        return {"points_done": None, "points_planned": None, "gpu_seconds_used": None, "seconds_left": None}
    return {
        "points_done": len(run.status.points),
        "points_planned": run.status.plan.loads * len(run.status.plan.arms),
        "gpu_seconds_used": run.status.gpu_seconds_used,
        "seconds_left": None,
    }


def _phase_words(run: CalibrationRun) -> str:
    words = str(run.status.phase or Phase.PENDING).lower()
    display = run.status.display
    if display is not None and display.points:
        words += f", {display.points} points"
    if display is not None and display.left:
        words += f", {display.left} left"
    return words


def _summary(entry: ProfileEntry) -> str:
    profile = entry.profile
    arms = len(profile.arms) if profile is not None else 0
    return f"{entry.name}: {arms} arms measured on {entry.gpu_product}"

"""Objects around a service that are the operator's own: CronJob, the drivers' account, marks on profiles, old runs."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from breakeven_operator import calibration
from breakeven_operator.actions import Action, Apply, Create, Delete, WriteStatus
from breakeven_operator.cluster_reasons import ClusterReason
from breakeven_operator.kinds import (
    CRONJOBS,
    FINISHED_LABEL,
    PROFILES,
    ROLE_BINDINGS,
    RUNS,
    SERVICE_ACCOUNTS,
    NamespacedName,
    Ref,
    service_of,
)
from breakeven_operator.ports import Manifest
from breakeven_operator.resources import API_VERSION, CalibrationRun, SpeculativeService
from breakeven_operator.settings import Settings
from breakeven_operator.step import ProfileEntry

_HASH = "breakeven.dev/desired"
# The default maximum age of a profile; the time at which a service went is recorded nowhere.
_KEPT = timedelta(days=30)
IN_FORCE_MANAGER = "breakeven-in-force"
# Finished runs and replaced profiles of a service: the one before last still tells whether the last one was odd.
_MOST_KEPT = 3


def access(manifest: Manifest, settings: Settings) -> tuple[Action, ...]:
    """ServiceAccount and RoleBinding that the service's Jobs run under; they go with it."""
    account, binding = calibration.trial_access(manifest, settings.trial_cluster_role)
    return (Create(SERVICE_ACCOUNTS, account), Create(ROLE_BINDINGS, binding))


def schedule(
    manifest: Manifest,
    existing: Manifest | None,
    settings: Settings,
) -> tuple[Action, ...]:
    """Make, change or remove the service's CronJob; nothing if `existing` is as it should be."""
    wanted = calibration.schedule_job(manifest, settings)
    if wanted is None:
        if existing is None:
            return ()
        meta = existing["metadata"]
        return (Delete(Ref(CRONJOBS, meta["namespace"], meta["name"], meta["uid"])),)
    text = json.dumps(wanted, sort_keys=True)
    mark = hashlib.sha256(text.encode()).hexdigest()[:16]
    standing = ((existing or {}).get("metadata") or {}).get("annotations") or {}
    if standing.get(_HASH) == mark:
        return ()
    marked = {**wanted, "metadata": {**wanted["metadata"], "annotations": {_HASH: mark}}}
    return (*access(manifest, settings), Apply(CRONJOBS, marked))


def mark_in_force(
    namespace: str, entries: Iterable[ProfileEntry], in_force: ProfileEntry | None
) -> tuple[WriteStatus, ...]:
    """Say on each profile whether decisions use it, if that has changed."""
    changes = []
    for entry in entries:
        used = in_force is not None and entry.uid == in_force.uid
        if entry.in_force is used:
            continue
        reason = ClusterReason.PROFILE_IN_FORCE if used else ClusterReason.SUPERSEDED
        message = reason.meaning if used else "Another profile is in force, or none is."
        status: dict[str, Any] = {"inForce": used, "reason": str(reason), "message": message}
        ref = Ref(PROFILES, namespace, entry.name, entry.uid)
        changes.append(WriteStatus(ref, status, manager=IN_FORCE_MANAGER))
    return tuple(changes)


def mark_finished(run: CalibrationRun) -> Action:
    """Take a run that is accounted for out of the cycle's list."""
    meta = run.metadata
    return Apply(
        RUNS,
        {
            "apiVersion": API_VERSION,
            "kind": RUNS.kind,
            # The uid keeps the apply from making a run again that was deleted meanwhile.
            "metadata": {
                "namespace": meta.namespace,
                "name": meta.name,
                "uid": meta.uid,
                "labels": {FINISHED_LABEL: "true"},
            },
        },
    )


def abandoned(
    profiles: Mapping[NamespacedName, Sequence[ProfileEntry]],
    services: Collection[NamespacedName],
    now: datetime,
) -> tuple[Delete, ...]:
    """Delete profiles whose service has been gone for long: a service that is made again within the time finds them.

    `services`: all that there are, those with an invalid spec among them.
    """
    return tuple(
        Delete(Ref(PROFILES, service.namespace, entry.name, entry.uid))
        for service, entries in profiles.items()
        if service not in services
        for entry in entries
        if now - entry.created > _KEPT
    )


def retire(
    service: SpeculativeService,
    finished: Sequence[Manifest],
    entries: Sequence[ProfileEntry],
    in_force: ProfileEntry | None,
) -> tuple[Action, ...]:
    """Delete finished runs and replaced profiles beyond the newest three of each; the profile in force stays.

    `finished` are runs of the whole namespace.
    """
    own = sorted(
        (run for run in finished if service_of(run) == service.metadata.name),
        key=lambda run: (run["metadata"].get("creationTimestamp", ""), run["metadata"]["name"]),
        reverse=True,
    )
    namespace = service.metadata.namespace
    old_runs = [
        Ref(RUNS, namespace, run["metadata"]["name"], run["metadata"]["uid"]) for run in own[_MOST_KEPT:]
    ]
    replaced = sorted(
        (entry for entry in entries if in_force is None or entry.uid != in_force.uid),
        key=lambda entry: (entry.created, entry.name),
        reverse=True,
    )
    old_profiles = [Ref(PROFILES, namespace, entry.name, entry.uid) for entry in replaced[_MOST_KEPT:]]
    return tuple(Delete(ref) for ref in (*old_runs, *old_profiles))

"""The run that is due: what holds it back, and the CalibrationRun to create."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import NamedTuple

from breakeven_operator.actions import Create
from breakeven_operator.cluster_reasons import ClusterReason
from breakeven_operator.kinds import RUNS, SERVICES
from breakeven_operator.labels import MANAGED_BY, RECALIBRATE_ANNOTATION, SERVICE_LABEL, owner_reference
from breakeven_operator.reconcile.calibration_state import ProfileEntry
from breakeven_operator.reconcile.first_answer import AWAITED, FirstAnswer
from breakeven_operator.refused_writes import RefusedWrite
from breakeven_operator.resources import API_VERSION, CalibrationRun, SpeculativeService
from breakeven_operator.resources.calibrationrun import Trigger
from breakeven_operator.resources.servicestatus import CalibrationStatus
from breakeven_operator.resources.updatepolicy import Mode
from breakeven_operator.workloads.fingerprint import Identity

_MAX_PAUSE_FACTOR = 16
# Triggers by which live traffic contradicts the profile in force.
DOUBTS = frozenset(
    {
        Trigger.MODEL_DISAGREES,
        Trigger.ROLL_DISPROVED,
        Trigger.ACCEPTANCE_DRIFTED,
        Trigger.LENGTHS_DRIFTED,
    }
)


class DueRun(NamedTuple):
    """The run to create, if any, and what is said about runs.

    Attributes:
        create, trigger: both or neither.
        said: the end of the condition's message.
        reason: of the condition if no profile is in force; None: that of the search for one.
    """

    create: Create | None = None
    trigger: Trigger | None = None
    said: str = ""
    reason: ClusterReason | None = None

    @property
    def name(self) -> str | None:
        """Name of the run to create."""
        return str(self.create.body["metadata"]["name"]) if self.create is not None else None

    def announced(self, refused: RefusedWrite | None) -> DueRun:
        """The same with its announcement; no run if the API server has refused the last attempt."""
        if refused is not None:
            return DueRun(said=f"; {refused.sentence}", reason=ClusterReason.WRITE_REFUSED)
        return self._replace(said=f"; run {self.name} is created", reason=ClusterReason.CALIBRATION_REQUESTED)


def spared(first: FirstAnswer | None) -> DueRun | None:
    """A first calibration that waits for the past, or that the past speaks against; None: it may begin."""
    if first == AWAITED:
        return DueRun(said="; no run starts before its past is read", reason=ClusterReason.READING_PAST)
    if first is not None and first.pays_nothing:
        return DueRun(
            said=f"; no run starts, because every candidate ran and pays at no load; a new {RECALIBRATE_ANNOTATION} starts one",
            reason=ClusterReason.CALIBRATION_PAYS_NOTHING,
        )
    return None


def held_back(service: SpeculativeService, trigger: Trigger, identity: Identity | None) -> str | None:
    """Why a run that is due is not created, whenever the last one was."""
    if service.spec.paused:
        return "no run starts while paused"
    if identity is None or identity.gpu_product is None:
        return "no run starts before a serving pod tells the GPU class"
    if trigger is not Trigger.REQUESTED and service.spec.update_policy.mode is Mode.DISABLED:
        return "mode Disabled measures on request only"
    return None


def too_soon(
    status: CalibrationStatus,
    trigger: Trigger,
    entry: ProfileEntry | None,
    interval_s: float,
    now: datetime,
) -> str | None:
    """When a run that is due may begin; None: now.

    A profile that is doubted as soon as it is in force will hardly be mended by the next one: each such run in a row
    doubles the pause, as each failure does.

    Args:
        status: of the runs before.
        trigger: why it is due.
        entry: the profile in force.
        interval_s: least time between two runs.
        now: time of the observation.
    """
    if trigger is Trigger.REQUESTED:
        return None
    doubts = status.doubts if trigger in DOUBTS else 0
    measured = entry.created if entry is not None and trigger in DOUBTS else None
    last = max((time for time in (status.last_run_time, measured) if time is not None), default=None)
    if last is None:
        return None
    factor = min(2 ** (status.failures + doubts), _MAX_PAUSE_FACTOR)
    next_time = last + timedelta(seconds=interval_s * factor)
    # The first failure already waits the interval; a first success never ran before, so nothing waits for it.
    if now >= next_time:
        return None
    # A time, not a time left: a message that changes every second would never be written, or always.
    failed = f" ({status.failures} failed in a row)" if status.failures else ""
    return f"the next run starts at {next_time:%Y-%m-%dT%H:%M:%SZ}{failed}; a new {RECALIBRATE_ANNOTATION} does not wait"


def once_more(service: SpeculativeService, run: CalibrationRun) -> Create:
    """The same run for the changed target; it waits until that serves. Named after the run it follows."""
    return _run(service, f"{run.metadata.uid}/again", run.spec.to_json_object())


def requested_run(
    service: SpeculativeService,
    trigger: Trigger,
    identity: Identity | None,
    asked: str | None,
    status: CalibrationStatus,
) -> Create:
    """A run named by a hash of service, trigger and fingerprint: a cycle that is repeated after a crash makes it once.

    The run before it is part of that: a name that was used up by a superseded run would never be made again.
    """
    token = asked if trigger is Trigger.REQUESTED else ""
    seed = f"{trigger}/{identity.fingerprint if identity else ''}/{token}/{status.run or ''}"
    spec = {"serviceRef": {"name": service.metadata.name}, "trigger": str(trigger)}
    return _run(service, seed, spec)


def _run(service: SpeculativeService, seed: str, spec: Mapping[str, object]) -> Create:
    meta = service.metadata
    seed = f"{meta.uid}/{seed}"
    name = f"{meta.name}-{hashlib.sha256(seed.encode()).hexdigest()[:5]}"
    return Create(
        RUNS,
        {
            "apiVersion": API_VERSION,
            "kind": RUNS.kind,
            "metadata": {
                "name": name,
                "namespace": meta.namespace,
                "labels": {**MANAGED_BY, SERVICE_LABEL: meta.name},
                "ownerReferences": [owner_reference(SERVICES, meta.name, meta.uid)],
            },
            "spec": spec,
        },
    )

"""Surroundings of one service in the world that was read: its target and pods, its profiles and runs, its answers of Prometheus."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime

from breakeven.errors import InputError
from breakeven_operator.adapters.service_queries import ServiceQueries
from breakeven_operator.adapters.snapshot import Snapshot
from breakeven_operator.kinds import NamespacedName
from breakeven_operator.labels import service_of
from breakeven_operator.reconcile.live_metrics import FleetReading
from breakeven_operator.reconcile.observation import ServiceObservation
from breakeven_operator.reconcile.target import Claim, older_claim
from breakeven_operator.refused_writes import RefusedWrites
from breakeven_operator.resources import SpeculativeService
from breakeven_operator.resources.calibrationrun import CalibrationRun, read_run
from breakeven_operator.resources.updatepolicy import Timing
from breakeven_operator.workloads.known import kind_of, target_of
from breakeven_operator.workloads.workload import NearbyObjects, Workload, observe


class ServiceSurroundings:
    """Finds what surrounds a service.

    Args:
        queries: by which services are watched.
        failures: writes that failed.
        gpu_label: label of nodes that names their GPU class.
        timing: times of the installation.
        warn: is given the uid of an object that cannot be read, and a sentence why.
    """

    def __init__(
        self,
        queries: ServiceQueries,
        failures: RefusedWrites,
        gpu_label: str,
        timing: Timing,
        warn: Callable[[str, str], None],
    ) -> None:
        self._queries = queries
        self._failures = failures
        self._gpu_label = gpu_label
        self._timing = timing
        self._warn = warn

    def of(self, world: Snapshot, service: SpeculativeService, now: datetime) -> ServiceObservation:
        """The surroundings of a service that is valid."""
        namespace, name = service.metadata.namespace, service.metadata.name
        runs = []
        for manifest in world.runs:
            if manifest["metadata"]["namespace"] == namespace and service_of(manifest) == name:
                try:
                    runs.append(read_run(manifest))
                except InputError as error:
                    self._warn(manifest["metadata"]["uid"], str(error))
        lookback = self._queries.lookback_of(service)
        watch = self._queries.watch_of(service)
        return ServiceObservation(
            workload=self._workload(world, service, now),
            managed_by=_managed_by(world, service),
            fleet=world.readings.get(watch, FleetReading({}, frozenset(), "not asked")),
            roll=world.rolls.get(watch),
            later=world.later.get(watch),
            arrivals=world.arrivals.get(watch),
            first=world.firsts.get(service.metadata.uid),
            past=world.pasts.get(lookback) if lookback is not None else None,
            latencies=world.latencies.get(watch),
            known_pods=world.pod_names.get(namespace, frozenset()),
            profiles=tuple(world.profiles.get(NamespacedName(namespace, name), ())),
            runs=tuple(sorted(runs, key=_age)),
            claims=tuple(world.volume_claims.get(namespace, ())),
            written=world.manifests[service.metadata.uid].get("status") or {},
            failures=self._failures.about(service.metadata.uid, now),
            target_problem=world.unreadable_targets.get(target_of(service)),
            timing=self._timing,
        )

    def _workload(self, world: Snapshot, service: SpeculativeService, now: datetime) -> Workload | None:
        manifest = world.target_of(service)
        if manifest is None:
            return None
        return observe(
            kind_of(service.spec.target_ref),
            manifest,
            NearbyObjects(
                world.makers_of(service),
                world.target_pods(service),
                world.node_labels,
                world.lost_nodes,
                world.warnings,
            ),
            container_name=service.spec.target_ref.container_name,
            gpu_label=self._gpu_label,
            now=now,
        )


def _managed_by(world: Snapshot, service: SpeculativeService) -> str | None:
    return older_claim(world.claims.get(target_of(service), ()), Claim.of(service))


def _age(run: CalibrationRun) -> tuple[str, str]:
    return str(run.metadata.creation_timestamp or ""), run.metadata.name

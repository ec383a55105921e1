"""The composition root: which adapter plays which port, which task starts when, and how everything stops."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import signal
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, ProcessCollector

from breakeven_operator.adapters.background import SETTLE_S
from breakeven_operator.adapters.clock import SystemClock
from breakeven_operator.adapters.cluster_objects import ClusterObjects
from breakeven_operator.adapters.fitter import ChildFitter
from breakeven_operator.adapters.identity import LeaseIdentity
from breakeven_operator.adapters.kubernetes import KubernetesCluster
from breakeven_operator.adapters.lease import Lease
from breakeven_operator.adapters.listed_objects import ListedObjects
from breakeven_operator.adapters.observer import Observer
from breakeven_operator.adapters.prometheus_api import OwnPrometheus, PrometheusClient
from breakeven_operator.adapters.prometheus_reader import PrometheusReader, QueryLimits
from breakeven_operator.adapters.service_reader import Scope
from breakeven_operator.adapters.shards import Shards
from breakeven_operator.adapters.unreadable import UnreadableObjects
from breakeven_operator.adapters.watched_objects import WatchedObjects
from breakeven_operator.cycle import Reconciler
from breakeven_operator.cycle_settings import CycleSettings
from breakeven_operator.kinds import SERVICES, NamespacedName
from breakeven_operator.loop import Loop
from breakeven_operator.ports import ClusterError, PrometheusAccess
from breakeven_operator.resources.labelselector import LabelSelector
from breakeven_operator.serve import web
from breakeven_operator.serve.health import Health
from breakeven_operator.serve.telemetry import Telemetry
from breakeven_operator.settings import Settings
from breakeven_operator.showing import Showing
from breakeven_operator.watching import WatchSettings
from breakeven_operator.writer import DryRun, Writer

_LOG = logging.getLogger(__name__)
_RETRY_S = 2.0


@dataclass(frozen=True, slots=True)
class _Parts:
    cluster: KubernetesCluster
    reconciler: Reconciler
    lease: Lease
    loop: Loop
    health: Health
    registry: CollectorRegistry
    showing: Showing


async def run(settings: Settings, *, dry_run: bool = False) -> None:
    """Run until SIGTERM or SIGINT; a cycle under way is finished, and the Lease given up.

    Args:
        settings: checked.
        dry_run: decide and print, write nothing, take no Lease.

    Raises:
        ClusterError: no access to a cluster.
        RuntimeError: a part of the operator ended by itself; the process should be restarted.
    """
    stop = asyncio.Event()
    _on_signals(stop)
    async with _parts(settings, dry_run=dry_run) as parts:
        server = await web.serve(parts.registry, parts.health, settings.bind_address, settings.port)
        await parts.showing.open()
        cycles = asyncio.create_task(_cycles(parts), name="cycles")
        stopping = asyncio.create_task(stop.wait(), name="stop")
        try:
            await asyncio.wait({cycles, stopping}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            unexpected = cycles.done() and not stop.is_set()
            parts.loop.stop()
            with contextlib.suppress(asyncio.CancelledError):
                await cycles
            stopping.cancel()
            await parts.showing.close()
            await server.cleanup()
        if unexpected:
            raise RuntimeError("the loop of cycles ended by itself")


async def run_once(settings: Settings, *, dry_run: bool) -> bool:
    """One cycle; False when the world could not be read, or another replica leads.

    Raises:
        ClusterError: no access to a cluster.
    """
    # No later cycle would use what comes late.
    patience_s = settings.prometheus_timeout_s + 1.0
    async with _parts(settings, dry_run=dry_run, once=True, settle_s=patience_s) as parts:
        if not dry_run and not await parts.lease.step():
            _LOG.warning("another replica holds the lease; nothing was done")
            return False
        try:
            return await parts.loop.once() is not None
        finally:
            await parts.lease.release()


@contextlib.asynccontextmanager
async def _parts(
    settings: Settings, *, dry_run: bool, once: bool = False, settle_s: float = SETTLE_S
) -> AsyncIterator[_Parts]:
    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    telemetry = Telemetry(registry)
    telemetry.gpu_price.set(settings.gpu_price_per_hour or 0.0)
    clock = SystemClock()
    cluster = await _connected(settings, clock, telemetry)
    own = PrometheusAccess(settings.prometheus_address) if settings.prometheus_address else None
    metrics = _prometheus(settings, cluster, own)

    def wake() -> None:
        loop.wake()

    namespaces = settings.watch_namespaces
    objects: ClusterObjects = (
        ListedObjects(cluster, namespaces)
        if once
        else WatchedObjects(cluster, clock, namespaces=namespaces, relist_s=settings.relist_s, wake=wake)
    )
    shards = _shards(settings, cluster, clock, once=once)
    fitter = ChildFitter()
    answers = PrometheusReader(
        metrics,
        clock,
        default_source=own,
        fitter=None if once else fitter,
        counted=lambda outcome: telemetry.prometheus_queries.labels(outcome).inc(),
        limits=QueryLimits(settle_s),
    )
    scope = Scope(settings.allowed_drafters, settings.watch_annotated == "true", shards)
    observer = Observer(cluster, clock, objects, answers, scope)
    identity = LeaseIdentity(settings.identity, f"{settings.namespace}/{settings.lease_name}")
    lease = _lease(settings, cluster, clock, identity, shards)
    writer = (
        DryRun(_print)
        if dry_run
        else Writer(cluster, fitter, clock, objects, may_act=lambda: lease.held, reporter=settings.identity)
    )
    health = Health(clock, settings.cycle_s)
    showing = Showing(settings, cluster, clock, health.late_after_s)
    reconciler = Reconciler(
        clock, observer, writer, telemetry, _cycle_settings(settings, once=once), showing.show
    )
    leadership = _NoLease() if dry_run else lease
    loop = Loop(reconciler, leadership, health, telemetry, clock, cycle_s=settings.cycle_s)
    try:
        yield _Parts(cluster, reconciler, lease, loop, health, registry, showing)
    finally:
        await observer.close()
        await metrics.close()
        await cluster.close()
        identity.release()


def _shards(settings: Settings, cluster: KubernetesCluster, clock: SystemClock, *, once: bool) -> Shards:
    return Shards(
        cluster,
        clock,
        NamespacedName(settings.namespace, settings.lease_name),
        settings.service_selector or LabelSelector(),
        # The other one looks once per cycle.
        settle_s=0.0 if once else 2 * settings.cycle_s,
    )


def _lease(
    settings: Settings,
    cluster: KubernetesCluster,
    clock: SystemClock,
    identity: LeaseIdentity,
    shards: Shards,
) -> Lease:
    return Lease(
        cluster,
        clock,
        NamespacedName(settings.namespace, settings.lease_name),
        identity.text,
        lease_s=settings.lease_s,
        annotations=shards.annotations,
    )


async def _connected(settings: Settings, clock: SystemClock, telemetry: Telemetry) -> KubernetesCluster:
    """The cluster, whose requests and unreadable objects are counted."""
    unreadable = UnreadableObjects(clock, lambda kind: telemetry.unreadable_objects.labels(kind).inc())
    return await KubernetesCluster.connect(
        settings.kubeconfig or None,
        counted=lambda verb, code: telemetry.api_requests.labels(verb, str(code)).inc(),
        unreadable=unreadable.found,
    )


def _prometheus(
    settings: Settings, cluster: KubernetesCluster, own: PrometheusAccess | None
) -> PrometheusClient:
    return PrometheusClient(
        cluster,
        timeout_s=settings.prometheus_timeout_s,
        own=None
        if own is None
        else OwnPrometheus(own, settings.prometheus_bearer_file, settings.prometheus_ca_file),
        allowed=settings.prometheus_allowed_addresses,
    )


def _cycle_settings(settings: Settings, *, once: bool) -> CycleSettings:
    """Settings of the cycles; one that is the only one takes the time that it needs."""
    return CycleSettings(
        trial=settings.trial,
        status_refresh_s=settings.status_refresh_s,
        max_parallel_rolls=settings.max_parallel_rolls,
        max_parallel_calibrations=settings.max_parallel_calibrations,
        watching=_watch_settings(settings),
        gpu_price_per_hour=settings.gpu_price_per_hour,
        **({"deciding_s": math.inf} if once else {}),
    )


def _watch_settings(settings: Settings) -> WatchSettings | None:
    """Settings of services that are made for annotated workloads; None if none are."""
    candidates = settings.default_candidates
    if settings.watch_annotated == "false" or candidates is None:
        return None
    return WatchSettings(
        candidates.to_json_object(), settings.most_watched, settings.most_watched_per_namespace
    )


async def _cycles(parts: _Parts) -> None:
    await _wait_for_kinds(parts)
    await parts.loop.run()


async def _wait_for_kinds(parts: _Parts) -> None:
    """Until the CRDs are there: an informer that finds no such kind asks again after minutes only."""
    warned = False
    while True:
        try:
            if await parts.cluster.serves(SERVICES):
                return
        except ClusterError:
            # The loop's to report and to outlast.
            return
        if not warned:
            _LOG.warning("the CustomResourceDefinition of SpeculativeService is not installed yet; waiting")
            warned = True
        parts.health.loop_turned()
        await asyncio.sleep(_RETRY_S)


def _on_signals(stop: asyncio.Event) -> None:
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)


class _NoLease:
    """A dry run writes nothing, so it needs nobody's leave."""

    held = True
    others = False
    retry_s = 3600.0

    def __init__(self) -> None:
        self.changed = asyncio.Event()

    async def step(self) -> bool:
        return True

    async def release(self) -> None:
        return None


def _print(line: str) -> None:
    sys.stdout.write(f"would {line}\n")
    sys.stdout.flush()

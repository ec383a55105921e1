"""The composition root: connections, which adapter plays which port, and how the parts of a process are closed."""

from __future__ import annotations

import contextlib
import logging
import math
import sys
import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from prometheus_client import CollectorRegistry, ProcessCollector

from breakeven_operator.board.asked_receipts import AskedReceipts
from breakeven_operator.board.board_access import Access, LoopbackAccess, ReviewedAccess
from breakeven_operator.board.board_server import Board, BoardSettings, BoardSocket, listen
from breakeven_operator.board.publication import Publication
from breakeven_operator.cluster.api_json import problem_of
from breakeven_operator.cluster.cluster_objects import ClusterObjects
from breakeven_operator.cluster.fitter import ChildFitter, FitTurns
from breakeven_operator.cluster.kubernetes import KubernetesCluster
from breakeven_operator.cluster.lease import Lease, LeaseIdentity
from breakeven_operator.cluster.observer import Observer
from breakeven_operator.cluster.own_objects import KopfSession, OwnObjects
from breakeven_operator.cluster.prometheus_answers import PrometheusReader, QueryLimits
from breakeven_operator.cluster.prometheus_api import OwnPrometheus, PrometheusClient
from breakeven_operator.cluster.prometheus_questions import SETTLE_S
from breakeven_operator.cluster.snapshot import Snapshot
from breakeven_operator.cluster.watched_objects import WatchedObjects
from breakeven_operator.cluster.writer import DryRun, Writer
from breakeven_operator.kinds import NamespacedName, Resource
from breakeven_operator.loop.cycle import Reconciler
from breakeven_operator.loop.pace import Loop, NoLease
from breakeven_operator.ports import Clock, Cluster, Manifest, PrometheusAccess
from breakeven_operator.resources import SpeculativeService
from breakeven_operator.serve.health import Health
from breakeven_operator.serve.telemetry import Telemetry
from breakeven_operator.settings import Settings

# Somebody may make such objects in a loop: the log of all tenants must stay readable, and this process small.
_LINES, _PER_S = 20, 60.0
_REMEMBERED = 1000


class UnreadableObjects:
    """Warns of each version of an object once, so that a watch that begins again repeats nothing, and counts all.

    `counted` is called with the kind of each.
    """

    def __init__(self, clock: Clock, counted: Callable[[str], None]) -> None:
        self._clock = clock
        self._counted = counted
        # Versions by uid, the oldest first.
        self._known: dict[str, str] = {}
        self._since_s = clock.monotonic()
        self._lines = 0

    def found(self, resource: Resource, manifest: Manifest) -> None:
        """An object came that is marked as unreadable."""
        meta = manifest["metadata"]
        uid, version = str(meta.get("uid", "")), str(meta.get("resourceVersion", ""))
        if self._known.get(uid) == version:
            return
        self._known.pop(uid, None)
        self._known[uid] = version
        if len(self._known) > _REMEMBERED:
            del self._known[next(iter(self._known))]
        self._counted(resource.kind)
        now_s = self._clock.monotonic()
        if now_s - self._since_s > _PER_S:
            self._since_s, self._lines = now_s, 0
        self._lines += 1
        if self._lines > _LINES:
            return
        name = f"{meta.get('namespace') or ''}/{meta.get('name', '')}".removeprefix("/")
        more = "; further ones of this minute are only counted" if self._lines == _LINES else ""
        _LOG.warning(
            "%s %s cannot be read and counts as invalid: %s%s",
            resource.kind,
            name,
            problem_of(manifest),
            more,
        )


class SystemClock:
    """The `Clock` port."""

    def now(self) -> datetime:
        """Wall clock, UTC."""
        return datetime.now(UTC)

    def monotonic(self) -> float:
        """Seconds that never go back."""
        return time.monotonic()


_LOG = logging.getLogger(__name__)
# `kubectl port-forward` reaches it there, and nobody else does.
_LOOPBACK = "127.0.0.1"


class Showing:
    """The board of a process and its sockets; it never keeps the operator from deciding.

    `cluster` reviews the tokens of readers who come by the network. A cycle that is older than `late_after_s` is said to be.
    Without `receipts` pages have none.
    """

    def __init__(
        self,
        settings: Settings,
        cluster: Cluster,
        clock: Clock,
        late_after_s: float,
        receipts: AskedReceipts | None = None,
    ) -> None:
        self._receipts = receipts
        self._port, self._prefix = settings.board_port, settings.board_path_prefix
        self._clock = clock
        self._rules: list[tuple[str, Access]] = [(_LOOPBACK, LoopbackAccess())]
        if settings.board_address:
            self._rules.append((settings.board_address, ReviewedAccess(cluster, time.monotonic)))
        self._board = Board(
            clock,
            BoardSettings(
                self._prefix,
                settings.gpu_price_per_hour,
                late_after_s,
                settings.dashboard_url,
                settings.runbook_url_prefix,
            ),
            receipts,
        )
        self._sockets: list[BoardSocket] = []

    def show(self, world: Snapshot, services: Sequence[SpeculativeService]) -> None:
        """Replace what the pages say; called at the end of each cycle."""
        if not self._port:
            return
        named = {NamespacedName(one.metadata.namespace, one.metadata.name): one for one in services}
        published = Publication(
            time=self._clock.now(),
            services=named,
            invalid={NamespacedName.of(one.manifest): one.problem for one in world.invalid},
            profiles=world.profiles,
            firsts=world.firsts,
            targets={name: one for name, service in named.items() if (one := world.target_of(service))},
        )
        try:
            self._board.publish(published)
        except Exception:  # noqa: BLE001 - reported in full; no decision rests on the board
            _LOG.exception("publishing to the board failed")

    async def open(self) -> None:
        """Listen; an address that cannot be had is reported, and the operator decides without it."""
        for host, access in self._rules if self._port else ():
            try:
                app = self._board.application(access)
                self._sockets.append(await listen(app, host, self._port, self._prefix))
            except OSError as error:
                _LOG.warning("the board cannot listen on %s:%d: %s", host, self._port, error.strerror)
            else:
                _LOG.info("the board is at %s", self._sockets[-1].address)

    async def close(self) -> None:
        """Stop listening."""
        while self._sockets:
            await self._sockets.pop().close()
        if self._receipts is not None:
            await self._receipts.close()


@dataclass(frozen=True, slots=True)
class Parts:
    """The parts of a running operator that a process starts and stops; the handlers file objects with `own`."""

    cluster: KubernetesCluster
    own: OwnObjects
    session: KopfSession
    lease: Lease
    loop: Loop
    health: Health
    registry: CollectorRegistry
    showing: Showing


@contextlib.asynccontextmanager
async def assembled(settings: Settings, *, dry_run: bool, once: bool = False) -> AsyncIterator[Parts]:
    """The parts, whose connections end with the context; `dry_run`: decide and print, write nothing, take no Lease.

    Raises:
        ClusterError: no access to a cluster.
    """
    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    telemetry = Telemetry(registry)
    telemetry.gpu_price.set(settings.gpu_price_per_hour or 0.0)
    clock = SystemClock()
    unreadable = UnreadableObjects(clock, lambda kind: telemetry.unreadable_objects.labels(kind).inc())
    cluster = await KubernetesCluster.connect(
        settings.kubeconfig or None,
        counted=lambda verb, code: telemetry.api_requests.labels(verb, str(code)).inc(),
        unreadable=unreadable.found,
    )

    def wake() -> None:
        loop.wake()

    own = OwnObjects(clock, namespaces=settings.watch_namespaces, wake=wake)
    session = KopfSession(cluster, clock, own, relist_s=settings.relist_s)
    objects: ClusterObjects = (
        ClusterObjects(cluster, settings.watch_namespaces)
        if once
        else WatchedObjects(cluster, clock, own, relist_s=settings.relist_s, wake=wake)
    )
    fitter = ChildFitter()
    default, metrics = _prometheus(settings, cluster)
    answers = PrometheusReader(
        metrics,
        clock,
        default_source=default,
        # In one cycle no past is asked for, and no later one would use what comes late.
        fitter=None if once else fitter,
        counted=lambda outcome: telemetry.prometheus_queries.labels(outcome).inc(),
        limits=QueryLimits(settings.prometheus_timeout_s + 1.0 if once else SETTLE_S),
    )
    fits = FitTurns(fitter, clock, ended=wake, patience_s=math.inf if once else 0.0)
    identity = LeaseIdentity(settings.identity, f"{settings.namespace}/{settings.lease_name}")
    place = NamespacedName(settings.namespace, settings.lease_name)
    lease = Lease(cluster, clock, place, identity.text, lease_s=settings.lease_s)
    observer = Observer(cluster, clock, objects, answers, settings)
    writer = (
        DryRun(_print)
        if dry_run
        else Writer(cluster, fits, clock, objects, may_act=lambda: lease.held, reporter=settings.identity)
    )
    health = Health(clock, settings.cycle_s)
    showing = Showing(
        settings,
        cluster,
        clock,
        health.late_after_s,
        AskedReceipts(metrics, default, clock) if default else None,
    )
    reconciler = Reconciler(clock, observer, writer, telemetry, settings, showing.show)
    if once:
        reconciler.deciding_s = math.inf
    leads = NoLease() if dry_run else lease
    loop = Loop(reconciler, leads, health, telemetry, clock, cycle_s=settings.cycle_s)
    try:
        yield Parts(cluster, own, session, lease, loop, health, registry, showing)
    finally:
        await observer.close()
        await metrics.close()
        await cluster.close()
        identity.release()


async def one_cycle(settings: Settings, *, dry_run: bool) -> bool:
    """One cycle; False when the world could not be read, or another replica leads."""
    async with assembled(settings, dry_run=dry_run, once=True) as parts:
        if not dry_run and not await parts.lease.step():
            _LOG.warning("another replica holds the lease; nothing was done")
            return False
        try:
            return await parts.loop.once() is not None
        finally:
            await parts.lease.release()


def _prometheus(settings: Settings, cluster: Cluster) -> tuple[PrometheusAccess | None, PrometheusClient]:
    """The server of services whose spec names none, None if the installation sets none; and the client of all servers."""
    own = None
    if settings.prometheus_address:
        access = PrometheusAccess(settings.prometheus_address, labels=settings.prometheus_label_names)
        own = OwnPrometheus(access, settings.prometheus_bearer_file, settings.prometheus_ca_file)
    timeout_s, allowed = settings.prometheus_timeout_s, settings.prometheus_allowed_addresses
    return own and own.access, PrometheusClient(cluster, timeout_s=timeout_s, own=own, allowed=allowed)


def _print(line: str) -> None:
    sys.stdout.write(f"would {line}\n")
    sys.stdout.flush()

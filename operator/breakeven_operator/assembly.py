"""The composition root: which adapter plays which port, and how the parts of a process are closed."""

from __future__ import annotations

import contextlib
import logging
import math
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, ProcessCollector

from breakeven_operator.adapters.clock import SystemClock
from breakeven_operator.adapters.fitter import ChildFitter, FitTurns
from breakeven_operator.adapters.observer import Observer
from breakeven_operator.adapters.own_objects import KopfSession, OwnObjects
from breakeven_operator.adapters.service_reader import Scope
from breakeven_operator.connections import Connections
from breakeven_operator.cycle import Reconciler
from breakeven_operator.cycle_settings import settings_of_cycles
from breakeven_operator.leadership import Leadership, NoLease
from breakeven_operator.loop import Loop
from breakeven_operator.observing import answers_of, objects_of
from breakeven_operator.serve.health import Health
from breakeven_operator.serve.telemetry import Telemetry
from breakeven_operator.settings import Settings
from breakeven_operator.showing import Showing
from breakeven_operator.writer import DryRun, Writer

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Parts:
    """The parts of a running operator that a process starts and stops.

    Attributes:
        own: objects of the product's own kinds, as the handlers file them.
        session: kopf asks the API server with it.
    """

    connections: Connections
    own: OwnObjects
    session: KopfSession
    leadership: Leadership
    loop: Loop
    health: Health
    registry: CollectorRegistry
    showing: Showing


@contextlib.asynccontextmanager
async def assembled(settings: Settings, *, dry_run: bool, once: bool = False) -> AsyncIterator[Parts]:
    """The parts, whose connections end with the context.

    Args:
        settings: checked.
        dry_run: decide and print, write nothing, take no Lease.
        once: there is one cycle only.

    Raises:
        ClusterError: no access to a cluster.
    """
    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    telemetry = Telemetry(registry)
    telemetry.gpu_price.set(settings.gpu_price_per_hour or 0.0)
    clock = SystemClock()
    connections = await Connections.open(settings, clock, telemetry)
    cluster = connections.cluster

    def wake() -> None:
        loop.wake()

    own = OwnObjects(clock, namespaces=settings.watch_namespaces, wake=wake)
    session = KopfSession(cluster, clock, own, relist_s=settings.relist_s)
    objects = objects_of(settings, cluster, clock, None if once else own, wake)
    fitter = ChildFitter()
    answers = answers_of(settings, connections, clock, telemetry, None if once else fitter)
    fits = FitTurns(fitter, clock, ended=wake, patience_s=math.inf if once else 0.0)
    leadership = Leadership.of(settings, cluster, clock)
    lease = leadership.lease
    scope = Scope(settings.allowed_drafters, settings.watch_annotated == "true")
    observer = Observer(cluster, clock, objects, answers, scope)
    writer = (
        DryRun(_print)
        if dry_run
        else Writer(cluster, fits, clock, objects, may_act=lambda: lease.held, reporter=settings.identity)
    )
    health = Health(clock, settings.cycle_s)
    showing = Showing(settings, cluster, clock, health.late_after_s)
    cycles = settings_of_cycles(settings, once=once)
    reconciler = Reconciler(clock, observer, writer, telemetry, cycles, showing.show)
    leads = NoLease() if dry_run else lease
    loop = Loop(reconciler, leads, health, telemetry, clock, cycle_s=settings.cycle_s)
    try:
        yield Parts(connections, own, session, leadership, loop, health, registry, showing)
    finally:
        await observer.close()
        await connections.close()
        leadership.identity.release()


async def one_cycle(settings: Settings, *, dry_run: bool) -> bool:
    """One cycle; False when the world could not be read, or another replica leads.

    Raises:
        ClusterError: no access to a cluster.
    """
    async with assembled(settings, dry_run=dry_run, once=True) as parts:
        lease = parts.leadership.lease
        if not dry_run and not await lease.step():
            _LOG.warning("another replica holds the lease; nothing was done")
            return False
        try:
            return await parts.loop.once() is not None
        finally:
            await lease.release()


def _print(line: str) -> None:
    sys.stdout.write(f"would {line}\n")
    sys.stdout.flush()

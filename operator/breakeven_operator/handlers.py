"""The operator's front page: what happens on start, on stop, on a change of one of its kinds, at each beat, and what the probe says.

kopf runs the process: signals, watches of the three kinds, liveness. Decisions are the loop's: an event only files its object
and wakes the loop, because a budget holds over all services. So no handler writes, and kopf marks no object of a user.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import Any, cast

import kopf
from aiohttp import ClientSession

from breakeven_operator.cluster.kubernetes import SILENCE_S, KubernetesCluster
from breakeven_operator.cluster.own_objects import OWN_KINDS
from breakeven_operator.kinds import GROUP, PROFILES, RUNS, SERVICES, VERSION
from breakeven_operator.loop.assembly import assembled
from breakeven_operator.ports import ClusterError, EventKind
from breakeven_operator.serve import health as web
from breakeven_operator.settings import Settings

_LOG = logging.getLogger(__name__)
_RETRY_S = 2.0
# Between two attempts to reach the API server, s; after the last one kopf begins with the first again.
_ATTEMPTS_S = (0.5, 1, 2, 4, 8, 15, *[30] * 20)
_IDLE_S = 0.5
_FINAL = kopf.ErrorsMode.PERMANENT


def run(settings: Settings, *, dry_run: bool = False) -> None:
    """Run until SIGTERM or SIGINT; a cycle under way is finished, and the Lease given up.

    Raises:
        RuntimeError: a part of the operator could not begin, or ended by itself; the process should be restarted.
    """
    stop = asyncio.Event()
    host = f"[{settings.bind_address}]" if ":" in settings.bind_address else settings.bind_address
    try:
        kopf.run(
            memo=kopf.Memo(settings=settings, dry_run=dry_run, stop=stop),
            standalone=True,
            # kopf would ask the system for the user's name, which the image's user does not have.
            identity=cast("Any", settings.identity),
            clusterwide=not settings.watch_namespaces,
            namespaces=settings.watch_namespaces,
            liveness_endpoint=f"http://{host}:{settings.probe_port}/healthz" if settings.probe_port else None,
            stop_flag=stop,
        )
    except Exception as error:
        raise RuntimeError(str(error.__cause__ or error)) from error


@kopf.on.startup(errors=_FINAL)
async def start(settings: kopf.OperatorSettings, memo: kopf.Memo, **_: Any) -> None:
    """Connect, wait for the kinds, listen for Prometheus and for readers of the board, and begin the beat."""
    bounded(settings)
    async with contextlib.AsyncExitStack() as stack:
        try:
            parts = await stack.enter_async_context(assembled(memo.settings, dry_run=memo.dry_run))
            await _until_served(parts.cluster, memo.settings)
            address = memo.settings.bind_address, memo.settings.port
            server = await web.serve(parts.registry, parts.health, *address)
        except (ClusterError, RuntimeError) as error:
            raise kopf.PermanentError(str(error)) from error
        stack.push_async_callback(server.cleanup)
        await parts.showing.open()
        stack.push_async_callback(parts.showing.close)
        memo.parts, memo.opened = parts, stack.pop_all()
    # The beat: a cycle at least every `cycleSeconds`, and sooner if it is woken, while this replica holds the Lease.
    memo.beat = asyncio.create_task(parts.loop.run(), name="cycles")
    memo.beat.add_done_callback(lambda _: memo.stop.set())


@kopf.on.cleanup(errors=_FINAL)
async def stop(memo: kopf.Memo, **_: Any) -> None:
    """Finish the cycle under way, give up the Lease, and close what the start opened."""
    unexpected = memo.beat.done()
    async with memo.opened:
        memo.parts.loop.stop()
        await memo.beat
    if unexpected:
        raise kopf.PermanentError("the loop of cycles ended by itself")


@kopf.on.login()
async def connection(memo: kopf.Memo, **_: Any) -> kopf.AiohttpSession:
    """The API server is asked over the operator's own connection."""
    return kopf.AiohttpSession(server="", aiohttp_session=cast("ClientSession", memo.parts.session))


@kopf.on.probe(errors=_FINAL)
async def alive(memo: kopf.Memo, **_: Any) -> str:
    """A late cycle, or a watch that is deaf, fails the probe."""
    problem = memo.parts.health.problem()
    if problem is not None:
        raise kopf.PermanentError(problem)
    return "ok"


@kopf.on.event(GROUP, VERSION, SERVICES.plural)
async def service_changed(event: kopf.RawEvent, memo: kopf.Memo, **_: Any) -> None:
    """A person wrote a service, or the operator its status; a spec, an annotation or a deletion wakes the loop."""
    memo.parts.own.take(SERVICES, _word(event), event["object"])


@kopf.on.event(GROUP, VERSION, PROFILES.plural)
async def profile_changed(event: kopf.RawEvent, memo: kopf.Memo, **_: Any) -> None:
    """A calibration left a profile, or somebody brought or removed one: that wakes the loop."""
    memo.parts.own.take(PROFILES, _word(event), event["object"])


@kopf.on.event(GROUP, VERSION, RUNS.plural)
async def run_changed(event: kopf.RawEvent, memo: kopf.Memo, **_: Any) -> None:
    """A run's driver wrote a point, or its phase changed: that wakes the loop."""
    memo.parts.own.take(RUNS, _word(event), event["object"])


def _word(event: kopf.RawEvent) -> EventKind:
    """The word of an event; the objects that were there before the watch have none."""
    return EventKind(event["type"] or EventKind.ADDED)


class _NoDiffs(kopf.DiffBaseStorage):
    """Spares a copy of each object: kopf compares it with its last version, for which no handler here asks."""

    def build(self, **_: Any) -> Any:
        return {}

    def fetch(self, **_: Any) -> None:
        return None

    def store(self, **_: Any) -> None:
        return None


def bounded(settings: kopf.OperatorSettings) -> None:
    """No search for kinds and namespaces, which needs further rights; nothing is written on objects."""
    settings.scanning.disabled = True
    settings.posting.enabled = False
    settings.persistence.diffbase_storage = _NoDiffs()
    settings.watching.initial_streaming = True
    settings.watching.inactivity_timeout = SILENCE_S
    settings.networking.error_backoffs = _ATTEMPTS_S
    # An object's task: a thousand of them would wait for further events that seldom come.
    settings.queueing.idle_timeout = _IDLE_S


async def _until_served(cluster: KubernetesCluster, settings: Settings) -> None:
    """Until the CRDs are there, because kopf asks only once which kinds there are; the probe does not fail meanwhile."""
    said = ""
    async with contextlib.AsyncExitStack() as stack:
        while problem := await _not_served(cluster):
            if not said and settings.probe_port:
                probe = await web.serve_waiting(settings.bind_address, settings.probe_port)
                stack.push_async_callback(probe.cleanup)
            if problem != said:
                _LOG.warning("%s; waiting", problem)
                said = problem
            await asyncio.sleep(_RETRY_S)


async def _not_served(cluster: KubernetesCluster) -> str | None:
    """Why kopf could not begin; None if it can."""
    try:
        missing = [f"{kind.plural}.{GROUP}" for kind in OWN_KINDS if not await cluster.serves(kind)]
    except ClusterError as error:
        return f"the API server does not answer yet: {error}"
    return f"not installed: CustomResourceDefinition {', '.join(missing)}" if missing else None

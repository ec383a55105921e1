"""The process of the operator: which task starts when, and how everything stops."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal

from breakeven_operator.assembly import Parts, assembled
from breakeven_operator.kinds import SERVICES
from breakeven_operator.ports import ClusterError
from breakeven_operator.serve import web
from breakeven_operator.settings import Settings

_LOG = logging.getLogger(__name__)
_RETRY_S = 2.0


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
    async with assembled(settings, dry_run=dry_run) as parts:
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
    async with assembled(settings, dry_run=dry_run, once=True) as parts:
        lease = parts.leadership.lease
        if not dry_run and not await lease.step():
            _LOG.warning("another replica holds the lease; nothing was done")
            return False
        try:
            return await parts.loop.once() is not None
        finally:
            await lease.release()


async def _cycles(parts: Parts) -> None:
    await _wait_for_kinds(parts)
    await parts.loop.run()


async def _wait_for_kinds(parts: Parts) -> None:
    """Until the CRDs are there: an informer that finds no such kind asks again after minutes only."""
    warned = False
    while True:
        try:
            if await parts.connections.cluster.serves(SERVICES):
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

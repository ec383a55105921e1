"""When the fleet's cycles run: on a timer, woken by events, only while this replica holds the Lease."""

from __future__ import annotations

import asyncio
import contextlib
import logging

from breakeven_operator.cluster.lease import Lease
from breakeven_operator.cluster_reasons import ClusterReason
from breakeven_operator.loop.cycle import Reconciler
from breakeven_operator.ports import Clock, ClusterError
from breakeven_operator.serve.health import Health
from breakeven_operator.serve.telemetry import Telemetry

_LOG = logging.getLogger(__name__)
# A burst of events becomes one cycle.
_SETTLE_S = 0.5
# A cycle that could not read the world: an API server that has just come up refuses for a moment (429).
_FAILED_S = 5.0


class NoLease:
    """A dry run writes nothing, so it needs nobody's leave."""

    held = True
    others = False
    retry_s = 3600.0

    def __init__(self) -> None:
        self.changed = asyncio.Event()

    async def step(self) -> bool:
        """There is nothing to renew."""
        return True

    async def release(self) -> None:
        """There is nothing to give up."""


class Loop:
    """Runs cycles until `stop` is called; a cycle under way is finished first.

    `cycle_s` is the longest time between two cycles; a cycle that failed is repeated after 5 s if that is sooner.
    """

    def __init__(
        self,
        fleet: Reconciler,
        lease: Lease | NoLease,
        health: Health,
        telemetry: Telemetry,
        clock: Clock,
        *,
        cycle_s: float,
    ) -> None:
        self._fleet = fleet
        self._lease = lease
        self._health = health
        self._telemetry = telemetry
        self._clock = clock
        self._cycle_s = cycle_s
        self._wake = asyncio.Event()
        self._stop = asyncio.Event()

    def wake(self) -> None:
        """Something changed: do not wait for the timer."""
        self._wake.set()

    def stop(self) -> None:
        """Finish the cycle under way and end."""
        self._stop.set()
        self._wake.set()

    async def run(self) -> None:
        """Cycles until `stop`; then the Lease is given up."""
        renewing = asyncio.create_task(self._renew(), name="lease")
        try:
            while not self._stop.is_set():
                if renewing.done():
                    # Only a bug ends it. Without renewal this process would live on and never act again.
                    await renewing
                left, longest_s = 0, self._cycle_s
                if self._lease.held:
                    found = await self.once()
                    left = found or 0
                    longest_s = self._cycle_s if found is not None else min(self._cycle_s, _FAILED_S)
                else:
                    # A replica that does not act does not watch either: the API server pays for one replica.
                    await self._fleet.rest()
                self._health.heard(self._fleet.age_s())
                self._health.loop_turned()
                # Services that are left over wait for no timer.
                await (asyncio.sleep(0.0) if left else self._pause(longest_s))
        finally:
            renewing.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await renewing
            await self._lease.release()

    async def once(self) -> int | None:
        """One cycle, and how many services it left; None if the world could not be read."""
        started = self._clock.monotonic()
        try:
            left = await self._fleet.cycle()
        except ClusterError as error:
            self._telemetry.errors.labels(str(ClusterReason.API_ERROR)).inc()
            _LOG.warning("cycle: %s", error)
            return None
        except Exception:  # noqa: BLE001 - reported in full, and the loop goes on
            # A bug in one cycle; the next one starts from a new reading. A loop that ended here would be a silent stop.
            _LOG.exception("cycle failed")
            self._telemetry.errors.labels(str(ClusterReason.INTERNAL_ERROR)).inc()
            return None
        self._telemetry.cycle_duration.observe(self._clock.monotonic() - started)
        self._health.cycle_succeeded()
        return left

    async def _renew(self) -> None:
        while True:
            self._telemetry.lead(await self._lease.step())
            if self._lease.changed.is_set():
                self._lease.changed.clear()
                self._wake.set()
            if self._lease.others:
                self._health.stood_by()
            await asyncio.sleep(self._lease.retry_s)

    async def _pause(self, longest_s: float) -> None:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._wake.wait(), longest_s)
            if not self._stop.is_set():
                await asyncio.sleep(_SETTLE_S)
        self._wake.clear()

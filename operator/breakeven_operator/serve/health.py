"""Whether this process still does its work, and the small server of /metrics and /readyz, and of /healthz until kopf answers it.

A loop that is late or a watch that is deaf makes the probe fail. A kind whose objects were never read counts from the moment at
which the operator began to watch it.
"""

from __future__ import annotations

import time
from collections.abc import Collection

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest

from breakeven_operator.ports import Clock

# An API server that renews our Lease and says nothing on any watch for so long: the fault is ours. One that is away takes
# the Lease along, and who does not lead watches nothing.
_DEAF_S = 300.0


class Health:
    """Facts about the loop and the watch, and the verdict over them.

    It is `ready` if the world was read once, or another replica was seen to lead; `turns` counts how often the loop came round.
    """

    def __init__(self, clock: Clock, cycle_s: float) -> None:
        self._clock = clock
        self._cycle_s = cycle_s
        self._alive_at = clock.monotonic()
        self.ready = False
        self.turns = 0
        # Unknown until a cycle has watched anything.
        self._heard_of_s: float | None = None

    @property
    def late_after_s(self) -> float:
        """A cycle that takes longer is late: several cycles' time, and room for one fit in its child process."""
        return 5 * self._cycle_s + 150.0

    def loop_turned(self) -> None:
        """The fleet loop came round: a cycle ended (well or not), or this replica waits for the Lease."""
        self._alive_at = self._clock.monotonic()
        self.turns += 1

    def heard(self, age_s: float) -> None:
        """The API server was last heard of so long ago, by the watches that observations rest on."""
        self._heard_of_s = self._clock.monotonic() - age_s

    def cycle_succeeded(self) -> None:
        """A cycle read the world."""
        self.ready = True

    def stood_by(self) -> None:
        """Another replica leads, and this one would take over: as ready as a spare can be."""
        self.ready = True

    def problem(self) -> str | None:
        """Why the process should be restarted; None while it should not."""
        now = self._clock.monotonic()
        late_s = now - self._alive_at
        if late_s > self.late_after_s:
            return f"the fleet loop has not come round for {late_s:.0f} s"
        deaf_s = now - self._heard_of_s if self._heard_of_s is not None else 0.0
        if deaf_s > max(_DEAF_S, self.late_after_s):
            return f"no watch has been heard of for {deaf_s:.0f} s"
        return None


# The figures that no cycle changes, such as memory, are at most so old.
_PAGE_S = 5.0
# Choices of names that a cycle answers each by itself: each may take half as long as the whole page.
_QUESTIONS = 3


class _Page:
    """The page of /metrics, made once per cycle: with a thousand services it takes 0.5 to 0.8 s of the loop that renews the Lease.

    Whoever reaches the port may ask as often as he likes, for whichever series.
    """

    def __init__(self, registry: CollectorRegistry, health: Health) -> None:
        self._registry = registry
        self._health = health
        self._texts: dict[frozenset[str], bytes] = {}
        self._made = -1, 0.0

    def text(self, names: frozenset[str]) -> bytes:
        """The series of these names in this cycle; all of them without names, and after many other questions in it."""
        turn, now_s = self._health.turns, time.monotonic()
        if self._made[0] != turn or now_s - self._made[1] > _PAGE_S:
            self._texts, self._made = {}, (turn, now_s)
        if names not in self._texts and len(self._texts) >= _QUESTIONS:
            names = frozenset()
        if names not in self._texts:
            shown = self._registry.restricted_registry(names) if names else self._registry
            self._texts[names] = generate_latest(shown)
        return self._texts[names]


async def serve(registry: CollectorRegistry, health: Health, host: str, port: int) -> web.AppRunner:
    """Start listening; the caller cleans the runner up. Port 0 takes a free one.

    Raises:
        RuntimeError: the address cannot be had.
    """
    page = _Page(registry, health)

    async def metrics(request: web.Request) -> web.Response:
        # Prometheus' own clients have this parameter.
        text = page.text(frozenset(request.query.getall("name[]", [])))
        return web.Response(body=text, headers={"Content-Type": CONTENT_TYPE_LATEST})

    async def readyz(_: web.Request) -> web.Response:
        return web.Response(
            text="ok" if health.ready else "no cycle yet", status=200 if health.ready else 503
        )

    return await _listening([web.get("/metrics", metrics), web.get("/readyz", readyz)], host, port)


async def serve_waiting(host: str, port: int) -> web.AppRunner:
    """Answers the probe while the start waits for something that a restart would not bring; kopf answers it afterwards.

    Raises:
        RuntimeError: the address cannot be had.
    """

    async def healthz(_: web.Request) -> web.Response:
        return web.Response(text="waiting")

    return await _listening([web.get("/healthz", healthz)], host, port)


async def _listening(routes: Collection[web.RouteDef], host: str, port: int) -> web.AppRunner:
    app = web.Application()
    app.add_routes(routes)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    try:
        await web.TCPSite(runner, host, port).start()
    except OSError as error:
        await runner.cleanup()
        raise RuntimeError(f"cannot listen on {host}:{port}: {error.strerror}") from error
    return runner

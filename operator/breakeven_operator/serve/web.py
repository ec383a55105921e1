"""/metrics, /healthz and /readyz on one small server."""

from __future__ import annotations

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest

from breakeven_operator.serve.health import Health


async def serve(registry: CollectorRegistry, health: Health, host: str, port: int) -> web.AppRunner:
    """Start listening; the caller cleans the runner up.

    Args:
        registry: what /metrics shows.
        health: what /healthz and /readyz ask.
        host: to bind to.
        port: to bind to; 0 takes a free one.

    Raises:
        RuntimeError: the address cannot be had.
    """

    async def metrics(request: web.Request) -> web.Response:
        # As Prometheus' own clients have it: a page about a thousand services takes 0.8 s to make.
        names = request.query.getall("name[]", [])
        shown = registry.restricted_registry(names) if names else registry
        return web.Response(body=generate_latest(shown), headers={"Content-Type": CONTENT_TYPE_LATEST})

    async def healthz(_: web.Request) -> web.Response:
        problem = health.problem()
        return web.Response(text=problem or "ok", status=503 if problem else 200)

    async def readyz(_: web.Request) -> web.Response:
        return web.Response(
            text="ok" if health.ready else "no cycle yet", status=200 if health.ready else 503
        )

    app = web.Application()
    app.add_routes([web.get("/metrics", metrics), web.get("/healthz", healthz), web.get("/readyz", readyz)])
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    try:
        await web.TCPSite(runner, host, port).start()
    except OSError as error:
        await runner.cleanup()
        raise RuntimeError(f"cannot listen on {host}:{port}: {error.strerror}") from error
    return runner

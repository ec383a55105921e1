"""The part of a kubelet's HTTPS API that `kubectl logs` needs: GET /containerLogs/{namespace}/{pod}/{container}.

Logs are the container's own output, byte for byte: the processes write the files themselves, so that the agent does no work
per line. Hence no time per line, and requests that need one are refused.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator, Mapping
from pathlib import Path

from aiohttp import web

from localcluster.nodeagent.container import Container
from localcluster.nodeagent.node import Node

_CHUNK_BYTES = 64 * 1024
# Only while somebody follows; regular files have no readiness to wait for.
_FOLLOW_EVERY_S = 0.2
_NEEDS_TIMES = ("timestamps", "sinceSeconds", "sinceTime")


class RefusalError(Exception):
    """A request that cannot be answered; becomes an HTTP error with this text."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


def server_tls(certificate: Path, key: Path, client_authority: Path | None) -> ssl.SSLContext:
    """TLS for the server; with `client_authority` only clients it has signed are let in, otherwise anyone on loopback."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate, key)
    if client_authority:
        context.load_verify_locations(client_authority)
        context.verify_mode = ssl.CERT_REQUIRED
    return context


async def serve(node: Node, tls: ssl.SSLContext) -> web.AppRunner:
    """Serves a node's logs at its own address; sets `node.port`. The caller cleans the runner up."""

    async def logs(request: web.Request) -> web.StreamResponse:
        try:
            return await _logs(request, node)
        except RefusalError as refusal:
            return web.Response(status=refusal.status, text=f"{refusal}\n")

    async def healthy(_: web.Request) -> web.Response:
        return web.Response(text="ok")

    async def refused(_: web.Request) -> web.Response:
        return web.Response(
            status=501, text="the node agent serves logs only (no exec, attach or port-forward)\n"
        )

    app = web.Application()
    app.router.add_get("/containerLogs/{namespace}/{pod}/{container}", logs)
    app.router.add_get("/healthz", healthy)
    app.router.add_route("*", "/{rest:.*}", refused)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.5)
    await runner.setup()
    await web.TCPSite(runner, node.address.node, 0, ssl_context=tls).start()
    node.port = runner.addresses[0][1]
    return runner


async def _logs(request: web.Request, node: Node) -> web.StreamResponse:
    container, folder = _find(request.match_info, node)
    query = request.query
    for name in _NEEDS_TIMES:
        if query.get(name) not in {None, "false"}:
            raise RefusalError(400, f"{name}: the node agent does not record when a line was written")
    run = container.state.restarts - (1 if query.get("previous") == "true" else 0)
    file = folder / f"{run}.log"
    if not file.exists():
        which = "previous terminated container" if query.get("previous") == "true" else "container"
        raise RefusalError(
            400, f'{which} "{container.spec.name}" in pod "{request.match_info["pod"]}" has no log'
        )
    tail = int(query["tailLines"]) if "tailLines" in query else None
    limit = int(query["limitBytes"]) if "limitBytes" in query else None
    follow = query.get("follow") == "true" and query.get("previous") != "true"
    response = web.StreamResponse(headers={"Content-Type": "text/plain"})
    # A reader that goes away in the middle (kubectl logs -f, then Ctrl-C) is no error.
    with contextlib.suppress(ConnectionError):
        await response.prepare(request)
        async for chunk in _read(file, tail, container if follow else None, run):
            piece = chunk if limit is None else chunk[:limit]
            await response.write(piece)
            if limit is not None:
                limit -= len(piece)
                if limit <= 0:
                    break
        await response.write_eof()
    return response


def _find(path: Mapping[str, str], node: Node) -> tuple[Container, Path]:
    for worker in node.workers.values():
        if (worker.pod.namespace, worker.pod.name) == (path["namespace"], path["pod"]):
            if container := worker.containers.get(path["container"]):
                return container, worker.room(container.spec.name)
            break
    raise RefusalError(
        404, f'no container "{path["container"]}" in pod "{path["namespace"]}/{path["pod"]}" on this node'
    )


async def _read(file: Path, tail: int | None, followed: Container | None, run: int) -> AsyncIterator[bytes]:
    """The log's content; while a container is followed, also what it writes until that run ends."""
    with file.open("rb") as log:
        log.seek(0 if tail is None else tail_offset(file, tail))
        while True:
            # Asked before reading: what a run writes before it ends must not be missed.
            more = followed is not None and followed.state.running and followed.state.restarts == run
            while chunk := log.read(_CHUNK_BYTES):
                yield chunk
            if not more:
                return
            await asyncio.sleep(_FOLLOW_EVERY_S)


def tail_offset(file: Path, lines: int) -> int:
    """Where the last `lines` lines of a file begin; a line that is still being written counts."""
    with file.open("rb") as log:
        position = end = log.seek(0, 2)
        wanted = lines
        while position > 0:
            start = max(0, position - _CHUNK_BYTES)
            log.seek(start)
            block = log.read(position - start)
            # The newline that ends the file begins no further line.
            at = len(block) - 1 if position == end and block.endswith(b"\n") else len(block)
            if lines == 0:
                return end
            while (at := block.rfind(b"\n", 0, at)) >= 0:
                wanted -= 1
                if wanted == 0:
                    return start + at + 1
            position = start
    return 0

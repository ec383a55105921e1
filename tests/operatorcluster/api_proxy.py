"""A proxy in front of the API server that cuts, holds back, repeats, reorders and refuses what passes."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import os
import ssl
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import aiohttp
import yaml
from aiohttp import web

Line = bytes


class ApiProxy:
    """Between a client and the API server.

    Attributes:
        asked: method, path and query of every request, in order.
        lines: what becomes of the lines of a watch that came together.
        refuse: an answer instead of the API server's, by query; None: ask it.
        disturb: the same by the whole request.

    Args:
        kubeconfig: of the administrator.
        administrator: whether everybody who asks through here is that; else they need a token of their own.
    """

    def __init__(self, kubeconfig: Path, *, administrator: bool = True) -> None:
        document = yaml.safe_load(kubeconfig.read_text())
        cluster, user = document["clusters"][0]["cluster"], document["users"][0]["user"]
        self._server = cluster["server"]
        self._tls = ssl.create_default_context(
            cadata=base64.b64decode(cluster["certificate-authority-data"]).decode()
        )
        if administrator:
            self._present(user)
        self.asked: list[tuple[str, str, dict[str, str]]] = []
        self.lines: Callable[[list[Line]], list[Line]] = lambda lines: lines
        self.refuse: Callable[[dict[str, str]], web.Response | None] = lambda _query: None
        self.disturb: Callable[[web.Request], web.Response | None] = lambda _request: None
        self._flowing = asyncio.Event()
        self._flowing.set()
        self._connections: set[asyncio.Task[Any]] = set()
        self.address = ""

    def _present(self, user: dict[str, str]) -> None:
        pair = base64.b64decode(user["client-certificate-data"]) + base64.b64decode(user["client-key-data"])
        with os.fdopen(os.memfd_create("pair"), "wb") as file:
            file.write(pair)
            file.flush()
            self._tls.load_cert_chain(f"/proc/self/fd/{file.fileno()}")

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[ApiProxy]:
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", self._pass)
        runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=0.1)
        connector = aiohttp.TCPConnector(limit=0, ssl=self._tls)
        async with aiohttp.ClientSession(connector=connector) as self._session:
            await runner.setup()
            await web.TCPSite(runner, "127.0.0.1", 0).start()
            self.address = f"http://127.0.0.1:{runner.addresses[0][1]}"
            try:
                yield self
            finally:
                self.cut()
                served = [one.transport for one in runner.server.connections] if runner.server else []
                await runner.cleanup()
                # Closed politely, one whose client reads no longer would wait for it beyond the end of the test.
                for transport in served:
                    if transport is not None:
                        transport.abort()
                await asyncio.sleep(0)

    def cut(self) -> None:
        """End all watches, in the middle of whatever they say."""
        for task in self._connections:
            task.cancel()

    def hold(self, held: bool = True) -> None:
        """From now on watches bring nothing, and do not end; or what was held back, and what comes."""
        (self._flowing.clear if held else self._flowing.set)()

    def watches(self) -> list[dict[str, str]]:
        return [query for _, _, query in self.asked if "watch" in query]

    async def _pass(self, request: web.Request) -> web.StreamResponse:
        query = dict(request.query)
        self.asked.append((request.method, request.path, query))
        if (refusal := self.refuse(query) or self.disturb(request)) is not None:
            return refusal
        kept = ("Accept", "Content-Type", "Authorization")
        headers = {name: request.headers[name] for name in kept if name in request.headers}
        async with self._session.request(
            request.method,
            self._server + request.path_qs,
            headers=headers,
            data=await request.read(),
            timeout=aiohttp.ClientTimeout(total=None),
        ) as answer:
            if "watch" not in query:
                return web.Response(
                    status=answer.status, body=await answer.read(), content_type=answer.content_type
                )
            response = web.StreamResponse(status=answer.status)
            await response.prepare(request)
            task = asyncio.current_task()
            assert task is not None
            self._connections.add(task)
            try:
                await self._pass_lines(answer, response)
            finally:
                self._connections.discard(task)
                if answer.connection is not None and answer.connection.transport is not None:
                    # Closed politely, TLS would wait for the API server beyond the end of the test.
                    answer.connection.transport.abort()
            return response

    async def _pass_lines(self, answer: aiohttp.ClientResponse, response: web.StreamResponse) -> None:
        rest = b""
        held: list[Line] = []
        async for chunk in answer.content.iter_any():
            *lines, rest = (rest + chunk).split(b"\n")
            held += lines
            await self._flowing.wait()
            for line in self.lines(held):
                await response.write(line + b"\n")
            held = []

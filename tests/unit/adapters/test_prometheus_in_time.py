"""A server that is slow, endless or gone: a query ends in time, reads so much and says which it was.

The servers end by themselves long after they were given up, so that a client that waits for them fails instead of
hanging; times are compared with what the server had done by then.
"""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import json

import pytest

from breakeven_operator.adapters.prometheus_api import OF_SERVER_AT_A_TIME, PrometheusClient
from breakeven_operator.ports import MetricsError, PrometheusAccess
from fakes.api_server import FakeCluster
from fakes.manual_clock import FakeClock

DEADLINE_S = 0.3
STEP_S = 0.02
# Steps of a server of these tests before it ends by itself: many times the deadline.
STEPS = 250
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
WHOLE = json.dumps({"status": "success", "data": {"resultType": "vector", "result": []}}).encode()


class Server:
    """One kind of trouble for everyone who connects.

    Attributes:
        url: of it.
        asked: released by every request.
        sent: pieces that went out, over all connections.
        given_up: a client went away before the trouble was over.
        lasted: a client stayed to the end of it.
    """

    def __init__(self, trouble):
        self._trouble = trouble
        self._connections = []
        self.asked = asyncio.Semaphore(0)
        self.sent = 0
        self.given_up = asyncio.Event()
        self.lasted = asyncio.Event()

    async def __aenter__(self):
        self._server = await asyncio.start_server(self._talk, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *_):
        self._server.close()
        for task in self._connections:
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)
        await self._server.wait_closed()

    async def _talk(self, reader, writer):
        self._connections.append(asyncio.current_task())
        try:
            await reader.readuntil(b"\r\n\r\n")
            self.asked.release()
            self._connections.append(asyncio.create_task(self._gone(reader)))
            async for piece in self._trouble():
                if self.given_up.is_set():
                    return
                writer.write(piece)
                await writer.drain()
                self.sent += 1
            self.lasted.set()
        except ConnectionError:
            self.given_up.set()
        finally:
            writer.close()

    async def _gone(self, reader):
        with contextlib.suppress(ConnectionError):
            await reader.read()
        self.given_up.set()


async def a_byte_now_and_then(before=b""):
    yield before
    for _ in range(STEPS):
        yield b" "
        await asyncio.sleep(STEP_S)


def slow_body():
    return a_byte_now_and_then(HEAD + b"Content-Length: 100000\r\n\r\n")


def slow_chunks():
    async def chunks():
        yield HEAD + b"Transfer-Encoding: chunked\r\n\r\n"
        async for _ in a_byte_now_and_then():
            yield b"1\r\n \r\n"

    return chunks()


def slow_head():
    return a_byte_now_and_then(HEAD + b"X-Slow: ")


async def hang():
    for _ in range(STEPS):
        yield b""
        await asyncio.sleep(STEP_S)


async def endless(head=HEAD):
    yield head + b"Content-Length: 104857600\r\n\r\n"
    for _ in range(100):
        yield b" " * (1 << 20)


async def a_bomb():
    body = gzip.compress(b" " * (100 << 20), 1)
    yield HEAD + b"Content-Encoding: gzip\r\nContent-Length: %d\r\n\r\n" % len(body)
    for start in range(0, len(body), 1024):
        yield body[start : start + 1024]


async def cut():
    yield HEAD + b"Content-Length: 1000\r\n\r\n" + WHOLE


async def nothing():
    yield b""


async def no_http():
    yield b"SSH-2.0-OpenSSH_9.2\r\n\r\n"


async def quick():
    yield HEAD + b"Content-Length: %d\r\n\r\n" % len(WHOLE) + WHOLE


@contextlib.asynccontextmanager
async def adapter(timeout_s=DEADLINE_S):
    prometheus = PrometheusClient(FakeCluster(FakeClock()), timeout_s=timeout_s, allowed=("127.0.0.1",))
    try:
        yield prometheus
    finally:
        await prometheus.close()


@pytest.mark.parametrize("trouble", [slow_body, slow_chunks, slow_head, hang])
async def test_a_query_ends_at_its_deadline_whatever_the_server_sends_meanwhile(trouble):
    async with Server(trouble) as server, adapter() as prometheus:
        with pytest.raises(MetricsError, match=r"gave no whole answer within 0\.3 s"):
            await prometheus.query(PrometheusAccess(server.url), "up")
        assert not server.lasted.is_set(), "the server would have gone on"
        await server.given_up.wait()
    assert server.sent < STEPS


async def test_servers_that_hang_keep_no_other_one_from_answering():
    async with Server(hang) as slow, Server(quick) as server, adapter(STEPS * STEP_S) as prometheus:
        hanging = [
            asyncio.create_task(prometheus.query(PrometheusAccess(slow.url), "up")) for _ in range(120)
        ]
        for _ in range(OF_SERVER_AT_A_TIME):
            await slow.asked.acquire()
        assert await prometheus.query(PrometheusAccess(server.url), "up") == []
        assert not any(task.done() for task in hanging)
        for task in hanging:
            task.cancel()
        await asyncio.gather(*hanging, return_exceptions=True)


@pytest.mark.parametrize("trouble", [endless, a_bomb])
async def test_an_answer_without_end_is_left_after_4_mib(trouble):
    async with Server(trouble) as server, adapter(60) as prometheus:
        with pytest.raises(MetricsError, match="answered with more than 4 MiB"):
            await prometheus.query(PrometheusAccess(server.url), "up")
        await server.given_up.wait()


@pytest.mark.parametrize("trouble", [cut, nothing, no_http])
async def test_an_answer_that_breaks_off_is_one_line(trouble):
    async with Server(trouble) as server, adapter(60) as prometheus:
        with pytest.raises(MetricsError, match="broke its answer off") as caught:
            await prometheus.query(PrometheusAccess(server.url), "a_long_query")
    assert "a_long_query" not in str(caught.value)
    assert "\n" not in str(caught.value)


async def test_a_query_that_is_cancelled_leaves_its_connection():
    async with Server(slow_body) as server, adapter(60) as prometheus:
        task = asyncio.create_task(prometheus.query(PrometheusAccess(server.url), "up"))
        await server.asked.acquire()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await server.given_up.wait()

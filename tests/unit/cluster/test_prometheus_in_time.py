"""A server that is slow, endless or gone: a query ends in time, reads so much and says which it was.

The servers end by themselves long after they were given up, so that a client that waits for them fails instead of
hanging; times are compared with what the server had done by then.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import gzip
import json
import tracemalloc
import zlib

import pytest

from breakeven.cli.doctor import command
from breakeven.cli.prometheus_options import AskedPrometheus
from breakeven.errors import BreakevenError
from breakeven_operator.cluster.prometheus_api import OF_SERVER_AT_A_TIME, PrometheusClient
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


@functools.cache
def zeros() -> bytes:
    """800 MiB in 800 KB: zeros deflate to the same bytes again and again."""
    deflating = zlib.compressobj(9, zlib.DEFLATED, zlib.MAX_WBITS | 16)
    first, other = (deflating.compress(bytes(1 << 20)) + deflating.flush(zlib.Z_FULL_FLUSH) for _ in range(2))
    return first + 799 * other


async def a_bomb():
    yield HEAD + b"Content-Encoding: gzip\r\nContent-Length: %d\r\n\r\n" % len(zeros())
    for start in range(0, len(zeros()), 1024):
        yield zeros()[start : start + 1024]


async def continuing():
    for _ in range(STEPS):
        yield b"HTTP/1.1 100 Continue\r\n\r\n"
        await asyncio.sleep(STEP_S)


def answered(body: bytes, head: bytes = HEAD):
    async def said():
        yield head + b"Content-Length: %d\r\n\r\n" % len(body) + body

    return said()


def cut_gzip():
    return answered(gzip.compress(WHOLE)[:-9], HEAD + b"Content-Encoding: gzip\r\n")


def longer_gzip():
    return answered(gzip.compress(WHOLE) + b"more", HEAD + b"Content-Encoding: gzip\r\n")


def brackets():
    return answered(b'{"data": ' + b"[" * 4_000_000)


def absurd():
    return answered(WHOLE.replace(b"[]", b'[{"metric": {}, "value": [1, 1%s]}]' % (b"0" * 400)))


def elsewhere():
    return answered(b"", HEAD.replace(b"200 OK", b"302 Found") + b"Location: http://[\r\n")


def other_encoding():
    return answered(b"", HEAD + b"Content-Encoding: br\r\n")


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


async def refused_by_operator(url, timeout_s):
    async with adapter(timeout_s) as prometheus:
        with pytest.raises(MetricsError) as caught:
            await prometheus.query(PrometheusAccess(url), "a_long_query")
    return str(caught.value)


async def refused_by_command(url, timeout_s):
    options = dict.fromkeys(one.name for one in command.params) | {
        "url": url,
        "label": (),
        "tenant_header": "X-Scope-OrgID",
    }
    with pytest.raises(BreakevenError) as caught:
        await asyncio.to_thread(AskedPrometheus.of(options, timeout_s).at, "a_long_query")
    return str(caught.value)


USERS = pytest.mark.parametrize(
    ("refused", "most_mib"),
    [(refused_by_operator, 4), (refused_by_command, 16)],
    ids=["operator", "command"],
)


@USERS
@pytest.mark.parametrize("trouble", [slow_body, slow_chunks, slow_head, hang, continuing])
async def test_a_query_ends_at_its_deadline_whatever_the_server_sends_meanwhile(trouble, refused, most_mib):
    async with Server(trouble) as server:
        assert "gave no whole answer within 0.3 s" in await refused(server.url, DEADLINE_S)
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


@USERS
@pytest.mark.parametrize("trouble", [endless, a_bomb])
async def test_an_answer_without_end_is_left_after_some_mib(trouble, refused, most_mib):
    async with Server(trouble) as server:
        assert f"answered with more than {most_mib} MiB" in await refused(server.url, 60)
        await server.given_up.wait()


async def test_a_bomb_is_inflated_no_further_than_it_is_read():
    async with Server(a_bomb) as server:
        tracemalloc.start()
        try:
            await refused_by_command(server.url, 60)
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
    # One piece of 64 KiB is 64 MiB of zeros.
    assert peak < 50 << 20


@USERS
@pytest.mark.parametrize("trouble", [cut, cut_gzip, longer_gzip, nothing, no_http])
async def test_an_answer_that_breaks_off_is_one_line(trouble, refused, most_mib):
    async with Server(trouble) as server:
        said = await refused(server.url, 60)
    assert "broke its answer off" in said
    assert "a_long_query" not in said
    assert "\n" not in said


@USERS
@pytest.mark.parametrize(
    ("trouble", "problem"),
    [
        (brackets, "something that is not Prometheus' JSON"),
        (absurd, "something that is no instant vector"),
        (elsewhere, "redirects, which is not followed"),
        (other_encoding, "an encoding that was not asked for"),
    ],
)
async def test_an_answer_that_is_none_is_one_line(trouble, problem, refused, most_mib):
    async with Server(trouble) as server:
        said = await refused(server.url, 60)
    assert problem in said
    assert len(said) < 300


async def test_a_query_that_is_cancelled_leaves_its_connection():
    async with Server(slow_body) as server, adapter(60) as prometheus:
        task = asyncio.create_task(prometheus.query(PrometheusAccess(server.url), "up"))
        await server.asked.acquire()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await server.given_up.wait()

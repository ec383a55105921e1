"""However large the answers are that servers give, and however many of them, this process holds few at a time."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest
from aiohttp import web

from breakeven_operator.cluster.prometheus_api import OwnPrometheus, PrometheusClient
from breakeven_operator.ports import MetricsError, PrometheusAccess
from fakes.api_server import FakeCluster
from fakes.manual_clock import FakeClock

_ROW = '{"metric":{"pod":"a"},"value":[0,"1"]}'


def body(mib: float) -> bytes:
    rows = ",".join([_ROW] * int(mib * (1 << 20) / (len(_ROW) + 1)))
    return f'{{"status":"success","data":{{"resultType":"vector","result":[{rows}]}}}}'.encode()


@contextlib.asynccontextmanager
async def server(answer: bytes) -> AsyncIterator[tuple[str, asyncio.Event, asyncio.Event]]:
    """A server that sends the head of each answer, and the rest when it may; and when two wait there."""
    may, full, begun = asyncio.Event(), asyncio.Event(), 0

    async def handle(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        half = len(answer) // 2
        await response.write(answer[:half])
        nonlocal begun
        begun += 1
        if begun == 2:
            full.set()
        await may.wait()
        await response.write(answer[half:])
        return response

    app = web.Application()
    app.router.add_get("/{path:.*}", handle)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}", may, full
    finally:
        may.set()
        await runner.cleanup()


async def test_an_answer_of_a_server_that_a_service_names_may_have_4_mib_and_of_the_operator_s_own_16():
    async with server(body(5)) as (url, may, _):
        may.set()
        own = PrometheusAccess(url)
        client = PrometheusClient(FakeCluster(FakeClock()), allowed=("127.0.0.1",), own=OwnPrometheus(own))
        try:
            assert len(await client.query(own, "up")) > 100_000
            with pytest.raises(MetricsError, match="more than 4 MiB"):
                await client.query(PrometheusAccess(f"{url}/1"), "up")
        finally:
            await client.close()


async def test_two_large_answers_are_held_at_a_time_and_small_ones_wait_for_no_turn():
    async with server(body(2)) as (url, may, full), server(body(0.1)) as (quick, at_once, _):
        at_once.set()
        client = PrometheusClient(FakeCluster(FakeClock()), allowed=("127.0.0.1",), timeout_s=60.0)
        asked = [
            asyncio.create_task(client.query(PrometheusAccess(f"{url}/{number}"), "up"))
            for number in range(6)
        ]
        try:
            async with asyncio.timeout(60):
                await full.wait()
                assert await client.query(PrometheusAccess(quick), "up")
                may.set()
                answers = await asyncio.gather(*asked)
            assert all(len(answer) > 10_000 for answer in answers)
        finally:
            await client.close()


async def test_the_operator_s_own_prometheus_waits_for_nobody_s_large_answer():
    async with server(body(2)) as (slow, _may, full), server(body(2)) as (url, at_once, _):
        at_once.set()
        own = PrometheusAccess(url)
        client = PrometheusClient(
            FakeCluster(FakeClock()), allowed=("127.0.0.1",), own=OwnPrometheus(own), timeout_s=60.0
        )
        others = [
            asyncio.create_task(client.query(PrometheusAccess(f"{slow}/{number}"), "up"))
            for number in range(4)
        ]
        try:
            async with asyncio.timeout(60):
                await full.wait()
                assert await client.query(own, "up")
        finally:
            for task in others:
                task.cancel()
            await asyncio.gather(*others, return_exceptions=True)
            await client.close()

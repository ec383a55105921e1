"""Receipts on a service's page: asked of Prometheus beside the loop, kept, and never waited for by anybody else."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace

import aiohttp
import pytest

from breakeven.past.receipts import receipts
from breakeven.readers.prometheus import Samples, TimedValue
from breakeven.serving.promql import RangeQuestion
from breakeven_operator.board.asked_receipts import AskedReceipts
from breakeven_operator.board.board_access import LoopbackAccess
from breakeven_operator.board.board_server import Board, BoardSettings, listen
from breakeven_operator.kinds import NamespacedName
from breakeven_operator.ports import MetricsError, PrometheusAccess
from fakes.known_savings import KnownPast, known_past
from fakes.manual_clock import FakeClock

from .test_board_server import Visitor

CHAT = NamespacedName("llm", "chat")
SOURCE = PrometheusAccess("http://prometheus:9090")


class HeldPast:
    """A Prometheus that holds one known past, and answers range questions about it."""

    def __init__(self, clock):
        end_s = int(clock.now().timestamp()) // 300 * 300
        self.known = known_past(KnownPast.RESTARTS, 3, end_s, days=2)
        self.asked: list[str] = []
        self.held = asyncio.Event()
        self.held.set()
        self.refusal = ""

    async def query(self, source, promql):
        raise NotImplementedError

    async def query_past(self, source, promql):
        assert source is SOURCE
        await self.held.wait()
        self.asked.append(promql)
        if self.refusal:
            raise MetricsError(self.refusal)
        question = RangeQuestion.of_subquery(promql, 0.0)
        assert question is not None
        if "service_info" in question.promql:
            at = TimedValue(float(question.last_s), 1.0)
            return [Samples({"specsvc_namespace": "llm", "specsvc": "chat"}, (at,))]
        return [
            replace(one, values=tuple(at for at in one.values if question.first_s <= at.time_s <= question.last_s))
            for one in self.known.on_grid()
        ]  # fmt: skip


@pytest.fixture
def clock():
    return FakeClock()


async def answered(asked):
    """The answer that is there when the page was opened often enough; a busy machine takes longer than a page waits."""
    async with asyncio.timeout(60):
        while "is being asked" in (found := await asked.of(CHAT)).problem:
            pass
    return found


async def test_a_service_has_the_receipts_of_the_pure_core_and_is_asked_about_once_in_a_quarter_of_an_hour(
    clock,
):
    past = HeldPast(clock)
    asked = AskedReceipts(past, SOURCE, clock)
    found = await answered(asked)
    claimed = [one for one in found.receipts if one.claimed_hours]
    expected = [one for one in receipts(past.known.on_grid(), past.known.grid) if one.claimed_hours]
    assert [one.request_saved_s.value for one in claimed] == pytest.approx(
        [one.request_saved_s.value for one in expected]
    )
    assert sum(one.claimed_hours for one in claimed) == pytest.approx(past.known.claimable_hours)
    questions = len(past.asked)
    clock.advance(800.0)
    assert await asked.of(CHAT) is found
    assert len(past.asked) == questions
    clock.advance(200.0)
    assert await asked.of(CHAT) is found
    await asked.close()
    assert len(past.asked) <= 2 * questions


async def test_nobody_waits_for_a_prometheus_that_is_slow(clock):
    past = HeldPast(clock)
    past.held.clear()
    asked = AskedReceipts(past, SOURCE, clock)
    async with asyncio.timeout(10):
        found = await asked.of(CHAT)
    assert found.problem.startswith("Prometheus is being asked")
    past.held.set()
    assert (await answered(asked)).receipts
    await asked.close()


async def test_a_refusal_is_said_and_asked_again_after_a_minute(clock):
    past = HeldPast(clock)
    past.refusal = "gave no whole answer within 5 s"
    asked = AskedReceipts(past, SOURCE, clock)
    assert (await answered(asked)).problem == "Prometheus at prometheus:9090: gave no whole answer within 5 s."
    past.refusal = ""
    clock.advance(61.0)
    assert (await answered(asked)).receipts
    await asked.close()


async def test_a_service_of_another_cluster_under_the_same_name_is_not_shown(clock):
    past = HeldPast(clock)
    mine = past.query_past

    async def of_two(source, promql):
        return [
            replace(one, labels={**one.labels, "cluster": cluster})
            for one in await mine(source, promql)
            for cluster in ("east", "west")
        ]

    past.query_past = of_two
    asked = AskedReceipts(past, SOURCE, clock)
    found = await answered(asked)
    assert "several clusters" in found.problem
    assert not found.receipts
    await asked.close()


async def test_the_page_of_a_service_shows_the_table_of_the_command(settled):

    clock = FakeClock()
    clock.advance((settled.time - clock.now()).total_seconds())
    asked = AskedReceipts(HeldPast(clock), SOURCE, clock)
    board = Board(clock, BoardSettings(gpu_price_per_hour=2.0), asked)
    board.publish(settled)
    socket = await listen(board.application(LoopbackAccess()), "127.0.0.1", 0)
    try:
        async with aiohttp.ClientSession() as session:
            visitor = Visitor(socket.address, session, board, clock)
            _, _, text = await visitor.get("services/llm/chat")
            _, _, facts = await visitor.get("json/services/llm/chat")
    finally:
        await socket.close()
        await asked.close()
    for part in ("Receipts", "waiting saved h", "net", "NoExperiment: no roll was measured yet"):
        assert part in text
    assert json.loads(facts)["receipts"][0]["service"] == "chat"

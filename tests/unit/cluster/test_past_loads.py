"""Past loads come from memory for one step: what is asked again, when, and what a failure leaves."""

from __future__ import annotations

import asyncio
import re
from types import MappingProxyType

import pytest

from breakeven.readers.prometheus import Samples, TimedValue
from breakeven.serving.promql import EngineSeries, Matcher
from breakeven_operator.cluster.prometheus_questions import PASTS, Runner, Watch
from breakeven_operator.observing.past_metrics import read_past
from breakeven_operator.ports import MetricsError, PrometheusAccess
from fakes.manual_clock import FakeClock

STEP_S = 300
LOOKBACK = Watch(PrometheusAccess("http://prometheus:9090"), EngineSeries(), STEP_S, 86400)
KEY = ("llm", "chat-vllm", "chat")


class Server:
    """The `Metrics` port, as far as it is about the past."""

    def __init__(self):
        self.asked = []
        self.rate_rps = 1.0
        self.error = None
        self.answers = asyncio.Event()
        self.answers.set()

    async def query_past(self, source, promql):
        self.asked.append((source, promql))
        await self.answers.wait()
        if self.error:
            raise MetricsError(self.error)
        labels = dict(zip(("namespace", "workload", "model_name"), KEY, strict=True))
        return [Samples(labels, (TimedValue(1.0, self.rate_rps),))] if self.rate_rps else []


@pytest.fixture
def clock():
    return FakeClock()


@pytest.fixture
def server():
    return Server()


@pytest.fixture
def counted():
    return []


@pytest.fixture
def history(server, clock, counted):
    return Runner(PASTS, server, clock, counted.append)


async def rates(history, lookback=LOOKBACK, namespaces=MappingProxyType({"llm": 1})):
    reading = (await history.read({lookback: namespaces}))[lookback]
    return reading.rates[KEY].rps if KEY in reading.rates else reading.error


async def test_an_answer_is_kept_for_one_step_and_not_longer(history, server, clock, counted):
    assert await rates(history) == (1.0,)
    server.rate_rps = 2.0
    clock.advance(STEP_S - 1)
    assert await rates(history) == (1.0,)
    assert len(server.asked) == 1
    clock.advance(1)
    assert await rates(history) == (2.0,)
    assert counted == ["ok", "ok"]


async def test_an_empty_answer_is_one_too(history, server, counted):
    server.rate_rps = 0.0
    assert await rates(history) is None
    assert await rates(history) is None
    assert counted == ["empty"]


async def test_a_namespace_more_is_asked_for_at_once_and_one_less_is_not(history, server):
    await rates(history)
    await rates(history, namespaces={"llm": 1, "other": 1})
    assert ['namespace=~"llm|other"' in text for _, text in server.asked] == [False, True]
    await rates(history)
    assert len(server.asked) == 2


async def test_each_source_matcher_and_lookback_is_asked_once(history, server):
    others = (
        Watch(PrometheusAccess("http://other:9090"), EngineSeries(), STEP_S, 86400),
        Watch(LOOKBACK.source, EngineSeries((Matcher("cluster", "=", "a"),)), STEP_S, 86400),
        Watch(LOOKBACK.source, EngineSeries(), STEP_S, 3600),
    )
    wanted = {key: {"llm": 1} for key in (LOOKBACK, *others)}
    for _ in range(3):
        assert (await history.read(wanted)).keys() == wanted.keys()
    assert len(server.asked) == 4
    assert {source.address for source, _ in server.asked} == {"http://prometheus:9090", "http://other:9090"}


async def test_a_failure_is_said_once_tried_again_after_a_minute_and_no_exception(
    history, server, clock, counted, caplog
):
    server.error = "query timed out"
    for _ in range(4):
        assert await rates(history) == "query timed out"
    assert len(server.asked) == 1
    for _ in range(3):
        clock.advance(60)
        await rates(history)
    assert counted == ["error"] * 4
    assert [r.getMessage() for r in caplog.records] == [
        "loads of the past 24 h cannot be read, so present loads are taken to last: query timed out"
    ]
    server.error = None
    clock.advance(60)
    assert await rates(history) == (1.0,)


async def test_a_failure_leaves_the_answer_before_it_for_twelve_steps(history, server, clock, caplog):
    await rates(history)
    server.error = "query timed out"
    for _ in range(11):
        clock.advance(STEP_S)
        assert await rates(history) == (1.0,)
    # A namespace that joins meanwhile has no past, and takes none away.
    assert await rates(history, namespaces={"llm": 1, "other": 1}) == (1.0,)
    assert caplog.records == []
    clock.advance(STEP_S)
    assert await rates(history) == "query timed out"
    assert len(caplog.records) == 1


async def test_a_matcher_that_is_none_is_a_failure_of_the_past_alone(history, server):
    lookback = Watch(LOOKBACK.source, EngineSeries((Matcher("no label", "=", "x"),)), STEP_S, 86400)
    assert "label name" in await rates(history, lookback)
    assert server.asked == []


async def test_what_nobody_wants_any_more_is_forgotten(history, server):
    await rates(history)
    assert await history.read({}) == {}
    await rates(history)
    assert len(server.asked) == 2


async def test_an_answer_that_takes_long_is_awaited_and_the_one_before_it_stands(server, clock, counted):
    history = Runner(PASTS, server, clock, counted.append, settle_s=0.01)
    server.answers.clear()
    wanted = {LOOKBACK: {"llm": 1}}
    for _ in range(3):
        reading = (await history.read(wanted))[LOOKBACK]
        assert (reading.awaited, reading.error, reading.rates) == ({"llm"}, None, {})
    server.answers.set()
    await asyncio.sleep(0)
    assert await rates(history) == (1.0,)
    assert len(server.asked) == 1
    server.answers.clear()
    clock.advance(STEP_S)
    assert await rates(history) == (1.0,)
    reading = (await history.read({LOOKBACK: {"llm": 1, "other": 1}}))[LOOKBACK]
    assert (reading.awaited, reading.rates[KEY].rps) == ({"other"}, (1.0,)), "who is known stays known"
    await history.close()
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_what_nobody_wants_any_more_is_not_waited_for_either(server, clock, counted):
    history = Runner(PASTS, server, clock, counted.append, settle_s=0.01)
    server.answers.clear()
    await history.read({LOOKBACK: {"llm": 1}})
    assert await history.read({}) == {}
    await history.close()
    assert asyncio.all_tasks() == {asyncio.current_task()}
    assert counted == []


async def test_many_services_are_asked_about_in_several_queries_that_are_one_answer(history, server, counted):
    reading = (await history.read({LOOKBACK: {"llm": 200, "other": 200, "more": 100}}))[LOOKBACK]
    asked = [re.search(r'namespace=~"([^"]*)"', promql)[1] for _, promql in server.asked]
    assert asked == ["llm|more", "other"]
    assert reading.rates[KEY].rps == (1.0,)
    assert reading.awaited == frozenset()
    assert counted == ["ok"]


async def test_no_query_is_about_more_than_300_services(history, server):
    for more, queries in ((100, 1), (101, 2)):
        server.asked.clear()
        await history.read({LOOKBACK: {"llm": 200, f"more-{more}": more}})
        assert len(server.asked) == queries


def test_services_of_one_answer_share_the_times_of_their_steps():
    values = [TimedValue(300.0 * step, 1.0) for step in range(5)]
    samples = [
        Samples(
            {"namespace": "llm", "workload": name, "model_name": "chat"},
            tuple(TimedValue(*value) for value in values),
        )
        for name in "abc"
    ]
    first, *others = read_past(samples).rates.values()
    assert len(others) == 2
    assert all(other.end_s is first.end_s for other in others)

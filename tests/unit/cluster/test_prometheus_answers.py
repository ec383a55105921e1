"""Memory of a Prometheus' answers, and how long it lasts."""

from __future__ import annotations

import asyncio
import copy
import re

import pytest

from breakeven.readers.prometheus import InstantSample
from breakeven.serving.promql import EngineSeries
from breakeven_operator.cluster.prometheus_answers import PrometheusReader
from breakeven_operator.cluster.prometheus_questions import FLEET, GUARDS, LATENCIES, Runner, Watch
from breakeven_operator.kinds import NamespacedName
from breakeven_operator.observing.fleet_query import SIBLINGS, STAT
from breakeven_operator.ports import MetricsError, PrometheusAccess
from breakeven_operator.resources import SpeculativeService
from fakes.fleet_world import SERVICE
from fakes.manual_clock import FakeClock
from fakes.virtual_time import in_virtual_time

WATCH = Watch(PrometheusAccess("http://prometheus:9090"), EngineSeries(), window_s=300, oldest_s=120)
OWNER = {"namespace": "llm", "pod": "chat-vllm-7d9f8b6c5d-b2c4d", "model_name": "chat"}
FIGURES = [
    InstantSample({**OWNER, STAT: "e2e_n"}, 900.0),
    InstantSample({**OWNER, SIBLINGS: "chat-vllm-7d9f8b6c5d-", STAT: "ttft", "le": "+Inf"}, 900.0),
]


class Server:
    """The `Metrics` port: answers with figures, fails where `error` is set, and never ends a query while it hangs."""

    def __init__(self):
        self.hangs = False
        self.error = None

    async def query(self, source, promql):
        if self.hangs:
            await asyncio.Event().wait()
        if self.error is not None:
            raise MetricsError(self.error)
        return FIGURES


class Loads:
    """Present loads as a cycle reads them: of one namespace, or of none."""

    def __init__(self, server, clock):
        self._present = Runner(FLEET, server, clock, lambda _: None)
        self.close = self._present.close

    async def read(self, *, wanted=True):
        found = await self._present.read({WATCH: {"llm": 1}} if wanted else {})
        return (found[WATCH].pods, found[WATCH].error) if wanted else found


class QuantilesOfOne:
    """Present latencies as a cycle reads them: of one target, or of none."""

    def __init__(self, server, clock):
        self._present = Runner(LATENCIES, server, clock, lambda _: None)
        self.close = self._present.close

    async def read(self, *, wanted=True):
        found = await self._present.read({WATCH: {NamespacedName("llm", "chat-vllm")}} if wanted else {})
        return (found[WATCH].counts, found[WATCH].error) if wanted else found


@pytest.mark.parametrize("kind", [Loads, QuantilesOfOne])
@in_virtual_time
async def test_a_watch_that_comes_back_is_not_given_the_figures_of_before_it_went(kind):
    server, clock = Server(), FakeClock()
    present = kind(server, clock)
    figures, error = await present.read()
    assert figures
    assert error is None
    server.hangs = True
    clock.advance(30.0)
    assert await present.read() == (figures, None), "no older than the staleness"
    assert await present.read(wanted=False) == {}
    clock.advance(30.0)
    figures, error = await present.read()
    assert not figures
    assert "not answered" in error
    await present.close()


@in_virtual_time
async def test_a_watch_that_comes_back_hours_later_is_not_given_the_error_of_then():
    server, clock = Server(), FakeClock()
    present = Loads(server, clock)
    server.error = "HTTP 401"
    assert await present.read() == ({}, "HTTP 401")
    server.hangs = True
    clock.advance(15.0)
    assert await present.read() == ({}, "HTTP 401"), "the newest thing that is known"
    await present.read(wanted=False)
    clock.advance(3600.0)
    assert await present.read() == ({}, "Prometheus at prometheus:9090 has not answered within 2 s")
    await present.close()


async def test_objectives_of_many_services_are_several_queries_that_are_one_answer():
    class Latencies:
        def __init__(self):
            self.queries = []

        async def query(self, _source, promql):
            self.queries.append(promql)
            first = re.search(r'pod=~"\(([^|)]*)', promql)[1]
            labels = {
                "namespace": "llm",
                SIBLINGS: f"{first}-",
                "model_name": "chat",
                STAT: "ttft",
                "le": "+Inf",
            }
            return [InstantSample(labels, 9.0)]

    server, targets = Latencies(), set()
    for number in range(600):
        service = copy.deepcopy(SERVICE)
        service["spec"]["slo"] = {"ttftP95Milliseconds": 500}
        service["spec"]["targetRef"]["name"] = f"vllm-{number:03}"
        targets.add(LATENCIES.subject(SpeculativeService.model_validate(service)))
    present = Runner(LATENCIES, server, FakeClock(), lambda _: None)
    found = (await present.read({WATCH: targets}))[WATCH]
    await present.close()
    # Each of three figures is asked for in buckets, and twice where it is a native histogram.
    assert [query.count("vllm-") // 9 for query in server.queries] == [250, 250, 100]
    assert {owner.pod for owner in found.counts} == {"vllm-000-", "vllm-250-", "vllm-500-"}


def guarded(namespace, query):
    """A service of a namespace that names the installation's own server and has one guard."""
    manifest = copy.deepcopy(SERVICE)
    manifest["metadata"] |= {"namespace": namespace, "uid": namespace}
    manifest["spec"]["metricsSource"] = {"prometheus": {"address": WATCH.source.address}}
    manifest["spec"]["updatePolicy"]["guards"] = [{"name": "ErrorRate", "query": query, "max": "1"}]
    return SpeculativeService.read(manifest, namespace)


@in_virtual_time
async def test_a_guard_is_never_asked_as_the_installation_and_waits_for_no_other_namespace():
    class Guarded(Server):
        def __init__(self):
            super().__init__()
            self.guards = []

        async def query(self, source, promql):
            if promql == "hangs":
                await asyncio.Event().wait()
            if promql != "quick":
                return await super().query(source, promql)
            self.guards.append(source)
            return [InstantSample({}, 2.0)]

        async def query_past(self, _source, _promql):
            return []

    server = Guarded()
    reader = PrometheusReader(server, FakeClock(), default_source=WATCH.source)
    services = [guarded("a-slow-one", "hangs"), guarded("llm", "quick")]
    answers = await reader.read(services, {}, soon=False)
    assert answers[GUARDS][reader.queries.guards_of(services[1])] == {"quick": 2.0}
    assert [one.address for one in server.guards] == [WATCH.source.address]
    # With an equal source the token of the installation would be sent.
    assert WATCH.source not in server.guards
    await reader.close()


@in_virtual_time
async def test_a_guard_that_hangs_holds_the_others_of_its_namespace_up_no_longer_than_itself():
    class Slow:
        async def query(self, _source, promql):
            if promql == "quick":
                return [InstantSample({}, 2.0)]
            await asyncio.sleep(10.0)
            raise MetricsError("no whole answer within 10 s")

    guards = Runner(GUARDS, Slow(), FakeClock(), lambda _: None, settle_s=11.0)
    began_s = asyncio.get_running_loop().time()
    found = await guards.read({WATCH: {("a", "b", "c"), ("quick",)}})
    assert found[WATCH] == {"quick": 2.0}
    assert asyncio.get_running_loop().time() - began_s < 11.0
    await guards.close()


@in_virtual_time
async def test_the_pasts_of_300_services_are_one_query():
    class Past(Server):
        async def query_past(self, _source, promql):
            asked.append(promql)
            return []

    asked: list[str] = []
    services = []
    for namespace, count in (("here", 160), ("there", 140)):
        manifest = copy.deepcopy(SERVICE)
        manifest["metadata"] |= {"namespace": namespace}
        manifest["spec"]["updatePolicy"]["lookbackSeconds"] = 86_400
        services += [SpeculativeService.read(manifest, namespace)] * count
    reader = PrometheusReader(Past(), FakeClock(), default_source=WATCH.source)
    await reader.read(services, {}, soon=False)
    assert len([one for one in asked if "[86400s:" in one]) == 1
    await reader.close()

"""A Prometheus that is slow costs the services that it watches their figures, and nobody else anything.

Time is the event loop's own, so that what a cycle took is exact: waiting for a server counts, this machine does not.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy

import pytest

from breakeven_operator.cluster.prometheus_questions import SETTLE_S
from breakeven_operator.kinds import DEPLOYMENTS, SERVICES
from fakes.fleet_metrics import DEADLINE_S
from fakes.fleet_world import SERVICE, TARGET, VALUE, FleetWorld
from fakes.virtual_time import in_virtual_time

QUICK, SLOW = "http://prometheus:9090", "http://slow:9090"
CYCLE_S = 15.0
NEVER_S = 195.0


class World(FleetWorld):
    """Beside `chat` a service `late` of another namespace, watched by a Prometheus of its own.

    Attributes:
        took_s: how long each cycle took.
    """

    def __init__(self, staleness_s=120, lookback_s=0):
        super().__init__(
            lambda spec: spec["updatePolicy"].update(stabilizationWindowSeconds=0, lookbackSeconds=lookback_s)
        )
        target, service = copy.deepcopy(TARGET), copy.deepcopy(SERVICE)
        target["metadata"] = {"name": "late-vllm", "namespace": "team"}
        service["metadata"] = {"name": "late", "namespace": "team"}
        service["spec"]["targetRef"]["name"] = "late-vllm"
        service["spec"]["updatePolicy"]["mode"] = "Disabled"
        service["spec"]["metricsSource"] = {
            "prometheus": {"address": SLOW},
            "stalenessSeconds": staleness_s,
        }
        self.cluster.put(DEPLOYMENTS, target, manager="helm")
        self.cluster.put(SERVICES, service)
        self.kubelet.settle()
        self.clock.advance(1000.0)
        self.calibrate()
        self.load(3.0)
        self.took_s = []
        self.seen_s = asyncio.get_running_loop().time()

    async def cycle(self, seconds=CYCLE_S):
        """One cycle; the world's clock follows the event loop's."""
        loop = asyncio.get_running_loop()
        await asyncio.sleep(seconds)
        self.clock.advance(loop.time() - self.seen_s)
        self.seen_s = loop.time()
        self.kubelet.step()
        report = await self.fleet.cycle()
        self.took_s.append(round(loop.time() - self.seen_s, 2))
        return report

    @property
    def late(self):
        """Reason and message of `late`'s condition MetricsAvailable."""
        status = self.cluster.objects["speculativeservices", "team", "late"]["status"]
        found = next(c for c in status["conditions"] if c["type"] == "MetricsAvailable")
        return found["reason"], found["message"]

    def queries(self, address):
        return sum(asked == address for asked, _ in self.prometheus.asked)


@contextlib.asynccontextmanager
async def world(**settings):
    found = World(**settings)
    try:
        yield found
    finally:
        await found.observer.close()
        assert asyncio.all_tasks() == {asyncio.current_task()}, "no query outlives the operator"


@in_virtual_time
async def test_one_that_hangs_takes_the_figures_of_its_own_services_only():
    async with world() as here:
        here.prometheus.delay_s[SLOW] = NEVER_S
        await here.cycle()
        assert (here.value, here.reason) == (VALUE, "GainAboveThreshold"), "the other one is rolled at once"
        reason, message = here.late
        assert reason == "MetricsMissing"
        assert "Prometheus at slow:9090 has not answered within 2 s" in message
        said = [message]
        for _ in range(12):
            await here.cycle()
            assert here.late[0] == reason
            said.append(here.late[1])
        assert len(set(said)) == 2, (
            "after its deadlines the sentence is another one; it is written once, not for each"
        )
        assert "gave no whole answer within 10 s" in said[-1]


@in_virtual_time
async def test_a_new_process_waits_for_the_first_answer_and_tells_of_no_figures_that_only_come_late():
    async with world() as here:
        here.prometheus.delay_s |= {QUICK: 6.0, SLOW: 6.0}
        await here.cycle()
        assert here.took_s == [6.0]
        assert here.late[0] == "MetricsAvailable"
        assert here.value == VALUE
        await here.cycle()
        assert here.took_s[1] < 0.1, "slow ones are waited for no more"


@in_virtual_time
async def test_one_that_hangs_is_waited_for_once_and_never_again():
    async with world() as here:
        here.prometheus.delay_s[SLOW] = NEVER_S
        for _ in range(10):
            await here.cycle()
        assert here.took_s == [SETTLE_S] + [0.0] * 9
        assert here.queries(QUICK) == here.queries(SLOW) == 10


@in_virtual_time
async def test_one_that_answers_late_serves_the_next_cycle():
    async with world() as here:
        here.prometheus.delay_s[SLOW] = 5.0
        await here.cycle()
        assert here.late[0] == "MetricsMissing"
        for _ in range(5):
            await here.cycle()
            assert here.late[0] == "MetricsAvailable"
        assert here.took_s == [SETTLE_S] + [0.0] * 5
        here.prometheus.delay_s[SLOW] = 0.1
        await here.cycle()
        await here.cycle()
        assert here.took_s[-2:] == [0.0, 0.1], "once it is quick again it is waited for again"


@in_virtual_time
async def test_one_query_at_a_time_is_under_way():
    async with world() as here:
        here.prometheus.delay_s[SLOW] = 0.9 * DEADLINE_S
        for _ in range(7):
            await here.cycle(1.0)
        assert here.queries(SLOW) == 1
        assert here.queries(QUICK) == 7


@in_virtual_time
async def test_a_late_answer_serves_no_longer_than_figures_may_be_old():
    async with world(staleness_s=6) as here:
        await here.cycle()
        assert here.late[0] == "MetricsAvailable"
        here.prometheus.delay_s[SLOW] = 0.9 * DEADLINE_S
        said = []
        for _ in range(5):
            await here.cycle(1.1)
            said.append(here.late[0])
        # The first of them lasts two seconds longer. The answer's newest sample was a second old when it came.
        assert said == ["MetricsAvailable"] * 2 + ["MetricsStale"] + ["MetricsMissing"] * 2
        assert "slow:9090 has not answered within 6 s" in here.late[1]


@in_virtual_time
async def test_a_namespace_that_the_last_answer_was_not_about_is_not_taken_for_empty():
    async with world() as here:
        await here.cycle()
        here.prometheus.delay_s[SLOW] = 5.0
        target = copy.deepcopy(TARGET)
        target["metadata"] = {"name": "late-vllm", "namespace": "new-team"}
        service = copy.deepcopy(here.cluster.objects["speculativeservices", "team", "late"])
        service["metadata"] = {"name": "late", "namespace": "new-team"}
        del service["status"]
        here.cluster.put(DEPLOYMENTS, target, manager="helm")
        here.cluster.put(SERVICES, service)
        here.kubelet.settle()
        await here.cycle()
        status = here.cluster.objects["speculativeservices", "new-team", "late"]["status"]
        assert status["decision"]["reason"] != "MetricsEmpty"
        await here.cycle()
        assert here.late[0] == "MetricsAvailable"


@in_virtual_time
async def test_a_surprise_in_one_answer_costs_its_own_services_only(monkeypatch, caplog):
    def surprised(series):
        raise ZeroDivisionError

    async with world() as here:
        asked = here.prometheus.query

        async def query(source, promql):
            return surprised(()) if source.address == SLOW else await asked(source, promql)

        monkeypatch.setattr(here.prometheus, "query", query)
        await here.cycle()
        assert (here.value, here.reason) == (VALUE, "GainAboveThreshold")
        reason, message = here.late
        assert reason == "MetricsMissing"
        assert "reading the answer of Prometheus at slow:9090 failed (ZeroDivisionError)" in message
        assert [record.exc_info is not None for record in caplog.records if record.levelname == "ERROR"] == [
            True
        ]


NIGHT_RPS, NOON_RPS = 3.0, 11.5
NOON = (NIGHT_RPS,) * 216 + (NOON_RPS,) * 72


@pytest.mark.parametrize("delay_s", [5.0, 9.5])
@in_virtual_time
async def test_a_past_that_is_still_to_come_is_waited_for_with_the_decision_and_not_with_the_cycle(delay_s):
    async with world(lookback_s=86400) as here:
        here.prometheus.past["llm", "chat-vllm"] = NOON
        here.prometheus.past_delay_s = delay_s
        await here.cycle()
        assert (here.value, here.reason) == (None, "MetricsMissing"), "at this load alone it would be rolled"
        assert "the loads of the past 24 h are not known yet" in here.condition("MetricsAvailable")["message"]
        for _ in range(8):
            await here.cycle()
        assert (here.value, here.reason) == (None, "PeakAhead")
        assert here.took_s == [SETTLE_S] + [0.0] * 8


@in_virtual_time
async def test_a_past_that_never_comes_is_no_reason_to_hold():
    async with world(lookback_s=86400) as here:
        here.prometheus.past["llm", "chat-vllm"] = NOON
        here.prometheus.past_delay_s = NEVER_S
        await here.until(lambda: here.decision.get("action") == "Stay")
        assert here.took_s[0] == SETTLE_S
        assert set(here.took_s[1:]) <= {0.0}

"""A fleet too large to be read pod by pod: sums show which services have moved, and their pods are read."""

from __future__ import annotations

import asyncio

import pytest

from breakeven_operator.cluster.prometheus_questions import SETTLE_S
from breakeven_operator.kinds import PODS, SERVICES
from breakeven_operator.observing.fleet_query import REPORTING
from fakes.fleet_metrics import pods_of
from fakes.fleet_world import VALUE, FleetWorld
from fakes.virtual_time import in_virtual_time

SERVICES_MORE = 5


def large(count=SERVICES_MORE, mode="Disabled"):
    """Services with two pods each, `chat` and others; an answer holds the pods of two of them."""
    world = FleetWorld(
        lambda spec: spec["updatePolicy"].update(stabilizationWindowSeconds=0, mode=mode), pods_per_query=4
    )
    world.add_services(count, mode="Disabled")
    world.calibrate()
    world.load(3.0)
    return world


def decided(world):
    return sorted(
        name
        for (_, _, name), body in world.cluster.objects.items()
        if body.get("kind") == SERVICES.kind and (body.get("status") or {}).get("decision")
    )


def pod_names(world):
    return {pod["metadata"]["name"] for pod in world.cluster.of(PODS)}


async def test_a_cycle_reads_the_pods_of_as_many_services_as_fit_into_an_answer():
    world = large()
    seen = []
    for _ in range(3):
        report = await world.cycle()
        seen.append(len(decided(world)))
        assert report.left >= 6 - seen[-1]
    assert seen == [2, 4, 6]
    sums = [query for query in world.prometheus.queries if REPORTING in query]
    pods = [query for query in world.prometheus.queries if REPORTING not in query]
    assert (len(sums), len(pods)) == (3, 3)
    asked_about = [{name for name in pod_names(world) if pods_of(query)(name)} for query in pods]
    assert [len(names) for names in asked_about] == [4, 4, 4]
    await world.cycle()
    assert (await world.cycle()).left == 0


async def test_while_nothing_moves_no_pod_is_read():
    world = large(count=2)
    for _ in range(80):
        await world.cycle()
    world.prometheus.queries.clear()
    # Each of the three is decided about every five minutes, that is in one cycle of twenty.
    for _ in range(20):
        await world.cycle()
    pods = [query for query in world.prometheus.queries if REPORTING not in query]
    assert len(world.prometheus.queries) - len(pods) == 20
    assert len(pods) <= 6


async def test_a_large_fleet_is_rolled_as_a_small_one_is():
    world = large(mode="RollingUpdate")
    await world.until(lambda: world.value == VALUE)
    world.load(3.0)
    await world.until(lambda: world.phase is None)
    assert world.whole["history"][0]["result"] == "Confirmed"


async def test_a_prometheus_that_gives_no_sums_is_not_asked_about_pods():
    world = large()
    world.prometheus.down = True
    report = await world.cycle()
    (sums,) = world.prometheus.queries
    assert REPORTING in sums
    condition = world.condition("MetricsAvailable")
    assert (condition["reason"], report.left) == ("MetricsMissing", 0)
    assert "prometheus:9090 is not reached" in condition["message"]
    assert len(decided(world)) == SERVICES_MORE + 1


@pytest.mark.parametrize("wrong", ["exporter", ""])
async def test_series_under_a_wrong_name_are_looked_for_everywhere(wrong):
    world = large(count=2)
    world.prometheus.relabel = lambda labels: {**labels, "pod": wrong}
    await world.cycle()
    (pods,) = (query for query in world.prometheus.queries if REPORTING not in query)
    assert "(vllm:num_requests_running)" in pods


async def test_without_a_fault_nobody_else_s_series_are_asked_for():
    world = large()
    await world.cycle()
    (pods,) = (query for query in world.prometheus.queries if REPORTING not in query)
    assert "(vllm:num_requests_running)" not in pods


def slow(world, monkeypatch):
    """Answers about pods come after the cycle that asks."""
    asked = world.prometheus.query

    async def query(source, promql):
        if REPORTING not in promql:
            await asyncio.sleep(3 * SETTLE_S)
        return await asked(source, promql)

    monkeypatch.setattr(world.prometheus, "query", query)


@in_virtual_time
async def test_pods_that_are_told_of_late_are_decided_about_in_a_later_cycle(monkeypatch):
    world = large(count=2)
    slow(world, monkeypatch)
    # The first answer of all is waited for longer.
    await world.cycle()
    world.load(9.0)
    lefts = []
    # In less than the five minutes after which it would be decided about anyway.
    for _ in range(4):
        lefts.append((await world.cycle(60.0)).left)
        assert world.condition("MetricsAvailable")["status"] == "True"
        await asyncio.sleep(3 * SETTLE_S)
    assert set(lefts) == {0}, "no cycle begins at once: it would be too early as well"
    assert float(world.decision["loadRps"]) == pytest.approx(9.0)
    await world.observer.close()


@in_virtual_time
async def test_services_behind_those_whose_answer_is_late_begin_no_cycle_at_once_either(monkeypatch):
    world = large()
    slow(world, monkeypatch)
    # The first answer of all is waited for longer.
    await world.cycle()
    report = await world.cycle(60.0)
    assert (report.left, len(decided(world))) == (0, 2)
    await world.observer.close()

"""Pods that are young, miss a probe, began again or are not measured: what they do to the load, and to the decision about all."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from breakeven_operator.kinds import PODS
from fakes.fleet_world import VALUE, FleetWorld

SETTLED: dict[int, FleetWorld] = {}


def names_of(world):
    return [pod["metadata"]["name"] for pod in world.cluster.of(PODS)]


async def settled(replicas, rps):
    if replicas not in SETTLED:
        world = FleetWorld(target=lambda target: target["spec"].update(replicas=replicas))
        await world.speculate()
        SETTLED[replicas] = world
    world = SETTLED[replicas].copied()
    world.load(rps)
    await world.cycle()
    return world


def load_of(world):
    return float(world.decision.get("loadRps") or math.nan)


@pytest.mark.parametrize("every_s", [15.0, 60.0, 600.0])
@pytest.mark.parametrize("share", [0.5, 1.0])
async def test_probes_that_miss_move_neither_the_load_nor_the_arm(share, every_s):
    world = await settled(2, 7.0)
    rolls, loads = len(world.rolls), []
    for cycle in range(12):
        if cycle * 15.0 % every_s == 0.0:
            for name in names_of(world)[: round(share * 2)]:
                world.kubelet.miss_probe(name)
        await world.cycle()
        loads.append(load_of(world))
    assert max(loads) == pytest.approx(7.0, rel=0.02)
    assert min(loads) == pytest.approx(7.0, rel=0.02)
    assert len(world.rolls) == rolls
    assert world.value == VALUE


@pytest.mark.parametrize("away_s", [0.0, 20.0, 60.0, 120.0])
async def test_an_engine_that_begins_again_counts_no_request_twice(away_s):
    world = await settled(2, 7.0)
    rolls = len(world.rolls)
    for name in names_of(world):
        world.kubelet.restart(name, away_s)
    for _ in range(22):
        await world.cycle()
        # A hold without figures for a window at most, and never a load that was not there.
        assert load_of(world) == pytest.approx(7.0, rel=0.02) or math.isnan(load_of(world))
    assert world.reason == "BelowBreakEven"
    assert len(world.rolls) == rolls


def begun_again(world, name):
    world.kubelet.restart(name, 30.0)


def unscraped(world, name):
    world.prometheus.unscraped.add(name)


def stale(world, name):
    world.prometheus.by_pod[name] = replace(world.prometheus.traffic, age_s=400.0)


def mislabelled(world, name):
    world.prometheus.by_pod[name] = replace(world.prometheus.traffic, model_name="another")


def nan(world, name):
    world.prometheus.by_pod[name] = replace(world.prometheus.traffic, waiting=math.nan)


@pytest.mark.parametrize(("fault", "word"), [
    (begun_again, "TooFewRequests"),
    (unscraped, "MetricsPartial"),
    (stale, "MetricsStale"),
    (mislabelled, "MetricsMislabelled"),
    (nan, "MetricsNaN"),
])  # fmt: skip
@pytest.mark.parametrize(("replicas", "faulty"), [(6, 1), (6, 2), (6, 3), (2, 1)])
async def test_two_thirds_of_the_pods_decide_and_the_others_are_named(fault, word, replicas, faulty):
    world = await settled(replicas, 3.0)
    chosen = names_of(world)[:faulty]
    for name in chosen:
        fault(world, name)
    world.load(11.5)
    await world.cycle()
    said = world.condition("MetricsAvailable")
    if 3 * (replicas - faulty) >= 2 * replicas:
        assert said["status"] == "True"
        assert f"{replicas - faulty} of {replicas} pods measured" in said["message"]
        assert f"{chosen[0]} ({word})" in said["message"]
        assert load_of(world) == pytest.approx(11.5, rel=0.02)
        assert float(world.whole["capacity"]["fleetLoadRps"]) == pytest.approx(11.5 * replicas, rel=0.02)
        assert world.reason == "BeyondBreakEven"
    else:
        assert (said["status"], said["reason"]) == ("False", word)
        assert f"{replicas - faulty} of {replicas} pods can be measured" in said["message"]
        assert world.reason != "BeyondBreakEven"


async def test_a_young_pod_of_a_fleet_that_grows_adds_what_it_counted_to_the_whole_load():
    world = await settled(6, 6.0)
    world.cluster.objects["deployments", "llm", "chat-vllm"]["spec"]["replicas"] = 7
    for _ in range(8):
        await world.cycle()
    load_rps = float(world.whole["capacity"]["fleetLoadRps"])
    assert "TooFewRequests" in world.condition("MetricsAvailable")["message"]
    # The seventh has served for a part of the window.
    assert 36.0 < load_rps < 39.0


async def loaded(rps, **fields):
    world = FleetWorld(lambda spec: spec["updatePolicy"].update(mode="Recommend"))
    world.calibrate()
    for name, value in fields.items():
        setattr(world.prometheus, name, value)
    world.load(rps)
    await world.cycle()
    return world


@pytest.mark.parametrize(("sent_rps", "taken_rps", "share"), [
    (24.0, 16.0, "33%"), (20.0, 16.0, "20%"), (16.0, 15.6, "2%"), (16.0, 16.0, None), (40.0, 4.0, "90%"), (3.0, 2.999, None),
])  # fmt: skip
async def test_demand_that_pods_turn_away_counts_in_the_fleet_and_is_said(sent_rps, taken_rps, share):
    world = await loaded(sent_rps, full_at_rps=taken_rps)
    assert load_of(world) == pytest.approx(taken_rps, rel=0.01)
    assert float(world.whole["capacity"]["fleetLoadRps"]) == pytest.approx(2 * sent_rps, rel=0.01)
    said = world.condition("MetricsAvailable")["message"]
    assert (f"{share} of the requests were turned away (HTTP 5xx or 429)" in said) is (share is not None)
    assert ("turned away" in said) is (share is not None)


async def test_requests_that_no_arm_answers_are_the_client_s_and_no_demand():
    world = FleetWorld(lambda spec: spec["updatePolicy"].update(mode="Recommend"))
    world.calibrate()
    world.prometheus.traffic.invalid_share = 0.3
    world.load(8.0)
    await world.cycle()
    assert float(world.whole["capacity"]["fleetLoadRps"]) == pytest.approx(11.2, rel=0.01)
    assert "turned away" not in world.condition("MetricsAvailable")["message"]


async def test_pods_that_cannot_be_scraped_are_no_missing_pod_monitor():
    world = await loaded(5.0, scrapes_fail=True)
    said = world.condition("MetricsAvailable")
    assert said["reason"] == "MetricsEmpty"
    assert "cannot scrape pods such as chat-vllm-" in said["message"]
    assert "PodMonitor" not in said["message"]


OWN = ("namespace", "pod")


@pytest.mark.parametrize(("renamed", "word", "said"), [
    ({"exported_namespace": 0, "exported_pod": 1, "namespace": "monitoring", "pod": "prometheus-0"}, "MetricsMislabelled",
     "exported_namespace='llm' and exported_pod='chat-vllm-"),
    ({"exported_namespace": 0, "pod": 1, "namespace": "monitoring"}, "MetricsMislabelled", "exported_namespace='llm', not by"),
    ({"kubernetes_namespace": 0, "kubernetes_pod_name": 1}, "MetricsMislabelled", "kubernetes_pod_name='chat-vllm-"),
    ({"k8s_namespace_name": 0, "k8s_pod_name": 1}, "MetricsMislabelled", "k8s_namespace_name='llm'"),
    ({"namespace": 0, "pod_name": 1}, "MetricsMislabelled", "pod_name='chat-vllm-"),
    ({"namespace": "monitoring", "pod": 1}, "MetricsMislabelled", "namespace='monitoring' pod='chat-vllm-"),
    ({"namespace": "monitoring", "pod": "prometheus-0"}, "MetricsEmpty", "under namespace='monitoring' pod='prometheus-0'"),
    ({"ns": 0, "workload": 1}, "MetricsMislabelled", "namespace='' pod=''"),
])  # fmt: skip
async def test_series_under_other_labels_are_named_by_these(renamed, word, said):
    def relabel(labels):
        others = {name: value for name, value in labels.items() if name not in OWN}
        return others | {
            name: labels[OWN[value]] if value in (0, 1) else value for name, value in renamed.items()
        }

    world = await loaded(5.0, relabel=relabel)
    condition = world.condition("MetricsAvailable")
    assert (condition["status"], condition["reason"]) == ("False", word)
    assert said in condition["message"]

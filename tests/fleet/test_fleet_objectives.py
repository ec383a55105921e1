"""Objectives against what users see: the measured quantile decides, whatever the model says."""

from __future__ import annotations

import logging

import pytest

from breakeven_operator.kinds import EVENTS
from fakes.fleet_world import FleetWorld

LABELS = {"specsvc_namespace": "llm", "specsvc": "chat", "figure": "ttft"}
KEPT, MISSED = [0.2] * 100, [0.2] * 80 + [3.0] * 20


def promising(**slo) -> FleetWorld:
    def edit(spec):
        spec["slo"] = slo or {"ttftP95Milliseconds": 500}
        # A roll would begin the window again.
        spec["updatePolicy"]["mode"] = "Recommend"

    world = FleetWorld(edit)
    world.calibrate()
    world.load(3.0)
    return world


def users_see(world, took_s):
    world.prometheus.traffic.latencies = {"ttft": took_s, "e2e": [1.0] * 100}


def kept(world):
    return world.condition("ObjectivesKept")


def said(world, reason):
    return [event for event in world.cluster.of(EVENTS) if event["reason"] == reason]


async def watched(world, seconds):
    for _ in range(round(seconds / 15)):
        await world.cycle()


async def test_a_breach_that_lasts_longer_than_a_window_is_told_everywhere_although_the_law_sees_none(caplog):
    caplog.set_level(logging.INFO)
    world = promising()
    users_see(world, MISSED)
    await world.cycle()
    assert (kept(world)["status"], kept(world)["reason"]) == ("Unknown", "ObjectiveUncertain")
    await watched(world, 270)
    assert kept(world)["status"] == "Unknown"
    await watched(world, 45)
    assert (kept(world)["status"], kept(world)["reason"]) == ("False", "SloViolated")
    assert "TTFT p95 is 4.38 s (2.5 s to 5 s) and shall be at most 500 ms" in kept(world)["message"]
    assert "80 % of 200 requests kept it, 95 % should" in kept(world)["message"]
    (event,) = said(world, "SloViolated")
    assert event["type"] == "Warning"
    assert any(
        getattr(record, "args", None) and "'objectives': 'SloViolated'" in str(record.args)
        for record in caplog.records
    )


async def test_status_and_metrics_hold_the_quantiles_with_their_bounds_and_the_attainment():
    world = promising()
    users_see(world, MISSED)
    await world.cycle()
    (e2e, ttft, tpot) = world.whole["objectives"]
    assert (e2e["figure"], "finding" in e2e, tpot) == ("e2e", False, {"figure": "tpot"})
    assert (ttft["finding"], ttft["requests"], ttft["missedRequests"]) == ("Missed", 200, 40)
    assert float(ttft["attainmentLowerPercent"]) < 80 < float(ttft["attainmentUpperPercent"]) < 85

    def sample(name, **more):
        return world.registry.get_sample_value(name, {**LABELS, **more})

    assert sample("breakeven_objective_attainment_ratio", bound="estimate") == pytest.approx(0.8)
    assert sample("breakeven_objective_missed_requests") == 40
    assert sample("breakeven_objective_requests") == 200
    assert sample("breakeven_objective_seconds") == 0.5
    assert sample("breakeven_latency_quantile_seconds", quantile="0.5", bound="upper") == 0.25
    e2e_p50 = {**LABELS, "figure": "e2e", "quantile": "0.5", "bound": "lower"}
    assert world.registry.get_sample_value("breakeven_latency_quantile_seconds", e2e_p50) == 0.8


async def test_objectives_that_are_kept_say_so_after_a_breach():
    world = promising()
    users_see(world, MISSED)
    await watched(world, 330)
    users_see(world, KEPT)
    await world.cycle()
    assert (kept(world)["status"], kept(world)["reason"]) == ("True", "ObjectivesKept")
    assert len(said(world, "ObjectivesKept")) == 1


async def test_an_answer_about_latencies_that_fails_takes_no_load_from_the_decision():
    world = promising()
    users_see(world, KEPT)
    world.prometheus.latencies_down = True
    await world.cycle()
    assert not world.reason.startswith("Metrics")
    assert (kept(world)["status"], kept(world)["reason"]) == ("Unknown", "MetricsMissing")
    assert "too many samples" in kept(world)["message"]


async def test_nobody_is_asked_about_latencies_of_a_service_without_objectives():
    world = FleetWorld()
    world.calibrate()
    world.load(3.0)
    await world.cycle()
    assert world.prometheus.latency_queries == []
    assert "objectives" not in world.whole
    assert "ObjectivesKept" not in {one["type"] for one in world.status["conditions"]}


async def test_a_missed_breach_of_stale_figures_is_not_held_against_anybody():
    world = promising()
    users_see(world, MISSED)
    await watched(world, 330)
    world.prometheus.traffic.age_s = 500.0
    await world.cycle()
    assert (kept(world)["status"], kept(world)["reason"]) == ("Unknown", "MetricsStale")
    assert {one["finding"] for one in world.whole["objectives"] if "finding" in one} == {"Unmeasured"}


async def test_a_breach_that_another_arm_would_end_is_rolled_at_once_in_the_cool_down():
    """The law of no speculation keeps 1.5 s at this load (its mean counts, because it has no quantile); users see more."""

    def edit(spec):
        spec["slo"] = {"e2eP95Milliseconds": 1500}
        spec["updatePolicy"] |= {"cooldownSeconds": 36000, "stabilizationWindowSeconds": 36000}

    world = FleetWorld(edit)
    world.calibrate()
    world.load(3.0)
    world.prometheus.traffic.latencies = {"e2e": [0.9] * 90 + [1.8] * 30}
    await world.cycle()
    assert world.reason == "Dwelling"
    for _ in range(20):
        await world.cycle()
    assert world.reason in {"SloViolated", "RollStarted"}
    assert [entry["reason"] for entry in (world.whole["rollout"],)] == ["SloViolated"]
    assert len(world.rolls) == 1

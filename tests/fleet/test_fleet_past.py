"""Loads of the past are expected again: what they keep out, what they let in, and what is done without any."""

from __future__ import annotations

import copy
import re

from breakeven_operator.kinds import DEPLOYMENTS, SERVICES
from fakes.fleet_world import BREAK_EVEN_RPS, SERVICE, TARGET, VALUE, FleetWorld

FLAT = (3.0,) * 288
# Six hours a day at a load below the speculative arm's saturation, at which requests take three times as long as without it.
NOON_RPS = 11.5
NOON = (3.0,) * 216 + (NOON_RPS,) * 72


def world_with(past):
    world = FleetWorld(
        lambda spec: spec["updatePolicy"].update(lookbackSeconds=86400, stabilizationWindowSeconds=0)
    )
    if past:
        world.prometheus.past["llm", "chat-vllm"] = past
    # Of a Deployment whose name begins with the same letters.
    world.prometheus.past["llm", "chat-vllm-large"] = (30.0,) * 288
    world.calibrate()
    world.load(3.0)
    return world


async def speculating_after_flat_days():
    world = world_with(FLAT)
    await world.until(lambda: world.phase == "Confirming")
    world.load(3.0)
    await world.until(lambda: world.phase is None)
    return world


async def test_an_arm_that_would_lose_over_the_day_is_not_entered_at_night():
    assert NOON_RPS > BREAK_EVEN_RPS
    world = world_with(NOON)
    for _ in range(20):
        await world.cycle()
    assert (world.decision["action"], world.reason) == ("Stay", "PeakAhead")
    assert float(world.decision["speedupLower"]) > 1.05, "now it would gain"
    assert float(world.decision["expectedPeakRps"]) == NOON_RPS
    assert world.decision["expectedObservations"] == 288
    assert world.condition("MetricsAvailable")["message"] == "2 pods measured over 300 s"
    assert "PeakAhead" in world.events
    assert world.rolls == []


async def test_with_a_flat_day_it_is_entered():
    world = world_with(FLAT)
    await world.until(lambda: world.value == VALUE)
    assert world.reason == "GainAboveThreshold"
    assert float(world.decision["expectedPeakRps"]) == 3.0


async def test_the_load_of_now_belongs_to_what_is_expected():
    world = world_with((1.0,) * 288)
    world.load(9.0)
    await world.cycle()
    assert float(world.decision["expectedPeakRps"]) == 9.0


async def test_a_running_arm_is_left_before_the_peak_and_that_roll_goes_the_way_of_all(caplog):
    caplog.set_level("INFO", "breakeven_operator.decision")
    world = await speculating_after_flat_days()
    world.prometheus.past["llm", "chat-vllm"] = NOON
    await world.until(lambda: world.value == "null")
    assert (world.decision["action"], world.reason) == ("Switch", "PeakAhead")
    assert world.whole["rollout"]["reason"] == "PeakAhead"
    assert float(world.whole["rollout"]["predictedSpeedup"]) < 1, "until the peak it is the slower one"
    assert caplog.records[-1].args["reason"] == "PeakAhead"
    assert float(caplog.records[-1].args["expectedPeakRps"]) == NOON_RPS
    assert world.registry.get_sample_value(
        "breakeven_decisions_total",
        {"specsvc_namespace": "llm", "specsvc": "chat", "action": "Switch", "reason": "PeakAhead"},
    )
    await world.until(lambda: world.phase == "Confirming")
    world.load(3.0)
    await world.until(lambda: world.phase is None)
    entry = world.whole["history"][0]
    assert (entry["reason"], entry["result"]) == ("PeakAhead", "Unmeasured")
    assert "the loads for which one was promised have not come" in entry["message"]
    assert float(entry["measuredSpeedupUpper"]) < 1
    assert (world.events.count("RollStarted"), world.events.count("RollUnproven")) == (2, 1)
    for _ in range(100):
        await world.cycle(60.0)
    assert len(world.rolls) == 2, "and it is not entered again"


async def test_an_arm_left_before_a_peak_that_is_slower_than_promised_is_put_back():
    world = await speculating_after_flat_days()
    world.prometheus.past["llm", "chat-vllm"] = NOON
    await world.until(lambda: world.phase == "Confirming")
    world.load(3.0)
    world.prometheus.traffic.latency_s *= 1.3
    await world.until(lambda: world.phase == "Undoing")


async def test_without_a_past_any_jump_is_reckoned_with_and_the_status_says_so():
    """By its law eagle/3 saturates at 12.5 rps, no speculation at 20: the loads to come are unknown, and 3 rps now are no promise."""
    world = world_with(())
    for _ in range(10):
        await world.cycle()
    assert (world.decision["action"], world.reason) == ("Stay", "RiskTooHigh")
    assert re.search(r"it carries 12\.[56] rps", world.decision["message"])
    assert world.condition("MetricsAvailable")["status"] == "True"
    assert world.condition("MetricsAvailable")["message"] == (
        "2 pods measured over 300 s; no load of the past 24 h is known, so the present one is taken to last"
    )
    assert "expectedObservations" not in world.decision


async def test_a_past_that_nobody_asks_for_lets_the_present_load_decide():
    world = FleetWorld(
        lambda spec: spec["updatePolicy"].update(lookbackSeconds=0, stabilizationWindowSeconds=0)
    )
    world.calibrate()
    world.load(3.0)
    await world.until(lambda: world.value == VALUE)


async def test_a_past_that_cannot_be_read_is_no_reason_to_hold_and_is_said_once(caplog):
    world = world_with(FLAT)
    world.prometheus.past_down = True
    for _ in range(10):
        await world.cycle()
    assert world.decision["action"] == "Stay"
    assert world.condition("MetricsAvailable")["status"] == "True"
    assert (
        "cannot be read (Prometheus at prometheus:9090 refused"
        in world.condition("MetricsAvailable")["message"]
    )
    said = [r.getMessage() for r in caplog.records if "loads of the past" in r.getMessage()]
    assert len(said) == 1


async def test_the_past_is_asked_for_once_per_step_however_many_services_there_are():
    world = world_with(FLAT)
    for _ in range(8):
        await world.cycle(60.0)
    # At once, and 300 s after that.
    assert len(world.prometheus.past_queries) == 2
    for number in range(20):
        target, service = copy.deepcopy(TARGET), copy.deepcopy(SERVICE)
        target["metadata"] = {"name": f"vllm-{number}", "namespace": f"team-{number}"}
        service["metadata"] = {"name": "chat", "namespace": f"team-{number}"}
        service["spec"]["targetRef"]["name"] = f"vllm-{number}"
        service["spec"]["updatePolicy"] = {"mode": "Disabled"}
        world.cluster.put(DEPLOYMENTS, target, manager="helm")
        world.cluster.put(SERVICES, service)
    world.kubelet.settle()
    await world.cycle(1.0)
    world.prometheus.past_queries.clear()
    for _ in range(10):
        await world.cycle(60.0)
    assert len(world.prometheus.past_queries) == 2


async def test_with_a_lookback_of_zero_nothing_is_asked():
    world = FleetWorld()
    world.calibrate()
    world.load(3.0)
    await world.cycle()
    assert world.prometheus.queries
    assert world.prometheus.past_queries == []
    assert "expectedPeakRps" not in world.decision
    assert world.condition("MetricsAvailable")["message"] == "2 pods measured over 300 s"

"""Capacity and replicas in the status and on /metrics, over cycles."""

from __future__ import annotations

import math

import pytest

from fakes.fleet_world import LAWS, FleetWorld


def capacity(world: FleetWorld) -> dict:
    return world.whole.get("capacity") or {}


def shown(world: FleetWorld, **labels: str) -> float | None:
    return world.registry.get_sample_value(
        "breakeven_recommended_replicas", {"specsvc_namespace": "llm", "specsvc": "chat", **labels}
    )


def recommend_only(spec: dict) -> None:
    spec["updatePolicy"].update(mode="Recommend")
    spec["slo"] = {"e2eP95Milliseconds": 2000}


async def settled(rps: float) -> FleetWorld:
    world = FleetWorld(recommend_only)
    world.calibrate()
    world.load(rps)
    await world.until(lambda: "recommendedReplicas" in capacity(world))
    return world


async def test_the_whole_fleet_s_load_over_the_running_arm_s_lower_bound_is_what_is_recommended():
    world = await settled(7.5)
    (c1_s, c2_s), found = next(iter(LAWS.values())), capacity(world)
    none = next(one for one in found["arms"] if one["arm"] == "none")
    assert float(none["capacityRps"]) == pytest.approx((1 - c1_s / 2.0) / c2_s, rel=0.02)
    assert float(none["lowerRps"]) < float(none["capacityRps"]) < float(none["upperRps"])
    assert none["limit"] == "Objective"
    assert float(found["fleetLoadRps"]) == pytest.approx(15.0)
    assert found["recommendedReplicas"] == math.ceil(1.2 * 15.0 / float(none["lowerRps"])) == 2
    assert "scaledBy" not in found
    assert found["message"].startswith(
        "no autoscaler has scaled the target; for 15 rps no speculation needs 2 replicas"
    )
    assert shown(world) == 2


@pytest.mark.parametrize("trouble", ["down", "empty"])
async def test_without_a_load_nothing_is_recommended_and_capacities_stay(trouble):
    world = await settled(8.0)
    if trouble == "down":
        world.prometheus.down = True
    else:
        world.prometheus.traffic.rps = math.nan
    await world.until(lambda: shown(world) is None)
    await world.until(lambda: "recommendedReplicas" not in capacity(world))
    assert {one["arm"] for one in capacity(world)["arms"]} == {"none", "eagle/3"}
    assert "the present load is not" in capacity(world)["message"]


async def test_without_a_profile_nothing_is_said():
    world = FleetWorld(recommend_only)
    world.load(8.0)
    await world.cycle()
    await world.cycle()
    assert capacity(world) == {}
    assert shown(world) is None


async def test_an_idle_fleet_needs_one_replica():
    world = await settled(8.0)
    world.load(0.001)
    await world.until(lambda: shown(world) == 1)


async def test_the_status_is_not_written_for_a_capacity_that_stands_still():
    world = await settled(6.0)
    for _ in range(5):
        await world.cycle()
    before = world.whole["capacity"]
    written = len(world.cluster.writes)
    for _ in range(40):
        await world.cycle()
    assert world.whole["capacity"] == before
    writes = [write for write in world.cluster.writes[written:] if write[1].startswith("speculativeservices")]
    assert len(writes) <= 2, "ten minutes are two windows of the account"

"""Clients that hang up are load all the same, and nobody is blamed for the latency of those who stay."""

from __future__ import annotations

from fakes.fleet_world import FleetWorld


async def on_eagle() -> FleetWorld:
    world = FleetWorld()
    await world.speculate()
    return world


async def test_a_load_beyond_break_even_is_left_though_half_of_it_is_given_up():
    world = await on_eagle()
    world.prometheus.traffic.given_up = 0.5
    world.load(11.0)
    await world.cycle()
    assert world.decision["loadRps"] == "11"
    assert world.decision["action"] == "Switch"
    assert world.decision["givenUpPercent"] == "50"
    condition = world.condition("MetricsAvailable")
    assert (condition["status"], condition["reason"]) == ("True", "ClientsGiveUp")
    assert world.events.count("ClientsGiveUp") == 1


async def test_the_latency_of_those_who_stay_is_held_against_no_profile():
    world = await on_eagle()
    world.prometheus.traffic.given_up = 0.3
    world.load(3.0)
    world.prometheus.traffic.latency_s *= 1.5
    for _ in range(180):
        await world.cycle()
    condition = world.condition("ModelAgrees")
    assert (condition["status"], condition["reason"]) == ("Unknown", "ClientsGiveUp")
    assert "ModelDisagrees" not in world.events
    assert "suspicion" not in world.memory

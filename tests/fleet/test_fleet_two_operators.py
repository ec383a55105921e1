"""Two installations that both watch everything: each says so, because neither may read the other's Lease."""

from __future__ import annotations

import logging

import pytest

from fakes.fleet_world import FleetWorld

SAID = "SpeculativeService llm/chat: another operator decides about it, too"


@pytest.fixture
def world() -> FleetWorld:
    world = FleetWorld(lambda spec: spec["updatePolicy"].update(mode="Recommend"))
    world.calibrate()
    world.load(3.0)
    return world


def warnings(caplog: pytest.LogCaptureFixture) -> int:
    return sum(SAID in record.message for record in caplog.records)


async def test_each_of_two_operators_says_once_that_it_is_not_alone(world, caplog):
    caplog.set_level(logging.WARNING)
    first = world.fleet
    world.restart()
    second = world.fleet
    for at in range(40):
        world.load(3.0 + at % 7)
        # Either of them is the first one after a minute, now and then.
        world.fleet = first if at % 3 else second
        await world.cycle()
        world.fleet = second if at % 3 else first
        await world.cycle()
    assert warnings(caplog) == 2


async def test_one_operator_and_its_successors_say_nothing(world, caplog):
    caplog.set_level(logging.WARNING)
    for at in range(40):
        world.load(3.0 + at % 7)
        await world.cycle()
        if at % 10 == 9:
            world.restart()
    assert warnings(caplog) == 0


async def test_a_replica_that_led_before_its_peer_does_not_take_the_peer_for_another_installation(
    world, caplog
):
    caplog.set_level(logging.WARNING)
    first = world.fleet
    await world.cycle()
    await first.rest()
    world.restart()
    for at in range(20):
        world.load(3.0 + at % 7)
        await world.cycle()
    world.fleet = first
    for _ in range(3):
        await world.cycle()
    assert warnings(caplog) == 0


async def test_a_roll_that_is_refused_and_decided_again_is_not_another_operator_s(caplog):
    caplog.set_level(logging.WARNING)
    world = FleetWorld(lambda spec: spec["updatePolicy"].update(stabilizationWindowSeconds=0))
    world.calibrate()
    world.load(3.0)
    world.cluster.missing_rights = {("patch", "deployments")}
    for _ in range(40):
        await world.cycle()
    assert world.reason == "WriteRefused"
    assert warnings(caplog) == 0

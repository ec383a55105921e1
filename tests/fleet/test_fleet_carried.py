"""A profile that calls the running arm saturated at a rate that its pods serve."""

from __future__ import annotations

import json

from breakeven_operator.kinds import PROFILES
from fakes.fleet_world import FleetWorld
from fakes.load_course import CoursePart


def with_ceiling(world: FleetWorld, ceiling_rps: float) -> None:
    """Give eagle/3 of the stored profile a measured saturation far below its true one (12.5 rps)."""
    stored = world.cluster.of(PROFILES)[0]
    profile = json.loads(stored["spec"]["profile"])
    eagle = next(arm for arm in profile["arms"] if arm["k"] == 3)
    eagle["measured_saturation_rps"] = ceiling_rps
    stored["spec"]["profile"] = json.dumps(profile)
    world.cluster.put(PROFILES, stored)


async def running(world: FleetWorld, rps: float) -> None:
    """Until speculation runs and its roll is confirmed."""
    world.load(rps)
    await world.until(lambda: world.phase == "Confirming")
    world.load(rps)
    await world.until(lambda: world.phase is None)


async def test_an_arm_that_carries_its_load_is_not_saturated_by_a_wrong_ceiling():
    world = FleetWorld()
    world.calibrate()
    with_ceiling(world, 2.6)
    await running(world, 1.2)
    # Eagle/3 is measured at 3 rps with a latency that no speculation cannot have.
    world.load(3.0)
    for _ in range(30):
        await world.cycle()
    assert world.value != "null"
    assert world.reason == "BelowBreakEven"
    assert world.condition("Profitable")["status"] == "True"
    # The same profile, and a load that piles up: what the arm does not carry corrects nothing.
    world.play(CoursePart(3.0, 300.0), CoursePart(16.0, 3600.0))
    await world.until(lambda: world.value == "null", cycles=40)

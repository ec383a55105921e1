"""A drafter that is replaced under its arm's name: never entered on the old one's figures, and entered once it was measured."""

from __future__ import annotations

import json
from typing import Any

import pytest

from breakeven_operator.kinds import PROFILES, RUNS
from fakes.fleet_world import EAGLE, FleetWorld

pytestmark = pytest.mark.asyncio

REPLACED: list[dict[str, Any]] = [
    {"model": "org/head-v2"},
    {"model": "/models/head"},
    {"options": {"draft_tensor_parallel_size": 1}},
    {"options": {"quantization": "fp8"}},
    {"options": {"rejection_sample_method": "block"}},
    {"options": {"num_speculative_tokens_per_batch_size": [[1, 8, 3], [9, 64, 1]]}},
    {"method": "eagle"},
]


def replace_drafter(world: FleetWorld, changes: dict[str, Any]) -> None:
    world.service["spec"]["candidates"]["methods"][0].update(changes)


async def cycles(world: FleetWorld, rps: float, number: int = 10) -> None:
    world.load(rps)
    for _ in range(number):
        await world.cycle()


@pytest.mark.parametrize("changes", REPLACED, ids=str)
async def test_a_replaced_drafter_is_measured_before_it_is_entered(changes: dict[str, Any]) -> None:
    world = FleetWorld()
    world.calibrate()
    replace_drafter(world, changes)
    await cycles(world, 3.0)
    assert world.value is None, "the old drafter's figures speak for the old drafter"
    (run,) = world.cluster.of(RUNS)
    assert run["spec"]["trigger"] == "CandidatesChanged"
    condition = world.condition("Calibrated")
    assert condition["reason"] == "CandidatesChanged"
    assert "without eagle/3, not yet measured" in condition["message"]


async def test_the_same_drafter_in_another_spelling_stays_measured() -> None:
    world = FleetWorld()
    method = world.service["spec"]["candidates"]["methods"][0]
    method["options"] = {"quantization": "fp8", "draft_tensor_parallel_size": 1}
    world.calibrate()
    method["options"] = {"draft_tensor_parallel_size": 1, "quantization": "fp8"}
    await cycles(world, 3.0, 10)
    assert world.value not in {None, "null"}
    assert not world.cluster.of(RUNS)


async def test_a_profile_that_names_arms_alone_counts_for_whatever_they_draft_with() -> None:
    """It was shared by another team, or written before: there is nothing to compare with."""
    world = FleetWorld()
    world.calibrate()
    (profile,) = world.cluster.of(PROFILES)
    profile["spec"]["arms"] = []
    world.cluster.put(PROFILES, profile)
    replace_drafter(world, {"model": "org/head-v2"})
    await cycles(world, 3.0, 10)
    assert world.value not in {None, "null"}


@pytest.mark.parametrize("changes", [REPLACED[0], REPLACED[2], REPLACED[-1]], ids=str)
async def test_pods_of_the_old_drafter_are_judged_by_its_own_figures(changes: dict[str, Any]) -> None:
    world = FleetWorld()
    await world.speculate()
    replace_drafter(world, changes)
    await cycles(world, 3.0)
    assert world.whole["current"]["arm"] == "eagle/3"
    assert json.loads(str(world.value))["model"] == "org/head", "neither the new one nor a needless roll"
    await cycles(world, 13.0, 30)
    assert world.value == "null", "it loses at this load, as it was measured to"
    await cycles(world, 3.0, 12)
    assert world.value == "null", "it is no candidate any more, and the new one was never measured"


async def test_the_new_drafter_is_entered_once_it_was_measured() -> None:
    world = FleetWorld()
    await world.speculate()
    replace_drafter(world, {"model": "org/head-v2"})
    await cycles(world, 3.0)
    world.calibrate(name="chat-p2")
    await cycles(world, 3.0, 40)
    assert json.loads(str(world.value))["model"] == "org/head-v2"


async def test_a_pinned_arm_with_another_drafter_waits_for_its_measurement() -> None:
    world = FleetWorld()
    await world.speculate()
    replace_drafter(world, {"model": "org/head-v2"})
    world.service["spec"]["updatePolicy"]["pinnedArm"] = EAGLE.name
    await cycles(world, 3.0, 10)
    assert (world.decision["action"], world.reason) == ("Hold", "ArmUnmeasured")
    assert json.loads(str(world.value))["model"] == "org/head"

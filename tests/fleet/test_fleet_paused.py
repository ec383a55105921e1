"""A roll under way when a person pauses, or takes the mode back: it is watched, and nothing more is written."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from breakeven_operator.kinds import DEPLOYMENTS, SERVICES
from breakeven_operator.ports import ClusterError
from fakes.fleet_world import VALUE, FleetWorld

Edit = Callable[[dict[str, Any]], None]


def paused(spec: dict[str, Any]) -> None:
    spec["paused"] = True


def recommend(spec: dict[str, Any]) -> None:
    spec["updatePolicy"]["mode"] = "Recommend"


def disabled(spec: dict[str, Any]) -> None:
    spec["updatePolicy"]["mode"] = "Disabled"


pytestmark = pytest.mark.parametrize("stop", [paused, recommend, disabled])


def stopped(world: FleetWorld, stop: Edit) -> int:
    """Somebody stops the operator; returns how often it has written so far."""
    world.cluster.change(SERVICES, "llm", "chat", lambda service: stop(service["spec"]))
    return len(world.rolls)


def calibrated() -> FleetWorld:
    world = FleetWorld(
        lambda spec: spec["updatePolicy"].update(cooldownSeconds=0, stabilizationWindowSeconds=0)
    )
    world.calibrate()
    world.load(3.0)
    return world


def unreachable(verb: str, resource: Any, _name: str) -> None:
    if verb == "apply" and resource == DEPLOYMENTS:
        raise ClusterError("no answer")


async def cycles(world: FleetWorld, count: int = 30) -> None:
    for _ in range(count):
        await world.cycle()


async def test_an_intent_that_was_not_written_yet_is_given_up(stop: Edit) -> None:
    world = calibrated()
    world.cluster.fail = unreachable
    await world.until(lambda: world.phase == "Intended")
    stopped(world, stop)
    world.cluster.fail = lambda *_: None
    world.restart()
    await cycles(world, 5)
    assert (world.phase, world.rolls) == (None, [])
    assert world.whole["history"][0]["result"] == "Superseded"


async def test_a_roll_that_finds_no_gpu_is_not_undone(stop: Edit) -> None:
    world = calibrated()
    world.kubelet.schedulable = False
    await world.until(lambda: world.phase == "Rolling")
    before = stopped(world, stop)
    await cycles(world)
    assert (world.phase, world.reason) == ("Rolling", "InsufficientGPU")
    assert len(world.rolls) == before
    assert world.value == VALUE


async def test_an_undo_that_was_not_written_yet_waits(stop: Edit) -> None:
    world = calibrated()
    world.kubelet.schedulable = False
    await world.until(lambda: world.phase == "Rolling")
    world.cluster.fail = unreachable
    await world.until(lambda: world.phase == "Undoing")
    before = stopped(world, stop)
    world.cluster.fail = lambda *_: None
    await cycles(world, 5)
    assert (world.phase, len(world.rolls)) == ("Undoing", before)


async def test_an_annotation_that_somebody_drops_is_not_put_back(stop: Edit) -> None:
    world = calibrated()
    await world.until(lambda: world.phase == "Rolling")
    before = stopped(world, stop)
    await world.cycle()

    def drop(deployment: dict[str, Any]) -> None:
        del deployment["spec"]["template"]["metadata"]["annotations"]["breakeven.dev/speculative-config"]

    world.cluster.change(DEPLOYMENTS, "llm", "chat-vllm", drop, manager="Terraform")
    await cycles(world)
    assert len(world.rolls) == before
    assert "Restored" not in world.events

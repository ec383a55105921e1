"""A target that was deleted and made again is another one, and a service that was made again finds its profile."""

from __future__ import annotations

import copy
from typing import Any

from breakeven_operator.kinds import DEPLOYMENTS, EVENTS, NODES, PROFILES, RUNS, SERVICES
from fakes.fleet_world import TARGET, VALUE, FleetWorld


async def rolled() -> FleetWorld:
    world = FleetWorld(
        lambda spec: spec["updatePolicy"].update(cooldownSeconds=0, stabilizationWindowSeconds=0)
    )
    await world.speculate(judged=False)
    return world


def made_again(world: FleetWorld) -> None:
    world.cluster.put(DEPLOYMENTS, copy.deepcopy(TARGET), manager="kubectl-client-side-apply")


async def test_nothing_is_restored_onto_a_target_that_was_away_for_a_cycle() -> None:
    world = await rolled()
    history = len(world.whole.get("history", []))
    world.cluster.remove(DEPLOYMENTS, "llm", "chat-vllm")
    await world.cycle()
    assert world.reason == "TargetNotFound"
    assert world.phase is None, "what was measured is gone"
    made_again(world)
    before = len(world.rolls)
    await world.cycle()
    assert (world.value, len(world.rolls)) == (None, before)
    assert "Restored" not in world.events
    assert "TakenOver" not in world.events
    assert len(world.whole["history"]) == history + 1
    assert world.whole["history"][0]["message"] == "the target is gone"


async def test_a_restart_of_the_operator_meanwhile_forgets_no_target() -> None:
    world = await rolled()
    world.cluster.remove(DEPLOYMENTS, "llm", "chat-vllm")
    await world.cycle()
    world.restart()
    made_again(world)
    await world.cycle()
    world.kubelet.settle()
    await world.cycle()
    assert world.value is None
    assert "Restored" not in world.events


async def test_the_same_target_that_was_not_seen_for_a_cycle_is_still_the_same() -> None:
    world = await rolled()
    key = ("deployments", "llm", "chat-vllm")
    hidden = world.cluster.objects.pop(key)
    await world.cycle()
    world.cluster.objects[key] = hidden
    del hidden["spec"]["template"]["metadata"]["annotations"]["breakeven.dev/speculative-config"]
    await world.cycle()
    assert world.memory["targetUid"] == hidden["metadata"]["uid"]
    assert {"Restored", "TakenOver"} & set(world.events), "who dropped the annotation is told as ever"


async def test_a_target_that_goes_in_the_middle_of_a_roll_takes_the_roll_along() -> None:
    world = FleetWorld(
        lambda spec: spec["updatePolicy"].update(cooldownSeconds=0, stabilizationWindowSeconds=0)
    )
    world.calibrate()
    world.load(3.0)
    await world.until(lambda: world.phase == "Rolling")
    world.cluster.remove(DEPLOYMENTS, "llm", "chat-vllm")
    await world.cycle()
    assert world.phase is None
    assert world.whole["history"][0]["result"] == "Superseded"


async def test_a_roll_onto_another_gpu_class_is_undone_at_its_deadline() -> None:
    """Half of a roll must not stay because its other half is on other nodes."""
    world = FleetWorld(
        lambda spec: spec["updatePolicy"].update(
            cooldownSeconds=0, stabilizationWindowSeconds=0, rollDeadlineSeconds=120
        )
    )
    world.calibrate()
    world.load(3.0)
    world.kubelet.startup_s = 10_000.0
    await world.until(lambda: world.phase == "Intended")
    world.cluster.of(NODES)[0]["status"]["allocatable"] = {"nvidia.com/gpu": "2"}
    world.add_node("h100-0", product="NVIDIA-H100-80GB-HBM3")
    await world.until(lambda: world.phase == "Rolling", cycles=4)
    assert world.value == VALUE
    await world.until(lambda: world.value is None, cycles=12)
    assert [event["reason"] for event in world.cluster.of(EVENTS)].count("RollUndone") == 1


async def test_a_service_that_was_made_again_finds_its_profile() -> None:
    world = await rolled()
    service: dict[str, Any] = copy.deepcopy(world.service)
    world.cluster.remove(SERVICES, "llm", "chat")
    await world.cycle()
    fresh = {key: service[key] for key in ("apiVersion", "kind", "spec")}
    world.cluster.put(SERVICES, {**fresh, "metadata": {"name": "chat", "namespace": "llm"}})
    await world.cycle()
    assert world.status["calibration"]["profile"] == "chat-p1"
    assert not world.cluster.of(RUNS)


async def test_a_profile_whose_service_is_gone_goes_once_it_is_thirty_days_old() -> None:
    world = await rolled()
    world.add_services(1)
    world.cluster.remove(SERVICES, "llm", "chat")
    world.clock.advance(29 * 86400.0)
    await world.cycle()
    assert len(world.cluster.of(PROFILES)) == 1
    world.clock.advance(2 * 86400.0)
    await world.cycle()
    assert world.cluster.of(PROFILES) == []

"""Targets that are refused for good, by name and in every mode: nothing of them is calibrated, decided or rolled."""

from __future__ import annotations

import json
from typing import Any

import pytest

from breakeven.arm import NO_SPECULATION
from breakeven_operator.kinds import DEPLOYMENTS, JOBS, NODES, PODS, RUNS, SERVICES
from fakes.fleet_world import EAGLE, GPU, VALUE, FleetWorld, fleet_profile_json

H100 = "NVIDIA-H100-80GB-HBM3"
H100_LAWS = {NO_SPECULATION: (0.5, 0.025), EAGLE: (0.42, 0.027)}
CONFIG = json.dumps({"kv_connector": "NixlConnector", "kv_role": "kv_both"})


def hand_caches_on(target: dict[str, Any]) -> None:
    target["spec"]["template"]["spec"]["containers"][0]["args"] += ["--kv_transfer_config", CONFIG]


def asked(world: FleetWorld, name: str = "by-hand") -> dict[str, Any]:
    """A run that a person or a CronJob made."""
    body = {
        "apiVersion": "breakeven.dev/v1alpha1",
        "kind": "CalibrationRun",
        "metadata": {"namespace": "llm", "name": name},
        "spec": {"serviceRef": {"name": "chat"}},
    }
    return world.cluster.put(RUNS, body, manager="person")


def at_once(spec: dict[str, Any]) -> None:
    spec["updatePolicy"].update(cooldownSeconds=0, stabilizationWindowSeconds=0)


def full(world: FleetWorld, gpus: int) -> None:
    """The first node has so many GPUs from now on."""
    world.cluster.of(NODES)[0]["status"]["allocatable"] = {"nvidia.com/gpu": str(gpus)}


def scaled(world: FleetWorld, replicas: int) -> None:
    world.cluster.change(DEPLOYMENTS, "llm", "chat-vllm", lambda one: one["spec"].update(replicas=replicas))
    world.kubelet.settle()
    world.clock.advance(1000.0)
    world.load(3.0)


def spread(world: FleetWorld) -> None:
    """Two pods on each of two GPU classes."""
    full(world, 2)
    world.add_node("h100-0", product=H100)
    scaled(world, 4)


@pytest.mark.parametrize("mode", ["Recommend", "RollingUpdate"])
async def test_a_target_that_hands_caches_on_is_neither_decided_about_nor_rolled(mode):
    world = FleetWorld(lambda spec: spec["updatePolicy"].update(mode=mode), hand_caches_on)
    world.calibrate()
    world.load(3.0)
    for _ in range(6):
        await world.cycle()
    assert (world.reason, world.decision["action"]) == ("TargetRefused", "Hold")
    assert "arm" not in world.decision
    assert "let one engine read prompts and decode" in world.decision["message"]
    assert world.condition("Ready")["reason"] == "TargetRefused"
    assert (world.rolls, world.cluster.of(RUNS)) == ([], [])


async def test_a_run_of_a_target_that_hands_caches_on_fails_by_name():
    world = FleetWorld(target=hand_caches_on)
    asked(world)
    await world.until(lambda: bool(world.cluster.of(RUNS)[0].get("status")), cycles=4)
    status = world.cluster.of(RUNS)[0]["status"]
    assert (status["phase"], status["reason"]) == ("Failed", "TargetRefused")
    assert "let one engine read prompts and decode" in status["message"]
    assert world.cluster.of(JOBS) == []


async def test_a_roll_that_is_made_stays_and_is_not_measured_once_its_target_hands_caches_on():
    world = FleetWorld(at_once)
    world.calibrate()
    world.load(3.0)
    await world.until(lambda: world.phase == "Confirming")
    world.cluster.change(DEPLOYMENTS, "llm", "chat-vllm", hand_caches_on)
    await world.until(lambda: world.phase is None, cycles=4)
    entry = world.whole["history"][0]
    assert entry["result"] == "Unmeasured"
    assert "--kv-transfer-config" in entry["message"]
    assert world.value == VALUE
    assert world.reason == "TargetRefused"


@pytest.mark.parametrize("mode", ["Recommend", "RollingUpdate"])
async def test_a_target_on_two_gpu_classes_is_neither_decided_about_nor_rolled_nor_measured(mode):
    world = FleetWorld(lambda spec: spec["updatePolicy"].update(mode=mode))
    spread(world)
    for _ in range(6):
        await world.cycle()
    assert (world.reason, world.decision["action"]) == ("TargetRefused", "Hold")
    assert f"{GPU} and {H100}" in world.decision["message"]
    assert "make one Deployment per GPU class" in world.decision["message"]
    assert world.condition("Ready")["reason"] == "TargetRefused"
    assert world.whole["target"]["gpuProduct"] == f"{GPU}, {H100}"
    assert (world.rolls, world.cluster.of(RUNS)) == ([], [])


async def test_a_run_of_a_target_on_two_gpu_classes_waits_until_they_are_one():
    world = FleetWorld()
    spread(world)
    asked(world)
    await world.until(lambda: bool(world.cluster.of(RUNS)[0].get("status")), cycles=4)
    status = world.cluster.of(RUNS)[0]["status"]
    assert (status["phase"], status["reason"]) == ("Pending", "CalibrationDeferred")
    assert f"{GPU} and {H100} (TargetRefused)" in status["message"]
    assert world.cluster.of(JOBS) == []
    full(world, 8)
    world.cluster.remove(NODES, "", "h100-0")
    scaled(world, 2)
    await world.until(lambda: bool(world.cluster.of(JOBS)), cycles=6)


async def test_a_run_under_way_goes_on_while_a_pod_is_on_another_class():
    world = FleetWorld()
    await world.until(lambda: bool(world.cluster.of(JOBS)), cycles=6)
    full(world, 3)
    world.add_node("h100-0", product=H100)
    world.cluster.change(DEPLOYMENTS, "llm", "chat-vllm", lambda one: one["spec"].update(replicas=4))
    for _ in range(3):
        await world.cycle()
    assert world.reason == "TargetRefused"
    (run,) = world.cluster.of(RUNS)
    assert run["status"]["phase"] in {"Starting", "Measuring"}


async def test_a_target_that_is_split_is_decided_about_in_the_next_cycles():
    world = FleetWorld()
    world.calibrate()
    spread(world)
    await world.until(lambda: world.reason == "TargetRefused", cycles=4)
    for pod in world.target.pods:
        if pod.gpu_product == H100:
            world.cluster.remove(PODS, "llm", pod.name)
    world.cluster.remove(NODES, "", "h100-0")
    scaled(world, 2)
    await world.until(lambda: "speedup" in world.decision, cycles=6)


async def test_a_node_that_has_no_label_yet_refuses_nothing():
    """Labels of a new node come late."""
    world = FleetWorld()
    world.calibrate()
    full(world, 2)
    world.add_node("new-0")
    del world.cluster.of(NODES)[-1]["metadata"]["labels"]
    scaled(world, 4)
    await world.until(lambda: "speedup" in world.decision, cycles=6)
    assert world.reason not in {"TargetRefused", "GpuClassUnknown"}


async def test_a_roll_that_moves_to_another_class_is_not_taken_for_a_comparison_of_arms():
    """Old pods on one class and new ones on a faster class: a gain of hardware confirms no arm."""
    world = FleetWorld(at_once)
    world.calibrate(name="chat-a100")
    world.laws_on = {H100: H100_LAWS}
    world.load(3.0)
    await world.until(lambda: world.phase == "Intended")
    full(world, 0)
    world.add_node("h100-0", product=H100)
    await world.until(lambda: world.phase == "Confirming")
    assert {pod.gpu_product for pod in world.target.pods} == {H100}
    world.calibrate(name="chat-h100", profile=fleet_profile_json(H100_LAWS, H100), product=H100)
    world.cluster.change(SERVICES, "llm", "chat", lambda one: one["spec"].update(paused=True))
    world.load(3.0)
    await world.until(lambda: world.phase is None, cycles=200)
    entry = world.whole["history"][0]
    assert entry["result"] == "Unmeasured"
    assert "classes would be compared" in entry["message"]


async def test_a_roll_whose_pods_are_spread_over_two_classes_goes_to_its_end_and_is_not_measured():
    world = FleetWorld(at_once)
    world.calibrate()
    world.load(3.0)
    await world.until(lambda: world.phase == "Rolling")
    full(world, sum(pod.gpu_product == GPU for pod in world.target.pods) - 1)
    world.add_node("h100-0", product=H100)
    await world.until(lambda: world.reason == "TargetRefused", cycles=30)
    await world.until(lambda: world.phase is None, cycles=60)
    entry = world.whole["history"][0]
    assert (entry["result"], entry["toArm"]) == ("Unmeasured", "eagle/3")
    assert f"{GPU} and {H100}" in entry["message"]
    assert {pod.gpu_product for pod in world.target.pods if pod.current} == {GPU, H100}
    assert world.value == VALUE

"""The first wave of a roll: held by a partition, measured against the pods that it holds, then released or undone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from breakeven_operator.kinds import PODS, SERVICES, STATEFULSETS
from breakeven_operator.ports import ClusterError
from breakeven_operator.workloads.known import KINDS
from fakes.fleet_world import EAGLE, VALUE, FleetWorld

QUICK = {"stabilizationWindowSeconds": 0, "cooldownSeconds": 0, "backoffSeconds": 600}


def waved(
    target: Callable[[dict[str, Any]], None] = lambda _target: None, *, grouped: bool = False, **wave: Any
) -> FleetWorld:
    """Four replicas of which one comes first."""

    def edit(spec: dict[str, Any]) -> None:
        spec["updatePolicy"].update(QUICK, firstWave=wave)

    def four(manifest: dict[str, Any]) -> None:
        manifest["spec"]["replicas"] = 4
        target(manifest)

    world = FleetWorld(edit, four, stateful=not grouped, grouped=grouped)
    world.calibrate()
    world.load(3.0)
    return world


def partition(world: FleetWorld) -> int:
    return KINDS[world.kind].partition(world.cluster.objects[world.kind.plural, "llm", "chat-vllm"])


def uids(world: FleetWorld) -> dict[str, str]:
    return {pod["metadata"]["name"]: pod["metadata"]["uid"] for pod in world.cluster.of(PODS)}


def touched(world: FleetWorld, before: dict[str, str]) -> list[str]:
    return sorted(name for name, uid in uids(world).items() if before[name] != uid)


def edit_service(world: FleetWorld, edit: Callable[[dict[str, Any]], None]) -> None:
    world.cluster.change(SERVICES, "llm", "chat", edit)


async def held(world: FleetWorld) -> None:
    await world.until(lambda: world.reason == "FirstWaveHeld", cycles=30)


@pytest.mark.parametrize("grouped", [False, True], ids=["StatefulSet", "LeaderWorkerSet"])
async def test_it_is_held_measured_and_released_by_one_word_everywhere(grouped: bool) -> None:
    world = waved(grouped=grouped)
    before = uids(world)
    await held(world)
    assert (partition(world), touched(world, before)) == (3, ["chat-vllm-3"])
    assert world.value == VALUE
    assert "FirstWaveHeld" in world.events
    assert "its first wave (1 of 4 pods) runs it" in world.decision["message"]
    counted = {"specsvc_namespace": "llm", "specsvc": "chat", "action": "Hold", "reason": "FirstWaveHeld"}
    assert world.registry.get_sample_value("breakeven_decisions_total", counted) == 1
    began = world.clock.now()
    await world.until(lambda: "FirstWaveReleased" in world.events, cycles=200)
    # Three windows at least: what a roll left behind is worked off in two.
    assert (world.clock.now() - began).total_seconds() >= 3 * 300.0 - 15.0
    assert touched(world, before) == ["chat-vllm-3"]
    await world.until(lambda: world.phase == "Confirming")
    assert (partition(world), touched(world, before)) == (0, sorted(before))
    world.load(3.0)
    await world.until(lambda: world.phase is None, cycles=200)
    entry = world.status["history"][0]
    assert (entry["result"], len(world.rolls)) == ("Confirmed", 2)


async def test_one_that_loses_is_undone_and_no_other_pod_was_touched() -> None:
    world = waved()
    world.laws[EAGLE] = (1.6, 0.08)
    before = uids(world)
    await held(world)
    await world.until(lambda: world.phase == "Undoing", cycles=60)
    assert (world.reason, world.value, partition(world)) == ("RollDisproved", None, 0)
    await world.until(lambda: world.phase is None)
    entry = world.status["history"][0]
    assert (entry["result"], entry["reason"]) == ("Undone", "RollDisproved")
    assert entry["witness"] in {"SideBySide", "Both"}
    assert touched(world, before) == ["chat-vllm-3"]
    assert "FirstWaveReleased" not in world.events


async def test_one_that_proves_nothing_until_its_deadline_is_undone() -> None:
    """The arms are equally fast; of one pod and few blocks the bounds hold a loss of more than 5 %."""
    world = waved(deadlineSeconds=600)
    world.laws[EAGLE] = (0.97, 0.08)
    before = uids(world)
    await held(world)
    began = world.clock.now()
    await world.until(lambda: world.phase == "Undoing", cycles=60)
    assert 585.0 <= (world.clock.now() - began).total_seconds() <= 630.0
    assert (world.reason, partition(world)) == ("FirstWaveUnproven", 0)
    assert "its first wave proves nothing: measured " in world.decision["message"]
    await world.until(lambda: world.phase is None)
    assert touched(world, before) == ["chat-vllm-3"]
    assert world.memory["failures"] == 1
    assert world.memory.get("disproved", 0) == 0, "nothing was disproved"


async def test_one_of_which_prometheus_says_nothing_is_undone_at_its_deadline() -> None:
    world = waved(deadlineSeconds=600)
    world.prometheus.roll_error = "query timed out"
    await held(world)
    await world.until(lambda: world.phase == "Undoing", cycles=60)
    assert world.reason == "FirstWaveUnproven"
    assert "query timed out" in world.decision["message"]


async def test_an_operator_that_is_killed_in_every_cycle_comes_to_the_same_end() -> None:
    outcomes = []
    for killed in (False, True):
        world = waved()
        while not world.status.get("history"):
            if killed:
                world.restart()
            await world.cycle()
        outcomes.append((world.status["history"], world.rolls))
    assert outcomes[0] == outcomes[1]


@pytest.mark.parametrize("loses", [False, True])
async def test_an_operator_that_comes_back_long_after_the_deadline_takes_its_last_look(loses: bool) -> None:
    world = waved(deadlineSeconds=1200)
    if loses:
        world.laws[EAGLE] = (0.97, 0.08)
    before = uids(world)
    await held(world)
    for _ in range(200):
        world.clock.advance(15.0)
        world.kubelet.step()
        world.prometheus.count()
    assert (partition(world), touched(world, before)) == (3, ["chat-vllm-3"]), "what it held serves on"
    world.restart()
    await world.until(lambda: world.reason != "FirstWaveHeld", cycles=5)
    assert world.reason == ("FirstWaveUnproven" if loses else "FirstWaveReleased")
    assert partition(world) == 0


@pytest.mark.parametrize(("hand", "said"), [(0, "no partition any more"), (1, "partition 1 now")])
async def test_a_partition_that_a_person_sets_is_theirs(hand: int, said: str) -> None:
    world = waved()
    await held(world)

    def set_partition(manifest: dict[str, Any]) -> None:
        manifest["spec"]["updateStrategy"]["rollingUpdate"]["partition"] = hand

    world.cluster.change(STATEFULSETS, "llm", "chat-vllm", set_partition, manager="kubectl-patch")
    writes = len(world.rolls)
    await world.cycle()
    assert world.reason == "FirstWaveReleased"
    assert said in world.decision["message"]
    if hand:
        # Longer than any deadline of the roll: who holds it may.
        for _ in range(200):
            await world.cycle()
        assert (world.phase, world.reason) == ("Rolling", "Rolling")
        assert "its partition 1, which another hand has set, holds it" in world.decision["message"]
    else:
        await world.until(lambda: world.phase == "Confirming")
    assert partition(world) == hand
    assert len(world.rolls) == writes


async def test_whoever_takes_the_annotation_over_finds_no_partition_of_ours_left() -> None:
    world = waved()
    await held(world)

    def set_value(manifest: dict[str, Any]) -> None:
        manifest["spec"]["template"]["metadata"]["annotations"]["breakeven.dev/speculative-config"] = "null"

    world.cluster.change(STATEFULSETS, "llm", "chat-vllm", set_value)
    await world.until(lambda: world.reason == "TakenOver", cycles=3)
    await world.until(lambda: partition(world) == 0, cycles=3)
    assert world.value == "null"
    await world.cycle()
    assert world.reason == "TakenOver"
    assert world.target.value_managers == ("kubectl-edit",)


async def test_a_wave_takes_the_annotation_from_nobody() -> None:
    """The partition is taken by force, because who made the target owns its default; the annotation never is."""
    world = waved()
    body = {
        "metadata": {"namespace": "llm", "name": "chat-vllm"},
        "spec": {"template": {"metadata": {"annotations": {"breakeven.dev/speculative-config": "null"}}}},
    }
    await world.cluster.apply(STATEFULSETS, body, manager="argocd")
    await world.until(lambda: world.reason == "TakenOver", cycles=60)
    assert (world.value, partition(world)) == ("null", 0)


async def test_a_target_that_is_replaced_as_a_whole_is_held_again() -> None:
    """Annotation and partition are gone together: no person has meant the wave."""
    world = waved()
    await held(world)
    before = world.status["rollout"]["waveTime"]

    def replaced(manifest: dict[str, Any]) -> None:
        template = manifest["spec"]["template"]
        del template["metadata"]["annotations"]["breakeven.dev/speculative-config"]
        manifest["spec"]["updateStrategy"]["rollingUpdate"]["partition"] = 0
        manifest["spec"]["minReadySeconds"] = 1

    world.cluster.change(STATEFULSETS, "llm", "chat-vllm", replaced, manager="kubectl-replace")
    await world.until(lambda: world.reason == "Restored", cycles=3)
    assert (partition(world), world.value) == (3, VALUE)
    await held(world)
    assert world.status["rollout"]["waveTime"] > before


async def test_a_release_that_the_api_server_does_not_answer_is_made_again() -> None:
    world = waved()
    await held(world)
    edit_service(world, lambda service: service["spec"]["updatePolicy"].pop("firstWave"))

    def fails(verb: str, resource: Any, _name: str) -> None:
        if (verb, resource) == ("apply", STATEFULSETS):
            raise ClusterError("no answer", 0)

    world.cluster.fail = fails
    await world.cycle()
    assert partition(world) == 3
    world.restart()
    world.cluster.fail = lambda _verb, _resource, _name: None
    await world.until(lambda: partition(world) == 0, cycles=5)
    assert world.value == VALUE
    await world.until(lambda: world.phase == "Confirming")


async def test_a_first_wave_that_is_taken_out_of_the_policy_releases() -> None:
    world = waved()
    await held(world)
    edit_service(world, lambda service: service["spec"]["updatePolicy"].pop("firstWave"))
    await world.cycle()
    assert world.reason == "FirstWaveReleased"
    assert "updatePolicy.firstWave was removed" in world.decision["message"]
    assert partition(world) == 0


async def test_paused_it_stays_held_and_says_so() -> None:
    world = waved(deadlineSeconds=600)
    await held(world)
    edit_service(world, lambda service: service["spec"].update(paused=True))
    writes = len(world.rolls)
    for _ in range(130):
        await world.cycle()
    assert (partition(world), len(world.rolls)) == (3, writes)
    assert "while paused" in world.decision["message"]


async def test_the_load_of_the_wave_is_not_taken_for_that_of_the_fleet() -> None:
    """An autoscaler that scales by what is recommended would remove the pods that are held."""
    world = waved()
    await world.cycle()
    assert "recommendedReplicas" in world.status["capacity"]
    await held(world)
    for _ in range(25):
        await world.cycle()
    assert "recommendedReplicas" not in world.status["capacity"]
    assert "fleetLoadRps" not in world.status["capacity"]


async def test_back_to_no_speculation_nothing_is_held() -> None:
    world = waved(lambda manifest: manifest["spec"].update(replicas=6))
    await world.until(lambda: world.phase == "Confirming", cycles=200)
    world.load(3.0)
    await world.until(lambda: world.phase is None, cycles=200)
    edit_service(world, lambda service: service["spec"]["updatePolicy"].update(maxUtilizationPercent=95))
    world.load(9.3)
    await world.until(lambda: world.value == "null", cycles=200)
    assert partition(world) == 0
    assert "wavePartition" not in world.status["rollout"]


async def test_a_deployment_has_no_partition_and_is_not_rolled() -> None:
    world = FleetWorld(lambda spec: spec["updatePolicy"].update(QUICK, firstWave={"pods": 1}))
    world.calibrate()
    world.load(3.0)
    await world.until(lambda: world.reason == "NoFirstWave", cycles=5)
    assert (
        "Deployment chat-vllm holds no first wave of a roll (it has no partition: its controller replaces all pods once it has begun): "
        "remove updatePolicy.firstWave" in world.decision["message"]
    )
    assert world.rolls == []


async def test_a_partition_that_was_there_before_is_a_person_s() -> None:
    world = waved(lambda manifest: manifest["spec"]["updateStrategy"]["rollingUpdate"].update(partition=2))
    await world.until(lambda: world.reason == "TargetPaused", cycles=5)
    assert (world.rolls, partition(world)) == ([], 2)


async def test_pods_of_the_wave_that_do_not_start_are_undone_like_those_of_any_roll() -> None:
    world = waved(lambda manifest: manifest["spec"].update(podManagementPolicy="Parallel"))
    before = uids(world)
    world.kubelet.crash = {VALUE}
    await world.until(lambda: "RolledBack" in world.events)
    assert (partition(world), touched(world, before)) == (0, ["chat-vllm-3"])

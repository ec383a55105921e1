"""Pods that are listed and do not exist: ended ones that nobody has collected, and those of a lost node."""

from __future__ import annotations

from typing import Any

import pytest

from breakeven_operator.cluster.prometheus_questions import SUMS
from breakeven_operator.kinds import EVENTS, NODES, PODS, PROFILES, SERVICES
from fakes.fleet_world import GPU, VALUE, FleetWorld


def at_once(spec: dict[str, Any]) -> None:
    spec["updatePolicy"].update(cooldownSeconds=0, stabilizationWindowSeconds=0)


def calibrated(world: FleetWorld) -> FleetWorld:
    world.calibrate()
    world.load(3.0)
    return world


def pods(world: FleetWorld) -> list[str]:
    return [pod["metadata"]["name"] for pod in world.cluster.of(PODS)]


def notes(world: FleetWorld, reason: str) -> list[str]:
    return [event["note"] for event in world.cluster.of(EVENTS) if event["reason"] == reason]


async def rolled(world: FleetWorld) -> None:
    """All new pods run, by one write."""
    await world.until(lambda: world.phase == "Confirming")
    assert len(world.rolls) == 1


@pytest.mark.parametrize(
    ("reason", "phase"),
    [("Evicted", "Failed"), ("UnexpectedAdmissionError", "Failed"), ("Completed", "Succeeded")],
)
async def test_a_pod_that_has_ended_is_none(reason: str, phase: str) -> None:
    """It ran on another GPU class, months ago: neither that nor its place in a ReplicaSet counts."""
    world = calibrated(FleetWorld(at_once))
    world.add_node("h100-0", product="NVIDIA-H100-80GB-HBM3")
    first = world.cluster.of(PODS)[0]
    first["spec"]["nodeName"] = "h100-0"
    world.kubelet.end(first["metadata"]["name"], reason, phase)
    world.kubelet.settle()
    assert len(pods(world)) == 3
    world.clock.advance(1000.0)
    await world.cycle()
    assert world.whole["target"]["gpuProduct"] == GPU
    assert world.whole["current"]["podsByArm"] == [{"arm": "none", "pods": 2}]
    await rolled(world)
    assert first["metadata"]["name"] in pods(world), "nobody has collected it"


async def test_a_new_pod_that_is_evicted_in_a_roll_is_replaced_and_the_roll_goes_on() -> None:
    world = calibrated(FleetWorld(at_once))
    await world.until(lambda: world.phase == "Rolling")
    new = next(pod.name for pod in world.target.pods if pod.current)
    world.kubelet.end(new)
    await rolled(world)
    assert new in pods(world)


async def test_readings_are_asked_for_by_the_pods_that_run() -> None:
    """Six ended pods and two that run: with room for five in a query the fleet is still read pod by pod."""
    world = calibrated(FleetWorld(at_once, pods_per_query=5))
    for _ in range(6):
        world.kubelet.end(next(pod.name for pod in world.target.pods))
        world.kubelet.settle()
    world.clock.advance(1000.0)
    await world.cycle()
    assert not (await world.observer.observe()).answers[SUMS]
    assert world.decision["action"] == "Switch"


def on_two_nodes() -> FleetWorld:
    """One old pod on each of two nodes with room for both arms."""
    world = FleetWorld(at_once)
    for number, pod in enumerate(world.cluster.of(PODS)):
        pod["spec"]["nodeName"] = f"a100-{number}"
    world.add_node("a100-1", gpus=1)
    return calibrated(world)


async def test_a_roll_ends_although_the_node_of_an_old_pod_is_lost() -> None:
    world = on_two_nodes()
    await world.until(lambda: world.phase == "Rolling")
    lost = next(pod.name for pod in world.target.pods if pod.node == "a100-1")
    world.kubelet.lose("a100-1")
    await rolled(world)
    (note,) = notes(world, "RollFinished")
    assert f"2 pods run it; pod {lost} on node a100-1 is lost and does not go" in note
    assert lost in pods(world)
    world.load(18.0)
    # A pod that does not go holds up no decision.
    await world.until(lambda: world.value == "null")


async def test_a_pod_whose_deletion_is_overdue_is_none_where_nodes_may_not_be_read() -> None:
    """Under a Role nothing is known of nodes; its own deletion, which should be over, is."""
    world = on_two_nodes()
    for node in list(world.cluster.of(NODES)):
        node["status"] = {}
    await world.until(lambda: world.phase == "Rolling")
    world.kubelet.silent["a100-1"] = float("inf")
    await rolled(world)


async def test_a_ready_pod_of_a_lost_node_is_no_pod() -> None:
    """Its condition may stand for a while: the controller that would take it away may be slow, or down."""
    world = on_two_nodes()
    world.cluster.of(NODES)[1]["status"]["conditions"] = [{"type": "Ready", "status": "Unknown"}]
    assert [pod.node for pod in world.target.serving] == ["a100-0"]
    await world.cycle()
    assert world.whole["current"]["podsByArm"] == [{"arm": "none", "pods": 1}]


async def test_an_undoing_that_cannot_end_ends_at_its_deadline_and_frees_its_place() -> None:
    """New pods die, and the pods of the arm before get no place any more once the roll is taken back."""
    world = FleetWorld(at_once)
    world.add_services(1, cooldownSeconds=0, stabilizationWindowSeconds=0)
    calibrated(world)
    world.kubelet.crash = {VALUE}
    await world.until(lambda: world.phase == "Undoing")
    target = world.cluster.objects["deployments", "llm", "chat-vllm"]
    world.kubelet.crash = {VALUE, "", "null"}
    world.kubelet.end(next(pod.name for pod in world.target.pods if pod.ready))
    await world.until(lambda: world.phase is None, cycles=60)
    assert target["status"]["readyReplicas"] == 1
    entry = world.whole["history"][0]
    assert entry["result"] == "Undone"
    assert "at the deadline 1 of 2 pods run it" in entry["message"]
    assert notes(world, "RollDeadlineExceeded") == [entry["message"]]
    await world.cycle()
    assert world.decision["action"] == "Hold"


async def test_a_roll_that_nothing_ends_keeps_its_place_until_its_deadline() -> None:
    """One place in the fleet: a paused service whose new pod finds no GPU has it, and then the next one."""
    world = FleetWorld(at_once, max_parallel_rolls=1)
    world.add_services(1, cooldownSeconds=0, stabilizationWindowSeconds=0)
    other = calibrated(world).cluster.of(PROFILES)[0]
    world.cluster.put(
        PROFILES,
        {
            **other,
            "metadata": {"namespace": "llm", "name": "other"},
            "spec": {**other["spec"], "serviceRef": {"name": "service-00"}},
        },
    )
    world.cluster.change(SERVICES, "llm", "service-00", lambda body: body["spec"].update(paused=True))
    world.kubelet.schedulable = False
    await world.until(lambda: world.phase == "Rolling")
    world.cluster.change(SERVICES, "llm", "chat", lambda body: body["spec"].update(paused=True))
    world.cluster.change(SERVICES, "llm", "service-00", lambda body: body["spec"].update(paused=False))

    def waiting() -> dict[str, Any]:
        return world.cluster.objects["speculativeservices", "llm", "service-00"]["status"]

    await world.cycle()
    assert waiting()["decision"]["reason"] == "RollWaits"
    # The deadline moves by the wait for a node.
    world.clock.advance(1400.0)
    await world.cycle()
    assert world.phase == "Rolling"
    assert waiting()["rollout"]["phase"] == "Intended"


async def test_new_pods_that_all_serve_are_not_undone_for_old_ones_that_drain() -> None:
    world = calibrated(FleetWorld(lambda spec: spec["updatePolicy"].update(rollDeadlineSeconds=90)))
    world.kubelet.stop_s = 140.0
    await world.until(lambda: world.phase == "Rolling")
    await world.until(lambda: world.phase != "Rolling")
    assert world.phase == "Confirming"
    assert any(pod.terminating for pod in world.target.pods)


async def test_what_is_said_at_the_deadline_is_what_runs() -> None:
    world = calibrated(FleetWorld(lambda spec: spec["updatePolicy"].update(rollDeadlineSeconds=60)))
    world.kubelet.startup_s = 40.0
    await world.until(lambda: world.phase == "Undoing")
    assert len(world.target.serving) == 1
    assert "undone: 1 of 2 pods run it (1 older" in notes(world, "RollUndone")[0]
    await world.until(lambda: world.phase is None)
    assert "the roll, or its undo, had not finished by its deadline" in world.whole["history"][0]["message"]

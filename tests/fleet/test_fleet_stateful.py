"""A StatefulSet as the target: measured through pods that keep their names, rolled, refused, and undone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from breakeven_operator.kinds import CLAIMS, EVENTS, JOBS, PODS, STATEFULSETS, Resource
from breakeven_operator.ports import ClusterError
from fakes.fleet_world import VALUE, FleetWorld
from fakes.scheduling import QUOTAS

QUICK = {"stabilizationWindowSeconds": 0, "cooldownSeconds": 0}
CLAIM = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "100Gi"}}}


def stateful(target: Callable[[dict[str, Any]], None] = lambda _target: None, **options: Any) -> FleetWorld:
    world = FleetWorld(lambda spec: spec["updatePolicy"].update(QUICK), target, stateful=True, **options)
    world.calibrate()
    world.load(3.0)
    return world


def with_spec(**spec: Any) -> Callable[[dict[str, Any]], None]:
    return lambda target: target["spec"].update(spec)


def names(world: FleetWorld) -> set[str]:
    return {pod["metadata"]["name"] for pod in world.cluster.of(PODS)}


async def test_it_is_rolled_and_measured_by_the_time_at_which_each_name_changed_hands() -> None:
    world = stateful()
    await world.confirmed_roll()
    assert names(world) == {"chat-vllm-0", "chat-vllm-1"}


async def test_beyond_the_break_even_it_goes_back() -> None:
    world = stateful(with_spec(replicas=6))
    await world.goes_back()


async def test_an_arm_that_loses_is_undone_by_the_latency_of_its_own_pods() -> None:
    """Requests of the new arm take three times what it promised; counts of the old pod of the same name do not hide it."""
    world = stateful()
    world.laws = {arm: (c1_s * (3.0 if arm.k else 1.0), c2_s) for arm, (c1_s, c2_s) in world.laws.items()}
    await world.until(lambda: world.phase == "Confirming")
    await world.until(lambda: bool(world.status.get("history")))
    entry = world.whole["history"][0]
    assert (entry["result"], entry["reason"]) == ("Undone", "RollDisproved")
    assert float(entry["measuredSpeedup"]) == pytest.approx(1.8 / 3, rel=0.1)
    assert world.value is None


async def test_requests_that_fail_on_the_new_arm_are_told_from_those_of_the_pod_before() -> None:
    world = stateful()
    world.prometheus.traffic.min_p_share = 0.4
    await world.until(lambda: world.value == VALUE)
    world.load(3.0)
    await world.until(lambda: bool(world.status.get("history")))
    entry = world.whole["history"][0]
    assert (entry["result"], entry["reason"]) == ("Undone", "RollFailsRequests")


async def test_no_figure_of_a_window_is_of_two_pods_of_one_name() -> None:
    """For a window after a roll the series hold counts of both: nothing is decided on them."""
    world = stateful()
    await world.until(lambda: world.phase == "Confirming")
    await world.cycle()
    assert world.reason == "TooFewRequests"
    assert "under the same name" in world.decision["message"]
    await world.until(lambda: world.reason != "TooFewRequests", cycles=22)


async def blocked(world: FleetWorld) -> str:
    world.kubelet.crash = {VALUE}
    await world.until(lambda: world.reason == "UndoBlocked", cycles=30)
    return str(world.decision["message"])


async def test_an_undo_that_a_broken_pod_blocks_says_what_deletes_it_and_ends_when_it_is_gone() -> None:
    world = stateful()
    said = await blocked(world)
    assert said.endswith("kubectl delete pod chat-vllm-1 --namespace llm")
    assert "pod chat-vllm-1, container vllm does not start" in said
    notes = {event["reason"]: event for event in world.cluster.of(EVENTS)}
    assert notes["UndoBlocked"]["note"] == said
    assert notes["UndoBlocked"]["type"] == "Warning"
    assert world.value is None
    for _ in range(4):
        await world.cycle()
    assert world.reason == "UndoBlocked", "only a person ends it"
    assert [verb for verb, kind, _ in world.cluster.writes if kind == "pods"] == []
    world.cluster.remove(PODS, "llm", "chat-vllm-1")
    await world.until(lambda: world.phase is None)
    assert world.whole["history"][0]["result"] == "Undone"
    assert "RolledBack" in world.events


async def test_an_undo_that_stays_blocked_is_over_at_its_deadline_and_the_command_is_still_said() -> None:
    world = stateful()
    await blocked(world)
    await world.until(lambda: world.phase is None, cycles=60)
    assert "RollDeadlineExceeded" in world.events
    assert "kubectl delete pod chat-vllm-1 --namespace llm" in world.whole["history"][0]["message"]
    await world.until(lambda: world.reason == "RollWaits", cycles=60)
    assert "kubectl delete pod chat-vllm-1 --namespace llm" in world.decision["message"]


async def test_a_pod_that_the_api_server_refuses_is_said_in_its_words_while_it_does() -> None:
    """The StatefulSet's status does not say so, and its events do."""
    world = stateful()
    await world.until(lambda: world.phase == "Rolling")
    quota = {"metadata": {"name": "few", "namespace": "llm"}, "spec": {"hard": {"pods": "1"}}}
    world.cluster.put(QUOTAS, quota)
    await world.until(lambda: world.reason == "QuotaExceeded", cycles=12)
    assert "exceeded quota: few" in world.decision["message"]
    world.cluster.remove(QUOTAS, "llm", "few")
    await world.until(lambda: world.phase == "Confirming", cycles=12)
    assert len(world.rolls) == 1


async def test_pods_that_are_managed_in_parallel_block_no_undo() -> None:
    world = stateful(with_spec(podManagementPolicy="Parallel"))
    world.kubelet.crash = {VALUE}
    await world.until(lambda: "RolledBack" in world.events)
    assert "UndoBlocked" not in world.events
    assert world.whole["history"][0]["result"] == "Undone"


@pytest.mark.parametrize(
    ("strategy", "said"),
    [
        ({"type": "OnDelete"}, "set spec.updateStrategy.type to RollingUpdate"),
        (
            {"type": "RollingUpdate", "rollingUpdate": {"partition": 1}},
            "set spec.updateStrategy.rollingUpdate.partition to 0",
        ),
    ],
    ids=["OnDelete", "partition"],
)
async def test_one_that_its_controller_would_not_roll_is_refused(strategy: dict[str, Any], said: str) -> None:
    world = stateful(with_spec(updateStrategy=strategy))
    await world.until(lambda: world.reason == "TargetPaused", cycles=3)
    assert said in world.decision["message"]
    assert world.rolls == []


async def test_a_partition_that_a_person_sets_meanwhile_holds_the_roll_beyond_its_deadline() -> None:
    world = stateful(with_spec(replicas=4))
    await world.until(lambda: world.phase == "Rolling", cycles=30)

    def set_partition(manifest: dict[str, Any]) -> None:
        manifest["spec"]["updateStrategy"]["rollingUpdate"]["partition"] = 1

    world.cluster.change(STATEFULSETS, "llm", "chat-vllm", set_partition, manager="kubectl-patch")
    for _ in range(200):
        await world.cycle()
    assert (world.phase, world.reason, len(world.rolls)) == ("Rolling", "Rolling", 1)
    assert "its partition 1, which another hand has set, holds it" in world.decision["message"]


async def test_a_single_replica_is_not_rolled_and_the_advice_asks_for_no_surge() -> None:
    world = stateful(with_spec(replicas=1))
    await world.until(lambda: world.reason == "OutageNotAllowed", cycles=3)
    assert "give the target a replica more" in world.decision["message"]
    assert "maxSurge" not in world.decision["message"]


async def test_the_capacity_of_a_replica_less_holds_a_roll() -> None:
    """Two replicas at 6 rps, where one pod with eagle saturates at 12.5."""
    world = stateful()
    world.load(6.0)
    await world.until(lambda: world.reason == "InsufficientCapacity", cycles=8)
    assert "1 replicas left during the roll" in world.decision["message"]
    assert "give the target a replica more" in world.decision["message"]


async def test_a_calibration_copies_its_pods_with_a_new_volume_in_place_of_each_claim() -> None:
    world = FleetWorld(
        target=with_spec(volumeClaimTemplates=[{"metadata": {"name": "cache"}, "spec": CLAIM}]), stateful=True
    )
    world.load(3.0)
    await world.until(lambda: bool(world.cluster.of(JOBS)), cycles=5)
    kept = {claim["metadata"]["name"] for claim in world.cluster.of(CLAIMS)}
    assert kept == {"cache-chat-vllm-0", "cache-chat-vllm-1"}
    (job,) = world.cluster.of(JOBS)
    volumes = job["spec"]["template"]["spec"]["volumes"]
    assert {"name": "cache", "ephemeral": {"volumeClaimTemplate": {"spec": CLAIM}}} in volumes
    assert not any("persistentVolumeClaim" in volume for volume in volumes)


async def test_in_a_large_fleet_its_sums_are_those_of_all_its_pods() -> None:
    world = stateful(with_spec(replicas=4), pods_per_query=2)
    await world.until(lambda: world.value == VALUE, cycles=20)
    await world.until(lambda: world.phase == "Confirming")


async def test_a_kind_at_which_no_service_points_needs_no_right_to_be_read() -> None:
    def forbidden(_verb: str, resource: Resource, _name: str) -> None:
        if resource == STATEFULSETS:
            raise ClusterError("statefulsets.apps is forbidden", 403)

    world = FleetWorld(lambda spec: spec["updatePolicy"].update(QUICK))
    world.cluster.fail = forbidden
    world.calibrate()
    world.load(3.0)
    await world.until(lambda: world.value == VALUE, cycles=5)

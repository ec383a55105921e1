"""A pod that does not come: the cluster's words are given at once, and waited for as long as that may help."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import pytest

from breakeven_operator.kinds import CLAIMS, CONFIG_MAPS, EVENTS, NODES, PODS, REPLICASETS
from breakeven_operator.ports import ClusterError
from fakes.fleet_world import VALUE, FleetWorld
from fakes.scheduling import QUOTAS, VOLUMES


def calibrated(target: Any = lambda _target: None, **calibration: Any) -> FleetWorld:
    def edit(spec: dict[str, Any]) -> None:
        spec["updatePolicy"] |= {"cooldownSeconds": 0, "stabilizationWindowSeconds": 0}
        spec["calibration"] |= calibration

    world = FleetWorld(edit, target)
    world.calibrate()
    world.load(3.0)
    return world


def quota(**hard: str) -> dict[str, Any]:
    return {"metadata": {"namespace": "llm", "name": "gpus"}, "spec": {"hard": hard}}


async def test_a_quota_that_refuses_the_new_pod_is_said_at_once_and_waited_for() -> None:
    """The Deployment says so in a condition; there is no pod that could."""
    world = calibrated()
    world.cluster.put(QUOTAS, quota(**{"requests.nvidia.com/gpu": "2"}))
    await world.until(lambda: world.reason == "QuotaExceeded", cycles=8)
    assert world.phase == "Rolling"
    assert "exceeded quota: gpus, requested: requests.nvidia.com/gpu=1" in world.decision["message"]
    world.cluster.put(QUOTAS, quota(**{"requests.nvidia.com/gpu": "3"}))
    await world.until(lambda: world.phase == "Confirming", cycles=12)


async def test_a_quota_that_stays_undoes_the_roll_with_its_words() -> None:
    world = calibrated(pendingDeadlineSeconds=60)
    world.cluster.put(QUOTAS, quota(pods="2"))
    await world.until(lambda: world.phase == "Undoing", cycles=15)
    (note,) = [event["note"] for event in world.cluster.of(EVENTS) if event["reason"] == "RollUndone"]
    assert "the API server refuses a pod" in note
    assert "exceeded quota: gpus, requested: pods=1" in note
    assert world.whole["rollout"]["reason"] == "QuotaExceeded"


def taint(world: FleetWorld) -> None:
    world.cluster.of(NODES)[0]["spec"] = {"taints": [{"key": "maintenance", "value": "now"}]}


def no_cpu(world: FleetWorld) -> None:
    world.cluster.of(NODES)[0]["status"]["allocatable"] = {"nvidia.com/gpu": "8", "cpu": "9"}


def other_zone(world: FleetWorld) -> None:
    zone = {"topology.kubernetes.io/zone": "b"}
    world.cluster.put(VOLUMES, {"metadata": {"name": "pv-model", "labels": zone}})


def no_gpu(world: FleetWorld) -> None:
    world.cluster.of(NODES)[0]["status"]["allocatable"] = {"nvidia.com/gpu": "2", "cpu": "96"}


def demanding(target: dict[str, Any]) -> None:
    """A pod of 4 CPUs on a host port, with a zonal volume that many may read."""
    spec = target["spec"]["template"]["spec"]
    spec["containers"][0]["resources"]["requests"] = {"cpu": "4"}
    spec["volumes"] = [{"name": "m", "persistentVolumeClaim": {"claimName": "model"}}]


def shared(world: FleetWorld) -> None:
    world.cluster.put(
        CLAIMS,
        {
            "metadata": {"namespace": "llm", "name": "model"},
            "spec": {"accessModes": ["ReadWriteMany"], "volumeName": "pv-model"},
        },
    )


@pytest.mark.parametrize(
    ("happens", "reason", "words"),
    [
        (taint, "Unschedulable", "untolerated taint {maintenance: now}"),
        (no_cpu, "Unschedulable", "Insufficient cpu"),
        (other_zone, "Unschedulable", "volume node affinity conflict"),
        (no_gpu, "InsufficientGPU", "Insufficient nvidia.com/gpu"),
    ],
)
async def test_what_the_scheduler_misses_is_said_in_its_words(happens: Any, reason: str, words: str) -> None:
    world = calibrated(demanding)
    shared(world)
    happens(world)
    await world.until(lambda: world.phase == "Rolling", cycles=8)
    await world.cycle()
    assert world.reason == reason
    assert words in world.decision["message"]


async def test_a_gpu_that_comes_after_ten_minutes_is_waited_for() -> None:
    """A roll waits for room as a calibration does: that time is no part of the time to start."""
    world = calibrated(demanding)
    shared(world)
    no_gpu(world)
    await world.until(lambda: world.reason == "InsufficientGPU", cycles=8)
    deadline = world.status["rollout"]["deadlineTime"]
    world.clock.advance(600.0)
    await world.cycle()
    assert world.phase == "Rolling"
    world.add_node("a100-1", gpus=1)
    world.cluster.of(NODES)[1]["status"]["allocatable"]["cpu"] = "96"
    await world.until(lambda: world.phase == "Confirming", cycles=12)
    assert len(world.rolls) == 1
    assert deadline


async def test_the_deadline_moves_by_the_wait_and_back_by_what_was_left_of_it() -> None:
    world = calibrated(pendingDeadlineSeconds=500)
    await world.until(lambda: world.phase == "Intended", cycles=8)
    before = world.status["rollout"]["deadlineTime"]
    world.kubelet.schedulable = False
    await world.until(lambda: world.reason == "InsufficientGPU", cycles=4)
    moved = world.status["rollout"]["deadlineTime"]
    assert datetime.fromisoformat(world.whole["rollout"]["unschedulableSinceTime"]) < world.clock.now()
    world.kubelet.schedulable = True
    await world.until(lambda: world.reason == "Rolling", cycles=4)
    after = world.status["rollout"]["deadlineTime"]
    assert before < after < moved


async def test_an_image_that_cannot_be_pulled_is_said_and_undoes_the_roll_after_two_minutes() -> None:
    world = calibrated()
    await world.until(lambda: world.phase == "Intended", cycles=8)
    world.kubelet.missing_images = {"vllm/vllm-openai:v0.32.0"}
    await world.until(lambda: world.reason == "ImagePullFailed", cycles=4)
    assert world.phase == "Rolling"
    assert 'Back-off pulling image "vllm/vllm-openai:v0.32.0"' in world.decision["message"]
    world.clock.advance(120.0)
    await world.until(lambda: world.phase == "Undoing", cycles=3)


async def test_a_container_that_cannot_be_made_undoes_the_roll_with_what_is_missing() -> None:
    def secret(target: dict[str, Any]) -> None:
        reference = {"secretKeyRef": {"name": "token", "key": "t", "optional": True}}
        target["spec"]["template"]["spec"]["containers"][0]["env"].append(
            {"name": "T", "valueFrom": reference}
        )

    world = calibrated(secret)
    template = world.cluster.objects["deployments", "llm", "chat-vllm"]["spec"]["template"]
    await world.until(lambda: world.value == VALUE, cycles=8)
    template["spec"]["containers"][0]["env"][-1]["valueFrom"]["secretKeyRef"]["optional"] = True
    for pod in world.target.pods:
        assert pod.trouble is None
    world.kubelet.crash = {VALUE}
    await world.until(lambda: world.phase == "Undoing", cycles=4)
    assert "does not start (Error, exit code 1, 3 restarts)" in world.decision["message"]


@pytest.mark.parametrize(
    ("modes", "surge", "rolls"),
    [
        (["ReadWriteOnce"], 1, False),
        (["ReadWriteOncePod"], 1, False),
        (["ReadWriteOnce", "ReadWriteMany"], 1, True),
        (["ReadWriteOnce"], 0, True),
    ],
)
async def test_a_volume_that_only_one_node_may_have_is_no_roll_by_surge(
    modes: list[str], surge: int, rolls: bool
) -> None:
    def edit(target: dict[str, Any]) -> None:
        demanding(target)
        target["spec"]["strategy"] = {"rollingUpdate": {"maxSurge": surge, "maxUnavailable": 1 - surge}}

    world = calibrated(edit)
    world.cluster.put(
        CLAIMS, {"metadata": {"namespace": "llm", "name": "model"}, "spec": {"accessModes": modes}}
    )
    for _ in range(5):
        await world.cycle()
    assert (world.phase is not None) is rolls
    assert (world.reason == "VolumeNotShareable") is not rolls


def with_files(target: dict[str, Any]) -> None:
    """A pod that mounts a ConfigMap."""
    spec = target["spec"]["template"]["spec"]
    spec["volumes"] = [{"name": "template", "configMap": {"name": "template"}}]


async def test_a_volume_that_cannot_be_mounted_is_said_in_an_events_words() -> None:
    """Neither a condition nor a container says it: the container stays in creation."""
    world = FleetWorld(target=with_files)
    files = {"metadata": {"namespace": "llm", "name": "template"}, "data": {}}
    world.cluster.put(CONFIG_MAPS, files)
    world.kubelet.settle()
    world.calibrate()
    world.load(3.0)
    await world.until(lambda: world.phase == "Intended", cycles=30)
    world.cluster.remove(CONFIG_MAPS, "llm", "template")
    await world.until(lambda: world.reason == "EngineNotStarting", cycles=4)
    assert world.phase == "Rolling"
    assert 'configmap "template" not found' in world.decision["message"]
    assert "EngineNotStarting" in world.events
    world.cluster.put(CONFIG_MAPS, files)
    await world.until(lambda: world.phase == "Confirming", cycles=12)


async def test_a_volume_of_another_node_is_said_where_claims_may_not_be_read() -> None:
    world = calibrated(demanding, pendingDeadlineSeconds=100)
    world.add_node("a100-1", gpus=8)
    world.cluster.of(NODES)[0]["status"]["allocatable"] = {"nvidia.com/gpu": "2", "cpu": "96"}
    world.cluster.of(NODES)[1]["status"]["allocatable"]["cpu"] = "96"
    world.cluster.put(
        CLAIMS,
        {"metadata": {"namespace": "llm", "name": "model"}, "spec": {"accessModes": ["ReadWriteOnce"]}},
    )

    def forbid(verb: str, resource: Any, _name: str) -> None:
        if verb == "list" and resource == CLAIMS:
            raise ClusterError("persistentvolumeclaims is forbidden", 403)

    world.cluster.fail = forbid
    await world.until(lambda: world.reason == "VolumeNotShareable", cycles=12)
    assert world.phase == "Rolling"
    assert "Multi-Attach error" in world.decision["message"]
    await world.until(lambda: world.phase == "Undoing", cycles=12)


async def test_a_target_whose_image_never_comes_says_so_in_condition_and_event() -> None:
    """Somebody else's roll: no pod of the new template serves, so that its profile is unknown, and the pull error must show too."""
    world = calibrated()
    world.kubelet.missing_images = {"vllm/none:1"}
    target = world.cluster.objects["deployments", "llm", "chat-vllm"]
    target["spec"]["template"]["spec"]["containers"][0]["image"] = "vllm/none:1"
    target["metadata"]["generation"] += 1
    await world.until(lambda: world.reason == "ImagePullFailed", cycles=4)
    for said in (world.decision["message"], world.condition("Calibrated")["message"]):
        assert "image vllm/none:1 of pod" in said
    assert world.decision["action"] == "Hold"
    assert world.condition("Calibrated")["reason"] == "ImagePullFailed"
    assert "ImagePullFailed" in world.events


async def test_pods_of_others_in_the_namespace_are_not_asked_about() -> None:
    world = calibrated()
    made = world.clock.now().isoformat()
    stranger = {"namespace": "llm", "name": "stranger-1", "creationTimestamp": made}
    owner = {"kind": "Deployment", "name": "stranger", "uid": "of-others", "controller": True}
    replica_set = world.cluster.put(REPLICASETS, {"metadata": {**stranger, "ownerReferences": [owner]}})
    owner = {
        "kind": "ReplicaSet",
        "name": "stranger-1",
        "uid": replica_set["metadata"]["uid"],
        "controller": True,
    }
    meta = {**stranger, "name": "stranger-1-aaaaa", "ownerReferences": [owner]}
    placed = {"type": "PodScheduled", "status": "True", "lastTransitionTime": made}
    world.cluster.put(PODS, {"metadata": meta, "spec": {}, "status": {"conditions": [placed]}})
    asked: list[str] = []

    def note(verb: str, resource: Any, _name: str) -> None:
        if verb == "list" and resource == EVENTS:
            asked.append(resource.plural)

    world.cluster.fail = note
    for _ in range(3):
        await world.cycle()
    assert asked == []

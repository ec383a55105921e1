"""Targets of kinds that the operator does not know: looked at by their pods alone, calibrated, and never changed."""

from __future__ import annotations

from typing import Any

import pytest

from breakeven_operator.kinds import ARGO_ROLLOUTS, DEPLOYMENTS, JOBS, PODS, REPLICASETS
from fakes.fleet_world import FleetWorld

CLONE_SET = {"apiVersion": "apps.kruise.io/v1alpha1", "kind": "CloneSet", "name": "chat-vllm"}


def owned_by_a_clone_set(world: FleetWorld) -> str:
    """Give the Deployment's pods to a CloneSet of the same name, whose object nobody here can read; the target's fingerprint."""
    fingerprint = world.target.identity.fingerprint
    owner = {
        "apiVersion": CLONE_SET["apiVersion"],
        "kind": "CloneSet",
        "name": "chat-vllm",
        "uid": "r-1",
        "controller": True,
    }
    for one in world.cluster.of(REPLICASETS):
        one["metadata"]["ownerReferences"] = [owner]
    del world.cluster.objects["deployments", "llm", "chat-vllm"]
    return str(fingerprint)


def watching(mode: str = "Recommend") -> tuple[FleetWorld, str]:
    def points_at_it(spec: dict[str, Any]) -> None:
        spec["targetRef"] = dict(CLONE_SET)
        spec["updatePolicy"].update(mode=mode, stabilizationWindowSeconds=0)

    world = FleetWorld(points_at_it)
    world.calibrate()
    world.load(3.0)
    return world, owned_by_a_clone_set(world)


async def test_a_clone_set_is_looked_at_by_its_pods_and_told_its_arm():
    world, fingerprint = watching()
    await world.until(lambda: world.decision.get("action") == "Recommend", cycles=5)
    assert world.decision["arm"] == "eagle/3"
    assert world.whole["target"]["fingerprint"] == fingerprint, "a pod's template is that of its owner"
    assert world.whole["target"]["replicas"] == 2
    assert world.cluster.of(DEPLOYMENTS) == []


async def test_it_is_not_changed_in_any_mode_and_that_is_said():
    world, _ = watching("RollingUpdate")
    await world.until(lambda: world.reason == "TargetOwned", cycles=5)
    assert "CloneSet chat-vllm is of a kind that the operator does not change" in world.decision["message"]
    assert world.rolls == []


async def test_it_is_calibrated_by_a_copy_of_its_pod():
    world, _ = watching()
    for key in [key for key in world.cluster.objects if key[0] == "speculationprofiles"]:
        del world.cluster.objects[key]
    await world.until(lambda: bool(world.cluster.of(JOBS)), cycles=5)
    (job,) = world.cluster.of(JOBS)
    template = job["spec"]["template"]
    assert template["metadata"]["labels"].get("app") is None, "no service of the user's selects it"
    assert not any(one["name"].startswith("kube-api-access") for one in template["spec"].get("volumes", []))


async def test_pods_that_go_and_come_are_counted_and_none_is_no_target():
    world, _ = watching()
    await world.until(lambda: world.decision.get("action") == "Recommend", cycles=5)
    first, *_ = world.cluster.of(PODS)
    world.kubelet.end(first["metadata"]["name"])
    await world.cycle()
    assert world.whole["target"]["replicas"] == 1
    for pod in world.cluster.of(PODS):
        world.kubelet.end(pod["metadata"]["name"])
    await world.until(lambda: world.reason == "TargetNotFound", cycles=3)
    assert "no pod of CloneSet chat-vllm" in world.decision["message"]


@pytest.mark.parametrize("kind", ["CloneSet", "Database"])
async def test_pods_of_another_kind_or_name_are_not_its_own(kind):
    world, _ = watching()
    for one in world.cluster.of(REPLICASETS):
        reference = one["metadata"]["ownerReferences"][0]
        reference |= {"kind": kind, "name": "chat-vllm" if kind == "Database" else "chat"}
    await world.until(lambda: world.reason == "TargetNotFound", cycles=3)


def borrowing() -> FleetWorld:
    """The Deployment's pods as those of an Argo Rollout whose template stands in a Deployment."""

    def points_at_it(spec: dict[str, Any]) -> None:
        spec["targetRef"] = {"apiVersion": ARGO_ROLLOUTS.api_version, "kind": "Rollout", "name": "chat-vllm"}
        spec["updatePolicy"].update(mode="RollingUpdate", stabilizationWindowSeconds=0)

    world = FleetWorld(points_at_it)
    world.calibrate()
    world.load(3.0)
    (newest,) = world.cluster.of(REPLICASETS)
    newest["metadata"].setdefault("labels", {})["rollouts-pod-template-hash"] = "b"
    counts = dict.fromkeys(("replicas", "updatedReplicas", "readyReplicas", "availableReplicas"), 2)
    target = {
        "metadata": {"namespace": "llm", "name": "chat-vllm"},
        "spec": {
            "replicas": 2,
            "workloadRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "templates"},
        },
        "status": {"observedGeneration": "1", "currentPodHash": "b", **counts},
    }
    uid = world.cluster.put(ARGO_ROLLOUTS, target, manager="helm")["metadata"]["uid"]
    newest["metadata"]["ownerReferences"] = [
        {"kind": "Rollout", "name": "chat-vllm", "uid": uid, "controller": True}
    ]
    del world.cluster.objects["deployments", "llm", "chat-vllm"]
    return world


async def test_a_template_in_another_object_is_that_of_the_newest_pod_and_is_not_written():
    world = borrowing()
    await world.until(lambda: world.reason == "TargetOwned", cycles=5)
    assert "takes its pod template from Deployment templates" in world.decision["message"]
    assert world.decision["arm"] == "eagle/3"
    assert (world.whole["target"]["replicas"], world.whole["target"]["readyReplicas"]) == (2, 2)
    assert world.cluster.objects["rollouts", "llm", "chat-vllm"]["spec"].get("template") is None


async def test_without_a_pod_nothing_shows_a_template_that_stands_elsewhere():
    world = borrowing()
    for pod in world.cluster.of(PODS):
        world.kubelet.end(pod["metadata"]["name"])
    await world.until(lambda: world.reason == "TargetNotFound", cycles=3)

"""Targets of kinds that the operator does not know: looked at by their pods alone, calibrated, and never changed."""

from __future__ import annotations

from typing import Any

import pytest

from breakeven_operator.kinds import DEPLOYMENTS, JOBS, PODS, REPLICASETS
from fakes.fleet_world import FleetWorld

ROLLOUT = {"apiVersion": "argoproj.io/v1alpha1", "kind": "Rollout", "name": "chat-vllm"}


def owned_by_a_rollout(world: FleetWorld) -> str:
    """Give the Deployment's pods to a Rollout of the same name, whose object nobody here can read; the target's fingerprint."""
    fingerprint = world.target.identity.fingerprint
    owner = {
        "apiVersion": ROLLOUT["apiVersion"],
        "kind": "Rollout",
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
        spec["targetRef"] = dict(ROLLOUT)
        spec["updatePolicy"].update(mode=mode, stabilizationWindowSeconds=0)

    world = FleetWorld(points_at_it)
    world.calibrate()
    world.load(3.0)
    return world, owned_by_a_rollout(world)


async def test_a_rollout_is_looked_at_by_its_pods_and_told_its_arm():
    world, fingerprint = watching()
    await world.until(lambda: world.decision.get("action") == "Recommend", cycles=5)
    assert world.decision["arm"] == "eagle/3"
    assert world.status["target"]["fingerprint"] == fingerprint, "a pod's template is that of its owner"
    assert world.status["target"]["replicas"] == 2
    assert world.cluster.of(DEPLOYMENTS) == []


async def test_it_is_not_changed_in_any_mode_and_that_is_said():
    world, _ = watching("RollingUpdate")
    await world.until(lambda: world.reason == "KindNotRolled", cycles=5)
    assert "Rollout chat-vllm is of a kind that the operator does not change" in world.decision["message"]
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
    assert world.status["target"]["replicas"] == 1
    for pod in world.cluster.of(PODS):
        world.kubelet.end(pod["metadata"]["name"])
    await world.until(lambda: world.reason == "TargetNotFound", cycles=3)
    assert "no pod of Rollout chat-vllm" in world.decision["message"]


@pytest.mark.parametrize("kind", ["Rollout", "CloneSet"])
async def test_pods_of_another_kind_or_name_are_not_its_own(kind):
    world, _ = watching()
    for one in world.cluster.of(REPLICASETS):
        reference = one["metadata"]["ownerReferences"][0]
        reference |= {"kind": kind, "name": "chat-vllm" if kind == "CloneSet" else "chat"}
    await world.until(lambda: world.reason == "TargetNotFound", cycles=3)

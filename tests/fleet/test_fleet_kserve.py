"""KServe's services as targets, on played controllers: the parent is written, its Deployment is rolled, and an undo reaches the pods."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from breakeven.serving.opt_in import ANNOTATION
from breakeven_operator.kinds import DEPLOYMENTS, INFERENCE_SERVICES, LLM_SERVICES, PODS, RUNS
from fakes.fleet_world import VALUE, FleetWorld
from fakes.played_kserve import MODE, as_inference_service, as_llm_inference_service

QUICK = {"stabilizationWindowSeconds": 0, "cooldownSeconds": 0}
FORMS = [as_llm_inference_service, as_inference_service]


def owned(
    form: Callable[[Any], dict[str, Any]],
    target: Callable[[dict[str, Any]], None] = lambda _target: None,
    **policy: Any,
) -> FleetWorld:
    world = FleetWorld(lambda spec: spec["updatePolicy"].update(QUICK | policy), target, form=form)
    world.calibrate()
    world.load(3.0)
    return world


def values(world: FleetWorld) -> set[str | None]:
    """The arm of each pod."""
    return {(pod["metadata"].get("annotations") or {}).get(ANNOTATION) for pod in world.cluster.of(PODS)}


@pytest.mark.parametrize("form", FORMS)
async def test_it_is_rolled_and_measured_by_its_parent(form: Any) -> None:
    world = owned(form)
    await world.confirmed_roll()
    assert [write for write in world.cluster.writes if write[1] == DEPLOYMENTS.plural] == []


@pytest.mark.parametrize("form", FORMS)
async def test_beyond_the_break_even_it_goes_back(form: Any) -> None:
    def more(target: dict[str, Any]) -> None:
        target["spec"].get("predictor", target["spec"])[
            "replicas" if "template" in target["spec"] else "minReplicas"
        ] = 6

    world = owned(form, more)
    await world.goes_back()


@pytest.mark.parametrize("form", FORMS)
async def test_its_watched_objects_lead_to_the_same_roll(form: Any) -> None:
    """The Deployment and its ReplicaSets are fetched when a service begins to point at the parent."""
    world = owned(form)
    world.watched = True
    world.restart()
    await world.until(lambda: world.value == VALUE)


@pytest.mark.parametrize("form", FORMS)
async def test_the_first_arm_is_undone_by_a_value_because_the_controller_keeps_a_key_that_is_gone(
    form: Any,
) -> None:
    world = owned(form)
    world.kubelet.crash = {VALUE}
    await world.until(lambda: "RolledBack" in world.events)
    assert world.whole["history"][0]["result"] == "Undone"
    assert world.value == "null"
    assert VALUE not in values(world)


async def test_a_change_that_the_controller_does_not_copy_is_undone_at_its_deadline() -> None:
    world = owned(as_llm_inference_service, rollDeadlineSeconds=60)
    world.kubelet.follows_parents = False
    await world.until(lambda: world.value == VALUE)
    assert not world.target.rolled_out
    await world.until(lambda: "RollUndone" in world.events)
    assert world.whole["rollout"]["reason"] == "RollDeadlineExceeded"
    assert values(world) == {None}


async def test_a_person_who_removes_the_annotation_is_obeyed_and_the_arm_that_goes_on_is_said() -> None:
    world = owned(as_llm_inference_service)
    await world.speculate()

    def remove(target: dict[str, Any]) -> None:
        del target["spec"]["annotations"][ANNOTATION]

    world.cluster.change(LLM_SERVICES, "llm", "chat-vllm", remove, manager="kubectl-edit")
    await world.until(lambda: world.reason == "TakenOver", cycles=6)
    assert values(world) == {VALUE}
    assert world.whole["current"]["arm"] == "eagle/3"


@pytest.mark.parametrize("form", FORMS)
async def test_a_service_on_the_child_is_led_to_the_parent(form: Any) -> None:
    def on_child(spec: dict[str, Any]) -> None:
        spec["targetRef"] = {
            "name": "chat-vllm-kserve" if form is as_llm_inference_service else "chat-vllm-predictor"
        }

    world = FleetWorld(on_child, form=form)
    await world.cycle()
    await world.until(lambda: world.condition("Ready").get("reason") == "TargetOwned", cycles=6)
    parent = f"apiVersion: {world.kind.api_version}, kind: {world.kind.kind}, name: chat-vllm"
    assert parent in world.condition("Ready")["message"]


async def test_prefill_and_decode_are_refused_by_name() -> None:
    world = owned(as_llm_inference_service, lambda target: target["spec"].update(prefill={"replicas": 1}))
    await world.until(lambda: world.reason == "TargetRefused", cycles=6)
    assert "has spec.prefill" in world.decision["message"]
    assert world.decision["action"] == "Hold"
    assert world.rolls == []
    assert world.cluster.of(RUNS) == []


async def test_knative_mode_is_refused_by_name() -> None:
    def knative(target: dict[str, Any]) -> None:
        target["metadata"]["annotations"] = {MODE: "Knative"}

    world = FleetWorld(target=knative, form=as_inference_service)
    await world.until(lambda: world.reason == "TargetUnreadable", cycles=6)
    assert f"set the annotation {MODE}: Standard" in world.decision["message"]


async def test_a_parent_whose_controller_has_made_nothing_says_so() -> None:
    world = owned(as_inference_service)
    world.kubelet.follows_parents = False
    world.cluster.remove(DEPLOYMENTS, "llm", "chat-vllm-predictor")
    await world.until(lambda: world.reason == "TargetUnreadable", cycles=6)
    assert "has made no Deployment of it" in world.decision["message"]
    assert INFERENCE_SERVICES.kind in world.decision["message"]


@pytest.mark.parametrize("form", FORMS)
async def test_no_arm_is_proposed_for_a_pod_template_that_a_controller_makes(form: Any) -> None:
    world = owned(form, mode="NextRollout")
    await world.until(lambda: "NextRolloutMissing" in str(world.whole.get("conditions")), cycles=20)
    assert world.value is None

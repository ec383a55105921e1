"""The operator's value belongs to the template that it was measured on: under another model or image it does not stay for ever."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from breakeven_operator.kinds import EVENTS, PODS, PROFILES, SERVICES
from fakes.fleet_world import VALUE, FleetWorld

Edit = Callable[[dict[str, Any]], None]


def engine(target: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = target["spec"]["template"]["spec"]["containers"][0]
    return found


def another_model(target: dict[str, Any]) -> None:
    engine(target)["args"][0] = "org/another-model"


def another_image(target: dict[str, Any]) -> None:
    engine(target)["image"] = "vllm/vllm-openai:v0.33.0"


def another_argument(target: dict[str, Any]) -> None:
    engine(target)["args"].append("--max-model-len=131072")


def model_and_image(target: dict[str, Any]) -> None:
    another_model(target)
    another_image(target)


def another_variable(target: dict[str, Any]) -> None:
    engine(target)["env"].append({"name": "VLLM_ATTENTION_BACKEND", "value": "FLASHINFER"})


async def speculating(**options: Any) -> FleetWorld:
    world = FleetWorld(**options)
    await world.speculate()
    return world


def change(world: FleetWorld, edit: Edit, manager: str = "helm") -> None:
    world.cluster.change(world.kind, "llm", "chat-vllm", edit, manager=manager)


def serving(world: FleetWorld) -> int:
    return len(world.target.serving)


def recreate(target: dict[str, Any]) -> None:
    target["spec"]["strategy"] = {"type": "Recreate"}


def said(world: FleetWorld) -> str:
    (note,) = (e["note"] for e in world.cluster.of(EVENTS) if e["reason"] == "FingerprintChanged")
    return str(note)


CRASHES: dict[str, Edit] = {
    "model": another_model,
    "image": another_image,
    "argument": another_argument,
    "model and image": model_and_image,
    "variable": another_variable,
}


@pytest.mark.parametrize("strategy", [lambda _target: None, recreate], ids=["rolling", "recreate"])
@pytest.mark.parametrize("edit", CRASHES.values(), ids=CRASHES)
async def test_a_drafter_that_crashes_under_another_template_is_withdrawn_and_the_owner_s_roll_ends(
    edit, strategy
):
    world = await speculating()
    change(world, strategy)
    world.kubelet.crash = {VALUE}
    change(world, edit)
    await world.until(lambda: world.value == "null", cycles=12)
    await world.until(lambda: world.target.settled, cycles=40)
    assert serving(world) == 2
    note = said(world)
    assert note.startswith("eagle/3 is left: ")
    assert "was never measured" in note
    assert world.memory.get("barred", []) == [], "a calibration of the new template may find it good"


async def test_another_model_withdraws_it_before_any_pod_of_it_has_crashed():
    world = await speculating()
    change(world, another_model)
    await world.cycle()
    assert world.value == "null"
    assert said(world) == (
        "eagle/3 is left: its value was written for model org/model, and the template asks for org/another-model, on which "
        "eagle/3 was never measured"
    )


async def test_another_image_under_which_the_drafter_serves_keeps_it():
    """A patch of the engine is no reason to restart all pods twice; it is measured again."""
    world = await speculating()
    change(world, another_image)
    for _ in range(30):
        await world.cycle()
    assert world.value == VALUE
    assert serving(world) == 2
    assert world.condition("Calibrated")["status"] == "False"


async def test_an_arm_that_was_measured_on_the_other_model_too_stays():
    world = await speculating()
    change(world, another_model)
    world.kubelet.settle()
    world.calibrate(name="chat-p2")
    for _ in range(5):
        await world.cycle()
    assert world.value == VALUE


@pytest.mark.parametrize("value", ["null", '{"method":"ngram","num_speculative_tokens":4}'])
async def test_a_value_that_is_somebody_else_s_is_not_withdrawn(value):
    world = await speculating()

    def edit(target: dict[str, Any]) -> None:
        another_model(target)
        target["spec"]["template"]["metadata"]["annotations"]["breakeven.dev/speculative-config"] = value

    world.kubelet.crash = {value}
    change(world, edit, "kubectl-patch")
    for _ in range(20):
        await world.cycle()
    assert world.value == value
    assert world.reason == "TakenOver"


async def test_mode_recommend_says_so_and_writes_nothing():
    world = await speculating()
    world.cluster.change(
        SERVICES, "llm", "chat", lambda service: service["spec"]["updatePolicy"].update(mode="Recommend")
    )
    await world.cycle()
    rolls = len(world.rolls)
    change(world, another_model)
    await world.cycle()
    assert (world.decision["action"], world.decision["arm"], world.reason) == (
        "Recommend",
        "none",
        "FingerprintChanged",
    )
    assert len(world.rolls) == rolls


@pytest.mark.parametrize("edit", [another_model, another_image], ids=["model", "image"])
async def test_a_model_that_does_not_start_without_the_drafter_either_is_left_to_its_owner(edit):
    """Going back to the drafter would help nobody, and going to and fro would make pods for ever."""
    world = await speculating()
    rolls = len(world.rolls)
    world.kubelet.crash = {VALUE, "null"}
    change(world, edit)
    for _ in range(80):
        await world.cycle()
    assert len(world.rolls) == rolls + 1
    assert (world.value, world.phase) == ("null", None)
    entry = world.whole["history"][0]
    assert (entry["result"], entry["fromArm"], entry["toArm"]) == ("Unmeasured", "eagle/3", "none")
    assert "which was never measured on this template" in entry["message"]
    assert world.reason == "EngineNotStarting"


async def test_a_slower_model_is_not_taken_for_a_roll_that_lost():
    world = await speculating()
    change(world, another_model)
    await world.until(lambda: world.phase == "Confirming")
    rolls = len(world.rolls)
    world.load(3.0)
    world.prometheus.traffic.latency_s = 9.0
    await world.until(lambda: world.phase is None, cycles=200)
    assert len(world.rolls) == rolls
    assert world.whole["history"][0]["result"] == "Unmeasured"


async def test_pods_that_crash_under_the_template_that_was_measured_are_no_foreign_value():
    world = await speculating()
    world.kubelet.crash = {VALUE}
    for pod in list(world.cluster.of(PODS)):
        world.kubelet.end(pod["metadata"]["name"])
    await world.until(lambda: world.value == "null", cycles=6)
    # It is left because it crashes, and not because it belongs to another template.
    assert world.whole["rollout"]["reason"] == "ArmCrashes"
    assert "FingerprintChanged" not in world.events


async def test_a_copy_of_the_value_that_somebody_else_writes_after_an_undo_is_his():
    world = FleetWorld(lambda spec: spec["updatePolicy"].update(stabilizationWindowSeconds=0))
    world.calibrate()
    world.load(3.0)
    world.kubelet.crash = {VALUE}
    await world.until(lambda: world.phase == "Undoing")

    def copied(target: dict[str, Any]) -> None:
        target["spec"]["template"]["metadata"]["annotations"]["breakeven.dev/speculative-config"] = VALUE

    world.cluster.change(world.kind, "llm", "chat-vllm", copied, manager="flux")
    await world.until(lambda: world.reason == "TakenOver", cycles=6)
    assert world.decision["message"].startswith("flux changed the annotation")


async def test_a_stateful_set_s_value_is_withdrawn_too():
    world = await speculating(stateful=True)
    change(world, another_model)
    world.kubelet.crash = {VALUE}
    await world.until(lambda: world.value == "null", cycles=5)


async def leaving(edit: Edit) -> FleetWorld:
    """A roll that leaves the arm by an overload, while the owner rolls another template on which the drafter crashes."""
    world = await speculating()
    world.load(10.0)
    await world.until(lambda: world.phase == "Rolling")
    assert world.value == "null"
    change(world, edit)
    world.kubelet.crash = {VALUE}
    world.kubelet.schedulable = False
    return world


async def test_a_roll_away_that_finds_no_gpu_does_not_go_back_to_a_drafter_of_another_model():
    world = await leaving(another_model)
    rolls = len(world.rolls)
    await world.until(lambda: world.phase is None)
    assert (world.value, len(world.rolls)) == ("null", rolls)
    entry = world.whole["history"][0]
    assert entry["result"] == "Unmeasured"
    assert "it is not undone: its value was written for model org/model" in entry["message"]
    world.kubelet.schedulable = True
    await world.until(lambda: world.target.settled, cycles=40)
    assert serving(world) == 2


@pytest.mark.parametrize("edit", [another_model, another_image], ids=["model", "image"])
async def test_an_undo_to_a_drafter_that_crashes_under_another_template_is_not_waited_for(edit):
    world = await leaving(lambda _target: None)
    await world.until(lambda: world.phase == "Undoing")
    world.kubelet.schedulable = True
    change(world, edit)
    await world.until(lambda: world.value == "null", cycles=5)
    assert world.whole["history"][0]["result"] == "Undone"
    await world.until(lambda: world.target.settled, cycles=40)
    assert serving(world) == 2


async def test_an_arm_that_was_measured_on_this_very_template_stays_however_its_profile_spells_the_model():
    world = await speculating()
    (profile,) = world.cluster.of(PROFILES)
    profile["spec"]["model"] = "chat"
    world.cluster.put(PROFILES, profile)
    for _ in range(4):
        world.load(3.0)
        await world.cycle()
    assert world.value == VALUE
    assert "FingerprintChanged" not in world.events

"""Mode NextRollout in memory: what is proposed to the owner's next rollout, when it is taken back, and what refuses it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from breakeven.serving.opt_in import ANNOTATION
from breakeven_operator.kinds import DEPLOYMENTS, NEXT_ANNOTATION
from fakes.fleet_world import VALUE, FleetWorld


def world_of(target: Callable[[dict[str, Any]], None] = lambda _: None, **policy: Any) -> FleetWorld:
    def edit(spec: dict[str, Any]) -> None:
        spec["updatePolicy"].update({"mode": "NextRollout", "stabilizationWindowSeconds": 0, **policy})

    world = FleetWorld(edit, target)
    world.calibrate()
    world.load(3.0)
    return world


def set_value(world: FleetWorld, value: str | None, manager: str) -> None:
    def change(target: dict[str, Any]) -> None:
        meta = target["spec"]["template"].setdefault("metadata", {})
        rest = {key: one for key, one in (meta.get("annotations") or {}).items() if key != ANNOTATION}
        meta["annotations"] = rest if value is None else {**rest, ANNOTATION: value}

    world.cluster.change(DEPLOYMENTS, "llm", "chat-vllm", change, manager=manager)


def proposal(world: FleetWorld) -> str | None:
    (target,) = world.cluster.of(DEPLOYMENTS)
    return (target["metadata"].get("annotations") or {}).get(NEXT_ANNOTATION)


async def test_the_arm_is_proposed_and_nothing_restarts() -> None:
    world = world_of()
    await world.until(lambda: world.reason == "AwaitsRollout", cycles=10)
    assert proposal(world) == f"org/model {VALUE}"
    assert (world.value, world.phase, world.decision["arm"]) == (None, None, "eagle/3")
    (progressing,) = [one for one in world.whole["conditions"] if one["type"] == "Progressing"]
    assert (progressing["status"], progressing["reason"]) == ("False", "AwaitsRollout")
    assert world.events.count("AwaitsRollout") == 1
    labels = {"specsvc_namespace": "llm", "specsvc": "chat", "reason": "AwaitsRollout"}
    assert world.registry.get_sample_value("breakeven_decision_info", labels) is not None or any(
        sample.labels.get("reason") == "AwaitsRollout"
        for family in world.registry.collect()
        for sample in family.samples
        if sample.value
    )


async def test_beyond_the_break_even_no_speculation_is_proposed() -> None:
    world = world_of()
    await world.until(lambda: proposal(world) is not None, cycles=10)
    world.load(12.0)
    await world.until(lambda: proposal(world) == "org/model null", cycles=20)


async def test_a_proposal_goes_with_the_mode_with_a_pause_and_where_nothing_takes_it() -> None:
    world = world_of()
    await world.until(lambda: proposal(world) is not None, cycles=10)
    for change in (
        {"updatePolicy": {"mode": "Recommend"}},
        {"updatePolicy": {"mode": "Disabled"}},
        {"paused": True},
    ):
        another = world.copied()
        spec = another.service["spec"]
        spec["paused"] = change.get("paused", False)
        spec["updatePolicy"].update(change.get("updatePolicy", {}))
        another.service["metadata"]["generation"] = 2
        await another.until(lambda another=another: proposal(another) is None, cycles=30)
        assert another.value is None
    world.takes_proposals = False
    world.restart()
    await world.until(lambda: proposal(world) is None, cycles=30)
    (ready,) = [one for one in world.whole["conditions"] if one["type"] == "Ready"]
    assert (ready["status"], ready["reason"]) == ("False", "NextRolloutMissing")


async def test_an_arm_whose_answers_are_not_known_to_agree_is_not_proposed() -> None:
    world = FleetWorld(
        lambda spec: (spec["updatePolicy"].update(mode="NextRollout"), spec.pop("calibration"))[0]
    )
    world.calibrate()
    world.load(3.0)
    await world.until(lambda: world.reason == "AnswersUndecided", cycles=20)
    assert proposal(world) == "org/model null"


async def test_an_arm_that_the_owner_chose_is_his_and_an_arm_that_his_rollout_took_is_not() -> None:
    def chosen(target: dict[str, Any]) -> None:
        target["spec"]["template"]["metadata"].setdefault("annotations", {})[ANNOTATION] = VALUE

    world = world_of(chosen)
    world.load(12.0)
    await world.until(lambda: world.reason == "TakenOver", cycles=30)
    assert "helm set the annotation" in world.decision["message"]
    assert proposal(world) is None
    set_value(world, None, "helm")
    world.load(3.0)
    await world.until(lambda: proposal(world) == f"org/model {VALUE}", cycles=40)
    # The policy, in the name of whoever rolls.
    set_value(world, VALUE, "argocd-controller")
    await world.until(lambda: world.reason == "BelowBreakEven", cycles=20)
    world.load(12.0)
    await world.until(lambda: proposal(world) == "org/model null", cycles=40)
    assert world.reason == "AwaitsRollout"

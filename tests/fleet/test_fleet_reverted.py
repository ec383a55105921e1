"""Writes that do not hold: whoever takes them back, and however soon, each one counts, and the third is the last."""

from __future__ import annotations

import copy
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from breakeven_operator.kinds import DEPLOYMENTS, EVENTS, PODS, SERVICES, STATEFULSETS
from breakeven_operator.resources.updatepolicy import Timing
from fakes.fleet_world import VALUE, FleetWorld

KEY = "breakeven.dev/speculative-config"
OTHER = '{"method":"ngram","num_speculative_tokens":4}'
MANY = 40
"""Cycles of 15 s: ten minutes, in which an unbounded fight makes forty pods."""

Revert = Callable[[FleetWorld], Awaitable[None] | None]


def changed(world: FleetWorld, edit: Callable[[dict[str, Any]], None], manager: str) -> None:
    world.cluster.change(world.kind, "llm", "chat-vllm", edit, manager=manager)


def keys_of(target: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = target["spec"]["template"]["metadata"]["annotations"]
    return found


def drops_the_key(world: FleetWorld) -> None:
    """A replacement that changes nothing else: no field manager shows."""
    changed(world, lambda target: keys_of(target).pop(KEY, None), "gitops-agent")


def drops_the_key_and_stamps(world: FleetWorld) -> None:
    """A replacement by a manifest that says when it was synchronised."""

    def edit(target: dict[str, Any]) -> None:
        keys_of(target).pop(KEY, None)
        target["metadata"].setdefault("annotations", {})["synced"] = world.clock.now().isoformat()

    changed(world, edit, "gitops-agent")


def sets(value: str) -> Revert:
    """A manifest that has a value of its own, replaced as a whole."""
    return lambda world: changed(world, lambda target: keys_of(target).update({KEY: value}), "argocd")


def applies(value: str) -> Revert:
    """The same by a forced server-side apply."""

    async def revert(world: FleetWorld) -> None:
        body = {
            "metadata": {"namespace": "llm", "name": "chat-vllm"},
            "spec": {"template": {"metadata": {"annotations": {KEY: value}}}},
        }
        await world.cluster.apply(world.kind, body, force=True, manager="flux")

    return revert


REVERTS: dict[str, Revert] = {
    "replace": drops_the_key,
    "replace with a stamp": drops_the_key_and_stamps,
    "replace with null": sets("null"),
    "replace with another drafter": sets(OTHER),
    "apply null by force": applies("null"),
    "apply another drafter by force": applies(OTHER),
}


def calibrated(**target: Any) -> FleetWorld:
    world = FleetWorld(
        lambda spec: spec["updatePolicy"].update(cooldownSeconds=0, stabilizationWindowSeconds=0),
        timing=Timing(backoff_seconds=60),
        **target,
    )
    world.calibrate()
    world.load(3.0)
    return world


async def contested(
    world: FleetWorld, revert: Revert, wanted: Callable[[], bool], cycles: int = MANY
) -> set[str]:
    """Another writer looks every five seconds and reverts what it finds; names of the pods that were made."""
    made: set[str] = set()
    for _ in range(cycles):
        for _ in range(3):
            world.clock.advance(5.0)
            if wanted():
                reverting = revert(world)
                if reverting is not None:
                    await reverting
            world.kubelet.step()
            made |= {pod["metadata"]["uid"] for pod in world.cluster.of(PODS)}
        await world.fleet.cycle()
    return made


def notes(world: FleetWorld, reason: str) -> list[str]:
    return [event["note"] for event in world.cluster.of(EVENTS) if event["reason"] == reason]


def resume(world: FleetWorld, token: str = "again") -> None:
    def edit(service: dict[str, Any]) -> None:
        service["metadata"].setdefault("annotations", {})["breakeven.dev/resume"] = token

    world.cluster.change(SERVICES, "llm", "chat", edit)


def stopped(world: FleetWorld) -> None:
    """The service says that it has stopped, and why, in both places that people look at."""
    assert world.reason in {"RevertedTwice", "TakenOver"}
    ready = world.condition("Ready")
    assert (ready["status"], ready["reason"]) == ("False", world.reason)
    assert "breakeven.dev/resume" in world.decision["message"]
    assert len(notes(world, str(world.reason))) == 1


@pytest.mark.parametrize("restarts", [False, True], ids=["", "operator starts again"])
@pytest.mark.parametrize("revert", REVERTS.values(), ids=REVERTS)
async def test_a_write_that_is_taken_back_within_a_cycle_is_made_three_times_at_most(revert, restarts):
    world = calibrated()
    begun = len(world.cluster.of(PODS))

    def wanted() -> bool:
        return world.value == VALUE

    for _ in range(4):
        made = await contested(world, revert, wanted, 10)
        if restarts:
            world.restart()
    assert len(world.rolls) <= 3
    assert len(made) <= begun + len(world.rolls)
    stopped(world)
    if world.value == OTHER:
        # Nobody has measured that drafter: a person who resumes has nothing to go to.
        return
    rolls = len(world.rolls)
    resume(world)
    await contested(world, revert, wanted)
    assert rolls < len(world.rolls) <= rolls + 3, "a person who asks for it gets as many again"
    assert str(world.reason) in {"RevertedTwice", "TakenOver"}
    resume(world, "once more")
    world.load(3.0)
    await world.until(lambda: world.phase == "Confirming")
    assert world.value == VALUE


async def test_a_program_that_leaves_no_trace_is_said_to_leave_none_and_a_person_is_not_blamed():
    world = calibrated()
    await contested(world, drops_the_key, lambda: world.value == VALUE)
    assert (world.reason, world.events.count("Restored"), len(world.rolls)) == ("RevertedTwice", 2, 3)
    (note,) = notes(world, "RevertedTwice")
    assert note.startswith(
        "a program that leaves no trace removed the annotation within seconds again, after it was restored 2 times"
    )


async def test_a_replacement_that_shows_is_named_and_ends_in_the_promised_word():
    world = calibrated()
    await contested(world, drops_the_key_and_stamps, lambda: world.value == VALUE)
    assert (world.reason, world.events.count("Restored"), len(world.rolls)) == ("RevertedTwice", 2, 3)
    assert notes(world, "RevertedTwice")[0].startswith("gitops-agent changed the target at 20")


async def as_soon_as_it_rolls(world: FleetWorld) -> None:
    await world.until(lambda: world.phase == "Rolling")


async def while_it_is_measured(world: FleetWorld) -> None:
    await world.until(lambda: world.phase == "Confirming")


async def after_its_last_word(world: FleetWorld) -> None:
    await while_it_is_measured(world)
    world.load(3.0)
    await world.until(lambda: world.phase is None)


@pytest.mark.parametrize("phase", [as_soon_as_it_rolls, while_it_is_measured, after_its_last_word])
@pytest.mark.parametrize("revert", REVERTS.values(), ids=REVERTS)
async def test_in_each_phase_what_is_taken_back_is_written_three_times_at_most(
    revert: Revert, phase: Callable[[FleetWorld], Awaitable[None]]
):
    world = calibrated()
    await phase(world)
    await contested(world, revert, lambda: world.value == VALUE)
    assert len(world.rolls) <= 3
    stopped(world)


@pytest.mark.parametrize("first", [None, "null"], ids=["to no value", "to null"])
@pytest.mark.parametrize(
    "revert", [sets(VALUE), applies(VALUE), sets(OTHER)], ids=["replace", "apply", "another drafter"]
)
async def test_an_undo_that_is_taken_back_is_not_fought(revert, first):
    """The pods of the arm crash, and a tool has that arm in its manifest."""
    world = calibrated()
    if first is not None:
        await while_it_is_measured(world)
        world.load(9.4)
        await world.until(lambda: world.value == first)
        await while_it_is_measured(world)
        world.load(3.0)
        rolls = len(world.rolls)
        await world.until(lambda: world.value == VALUE and len(world.rolls) > rolls)
    world.kubelet.crash = {VALUE, OTHER}
    await world.until(lambda: world.phase == "Undoing")
    rolls = len(world.rolls)
    await contested(world, revert, lambda: world.value == first)
    assert len(world.rolls) <= rolls + 2
    stopped(world)


async def test_a_dropped_value_in_the_middle_of_an_undo_is_never_written_as_the_arm_that_is_left():
    """An undo's own value is put back; it used to be that of the arm whose pods had just crashed."""
    world = calibrated()
    await while_it_is_measured(world)
    world.load(12.0)
    await world.until(lambda: world.value == "null")
    world.kubelet.crash = {"null"}
    world.kubelet.startup_s = 600.0
    await world.until(lambda: world.phase == "Undoing")
    assert world.value == VALUE
    drops_the_key_and_stamps(world)
    await world.cycle()
    assert world.value == VALUE
    assert world.events.count("Restored") == 1


async def test_a_null_that_is_dropped_while_an_undo_ends_is_what_was_wanted():
    world = calibrated()
    await while_it_is_measured(world)
    world.load(9.4)
    await world.until(lambda: world.value == "null")
    await while_it_is_measured(world)
    world.load(3.0)
    await world.until(lambda: world.value == VALUE)
    world.kubelet.crash = {VALUE}
    await world.until(lambda: world.phase == "Undoing")
    drops_the_key_and_stamps(world)
    await world.until(lambda: world.phase is None)
    assert world.value is None
    assert not {"Restored", "TakenOver", "RevertedTwice"} & set(world.events)
    assert "RolledBack" in world.events


def strips(asked: str, new: dict[str, Any]) -> None:
    if asked == DEPLOYMENTS.plural:
        keys_of(new).pop(KEY, None)


def changes_it(asked: str, new: dict[str, Any]) -> None:
    if asked == DEPLOYMENTS.plural and keys_of(new).get(KEY, "null") != "null":
        keys_of(new)[KEY] = OTHER


@pytest.mark.claim("docs/gitops.md", "one that a webhook strips")
async def test_a_webhook_that_strips_the_key_is_asked_three_times_and_then_no_more():
    world = calibrated()
    world.cluster.webhooks = [strips]
    asked: list[str] = []
    world.cluster.fail = lambda verb, resource, _name: (
        asked.append(verb) if (verb, resource) == ("apply", DEPLOYMENTS) else None
    )
    for _ in range(MANY):
        await world.cycle()
    assert len(asked) == 3
    assert (world.value, world.phase, world.reason) == (None, None, "RevertedTwice")
    assert world.condition("Ready")["reason"] == "RevertedTwice"
    assert "read back None" in world.decision["message"]
    assert "breakeven.dev/resume" in world.decision["message"]
    world.cluster.webhooks = []
    for _ in range(20):
        await world.cycle()
    assert len(asked) == 3, "nobody has said so"
    resume(world)
    world.load(3.0)
    await world.until(lambda: world.phase == "Confirming")
    await world.cycle()
    assert world.condition("Ready")["status"] == "True"


async def test_a_write_that_a_webhook_strips_is_made_again_once_the_target_changes():
    world = calibrated()
    world.cluster.webhooks = [strips]
    await world.until(lambda: world.reason == "RevertedTwice")
    world.cluster.webhooks = []
    changed(world, lambda target: target["spec"].update(minReadySeconds=1), "helm")
    world.load(3.0)
    await world.until(lambda: world.value == VALUE, cycles=20)


async def test_a_webhook_that_chooses_another_arm_owns_it():
    world = calibrated()
    world.cluster.webhooks = [changes_it]
    for _ in range(MANY):
        await world.cycle()
    assert len(world.rolls) == 1
    assert world.value == OTHER
    stopped(world)


async def test_writes_that_fail_while_an_autoscaler_scales_are_no_reversals():
    """Its generations are not those of a write and its reversal: nothing is taken over, and nothing restored."""
    world = calibrated()
    failing = [True]

    def meanwhile(verb: str, resource: Any, _name: str) -> None:
        if failing[0] and (verb, resource) == ("get", DEPLOYMENTS):
            target = world.cluster.objects["deployments", "llm", "chat-vllm"]
            target["spec"]["replicas"] = 5 - target["spec"]["replicas"]
            target["metadata"]["generation"] += 1

    world.cluster.fail = meanwhile
    for _ in range(30):
        await world.cycle()
    failing[0] = False
    assert world.rolls == []
    await world.until(lambda: world.value == VALUE)
    assert not {"Restored", "TakenOver", "RevertedTwice"} & set(world.events)


async def test_a_target_that_is_made_again_after_the_bound_is_written_again():
    world = calibrated()
    await contested(world, drops_the_key, lambda: world.value == VALUE)
    assert world.reason == "RevertedTwice"
    target = copy.deepcopy(world.cluster.objects["deployments", "llm", "chat-vllm"])
    target["metadata"] = {"name": "chat-vllm", "namespace": "llm"}
    world.cluster.remove(DEPLOYMENTS, "llm", "chat-vllm")
    world.cluster.put(DEPLOYMENTS, target, manager="helm")
    world.kubelet.settle()
    world.clock.advance(1000.0)
    world.load(3.0)
    await world.until(lambda: world.value == VALUE)


async def test_a_stateful_set_that_is_reverted_within_a_cycle_is_left_too():
    world = calibrated(stateful=True)
    await contested(world, drops_the_key_and_stamps, lambda: world.value == VALUE)
    assert world.kind == STATEFULSETS
    assert len(world.rolls) == 3
    assert world.reason == "RevertedTwice"

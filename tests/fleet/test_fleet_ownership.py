"""Somebody else writes the annotation: hold, say who, and never fight."""

from __future__ import annotations

import pytest

from breakeven.arm import NO_SPECULATION
from breakeven_operator.kinds import DEPLOYMENTS, EVENTS, SERVICES
from breakeven_operator.resources.updatepolicy import Timing
from fakes.fleet_world import VALUE, FleetWorld

KEY = "breakeven.dev/speculative-config"


def set_value(value):
    def edit(deployment):
        annotations = deployment["spec"]["template"]["metadata"]["annotations"]
        if value is None:
            annotations.pop(KEY, None)
        else:
            annotations[KEY] = value

    return edit


def replaced(note: str):
    """The whole object from a manifest without the annotation, as `kubectl replace` and Terraform put it."""

    def edit(deployment):
        set_value(None)(deployment)
        deployment["spec"]["template"]["spec"]["containers"][0]["env"].append({"name": "NOTE", "value": note})

    return edit


async def rolled(*, judged: bool = True) -> FleetWorld:
    world = FleetWorld(
        lambda spec: spec["updatePolicy"].update(cooldownSeconds=0, stabilizationWindowSeconds=0)
    )
    await world.speculate(judged=judged)
    return world


def annotate(world: FleetWorld, **annotations: str) -> None:
    world.cluster.change(
        SERVICES,
        "llm",
        "chat",
        lambda service: (
            service["metadata"]
            .setdefault("annotations", {})
            .update({f"breakeven.dev/{key}": value for key, value in annotations.items()})
        ),
    )


def pause(world: FleetWorld, paused: bool) -> None:
    world.cluster.change(SERVICES, "llm", "chat", lambda service: service["spec"].update(paused=paused))


def pin(world: FleetWorld, arm: str) -> None:
    world.cluster.change(
        SERVICES, "llm", "chat", lambda service: service["spec"]["updatePolicy"].update(pinnedArm=arm)
    )


async def test_an_initial_value_that_somebody_else_owns_is_a_conflict_and_not_fought():
    def with_value(target):
        target["spec"]["template"]["metadata"]["annotations"][KEY] = "null"

    world = FleetWorld(target=with_value)
    world.calibrate()
    world.load(3.0)
    await world.until(lambda: world.reason == "TakenOver")
    assert world.value == "null"
    assert world.memory["takenOverBy"] == "helm"
    assert world.condition("Ready")["reason"] == "TakenOver"
    assert "helm" in world.condition("Ready")["message"]
    for _ in range(20):
        await world.cycle()
    assert world.rolls == []
    assert world.events.count("TakenOver") == 1


async def test_a_rollout_undo_is_noticed_and_left_alone_until_handed_back_which_forces_once():
    world = await rolled()
    world.cluster.change(DEPLOYMENTS, "llm", "chat-vllm", set_value("null"), manager="kubectl")
    world.kubelet.settle()
    await world.until(lambda: world.reason == "TakenOver", cycles=2)
    assert world.whole["history"][0]["result"] == "Confirmed", "the change before was confirmed and stays so"
    for _ in range(20):
        await world.cycle()
    assert world.value == "null"
    annotate(world, resume="1")
    world.load(3.0)
    await world.until(lambda: world.value == VALUE)
    await world.until(lambda: world.phase == "Confirming")
    assert not world.memory.get("forceNext")
    world.cluster.change(DEPLOYMENTS, "llm", "chat-vllm", set_value("null"), manager="kubectl")
    for _ in range(20):
        await world.cycle()
    assert (world.reason, world.value) == ("TakenOver", "null"), "an old token does not force twice"


async def test_pausing_and_unpausing_hands_back_too():
    world = await rolled()
    world.cluster.change(DEPLOYMENTS, "llm", "chat-vllm", set_value("null"), manager="kubectl-patch")
    await world.until(lambda: world.reason == "TakenOver", cycles=2)
    pause(world, True)
    await world.cycle()
    world.restart()
    pause(world, False)
    world.load(3.0)
    await world.until(lambda: world.value == VALUE)


async def test_a_resume_token_from_before_does_not_count():
    world = await rolled()
    annotate(world, resume="old")
    await world.cycle()
    world.cluster.change(DEPLOYMENTS, "llm", "chat-vllm", set_value("null"), manager="kubectl")
    for _ in range(10):
        await world.cycle()
    assert (world.reason, world.value) == ("TakenOver", "null")


@pytest.mark.parametrize("annotation", ["resume", "recalibrate"])
async def test_a_value_that_is_longer_than_the_status_takes_is_remembered_by_its_beginning(annotation):
    world = FleetWorld()
    world.calibrate()
    world.load(3.0)
    annotate(world, **{annotation: "x" * 300})
    await world.until(lambda: world.memory.get(annotation) is not None, cycles=3)
    assert world.memory[annotation] == "x" * 256
    assert world.condition("Ready")["status"] == "True"


async def test_each_roll_has_an_event_of_its_own_so_that_their_order_shows():
    """Two rolls within half an hour used to be one Event, with the note of the first and the time of the second."""
    world = await rolled()
    for arm, value in (("none", "null"), ("eagle/3", VALUE), ("none", "null")):
        pin(world, arm)
        await world.until(lambda value=value: world.value == value)
        await world.until(lambda: world.phase == "Confirming")
    said = [
        (event["eventTime"], event["note"].partition(":")[0])
        for event in world.cluster.of(EVENTS)
        if event["reason"] == "Rolling"
    ]
    assert [change for _, change in sorted(said)] == [
        "no speculation -> eagle/3",
        "eagle/3 -> no speculation",
        "no speculation -> eagle/3",
        "eagle/3 -> no speculation",
    ]


@pytest.mark.parametrize("undone", [False, True], ids=["a roll", "an undo"])
async def test_a_target_without_pods_is_not_said_to_run_an_arm(undone):
    world = FleetWorld(lambda spec: spec["updatePolicy"].update(stabilizationWindowSeconds=0))
    world.calibrate()
    world.load(3.0)
    world.kubelet.crash = {VALUE} if undone else set()
    await world.until(lambda: world.phase == ("Undoing" if undone else "Rolling"))
    world.cluster.objects["deployments", "llm", "chat-vllm"]["spec"]["replicas"] = 0
    await world.until(lambda: world.phase == (None if undone else "Confirming"), cycles=10)
    (note,) = notes(world, "RolledBack" if undone else "RollFinished")
    expected = (
        "no speculation is asked for again, and no pod runs"
        if undone
        else "no pod runs, because Deployment chat-vllm is scaled to zero"
    )
    assert expected in note
    assert "all pods run it" not in world.condition("Progressing")["message"]


async def test_an_undo_during_our_roll_ends_it():
    world = FleetWorld(lambda spec: spec["updatePolicy"].update(stabilizationWindowSeconds=0))
    world.calibrate()
    world.load(3.0)
    await world.until(lambda: world.phase == "Rolling")
    world.cluster.change(DEPLOYMENTS, "llm", "chat-vllm", set_value("null"), manager="kubectl")
    await world.until(lambda: world.reason == "TakenOver", cycles=2)
    assert world.phase is None
    assert world.whole["history"][0]["result"] == "Superseded"


async def test_a_dropped_annotation_is_restored_twice_and_then_never_again():
    world = await rolled()
    for number in (1, 2):
        world.cluster.change(
            DEPLOYMENTS, "llm", "chat-vllm", replaced(f"{number}"), manager="kubectl-replace"
        )
        await world.cycle()
        assert world.value == VALUE
        assert world.memory["restores"] == number
        world.kubelet.settle()
    world.cluster.change(DEPLOYMENTS, "llm", "chat-vllm", replaced("3"), manager="kubectl-replace")
    world.kubelet.settle()
    for _ in range(20):
        await world.cycle()
    assert world.value is None
    assert world.reason == "RevertedTwice"
    assert (world.events.count("Restored"), world.events.count("RevertedTwice")) == (2, 1)


def notes(world: FleetWorld, reason: str) -> list[str]:
    return [event["note"] for event in world.cluster.of(EVENTS) if event["reason"] == reason]


async def test_what_is_restored_names_who_was_seen_to_write_and_when():
    world = await rolled()
    world.clock.advance(60.0)
    at = f"{world.clock.now():%Y-%m-%d %H:%M:%S} UTC"
    world.cluster.change(DEPLOYMENTS, "llm", "chat-vllm", replaced("1"), manager="terraform")
    await world.cycle()
    (note,) = notes(world, "Restored")
    assert note.startswith(f"terraform changed the target at {at} and the annotation is gone;")


@pytest.mark.parametrize("manager", ["kubectl-edit", "kubectl-patch", "Go-http-client", "helm"])
async def test_a_key_that_is_removed_and_nothing_else_is_a_person_s_wish_and_is_not_restored(manager):
    """A field that is removed leaves no trace of its remover; helm has an entry from before, which must not be blamed."""
    world = await rolled()
    world.cluster.change(DEPLOYMENTS, "llm", "chat-vllm", set_value(None), manager=manager)
    world.kubelet.settle()
    for _ in range(20):
        await world.cycle()
    assert (world.reason, world.value) == ("TakenOver", None)
    assert "Restored" not in world.events
    (note,) = notes(world, "TakenOver")
    assert note.startswith(
        "kubectl rollout undo, or an edit with the same result, removed the annotation (it is gone, the pod template is that of an "
        "earlier revision again, and no field"
    )
    assert not any(word in note for word in ("apply", "replace", "helm", "kubectl-"))
    assert world.condition("Ready")["status"] == "False"
    annotate(world, resume="1")
    world.load(3.0)
    await world.until(lambda: world.value == VALUE)
    assert world.events.count("Resumed") == 1


async def test_a_removal_that_leads_to_no_earlier_template_is_no_rollout_undo():
    """Something else had changed before: nothing is there to go back to."""
    world = await rolled()
    world.cluster.change(
        DEPLOYMENTS,
        "llm",
        "chat-vllm",
        lambda target: target["spec"]["template"]["metadata"].update(labels={"app": "chat-vllm", "v": "2"}),
        manager="helm",
    )
    await world.cycle()
    world.cluster.change(DEPLOYMENTS, "llm", "chat-vllm", set_value(None), manager="kubectl-edit")
    await world.cycle()
    await world.cycle()
    assert world.reason == "TakenOver"
    (note,) = notes(world, "TakenOver")
    assert note.startswith(
        "an edit or patch by an unknown hand removed the annotation (it is gone, and no field"
    )


@pytest.mark.parametrize("manager", ["kubectl", "kubectl-rollout"])
async def test_a_rollout_undo_that_sets_a_value_is_named_by_what_it_is(manager):
    world = await rolled()
    world.load(9.4)
    await world.until(lambda: world.value == "null")
    await world.until(lambda: world.phase == "Confirming")
    world.cluster.change(DEPLOYMENTS, "llm", "chat-vllm", set_value(VALUE), manager=manager)
    await world.cycle()
    assert world.reason == "TakenOver"
    assert notes(world, "TakenOver")[0].startswith("kubectl rollout undo changed the annotation;")


async def test_an_edit_that_changes_more_than_the_key_is_a_person_s_wish_too():
    world = await rolled()
    world.cluster.change(DEPLOYMENTS, "llm", "chat-vllm", replaced("by hand"), manager="kubectl-edit")
    for _ in range(3):
        await world.cycle()
    assert (world.reason, world.value) == ("TakenOver", None)
    assert notes(world, "TakenOver")[0].startswith("kubectl-edit removed the annotation at 20")


async def test_a_change_by_others_that_kept_the_key_is_not_blamed_for_a_later_removal():
    world = await rolled()

    def scale(deployment):
        deployment["metadata"].setdefault("annotations", {})["team"] = "nlp"

    world.cluster.change(DEPLOYMENTS, "llm", "chat-vllm", scale, manager="terraform")
    await world.cycle()
    world.restart()
    world.cluster.change(DEPLOYMENTS, "llm", "chat-vllm", set_value(None), manager="kubectl-edit")
    await world.cycle()
    assert (world.reason, world.value) == ("TakenOver", None)
    assert "terraform" not in notes(world, "TakenOver")[0]


async def test_a_dropped_null_changes_nothing_that_runs_so_nothing_is_written():
    world = await rolled()
    world.load(9.4)
    await world.until(lambda: world.value == "null")
    await world.until(lambda: world.phase == "Confirming")
    rolls = len(world.rolls)
    world.cluster.change(DEPLOYMENTS, "llm", "chat-vllm", set_value(None), manager="kubectl-replace")
    for _ in range(5):
        await world.cycle()
    assert len(world.rolls) == rolls
    assert world.value is None


async def test_a_change_in_recommend_is_the_running_arm_and_no_takeover():
    world = await rolled()
    world.cluster.change(
        SERVICES, "llm", "chat", lambda service: service["spec"]["updatePolicy"].update(mode="Recommend")
    )
    await world.cycle()
    world.cluster.change(DEPLOYMENTS, "llm", "chat-vllm", set_value("null"), manager="kubectl")
    world.kubelet.settle()
    world.load(3.0)
    for _ in range(5):
        await world.cycle(60.0)
    assert world.whole["current"]["arm"] == "none"
    assert (world.decision["action"], world.decision["arm"]) == ("Recommend", "eagle/3")


async def test_a_status_that_a_person_edited_is_the_operator_s_again_and_no_take_over():
    """Status is ours by definition: a field manager left behind in it must not stop the next decision."""
    world = await rolled()

    def edit(service):
        service["status"]["decision"]["reason"] = "Edited"

    world.cluster.change(SERVICES, "llm", "chat", edit, manager="kubectl-edit")
    await world.cycle()
    assert world.reason not in {"Edited", "TakenOver"}
    assert world.memory.get("takenOverBy") is None


async def test_a_new_value_of_the_resume_annotation_ends_a_back_off_once():
    world = FleetWorld(
        lambda spec: spec["updatePolicy"].update(cooldownSeconds=0, stabilizationWindowSeconds=0),
        timing=Timing(backoff_seconds=86400),
    )
    annotate(world, resume="from before")
    world.calibrate()
    world.load(3.0)
    world.kubelet.schedulable = False
    await world.until(lambda: world.phase == "Undoing")
    world.kubelet.schedulable = True
    await world.until(lambda: world.reason == "BackingOff")
    assert "breakeven.dev/resume" in world.decision["message"]
    for _ in range(20):
        await world.cycle()
    assert world.reason == "BackingOff", "a value from before it began does not end it"
    annotate(world, resume="now")
    await world.until(lambda: world.value == VALUE, cycles=3)
    (note,) = notes(world, "Resumed")
    assert note == "breakeven.dev/resume has a new value: the back-off after a roll was undone has ended"
    await world.until(lambda: world.phase == "Confirming")
    world.load(3.0)
    await world.until(lambda: world.phase is None)
    assert world.whole["history"][0]["result"] == "Confirmed"
    assert world.memory.get("failures", 0) == 0


async def adopt(world: FleetWorld, manager: str = "argocd") -> None:
    """Another writer applies the value that stands: nothing changes, and the next change by others is a conflict."""
    annotated = {"metadata": {"annotations": {KEY: world.value}}}
    body = {"metadata": {"namespace": "llm", "name": "chat-vllm"}, "spec": {"template": annotated}}
    await world.cluster.apply(DEPLOYMENTS, body, manager=manager)


async def before_the_last_word() -> FleetWorld:
    """A roll whose measurement ends in the next cycle."""
    world = await rolled(judged=False)
    world.load(3.0)
    for _ in range(120):
        before = world.copied()
        await world.cycle()
        if world.phase is None:
            return before
    raise AssertionError("the roll was not judged")


async def test_a_result_stays_in_the_history_if_the_change_after_it_is_a_conflict():
    world = await before_the_last_word()
    await adopt(world)
    pin(world, "none")
    await world.cycle()
    assert world.memory["takenOverBy"] == "argocd"
    assert (world.value, world.phase) == (VALUE, None)
    assert [entry["result"] for entry in world.whole["history"]] == ["Confirmed"]
    for _ in range(3):
        await world.cycle()
    assert world.reason == "TakenOver"
    assert [entry["result"] for entry in world.whole["history"]] == ["Confirmed"]


async def test_a_change_under_measurement_is_superseded_if_the_next_one_is_a_conflict():
    world = await rolled(judged=False)
    await adopt(world)
    pin(world, "none")
    await world.cycle()
    assert (world.value, world.phase, world.memory["takenOverBy"]) == (VALUE, None, "argocd")
    (entry,) = world.whole["history"]
    assert (entry["result"], entry["message"]) == ("Superseded", "argocd took the annotation over")


async def test_a_roll_that_lost_stays_suspect_and_measured_if_its_undoing_is_a_conflict():
    world = await rolled()
    world.load(9.4)
    await world.until(lambda: world.phase == "Rolling")
    world.laws[NO_SPECULATION] = (4.0, 0.05)
    world.load(9.4)
    await adopt(world)
    await world.until(lambda: world.memory.get("takenOverBy") is not None)
    assert (world.value, world.phase) == ("null", None)
    entry = world.whole["history"][0]
    assert (entry["result"], entry["reason"]) == ("Superseded", "RollDisproved")
    assert float(entry["measuredSpeedup"]) < 0.8
    assert world.memory["suspicion"]["profile"] == "chat-p1"

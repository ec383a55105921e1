"""Gates of new images: the profile goes on if nothing is lost; otherwise the arms are measured again, and the service says why."""

from __future__ import annotations

from typing import Any

import pytest

from breakeven_operator.kinds import (
    ARM_LABEL,
    DEPLOYMENTS,
    EVENTS,
    JOBS,
    PODS,
    PROFILES,
    RUN_LABEL,
    RUNS,
    SERVICES,
)
from fakes.fleet_world import FleetWorld

pytestmark = pytest.mark.asyncio
BEFORE, AFTER = "vllm/vllm-openai:v0.32.0", "vllm/vllm-openai:v0.32.1"
ASKS = {"newImage": "Gate"}


def gated(**calibration: Any) -> FleetWorld:
    return FleetWorld(lambda spec: spec["calibration"].update(ASKS | calibration))


def upgrade(world: FleetWorld, image: str = AFTER) -> None:
    """A person rolls the target to another image."""

    def edit(one: dict[str, Any]) -> None:
        one["spec"]["template"]["spec"]["containers"][0]["image"] = image

    world.cluster.change(DEPLOYMENTS, "llm", "chat-vllm", edit)


def gates(world: FleetWorld) -> list[dict[str, Any]]:
    return [run for run in world.cluster.of(RUNS) if "gate" in run["spec"]]


def calibrations(world: FleetWorld) -> list[dict[str, Any]]:
    return [run for run in world.cluster.of(RUNS) if "gate" not in run["spec"]]


def job(world: FleetWorld, arm: str) -> dict[str, Any] | None:
    return next((one for one in world.cluster.of(JOBS) if one["metadata"]["labels"][ARM_LABEL] == arm), None)


def serve(world: FleetWorld, arm: str, *, node: bool = True, ends: str | None = None) -> None:
    """The pod of a gate's Job: it has its node and answers, unless it has no node or its engine ends with these words."""
    made = job(world, arm)
    assert made is not None
    now, meta = world.clock.now().isoformat(), made["metadata"]
    place = {"type": "PodScheduled", "status": "True", "lastTransitionTime": now}
    if not node:
        place |= {
            "status": "False",
            "reason": "Unschedulable",
            "message": "0/1 nodes are available: 1 Insufficient nvidia.com/gpu.",
        }
    engine: dict[str, Any] = {"running": {"startedAt": now}}
    driver: dict[str, Any] = {"running": {"startedAt": now}}
    if ends is not None:
        engine = {"terminated": {"exitCode": 1, "reason": "Error", "message": ends, "finishedAt": now}}
        driver = {"waiting": {"reason": "PodInitializing"}}
    world.cluster.put(
        PODS,
        {
            "metadata": {
                "namespace": "llm",
                "name": f"{meta['name']}-x",
                "creationTimestamp": now,
                "labels": {RUN_LABEL: meta["labels"][RUN_LABEL], ARM_LABEL: arm},
                "ownerReferences": [
                    {"kind": "Job", "name": meta["name"], "uid": meta["uid"], "controller": True}
                ],
            },
            "spec": {"nodeName": "a100-0", "containers": []} if node else {"containers": []},
            "status": {
                "phase": "Running" if node else "Pending",
                "podIP": f"10.0.0.{len(arm)}",
                "conditions": [place],
                **(
                    {
                        "initContainerStatuses": [
                            {"name": "engine", "image": "vllm", "restartCount": 0, "state": engine}
                        ],
                        "containerStatuses": [{"name": "driver", "image": "breakeven", "state": driver}],
                    }
                    if node
                    else {}
                ),
            },
        },
    )


def find(world: FleetWorld, word: str) -> None:
    """The driver beside the engine of now writes the word."""
    (run,) = gates(world)
    rows = [{"figure": "upgrade", "word": word, "message": "20 ms per token before and 25 ms after"}]
    world.cluster.change(
        RUNS, "llm", run["metadata"]["name"], lambda one: one["status"].update(findings=rows)
    )


async def asked(world: FleetWorld) -> None:
    """The target speculates on one image and is rolled to another one; the gate's two engines answer."""
    await world.speculate()
    upgrade(world)
    await world.until(lambda: job(world, "before") is not None)
    serve(world, "before")
    await world.until(lambda: job(world, "after") is not None)
    serve(world, "after")
    await world.cycle()


def gone(world: FleetWorld) -> None:
    """The garbage collector takes pods of Jobs that are gone."""
    jobs = {one["metadata"]["uid"] for one in world.cluster.of(JOBS)}
    for pod in list(world.cluster.of(PODS)):
        if (
            RUN_LABEL in pod["metadata"].get("labels", {})
            and pod["metadata"]["ownerReferences"][0]["uid"] not in jobs
        ):
            world.cluster.remove(PODS, "llm", pod["metadata"]["name"])


@pytest.mark.parametrize("word", ["Same", "Faster"])
async def test_a_profile_goes_on_for_a_new_image_that_has_lost_nothing(word: str) -> None:
    world = gated()
    await asked(world)
    (run,) = gates(world)
    assert run["spec"]["gate"] == [BEFORE, AFTER]
    assert [one["arm"] for one in run["status"]["plan"]["arms"]] == ["before", "after"]
    assert run["status"]["plan"]["arms"][0]["k"] == 3, "the arm that the target runs"
    rolls = len(world.rolls)
    assert world.whole["calibration"].get("profile") is None
    find(world, word)
    await world.cycle()
    gone(world)
    await world.until(lambda: bool(world.whole["calibration"].get("profile")))
    former, carried = sorted(world.cluster.of(PROFILES), key=lambda one: one["metadata"]["name"] != "chat-p1")
    assert carried["spec"]["image"] == AFTER
    assert carried["spec"]["createdTime"] == former["spec"]["createdTime"]
    assert world.whole["calibration"]["profile"] == carried["metadata"]["name"]
    assert world.whole["calibration"]["gate"]["word"] == word
    assert f"gate {run['metadata']['name']}: {word}" in world.condition("Calibrated")["message"]
    assert (world.condition("Calibrated")["status"], calibrations(world)) == ("True", [])
    world.load(3.0)
    for _ in range(6):
        await world.cycle()
    assert world.decision["action"] == "Stay"
    assert len(world.rolls) == rolls, "nothing restarts for it"
    assert world.cluster.of(JOBS) == []


async def test_a_slower_image_is_said_and_its_arms_are_measured_again() -> None:
    world = gated()
    await asked(world)
    find(world, "Slower")
    await world.cycle()
    gone(world)
    await world.until(lambda: bool(calibrations(world)), cycles=5)
    (run,), (again,) = gates(world), calibrations(world)
    assert (run["status"]["phase"], run["status"]["reason"]) == ("Failed", "Slower")
    assert again["spec"]["trigger"] == "FingerprintChanged"
    assert world.whole["calibration"]["gate"]["word"] == "Slower"
    assert world.status["calibration"].get("failures", 0) == 0, "no calibration has failed"
    assert "Slower: 20 ms per token before and 25 ms after" in world.condition("Calibrated")["message"]
    notes = [
        (event["reason"], event["regarding"]["kind"])
        for event in world.cluster.of(EVENTS)
        if event["reason"] == "Slower"
    ]
    assert sorted(notes) == [("Slower", "CalibrationRun"), ("Slower", "SpeculativeService")]
    assert (
        world.registry.get_sample_value(
            "breakeven_gate",
            {"specsvc_namespace": "llm", "specsvc": "chat", "word": "Slower", "image": AFTER},
        )
        == 1.0
    )
    for _ in range(5):
        await world.cycle()
    assert len(gates(world)) == 1, "one gate for one image"


async def test_an_engine_of_now_that_does_not_start_is_said_in_its_own_last_line() -> None:
    world = gated()
    await world.speculate()
    upgrade(world)
    await world.until(lambda: job(world, "before") is not None)
    serve(world, "before")
    await world.until(lambda: job(world, "after") is not None)
    serve(world, "after", ends="ValueError: EAGLE is not supported with this model")
    await world.cycle()
    (run,) = gates(world)
    assert run["status"]["reason"] == "DoesNotStart"
    assert "ValueError: EAGLE is not supported with this model" in run["status"]["message"]
    assert world.cluster.of(JOBS) == []


async def test_with_one_free_gpu_the_gate_is_undecided_and_the_arms_are_measured_one_by_one() -> None:
    world = gated(pendingDeadlineSeconds=300)
    await world.speculate()
    upgrade(world)
    await world.until(lambda: job(world, "before") is not None)
    serve(world, "before")
    await world.until(lambda: job(world, "after") is not None)
    serve(world, "after", node=False)
    await world.until(lambda: gates(world)[0]["status"]["phase"] == "Failed", cycles=30)
    (run,) = gates(world)
    assert run["status"]["reason"] == "Undecided"
    assert "Unschedulable" in run["status"]["message"]
    assert "Insufficient nvidia.com/gpu" in run["status"]["message"]
    gone(world)
    await world.until(lambda: bool(calibrations(world)), cycles=5)


async def test_an_operator_that_is_killed_during_a_gate_goes_on() -> None:
    world = gated()
    await asked(world)
    made = [one["metadata"]["uid"] for one in world.cluster.of(JOBS)]
    world.restart()
    for _ in range(3):
        await world.cycle()
    assert [one["metadata"]["uid"] for one in world.cluster.of(JOBS)] == made
    find(world, "Same")
    world.restart()
    await world.cycle()
    gone(world)
    await world.until(lambda: bool(world.whole["calibration"].get("profile")))
    assert calibrations(world) == []


async def test_an_image_that_is_no_image_is_its_author_s_problem_alone() -> None:
    world = gated()
    world.calibrate()
    world.load(3.0)
    await world.cycle()
    body = {
        "apiVersion": "breakeven.dev/v1alpha1",
        "kind": "CalibrationRun",
        "metadata": {"namespace": "llm", "name": "nonsense"},
        "spec": {"serviceRef": {"name": "chat"}, "gate": [BEFORE, "of/nobody:1.0"]},
    }
    world.cluster.put(RUNS, body, manager="person")
    await world.until(lambda: world.value not in {None, "null"})
    (run,) = gates(world)
    assert (run["status"]["phase"], run["status"]["reason"]) == ("Failed", "InvalidSpec")
    assert run["status"]["message"].startswith("spec.gate: of/nobody:1.0 is no image of the target")
    assert world.whole["calibration"].get("gate") is None
    assert world.status["calibration"].get("failures", 0) == 0
    assert calibrations(world) == []


async def test_without_being_asked_a_new_image_is_calibrated_as_before() -> None:
    world = FleetWorld()
    await world.speculate()
    upgrade(world)
    await world.until(lambda: bool(calibrations(world)))
    assert gates(world) == []


async def test_a_change_of_more_than_the_image_is_calibrated() -> None:
    world = gated()
    await world.speculate()

    def edit(one: dict[str, Any]) -> None:
        container = one["spec"]["template"]["spec"]["containers"][0]
        container["image"] = AFTER
        container["args"].append("--max-num-batched-tokens=8192")

    world.cluster.change(DEPLOYMENTS, "llm", "chat-vllm", edit)
    await world.until(lambda: bool(calibrations(world)))
    assert gates(world) == []


async def test_while_a_gate_runs_no_other_arm_is_entered() -> None:
    world = gated()
    await asked(world)
    world.load(13.0)
    for _ in range(20):
        await world.cycle()
    assert world.value == "null", "an arm that loses by the profile of before is left"
    world.load(3.0)
    for _ in range(20):
        await world.cycle()
    assert (world.value, world.decision["action"]) == ("null", "Hold")


async def test_a_calibration_that_is_asked_for_during_a_gate_follows_it() -> None:
    world = gated()
    await asked(world)
    noted = {"breakeven.dev/recalibrate": "now"}
    world.cluster.change(SERVICES, "llm", "chat", lambda one: one["metadata"].update(annotations=noted))
    for _ in range(2):
        await world.cycle()
    assert calibrations(world) == []
    find(world, "Same")
    await world.cycle()
    gone(world)
    await world.until(lambda: bool(calibrations(world)), cycles=5)
    assert calibrations(world)[0]["spec"]["trigger"] == "Requested"


@pytest.mark.parametrize(("arm", "carried"), [("eagle/3", True), ("none", False)])
async def test_a_person_s_gate_before_the_upgrade_counts_if_it_asked_an_arm_that_drafts(
    arm: str, carried: bool
) -> None:
    world = gated()
    world.watching = {"foreign_images": "true"}
    world.restart()
    await world.speculate()
    spec = {"serviceRef": {"name": "chat"}, "gate": [BEFORE, AFTER], "arms": [arm]}
    world.cluster.put(RUNS, {"metadata": {"namespace": "llm", "name": "mine"}, "spec": spec})
    await world.until(lambda: job(world, "before") is not None)
    serve(world, "before")
    await world.until(lambda: job(world, "after") is not None)
    serve(world, "after")
    await world.cycle()
    find(world, "Same")
    await world.until(lambda: gates(world)[0]["status"]["phase"] == "Succeeded")
    assert [one["spec"]["image"] for one in world.cluster.of(PROFILES)].count(AFTER) == carried

"""Objects that hold whatever the API server takes: a service has a word about them, and never a fault of the operator's own."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from breakeven.errors import InputError
from breakeven_operator.kinds import JOBS, RUNS
from breakeven_operator.resources import CalibrationRun, SpeculationProfile, SpeculativeService
from fakes.fleet_world import FleetWorld

READ_BY_SCHEMA = {
    "speculativeservices": SpeculativeService,
    "calibrationruns": CalibrationRun,
    "speculationprofiles": SpeculationProfile,
}
TIMES = ("0001-01-01T00:00:00Z", "1970-01-01T00:00:00Z", "2026-11-21T12:00:00Z", "9999-12-31T23:59:59Z")
TEXTS = (
    *("", "null", "none", "eagle/3", "eagle/schedule", "mtp/2", "Rolling", "Undoing", "Succeeded", "Hold"),
    *("chat-p1", "{}", "[]", '{"method": "eagle3"}', "\x1b[31m", "x" * 70, "x" * 600, "x" * 5000),
    *("0", "-1", "0.000000000001", "999999999999999", *TIMES),
    *("--max-num-seqs=0", "--max-num-seqs=99999999999999999999", "--data-parallel-size=0", "--port=99999"),
    *("--speculative-config={", f"--model={'m' * 600}", f"--served-model-name={'s' * 600}"),
)
NUMBERS = (0, 1, 2, 7, 100, 1024, 2**31 - 1)
LONG = {"terminationGracePeriodSeconds", "generation", "observedGeneration", "seconds"}
"""Fields of 64 bits."""
OPTIONAL = {
    *(
        "annotations",
        "labels",
        "env",
        "args",
        "command",
        "resources",
        "limits",
        "lifecycle",
        "preStop",
        "strategy",
    ),
    *(
        "terminationGracePeriodSeconds",
        "containerStatuses",
        "readinessProbe",
        "status",
    ),
    *("rollingUpdate", "phase", "reason", "message", "imageID", "restartCount", "nodeName", "nodeSelector"),
}
LABELS = {"labels", "nodeSelector", "matchLabels"}
GIVEN = ("metadata", "managedFields"), ("metadata", "creationTimestamp"), ("metadata", "resourceVersion")
"""Written by the API server alone."""


def places(part: Any, path: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """Paths of everything inside a JSON value."""
    if path:
        yield path
    for key, inner in (
        part.items() if isinstance(part, dict) else enumerate(part) if isinstance(part, list) else ()
    ):
        yield from places(inner, (*path, key))


def another(rng: np.random.Generator, path: tuple[str | int, ...], old: Any) -> Any:
    """Another value of the same type that the API server takes there; the old one where only some words are allowed."""
    key, around = path[-1], path[-2] if len(path) > 1 else None
    choices: tuple[Any, ...] = (old,)
    match old:
        case bool():
            choices = (not old,)
        case int():
            choices = (*NUMBERS, 2**63 - 1) if key in LONG else NUMBERS
        case str() if around in LABELS:
            choices = ("", "x", "x" * 63)
        case str() if around in {"limits", "requests"}:
            choices = ("0", "1", "1k", "2147483647") if "/" in str(key) else ("1Ei", "0", "1m", "1e3")
        case str() if key in {"maxSurge", "maxUnavailable"}:
            choices = ("0%", "50%", "100%")
        case str() if str(key).endswith(("Time", "At")):
            choices = TIMES
        case str() if around in {"args", "command", "annotations"} or key in {
            "value",
            "image",
            "imageID",
            "message",
        }:
            choices = TEXTS
        case [_, *_] if key in {"args", "command", "env", "conditions", "containerStatuses"}:
            choices = (
                (old[::-1], old[1:], [*old, old[0]]) if key in {"args", "command"} else (old[::-1], old[1:])
            )
    return copy.deepcopy(choices[rng.integers(len(choices))])


def changed(rng: np.random.Generator, plural: str, manifest: dict[str, Any]) -> dict[str, Any]:
    """The object with one part of it removed or replaced; unchanged where the API server would refuse that."""
    model = READ_BY_SCHEMA.get(plural)
    inside = [
        path
        for path in places(manifest)
        if path[0] in {"metadata", "spec", "status"}
        and path[:2] not in GIVEN
        and path not in {("metadata",), ("metadata", "name"), ("metadata", "namespace"), ("metadata", "uid")}
    ]
    *outer, key = inside[rng.integers(len(inside))]
    found = copy.deepcopy(manifest)
    around: Any = found
    for part in outer:
        around = around[part]
    # The status of a condition is never absent.
    optional = key in OPTIONAL and (key != "status" or isinstance(around[key], dict))
    if rng.random() < 0.3 and (model is not None or optional):
        del around[key]
    elif model is not None and isinstance(around[key], str):
        around[key] = TEXTS[rng.integers(len(TEXTS))]
    else:
        around[key] = another(rng, (*outer, key), around[key])
    if model is None:
        return found
    try:
        model.read({key: part for key, part in found.items() if not key.startswith("_")}, plural)
    except InputError:
        return manifest
    return found


async def speculating() -> FleetWorld:
    world = FleetWorld(lambda spec: spec.update(slo={"e2eP95Milliseconds": 3000, "ttftP95Milliseconds": 500}))
    await world.speculate()
    return world


async def rolling(**form: bool) -> FleetWorld:
    world = FleetWorld(**form)
    world.calibrate()
    world.load(3.0)
    await world.until(lambda: world.phase == "Rolling")
    return world


async def calibrating() -> FleetWorld:
    world = FleetWorld()
    world.load(3.0)
    for _ in range(8):
        await world.cycle()
    return world


@pytest.fixture(scope="module")
def begun() -> tuple[FleetWorld, ...]:
    """Worlds in the middle of something."""
    ways = (speculating(), rolling(), rolling(stateful=True), rolling(grouped=True), calibrating())
    return tuple(asyncio.run(way) for way in ways)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("seed", range(40))
async def test_no_object_ends_a_cycle(begun, seed, caplog):
    rng = np.random.default_rng(seed)
    world = begun[seed % len(begun)].copied()
    for _ in range(3):
        for _ in range(int(rng.integers(1, 4))):
            keys = [key for key in world.cluster.objects if key[0] != "events"]
            key = keys[rng.integers(len(keys))]
            world.cluster.objects[key] = changed(rng, key[0], world.cluster.objects[key])
        world.load(float(rng.choice([0.0, 3.0, 9.3])))
        report = await world.cycle(float(rng.choice([15.0, 60.0, 300.0])))
        assert report.errors == []
    assert not [record for record in caplog.records if record.exc_info]


def with_engine(**parts):
    """An edit of the target: other fields of its engine's container."""

    def edit(target):
        target["spec"]["template"]["spec"]["containers"][0] |= parts

    return edit


def with_argument(word):
    def edit(target):
        target["spec"]["template"]["spec"]["containers"][0]["args"].append(word)

    return edit


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (
            with_engine(image=f"registry.example.com/{'i' * 1100}:v0.32.0"),
            "Deployment chat-vllm cannot be read: its image has 1129 characters; expected at most 1024",
        ),
        (
            with_engine(args=[f"org/{'m' * 600}"]),
            "Deployment chat-vllm cannot be read: its model has 604 characters; expected at most 512",
        ),
        (
            with_argument(f"--served-model-name={'s' * 600}"),
            "Deployment chat-vllm cannot be read: its served model name has 600 characters; expected at most 512",
        ),
    ],
    ids=["image", "model", "served name"],
)
async def test_a_text_that_no_status_holds_is_named(edit, message):
    world = FleetWorld(target=edit)
    assert (await world.cycle()).errors == []
    assert (world.decision["reason"], world.decision["message"]) == ("TargetUnreadable", message)
    assert world.whole["target"]["uid"]


async def test_devices_that_no_plan_holds_fail_the_calibration_with_their_number():
    world = FleetWorld(target=with_engine(resources={"limits": {"nvidia.com/gpu": "2000"}}))
    world.load(3.0)
    await world.until(lambda: world.reason == "CalibrationFailed", cycles=8)
    assert "gpus_per_pod: is 2000; expected at most 1024" in world.decision["message"]


async def test_a_roll_of_pods_that_may_drain_for_ever_has_a_deadline(begun):
    world = begun[1].copied()
    target = world.cluster.objects[world.kind.plural, "llm", "chat-vllm"]
    target["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] = 2**63 - 1
    # Longer than a pod may wait for its place: the deadline is made again.
    for _ in range(4):
        assert (await world.cycle(900.0)).errors == []
    assert world.whole["history"][-1]["result"] == "Unmeasured"


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("value", ["-1", "0", "999999999999999"])
@pytest.mark.parametrize(
    "part",
    [
        *("savedRequestSeconds", "largestRps", "queuedRequests", "seen tokensPerStep"),
        *(
            "evidence precisionAlone",
            "evidence precisionBoth",
            "evidence pullCompany",
            "evidence companySeconds",
        ),
        *("windows latencyRatio", "windows speedup", "windows windowSeconds", "windows predictedLower"),
    ],
)
async def test_memory_that_a_person_changed_ends_no_cycle(begun, part, value):
    world = begun[0].copied()
    memory = world.memory
    around, _, field = part.rpartition(" ")
    parts = memory["account"]["windows"] if around == "windows" else memory[around] if around else [memory]
    for one in parts:
        one[field] = value
    world.memory = memory
    for _ in range(2):
        world.load(3.0)
        assert (await world.cycle(60.0)).errors == []
    assert world.value is not None


@pytest.mark.parametrize(
    ("edit", "problem"),
    [
        (
            lambda plan: plan["arms"][0].update(speculativeConfig="none"),
            "status.plan.arms[0].speculativeConfig: is no configuration; expected null or a JSON object, as the operator wrote it",
        ),
        (
            lambda plan: plan.update(workload='{"future": 1}'),
            "status.plan.workload: is no workload; expected the JSON of spec.workload, as the operator wrote it",
        ),
    ],
    ids=["configuration", "workload"],
)
async def test_a_run_that_a_person_changed_fails_and_the_next_one_begins(begun, edit, problem):
    world = begun[4].copied()
    (run,) = world.cluster.of(RUNS)
    edit(run["status"]["plan"])
    before = {job["metadata"]["uid"] for job in world.cluster.of(JOBS)}
    await world.until(lambda: len(world.cluster.of(RUNS)) == 2, cycles=8)
    await world.until(lambda: before.isdisjoint(job["metadata"]["uid"] for job in world.cluster.of(JOBS)))
    changed, follower = world.cluster.of(RUNS)
    name = changed["metadata"]["name"]
    assert changed["status"]["phase"] == "Failed"
    assert changed["status"]["message"] == f"it cannot be read: CalibrationRun llm/{name}: {problem}"
    await world.until(lambda: follower["metadata"]["name"] in world.decision["message"])
    assert len(world.cluster.of(RUNS)) == 2


@pytest.mark.parametrize("time", ["0001-01-01T00:00:00Z", "9999-12-31T23:59:59Z"])
async def test_a_deadline_at_the_end_of_all_dates_is_its_own_services_problem(begun, time):
    world = begun[1].copied()
    world.add_services(1)
    world.status["rollout"]["deadlineTime"] = time
    report = await world.cycle()
    assert report.errors == []
    other = world.cluster.objects["speculativeservices", "llm", "service-00"]
    assert other["status"]["decision"]["action"]

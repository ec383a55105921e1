"""Notes of a status: what comes out is what went in, and what anybody else writes there ends nothing."""

from __future__ import annotations

import asyncio
import base64
import copy
import functools
import json
import logging
import zlib
from typing import Any

import pytest

from breakeven_operator.outcome.action_plan import Worth, worth_writing
from breakeven_operator.packed import joined, pack, split, unpack, whole
from breakeven_operator.resources import SpeculativeService
from breakeven_operator.resources.servicestatus import NOTED, CapacityStatus, SpeculativeServiceStatus
from breakeven_operator.resources.targetstatus import MOST_HISTORY
from fakes.fleet_world import FleetWorld
from shipping.generate.definitions import DEFINITIONS, structural

# More is for the operator and for nobody else; a field that is added is noted, or another one goes. Of a gate: its two images, when
# a service asks for it, and what it compared, with a word and a sentence each. controlOf asks for what no other field can ask for.
STATUS_FIELDS, SPEC_FIELDS, POLICY_FIELDS, LINES = 241, 149, 14, 120


@functools.cache
def run_once() -> FleetWorld:
    async def made() -> FleetWorld:
        world = FleetWorld()
        await world.speculate()
        for _ in range(10):
            world.load(3.0)
            await world.cycle(60.0)
        return world

    return asyncio.run(made())


@pytest.fixture
def running() -> FleetWorld:
    """A service that has rolled, and whose arm was measured for ten minutes."""
    return run_once().copied()


def stored(world: FleetWorld) -> dict[str, Any]:
    """The service as the API server gives it out: without the fake one's own times."""
    return {name: part for name, part in copy.deepcopy(world.service).items() if not name.startswith("_")}


def fields(node: dict[str, Any]) -> int:
    """Fields of a schema with those inside them, and those of a list's items once."""
    inside = node.get("properties", {}).values()
    return len(inside) + sum(map(fields, inside)) + (fields(node["items"]) if "items" in node else 0)


def described(part: dict[str, Any]) -> int:
    """Lines that `kubectl describe` prints of an object."""
    lines = 0
    for value in part.values():
        items = value if isinstance(value, list) else [value]
        lines += 1 if isinstance(value, dict | list) else 0
        lines += sum(described(one) if isinstance(one, dict) else 1 for one in items)
    return lines


def test_kinds_have_no_more_fields_than_the_budget():
    parts = [structural(definition.model)["properties"] for definition in DEFINITIONS]
    assert sum(fields(one["status"]) for one in parts) <= STATUS_FIELDS
    assert sum(fields(one["spec"]) for one in parts) <= SPEC_FIELDS
    policy = parts[0]["spec"]["properties"]["updatePolicy"]["properties"]
    assert len(policy) <= POLICY_FIELDS


def lines_of(spec: dict[str, Any], status: dict[str, Any]) -> int:
    # Name, Namespace, Labels, Annotations, API Version, Kind, and five lines of Metadata with its head.
    return 12 + described({"spec": spec, "status": status})


def test_kubectl_describe_of_a_running_service_is_short(running):
    assert lines_of(running.service["spec"], running.status) <= LINES


async def test_it_is_so_with_objectives_an_autoscaler_and_ten_rolls():
    world = FleetWorld(lambda spec: spec.update(slo={"e2eP95Milliseconds": 3000, "ttftP95Milliseconds": 500}))
    world.prometheus.traffic.latencies = {"ttft": [0.2] * 100, "e2e": [1.0] * 100}
    await world.speculate()
    for _ in range(10):
        world.load(3.0)
        await world.cycle(60.0)
    status = SpeculativeService.read(stored(world), "chat").status
    assert (status.condition("ObjectivesKept").status, len(status.objectives)) == ("True", 3)
    capacity = CapacityStatus(
        fleet_load_rps=6.0, recommended_replicas=1, scaled_by="keda", message="for 6 rps"
    )
    full = status.replace(history=status.history * MOST_HISTORY, capacity=capacity)
    written = full.to_json_object()
    spec = {name: part for name, part in world.service["spec"].items() if name != "calibration"}
    # The world spares its runs an arm; a user's service has no such line.
    del spec["candidates"]["methods"][0]["adaptiveVerification"]
    assert lines_of(spec, written) <= LINES
    assert SpeculativeServiceStatus.read(joined(written), "status") == full


def test_of_a_list_the_newest_item_is_shown_and_the_others_are_notes():
    status = {"history": [{"time": "c", "seconds": "1"}, {"time": "b", "seconds": "2"}, {"time": "a"}]}
    shown = split(status, frozenset({"history.seconds"}), frozenset({"history"}))
    assert shown["history"] == [{"time": "c"}]
    assert joined(shown)["history"] == status["history"]


def test_a_status_is_whole_again(running):
    service = SpeculativeService.read(stored(running), "chat")
    assert service.status.memory is not None
    assert service.status.memory.evidence
    assert service.status.decision.c2_ratio is not None
    written = service.status.to_json_object()
    assert written == running.status
    assert joined(written) == running.whole
    assert split(running.whole, NOTED) == written


def test_parts_of_lists_keep_their_places():
    status = {
        "history": [{"time": "a", "seconds": "1"}, {"time": "b"}],
        "workings": {"display": {"arm": "none"}},
    }
    shown = split(status, frozenset({"history.seconds"}))
    assert shown["history"] == [{"time": "a"}, {"time": "b"}]
    assert joined(shown) == status
    shown["history"].pop()
    assert joined(shown)["history"] == [{"time": "a"}], "of another list the notes are about"


BOMB = f"1:{base64.b64encode(zlib.compress(b'[' + b' ' * (1 << 26) + b']')).decode()}"


@pytest.mark.parametrize(
    ("notes", "problem"),
    [
        (f"2:{pack({})[2:]}", "has another version"),
        ("", "has another version"),
        ("1:", "cannot be opened"),
        ("1:not base64", "cannot be opened"),
        (f"1:{base64.b64encode(b'no zlib').decode()}", "cannot be opened"),
        (pack({"workings": {}})[:-8], "cannot be opened"),
        (f"1:{base64.b64encode(zlib.compress(b'[1]')).decode()}", "cannot be opened"),
        (f"1:{base64.b64encode(zlib.compress(b'[' * 100_000)).decode()}", "cannot be opened"),
        (BOMB, "cannot be opened"),
        ("1:" + "A" * (1 << 20), "is no text of the operator's"),
        (7, "is no text of the operator's"),
    ],
)
def test_notes_that_no_operator_wrote_are_forgotten_with_one_line(running, caplog, notes, problem):
    with pytest.raises(ValueError, match=problem):
        unpack(notes)
    body = stored(running)
    body["status"]["workings"]["notes"] = notes
    where = f"SpeculativeService llm/{abs(hash(str(notes)[:99]))}"
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            found = SpeculativeService.read(body, where)
    assert found.status.memory is None
    assert found.status.decision.arm == "eagle/3"
    assert [one.getMessage() for one in caplog.records] == [
        f"{where}: status.workings.notes {problem}; they are forgotten"
    ]
    assert "memory" not in whole(body["status"])["workings"]


@pytest.mark.parametrize(
    "fields",
    [
        {"workings": {"memory": {"failures": "many"}}},
        {"workings": {"memory": []}},
        {"workings": 7},
        {"decision": {"c2Ratio": "1e999"}, "workings": {"memory": {"evidence": [{"arm": "none"}]}}},
        {"rollout": {"targetGeneration": 3}},
        {"history": [{}] * 1000},
        {"later": 7},
        {"later": {"history": 7}},
        {"later": {"history": [{}] * 1000}},
        {"later": {"rolls": [{}]}},
    ],
)
async def test_notes_with_something_else_end_no_cycle(running, fields):
    world = running
    world.status["workings"]["notes"] = pack(fields)
    for _ in range(2):
        world.load(3.0)
        assert (await world.cycle(60.0)).errors == []
    assert world.memory["targetUid"], "and are written again"
    assert world.value is not None


def test_notes_that_cannot_be_read_are_written_again_at_once(running):
    now = running.clock.now()
    held = copy.deepcopy(running.status)
    held["workings"]["notes"] = "2:later"
    assert worth_writing(held, running.status, now, now, 60.0) is Worth.NOW
    assert worth_writing(running.status, running.status, now, now, 60.0) is Worth.NOT


def test_the_schema_has_one_text_for_them():
    workings = structural(SpeculativeService)["properties"]["status"]["properties"]["workings"]["properties"]
    assert workings["notes"]["type"] == "string"
    assert set(workings) == {"display", "notes"}
    assert json.dumps(workings).count("evidence") == 0

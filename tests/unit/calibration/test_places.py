"""Nobody's run keeps the places of all: one without a service ends, and one whose pods no node takes holds none."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from breakeven_operator.cluster.snapshot import Snapshot
from breakeven_operator.kinds import PODS, RUN_LABEL
from breakeven_operator.loop.run_turns import run_views
from breakeven_operator.settings import Settings
from fakes.calibration_world import World, timestamp


def test_a_run_whose_service_is_gone_ends_and_leaves_nothing():
    world = World()
    world.turn()
    world.turn()
    assert world.jobs
    world.service = None
    world.run["metadata"]["creationTimestamp"] = timestamp(world.now)
    status = world.turn(600.0)
    assert (status["phase"], status["reason"]) == ("Superseded", "Superseded")
    assert "there is no SpeculativeService" in status["message"]
    assert not world.jobs


def run(
    namespace: str, name: str, second: int, phase: str | None = None, service: str = "gone"
) -> dict[str, Any]:
    meta = {"namespace": namespace, "name": name, "uid": f"{namespace}/{name}"}
    return {
        "metadata": {**meta, "creationTimestamp": f"2026-01-01T00:00:{second:02}Z"},
        "spec": {"serviceRef": {"name": service}},
        **({"status": {"phase": phase}} if phase else {}),
    }


def started(
    runs: list[dict[str, Any]],
    services: Sequence[tuple[str, str]] = (),
    pods: Sequence[dict[str, Any]] = (),
    places: int = 1,
    now: datetime | None = None,
) -> list[str]:
    """Names of the runs that wait and may start."""
    given: dict[str, Any] = {field.name: {} for field in fields(Snapshot)}
    given |= {"services": (), "invalid": (), "runs": runs}
    given["manifests"] = {
        f"{namespace}/{name}": {"metadata": {"namespace": namespace, "name": name}}
        for namespace, name in services
    }
    for pod in pods:
        given["objects"].setdefault(PODS, {}).setdefault(pod["metadata"]["namespace"], []).append(pod)
    views = run_views(Snapshot(**given), [], places, Settings(), now)
    waiting = [view for view in views if "status" not in view.run]
    return [str(view.run["metadata"]["name"]) for view in waiting if view.may_start]


def test_a_run_whose_service_cannot_be_read_holds_its_place_no_longer_than_its_budget():
    """Its author broke a rule of the service while it was under way; it is not advanced any more."""
    hog = run("tenant", "hog", 1, "Measuring")
    hog["status"] |= {"startedTime": "2026-01-01T00:00:01Z", "plan": {"budget": {"maxDurationSeconds": 3600}}}
    waiting, services = [hog, run("llm", "mine", 2)], [("tenant", "gone")]
    began = datetime(2026, 1, 1, tzinfo=UTC)
    assert started(waiting, services, now=began + timedelta(minutes=60)) == []
    assert started(waiting, services, now=began + timedelta(minutes=66)) == ["mine"]


def test_a_run_that_a_finalizer_keeps_from_being_deleted_holds_no_place():
    hog = run("tenant", "hog", 1, "Measuring")
    hog["metadata"] |= {"deletionTimestamp": "2026-01-01T00:01:00Z", "finalizers": ["tenant.example/mine"]}
    assert started([hog, run("llm", "mine", 2)], [("tenant", "gone")]) == ["mine"]


def test_an_installation_bounds_how_long_a_calibration_takes_whatever_its_service_says():
    world = World()
    world.service["spec"]["calibration"] = {
        "budget": {"maxGpuSeconds": 2592000, "maxDurationSeconds": 604800}
    }
    world.settings = world.settings.model_copy(update={"trial_longest_s": 7200})
    world.turn()
    assert world.status["plan"]["budget"] == {"maxGpuSeconds": 2592000, "maxDurationSeconds": 7200}
    assert world.status["message"].endswith("at most 2592000 GPU-seconds and 2h00m")
    world.turn()
    (job,) = world.jobs.values()
    # The pod may wait for a GPU before, and takes a while to stop.
    assert job["spec"]["activeDeadlineSeconds"] < 7200 + 900 + 600


def test_a_run_without_a_service_keeps_nobody_waiting():
    hog = run("tenant", "hog", 1, "Starting")
    assert started([hog, run("llm", "mine", 2)]) == ["mine"]
    # One whose service is there, and only not decided about in this cycle, holds its place.
    assert started([hog, run("llm", "mine", 2)], [("tenant", "gone")]) == []


@pytest.mark.parametrize(
    ("spec", "reason", "first"),
    [({}, "Unschedulable", ["mine"]), ({"nodeName": "a"}, "Unschedulable", []), ({}, "SchedulingGated", [])],
)
def test_a_run_whose_pods_no_node_takes_holds_no_place(spec, reason, first):
    hog = run("tenant", "hog", 1, "Starting")
    pod = {
        "metadata": {"namespace": "tenant", "name": "p", "labels": {RUN_LABEL: "hog"}},
        "spec": spec,
        "status": {"conditions": [{"type": "PodScheduled", "status": "False", "reason": reason}]},
    }
    assert started([hog, run("llm", "mine", 2)], [("tenant", "gone")], [pod]) == first


@pytest.mark.parametrize(("at_once", "first"), [(None, ["mine"]), (2, []), (3, [])])
def test_a_run_that_measures_its_arms_side_by_side_holds_a_place_for_each(at_once, first):
    hog = run("tenant", "hog", 1, "Measuring")
    hog["status"]["plan"] = {"podsAtOnce": at_once} if at_once else {}
    assert started([hog, run("llm", "mine", 2)], [("tenant", "gone")], places=2) == first


def test_a_gate_holds_a_place_for_each_of_its_two_pods():
    gate = run("tenant", "gate", 1, "Measuring")
    gate["spec"]["gate"] = ["vllm:1", "vllm:2"]
    waiting, services = [gate, run("llm", "mine", 2)], [("tenant", "gone")]
    assert started(waiting, services, places=2) == []
    assert started(waiting, services, places=3) == ["mine"]


def test_of_those_that_wait_the_namespace_with_the_fewest_pods_comes_first():
    wide = run("wide", "three", 1, "Measuring")
    wide["status"]["plan"] = {"podsAtOnce": 3}
    runs = [wide, *(run("narrow", f"one{at}", 2 + at, "Measuring", f"gone{at}") for at in range(2))]
    services = [("wide", "gone"), ("narrow", "gone0"), ("narrow", "gone1")]
    runs += [run("wide", "older", 5, service="a"), run("narrow", "younger", 6, service="b")]
    # Both lack a service, so both end: the order is that of the views.
    views = started(runs, services, places=7)
    assert views == ["younger", "older"]

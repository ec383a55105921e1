"""Nobody's run keeps the places of all: one without a service ends, and one whose pods no node takes holds none."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from typing import Any

import pytest

from breakeven_operator.adapters.snapshot import Snapshot
from breakeven_operator.admission import run_views
from breakeven_operator.labels import RUN_LABEL
from breakeven_operator.ports import TrialSettings
from fakes.calibration_world import World, timestamp


def test_a_run_whose_service_is_gone_ends_and_leaves_nothing():
    world = World()
    world.turn()
    world.turn()
    assert world.jobs
    world.service = None
    world.run["metadata"]["creationTimestamp"] = timestamp(world.now)
    status = world.turn(600.0)
    assert (status["phase"], status["reason"]) == ("Superseded", "ServiceNotFound")
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
) -> list[str]:
    """Names of the runs that wait and may start."""
    given: dict[str, Any] = {field.name: {} for field in fields(Snapshot)}
    given |= {"services": (), "invalid": (), "runs": runs}
    given["manifests"] = {
        f"{namespace}/{name}": {"metadata": {"namespace": namespace, "name": name}}
        for namespace, name in services
    }
    for pod in pods:
        given["pods"].setdefault(pod["metadata"]["namespace"], []).append(pod)
    views = run_views(Snapshot(**given), [], places, TrialSettings("image"))
    waiting = [view for view in views if "status" not in view.run]
    return [str(view.run["metadata"]["name"]) for view in waiting if view.may_start]


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

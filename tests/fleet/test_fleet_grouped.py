"""A LeaderWorkerSet as the target, on a played controller: its groups are measured by their leaders, rolled, and undone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from breakeven.serving.opt_in import ANNOTATION
from breakeven_operator.kinds import JOBS, LEADER_WORKER_SETS, SERVICES, Resource
from breakeven_operator.ports import ClusterError
from fakes.fleet_world import SERVICE, VALUE, FleetWorld
from fakes.scheduling import QUOTAS

QUICK = {"stabilizationWindowSeconds": 0, "cooldownSeconds": 0}


def grouped(target: Callable[[dict[str, Any]], None] = lambda _target: None, **options: Any) -> FleetWorld:
    world = FleetWorld(lambda spec: spec["updatePolicy"].update(QUICK), target, grouped=True, **options)
    world.calibrate()
    world.load(3.0)
    return world


async def test_it_is_rolled_and_measured_by_its_leaders() -> None:
    world = grouped()
    await world.confirmed_roll()
    assert [write for write in world.cluster.writes if write[1] == "statefulsets"] == []


async def test_beyond_the_break_even_it_goes_back() -> None:
    world = grouped(lambda target: target["spec"].update(replicas=6))
    await world.goes_back()


async def test_its_watched_objects_lead_to_the_same_roll() -> None:
    """The set that makes its leaders is fetched when a service begins to point at it, though nobody points at that set."""
    world = grouped()
    world.watched = True
    world.restart()
    await world.until(lambda: world.value == VALUE)


async def test_an_arm_that_does_not_start_is_undone() -> None:
    world = grouped()
    world.kubelet.crash = {VALUE}
    await world.until(lambda: "RolledBack" in world.events)
    assert world.whole["history"][0]["result"] == "Undone"
    assert world.value is None


async def test_what_the_api_server_refuses_is_said_by_events_about_the_set_of_leaders() -> None:
    world = grouped()
    await world.until(lambda: world.phase == "Rolling")
    quota = {"metadata": {"name": "few", "namespace": "llm"}, "spec": {"hard": {"pods": "1"}}}
    world.cluster.put(QUOTAS, quota)
    await world.until(lambda: world.reason == "QuotaExceeded", cycles=12)
    assert "exceeded quota: few" in world.decision["message"]
    world.cluster.remove(QUOTAS, "llm", "few")
    await world.until(lambda: world.phase == "Confirming", cycles=12)


async def test_a_person_who_takes_over_one_of_two_templates_holds_it() -> None:
    def both(target: dict[str, Any]) -> None:
        groups = target["spec"]["leaderWorkerTemplate"]
        groups["leaderTemplate"] = groups["workerTemplate"]

    world = grouped(both)
    await world.speculate()

    def edit(target: dict[str, Any]) -> None:
        groups = target["spec"]["leaderWorkerTemplate"]
        groups["leaderTemplate"]["metadata"].setdefault("annotations", {})[ANNOTATION] = "null"

    world.cluster.change(LEADER_WORKER_SETS, "llm", "chat-vllm", edit, manager="kubectl-edit")
    await world.until(lambda: world.reason == "TakenOver", cycles=6)
    assert len(world.rolls) == 1


@pytest.mark.claim(
    "README.md", "Groups of several pods are rolled by imported measurements, and cannot be measured here"
)
async def test_a_group_of_several_pods_is_not_copied() -> None:
    world = FleetWorld(
        target=lambda target: target["spec"]["leaderWorkerTemplate"].update(size=2), grouped=True
    )
    world.load(3.0)
    await world.cycle()
    await world.until(lambda: world.condition("Calibrated")["reason"] == "PodNotCopied", cycles=6)
    assert world.cluster.of(JOBS) == []


@pytest.mark.parametrize("status", [403, 404])
@pytest.mark.parametrize("watched", [False, True])
async def test_a_kind_that_is_not_there_is_its_services_problem_alone(status: int, watched: bool) -> None:
    def absent(_verb: str, resource: Resource, _name: str) -> None:
        if resource == LEADER_WORKER_SETS:
            raise ClusterError("the server could not find the requested resource", status)

    world = FleetWorld(lambda spec: spec["updatePolicy"].update(QUICK))
    world.cluster.fail = absent
    world.watched = watched
    world.restart()
    other = {**SERVICE, "metadata": {**SERVICE["metadata"], "name": "grouped"}}
    reference = {"apiVersion": LEADER_WORKER_SETS.api_version, "kind": "LeaderWorkerSet", "name": "chat-vllm"}
    world.cluster.put(SERVICES, {**other, "spec": {**SERVICE["spec"], "targetRef": reference}})
    world.calibrate()
    world.load(3.0)
    await world.until(lambda: world.value == VALUE, cycles=5)
    found = world.cluster.objects["speculativeservices", "llm", "grouped"]["status"]
    assert found["decision"]["reason"] == "TargetUnreadable"
    assert "the API server gives no LeaderWorkerSets" in found["decision"]["message"]

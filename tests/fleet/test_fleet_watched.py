"""Services for annotated workloads: made where they are asked for, looking only, and never in a person's way."""

from __future__ import annotations

import copy
import logging
from dataclasses import replace
from typing import Any

import pytest

from breakeven.profile import Profile
from breakeven_operator.case import FirstAnswer
from breakeven_operator.cluster.snapshot import Snapshot
from breakeven_operator.kinds import (
    DEPLOYMENTS,
    JOBS,
    PROFILES,
    RUNS,
    SERVICES,
    STATEFULSETS,
    WATCHED_LABEL,
    Resource,
)
from breakeven_operator.resources.candidates import Candidates
from fakes.fleet_world import SERVICE, TARGET, FleetWorld, as_stateful_set, profile_json

CANDIDATES = {"methods": [{"name": "eagle", "method": "eagle3", "model": "org/head", "draftLengths": [3]}]}
MADE = ("speculativeservices", "llm", "chat-vllm-watched")


def annotate(world: FleetWorld, value: str | None = "true", name: str = "chat-vllm") -> None:
    """A person writes the annotation onto a workload, or takes it off."""

    def edit(workload: dict[str, Any]) -> None:
        workload["metadata"]["annotations"] = {} if value is None else {"breakeven.dev/watch": value}

    world.cluster.change(DEPLOYMENTS, "llm", name, edit)


def emptied(*, most: int = 50, most_per_namespace: int = 10, watched: bool = False) -> FleetWorld:
    """A world without a service, whose operator makes them."""
    world = FleetWorld()
    world.cluster.remove(SERVICES, "llm", "chat")
    world.watching = {
        "watch_annotated": "true",
        "default_candidates": Candidates.read(CANDIDATES, "candidates"),
        "most_watched": most,
        "most_watched_per_namespace": most_per_namespace,
    }
    world.watched = watched
    world.restart()
    return world


def made(world: FleetWorld) -> dict[str, Any]:
    return world.cluster.objects[MADE]


async def test_an_annotated_workload_gets_a_service_that_looks_and_starts_nothing():
    world = emptied()
    annotate(world)
    world.load(3.0)
    await world.cycle()
    service = made(world)
    assert service["spec"] == {
        "targetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "chat-vllm"},
        "paused": True,
        "updatePolicy": {"mode": "Recommend"},
        "candidates": service["spec"]["candidates"],
    }
    assert service["spec"]["candidates"]["methods"][0]["model"] == "org/head"
    assert service["metadata"]["labels"][WATCHED_LABEL] == "true"
    target = world.cluster.objects["deployments", "llm", "chat-vllm"]
    assert [owner["uid"] for owner in service["metadata"]["ownerReferences"]] == [target["metadata"]["uid"]]
    for _ in range(20):
        await world.cycle(120.0)
    status = made(world)["status"]
    assert status["target"]["model"] == "org/model"
    assert status["decision"]["reason"] == "Paused"
    assert not world.cluster.of(RUNS)
    assert not world.cluster.of(JOBS)
    assert world.rolls == []


async def test_even_a_request_to_measure_starts_nothing_until_a_person_lifts_the_pause():
    world = emptied()
    annotate(world)
    world.load(3.0)
    await world.cycle()
    asked = {"breakeven.dev/recalibrate": "now"}
    world.cluster.change(SERVICES, *MADE[1:], lambda one: one["metadata"].update(annotations=asked))
    for _ in range(5):
        await world.cycle(60.0)
    assert not world.cluster.of(RUNS)
    world.cluster.change(SERVICES, *MADE[1:], lambda one: one["spec"].update(paused=False))
    await world.until(lambda: bool(world.cluster.of(RUNS)))


async def test_a_profile_in_force_rolls_nothing():
    world = emptied()
    annotate(world)
    await world.cycle()
    world.calibrate()
    # The policy with which the same figures roll a service in mode RollingUpdate at once.
    policy = {**SERVICE["spec"]["updatePolicy"], "mode": "Recommend"}
    world.cluster.change(SERVICES, *MADE[1:], lambda one: one["spec"].update(updatePolicy=policy))
    named = {"name": MADE[2]}
    world.cluster.change(PROFILES, "llm", "chat-p1", lambda one: one["spec"].update(serviceRef=named))
    world.load(3.0)
    for _ in range(40):
        await world.cycle(60.0)
    decision = made(world)["status"]["decision"]
    assert (decision["action"], decision["arm"]) == ("Recommend", "eagle/3")
    assert world.rolls == []


async def test_the_past_is_shown_and_marked():
    world = emptied()
    annotate(world)
    observe = world.observer.observe

    async def with_answer(*, soon: bool = False) -> Snapshot:
        seen = await observe(soon=soon)
        past = FirstAnswer(Profile.from_json(profile_json()), "its last 14 days hold 120 h of no speculation")
        return replace(seen, firsts={one.metadata.uid: past for one in seen.services})

    world.observer.observe = with_answer
    world.load(3.0)
    for _ in range(4):
        await world.cycle(60.0)
    decision = made(world)["status"]["decision"]
    assert (decision["basis"], decision["reason"]) == ("Past", "Paused")
    assert "its last 14 days hold 120 h of no speculation" in decision["message"]
    assert not world.cluster.of(RUNS)


async def test_it_goes_with_the_annotation_and_with_the_workload():
    world = emptied()
    annotate(world)
    await world.cycle()
    annotate(world, None)
    await world.until(lambda: MADE not in world.cluster.objects, cycles=5)
    annotate(world)
    await world.cycle()
    assert MADE in world.cluster.objects
    world.cluster.remove(DEPLOYMENTS, "llm", "chat-vllm")
    await world.cycle()
    assert MADE not in world.cluster.objects


@pytest.mark.parametrize("change", ["spec", "annotations", "labels"])
async def test_what_a_person_changed_stands(change):
    world = emptied()
    annotate(world)
    await world.cycle()

    def edit(service: dict[str, Any]) -> None:
        if change == "spec":
            service["spec"]["updatePolicy"] = {"mode": "RollingUpdate"}
        elif change == "annotations":
            service["metadata"]["annotations"] = {"example.com/owner": "chat"}
        else:
            del service["metadata"]["labels"][WATCHED_LABEL]

    world.cluster.change(SERVICES, *MADE[1:], edit)
    kept = copy.deepcopy(made(world)["spec"])
    for _ in range(3):
        await world.cycle()
    annotate(world, None)
    for _ in range(3):
        await world.cycle()
    assert made(world)["spec"] == kept
    assert len(world.cluster.of(SERVICES)) == 1


async def test_a_change_between_reading_and_deletion_stands():
    world = emptied()
    annotate(world)
    for _ in range(3):
        await world.cycle()
    changes = []

    def meanwhile(verb: str, resource: Resource, _name: str) -> None:
        if (verb, resource) == ("delete", SERVICES):
            changes.append(verb)
            world.cluster.change(SERVICES, *MADE[1:], lambda one: one["spec"].update(paused=False))

    world.cluster.fail = meanwhile
    annotate(world, None)
    for _ in range(5):
        await world.cycle()
    assert made(world)["spec"]["paused"] is False
    assert len(changes) == 1


async def test_a_persons_own_service_takes_its_place():
    world = emptied()
    annotate(world)
    await world.cycle()
    world.cluster.put(SERVICES, copy.deepcopy(SERVICE))
    await world.until(lambda: MADE not in world.cluster.objects, cycles=5)
    await world.cycle()
    assert [one["metadata"]["name"] for one in world.cluster.of(SERVICES)] == ["chat"]
    assert world.reason != "TargetClaimed"


async def test_a_workload_with_a_service_gets_no_second_one():
    world = emptied()
    broken = copy.deepcopy(SERVICE)
    broken["spec"]["candidates"]["methods"][0]["method"] = "unheard_of"
    world.cluster.put(SERVICES, broken)
    annotate(world)
    for _ in range(2):
        await world.cycle()
    assert [one["metadata"]["name"] for one in world.cluster.of(SERVICES)] == ["chat"]


@pytest.mark.parametrize("value", ["false", "True", "yes", ""])
async def test_only_the_word_true_asks(value):
    world = emptied()
    annotate(world, value)
    await world.cycle()
    assert not world.cluster.of(SERVICES)


async def test_a_stateful_set_of_the_same_name_gets_a_name_of_its_own():
    world = emptied()
    both = as_stateful_set(TARGET)
    both["metadata"]["annotations"] = {"breakeven.dev/watch": "true"}
    world.cluster.put(STATEFULSETS, both)
    annotate(world)
    await world.cycle()
    names = {one["spec"]["targetRef"]["kind"]: one["metadata"]["name"] for one in world.cluster.of(SERVICES)}
    assert names.keys() == {"Deployment", "StatefulSet"}
    assert len(set(names.values())) == 2


async def test_beyond_the_bound_the_oldest_are_served_and_the_others_said_once(caplog):
    world = emptied(most=2)
    for name in ("later", "latest"):
        world.clock.advance(60.0)
        other = copy.deepcopy(TARGET)
        other["metadata"]["name"] = name
        world.cluster.put(DEPLOYMENTS, other)
        annotate(world, name=name)
    annotate(world)
    with caplog.at_level(logging.WARNING):
        for _ in range(4):
            await world.cycle()
    assert [one["metadata"]["name"] for one in world.cluster.of(SERVICES)] == [MADE[2], "later-watched"]
    assert world.registry.get_sample_value("breakeven_watched_left") == 1.0
    said = [line.getMessage() for line in caplog.records if "operator.mostWatched" in line.getMessage()]
    assert len(said) == 1
    assert "Deployment/llm/latest" in said[0]
    annotate(world, None)
    for _ in range(3):
        await world.cycle()
    assert [one["metadata"]["name"] for one in world.cluster.of(SERVICES)] == [
        "later-watched",
        "latest-watched",
    ]
    assert world.registry.get_sample_value("breakeven_watched_left") == 0.0


async def test_a_refused_creation_is_counted_and_stops_nothing_else():
    world = emptied()
    annotate(world)
    world.cluster.missing_rights.add(("create", "speculativeservices"))
    await world.cycle()
    assert not world.cluster.of(SERVICES)
    assert world.registry.get_sample_value("breakeven_errors_total", {"reason": "WriteRefused"}) == 1.0


async def test_by_watches_too_the_service_is_made_and_decided_about():
    world = emptied(watched=True)
    annotate(world)
    world.load(3.0)
    await world.cycle()
    assert MADE in world.cluster.objects
    await world.cycle()
    await world.cycle()
    assert made(world)["status"]["target"]["model"] == "org/model"
    await world.fleet.rest()


@pytest.mark.parametrize("watched", [False, True])
async def test_without_the_setting_no_workload_is_looked_for(watched):
    world = emptied(watched=watched)
    world.watching = {}
    world.restart()
    annotate(world)
    asked = []
    world.cluster.fail = lambda verb, resource, _name: asked.append((verb, resource))
    await world.cycle()
    await world.fleet.rest()
    assert not world.cluster.of(SERVICES)
    assert {resource for _, resource in asked} == {SERVICES, RUNS}

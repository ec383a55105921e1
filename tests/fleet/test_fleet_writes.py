"""The API server's answer to a write reaches the operator's view of the cluster before a watch could bring it."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta

import pytest

from breakeven_operator.actions import (
    ActionPlan,
    Apply,
    Create,
    Delete,
    EmitEvent,
    WriteAnnotation,
    WriteStatus,
)
from breakeven_operator.cluster.cluster_objects import ClusterObjects
from breakeven_operator.cluster.fitter import FitTurns
from breakeven_operator.cluster.writer import Writer
from breakeven_operator.kinds import DEPLOYMENTS, EVENTS, JOBS, PROFILES, RUNS, SERVICES, Ref
from breakeven_operator.ports import ClusterError, StaleObjectError
from fakes.fleet_world import VALUE, FleetWorld, RecordedFits


class Learned:
    """Records the answers that a `ClusterObjects` adopts."""

    def __init__(self):
        self.adopted = []
        self.forgotten = []

    def adopt(self, resource, manifest):
        self.adopted.append((resource, manifest))

    def forget(self, ref):
        self.forgotten.append(ref)


@pytest.fixture
def world() -> FleetWorld:
    return FleetWorld()


def writer_of(world, learned) -> Writer:
    return Writer(
        world.cluster,
        FitTurns(RecordedFits(), world.clock),
        world.clock,
        learned,
        may_act=lambda: True,
        reporter="test",
    )


JOB = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"namespace": "llm", "name": "trial"}}
RUN = {"metadata": {"namespace": "llm", "name": "run"}, "spec": {"serviceRef": {"name": "chat"}}}


async def test_answers_are_adopted_as_they_stand_on_the_server(world):
    learned = Learned()
    (service,) = world.cluster.of(SERVICES)
    subject = Ref(SERVICES, "llm", "chat", service["metadata"]["uid"])
    (target,) = world.cluster.of(DEPLOYMENTS)
    deployment = Ref(DEPLOYMENTS, "llm", "chat-vllm", target["metadata"]["uid"])
    actions = (
        Create(JOBS, JOB),
        Apply(RUNS, RUN),
        WriteStatus(subject, {"phase": "x"}),
        WriteAnnotation(deployment, VALUE, target["metadata"]["generation"]),
    )
    result = await writer_of(world, learned).carry_out(ActionPlan(subject, actions))
    assert result.error is None
    assert [resource for resource, _ in learned.adopted] == [JOBS, RUNS, SERVICES, DEPLOYMENTS]
    for resource, manifest in learned.adopted:
        meta = manifest["metadata"]
        stored = world.cluster.objects[resource.plural, "llm", meta["name"]]
        assert meta["resourceVersion"] == stored["metadata"]["resourceVersion"]


async def test_what_is_gone_is_forgotten_and_what_finalizers_hold_is_not(world, monkeypatch):
    learned = Learned()
    subject = Ref(RUNS, "llm", "run", "u1")
    held = {"metadata": {"name": "run", "finalizers": ["example.com/wait"]}}
    answers = [None, held]

    async def delete(_ref, _version):
        return answers.pop(0)

    monkeypatch.setattr(world.cluster, "delete", delete)
    for _ in range(2):
        await writer_of(world, learned).carry_out(ActionPlan(subject, (Delete(subject),)))
    assert learned.forgotten == [subject]
    assert learned.adopted == [(RUNS, held)]


async def test_an_annotation_for_another_generation_is_refused_before_anything_is_written(world):
    learned = Learned()
    (target,) = world.cluster.of(DEPLOYMENTS)
    meta = target["metadata"]
    deployment = Ref(DEPLOYMENTS, "llm", "chat-vllm", meta["uid"])
    stale = WriteAnnotation(deployment, VALUE, meta["generation"] - 1)
    result = await writer_of(world, learned).carry_out(ActionPlan(deployment, (stale,)))
    assert isinstance(result.error, StaleObjectError)
    assert "is of generation" in str(result.error)
    assert world.cluster.writes == []
    assert learned.adopted == []


@pytest.mark.parametrize("of", ["chat", "another"])
async def test_a_run_is_not_created_where_a_profile_of_the_service_was_not_known(world, of):
    learned = Learned()
    world.calibrate()
    (profile,) = world.cluster.of(PROFILES)
    world.cluster.change(PROFILES, "llm", "chat-p1", lambda body: body["spec"]["serviceRef"].update(name=of))
    subject = Ref(SERVICES, "llm", "chat", "u1")
    result = await writer_of(world, learned).carry_out(
        ActionPlan(subject, (Create(RUNS, RUN, known_profiles=frozenset()),))
    )
    if of == "another":
        assert [resource for resource, _ in learned.adopted] == [PROFILES, RUNS]
        return
    assert isinstance(result.error, StaleObjectError)
    assert "chat-p1 was not known" in str(result.error)
    assert world.cluster.of(RUNS) == []
    # The next decision knows it, whatever the watch still keeps back.
    ((kind, adopted),) = learned.adopted
    assert (kind, adopted["metadata"]["uid"]) == (PROFILES, profile["metadata"]["uid"])


async def test_a_profile_that_comes_with_its_service_is_in_force_and_nothing_is_measured(world, monkeypatch):
    # Another connection brings profiles, and is behind the one that brings services.
    behind = iter([True])
    everything = ClusterObjects.profiles

    async def late(objects):
        found = await everything(objects)
        return [] if next(behind, False) else found

    monkeypatch.setattr(ClusterObjects, "profiles", late)
    world.calibrate()
    world.load(3.0)
    for _ in range(3):
        await world.cycle()
    assert world.cluster.of(RUNS) == []
    assert world.status["calibration"]["profile"] == "chat-p1"


NOISE = EmitEvent(Ref(SERVICES, "llm", "chat", "u1"), "MetricsStale", "old", warning=True, throttled=True)


async def test_what_is_said_again_and_again_is_one_event_that_counts_up(world):
    writer = writer_of(world, Learned())
    begun = len(world.cluster.writes)
    for _ in range(40):
        await writer.carry_out(ActionPlan(NOISE.ref, (NOISE,)))
        world.clock.advance(60.0)
    (event,) = world.cluster.of(EVENTS)
    assert (event["reason"], event["note"]) == ("MetricsStale", "old")
    # The second time, and every five minutes from then on: at 1, 6, ... and 36 minutes.
    assert len(world.cluster.writes) - begun == 1 + 8
    assert event["series"]["count"] == 37
    begun_at, last_at = (
        datetime.fromisoformat(t) for t in (event["eventTime"], event["series"]["lastObservedTime"])
    )
    assert last_at - begun_at == timedelta(minutes=36)


async def test_after_half_an_hour_of_silence_it_is_told_anew(world):
    writer = writer_of(world, Learned())
    for pause_s in (60.0, 1799.0, 1801.0, 0.0):
        await writer.carry_out(ActionPlan(NOISE.ref, (NOISE,)))
        world.clock.advance(pause_s)
    assert [event.get("series", {}).get("count") for event in world.cluster.of(EVENTS)] == [3, None]


async def test_a_change_of_arm_is_an_event_each_time(world):
    writer = writer_of(world, Learned())
    loud = replace(NOISE, throttled=False)
    for _ in range(3):
        await writer.carry_out(ActionPlan(loud.ref, (loud,)))
    assert len(world.cluster.of(EVENTS)) == 3


@pytest.mark.parametrize("status", [403, 404])
async def test_a_count_that_cannot_be_written_is_told_anew(world, status):
    writer = writer_of(world, Learned())

    def refuse(verb, resource, _name):
        if (verb, resource) == ("apply", EVENTS):
            raise ClusterError("no", status)

    world.cluster.fail = refuse
    for _ in range(3):
        result = await writer.carry_out(ActionPlan(NOISE.ref, (NOISE,)))
        assert result.error is None
    assert len(world.cluster.of(EVENTS)) == 2

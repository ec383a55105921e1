"""Obstacles to a roll at this moment, a roll's duration, and the look of others' rolls."""

from __future__ import annotations

import copy
import dataclasses
from datetime import UTC, datetime, timedelta

import pytest

from breakeven.arm import NO_SPECULATION
from breakeven.planning.evaluation import evaluate_live
from breakeven.planning.objective import Slo
from breakeven.profile import Profile
from breakeven.serving.counted_window import Load
from breakeven_operator.cluster_reasons import ClusterReason
from breakeven_operator.judging.gates import refuse_capacity, refuse_now, scaled_time
from breakeven_operator.kinds import PODS
from breakeven_operator.observing.questions import policy_of
from breakeven_operator.resources import SpeculativeService, SpeculativeServiceStatus
from breakeven_operator.resources.memorystatus import MemoryStatus
from breakeven_operator.resources.targetstatus import (
    MOST_HISTORY,
    HistoryEntry,
    HistoryResult,
    Rollout,
    Target,
)
from breakeven_operator.resources.updatepolicy import PRODUCTION, Timing
from breakeven_operator.rolls.rollout import deadline_s, undo
from breakeven_operator.rolls.under_way import rolls_stopped
from breakeven_operator.step import RolloutContext, RolloutStep
from breakeven_operator.workloads.known import DEPLOYMENT as KIND
from breakeven_operator.workloads.workload import NearbyObjects, observe
from fakes.cases import CHAT, a_case
from fakes.fleet_world import EAGLE, SERVICE, TARGET, FleetWorld, profile_json

NOW = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)
DEPLOYMENT = FleetWorld().target


def figures(total_rps):
    return Load(
        window_s=300.0,
        replicas=2,
        rps=total_rps / 2,
        total_rps=total_rps,
        requests=1000,
        inflight=1.0,
        latency_s=1.0,
        ttft_s=0.1,
        tpot_s=0.01,
        tokens_per_step=1.0,
        prompt_tokens=100.0,
        output_tokens=100.0,
        age_s=1.0,
    )


def reason(refusal):
    return refusal.reason if refusal else None


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, None),
        ({"ready": 1}, "ReplicasUnready"),
        ({"pods": ()}, "ReplicasUnready"),
        ({"desired": 0, "total": 0, "updated": 0, "ready": 0, "pods": ()}, "ReplicasUnready"),
    ],
)
def test_a_roll_waits_for_what_is_pending(changes, expected):
    assert now(dataclasses.replace(DEPLOYMENT, **changes)) == expected


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"generation": 9}, "a roll is under way that the operator did not start: 2 of 2 pods updated"),
        ({"updated": 1}, "a roll is under way that the operator did not start: 1 of 2 pods updated"),
        ({"total": 3}, "the number of replicas is changing (3 exist, 2 wanted)"),
    ],
)
def test_a_roll_waits_for_others(changes, said):
    refusal = refuse_now(dataclasses.replace(DEPLOYMENT, **changes), PRODUCTION, None, MemoryStatus(), NOW)
    assert refusal is not None
    assert (refusal.reason, refusal.message) == ("RollWaits", said)


def now(workload=DEPLOYMENT, scaled_s_ago=None, memory=None, time=NOW, *, urgent=False):
    scaled = NOW - timedelta(seconds=scaled_s_ago) if scaled_s_ago is not None else None
    return reason(refuse_now(workload, PRODUCTION, scaled, memory or MemoryStatus(), time, urgent=urgent))


def test_a_roll_waits_until_the_number_of_replicas_has_stood_still():
    """Between two steps of an autoscaler everything is as the Deployment wants it."""
    assert now(scaled_s_ago=0) == now(scaled_s_ago=59) == "RollWaits"
    assert now(scaled_s_ago=60) is None


def test_when_the_number_of_replicas_changed_is_known_after_a_restart_too():
    def told(**target):
        return scaled_time(DEPLOYMENT, Target(**{"uid": DEPLOYMENT.ref.uid, "replicas": 2, **target}), NOW)

    earlier = NOW - timedelta(seconds=40)
    assert told(replicas=3) == told(replicas=3, replicas_changed_time=earlier) == NOW
    assert told(replicas_changed_time=earlier) == earlier
    assert told() is None
    assert told(uid="another", replicas=3) is None, "a new Deployment was not scaled"
    assert scaled_time(DEPLOYMENT, None, NOW) is None


def test_a_roll_waits_for_the_back_off():
    memory = MemoryStatus(failures=1, backoff_until_time=NOW + timedelta(seconds=1))
    assert now(memory=memory) == "BackingOff"
    assert now(memory=memory, time=NOW + timedelta(seconds=2)) is None


@pytest.mark.parametrize(
    ("failures", "said"),
    [
        (1, "the last roll was undone; the next one may begin in 90 s"),
        (2, "the last 2 rolls were undone; the next"),
    ],
)
def test_a_back_off_says_how_many_rolls_were_undone_and_when_it_ends(failures, said):
    memory = MemoryStatus(failures=failures, backoff_until_time=NOW + timedelta(seconds=90))
    refusal = refuse_now(DEPLOYMENT, PRODUCTION, None, memory, NOW)
    assert refusal is not None
    assert refusal.message.startswith(said)


def test_an_urgent_roll_waits_for_no_measurement_but_for_pods_that_did_not_come_up():
    until = NOW + timedelta(seconds=60)
    for undone_for, held in (
        ("RollDisproved", None),
        ("InsufficientGPU", "BackingOff"),
        (None, "BackingOff"),
    ):
        memory = MemoryStatus(failures=1, backoff_until_time=until, backoff_reason=undone_for)
        assert now(memory=memory) == "BackingOff"
        assert now(memory=memory, urgent=True) == held


def test_three_disproved_rolls_in_a_row_of_one_profile_stop_it():
    for count, asked_by, stops in ((2, "p1", False), (3, "p1", True), (5, "p1", True), (3, "p2", False)):
        memory = MemoryStatus(disproved=count, disproved_profile="p1")
        assert (rolls_stopped(memory, asked_by) is not None) is stops
    assert reason(rolls_stopped(memory.model_copy(update={"disproved": 3}), "p1")) == "RollsStopped"


def test_the_history_begins_with_the_newest_change_and_loses_the_oldest_ones():
    def ended(minutes_ago):
        return HistoryEntry(time=NOW - timedelta(minutes=minutes_ago), result=HistoryResult.SUPERSEDED)

    step = RolloutStep(None, MemoryStatus(), ended=(ended(1), ended(0)))
    kept = step.history(tuple(ended(2 + one) for one in range(MOST_HISTORY)))
    assert kept == tuple(ended(one) for one in range(MOST_HISTORY))
    assert SpeculativeServiceStatus(history=kept).history == kept


def capacity(total_rps, *, unavailable, prompt_tokens=None, output_tokens=None):
    profile, spec = Profile.from_json(profile_json()), SpeculativeService.read(SERVICE, "service").spec
    case = a_case(spec, profile, figures(total_rps or 0.0), NOW, unavailable=unavailable)
    if total_rps is None:
        case = dataclasses.replace(case, live=dataclasses.replace(case.live, figures=None))
    arms = (NO_SPECULATION, EAGLE)
    here = (
        None
        if prompt_tokens is None
        else evaluate_live(
            profile,
            Load(1.0, 300.0, 300.0, prompt_tokens=prompt_tokens, output_tokens=output_tokens),
            EAGLE,
            arms,
            (),
            Slo(),
        )
    )
    return reason(refuse_capacity(case, arms, here))


def test_replicas_that_are_left_must_carry_the_load_at_the_lengths_that_requests_have_now():
    """Answers of twice the length halve an arm's saturation, and shorter ones raise it."""
    assert capacity(6.0, unavailable=1, prompt_tokens=200.0, output_tokens=100.0) is None
    assert capacity(6.0, unavailable=1, prompt_tokens=200.0, output_tokens=200.0) == "InsufficientCapacity"
    assert capacity(12.0, unavailable=1, prompt_tokens=200.0, output_tokens=50.0) is None


def test_replicas_that_are_left_must_carry_the_load_in_either_arm():
    # Saturation 20 rps without speculation, 12.5 with: at 0.75 one replica may serve 9.4.
    assert capacity(9.0, unavailable=1) is None
    assert capacity(10.0, unavailable=1) == "InsufficientCapacity"
    assert capacity(100.0, unavailable=0) is None, "a roll by surge takes nothing away"
    assert capacity(0.1, unavailable=2) == "OutageNotAllowed", "nothing would be left"
    assert capacity(None, unavailable=1) == "InsufficientCapacity"


@pytest.mark.parametrize(
    ("surge", "unavailable", "replicas", "expected"),
    [
        ("25%", "25%", 1, (1, 0)),
        ("25%", "25%", 4, (1, 1)),
        ("25%", "25%", 10, (3, 2)),
        (1, 0, 3, (1, 0)),
        (0, 1, 3, (0, 1)),
        ("0%", "0%", 3, (0, 1)),
    ],
)
def test_the_strategy_is_resolved_as_the_controller_does(surge, unavailable, replicas, expected):
    manifest = {
        **TARGET,
        "metadata": {**TARGET["metadata"], "uid": "u"},
        "spec": {
            **TARGET["spec"],
            "replicas": replicas,
            "strategy": {"rollingUpdate": {"maxSurge": surge, "maxUnavailable": unavailable}},
        },
    }
    found = observe(KIND, manifest, NearbyObjects(), container_name=None, gpu_label="x", now=NOW)
    assert (found.max_surge, found.max_unavailable) == expected


def test_recreate_takes_every_pod_away():
    manifest = {
        **TARGET,
        "metadata": {**TARGET["metadata"], "uid": "u"},
        "spec": {**TARGET["spec"], "replicas": 3, "strategy": {"type": "Recreate"}},
    }
    found = observe(KIND, manifest, NearbyObjects(), container_name=None, gpu_label="x", now=NOW)
    assert (found.max_surge, found.max_unavailable) == (0, 3)


def test_the_deadline_follows_measured_start_ups_and_batches():
    def deadline(startup_s, desired=2, **given):
        deployment = dataclasses.replace(DEPLOYMENT, desired=desired)
        return deadline_s(
            RolloutContext(
                PRODUCTION, deployment, MemoryStatus(), None, True, startup_s, **given, now=NOW, service=CHAT
            )
        )

    assert deadline(900.0) > 2 * 900.0, "a 70B model loads longer than progressDeadlineSeconds' 600 s"
    assert deadline(900.0, desired=4) > 1.9 * deadline(900.0)
    assert deadline(None) > deadline(900.0), "what was never seen gets the most time"
    for startup_s, desired in ((5.0, 1), (5.0, 2), (40.0, 8)):
        takes_s = desired * (startup_s + DEPLOYMENT.grace_s)
        assert deadline(startup_s, desired) >= takes_s + 60.0, (
            "a slow node or a pulled image undoes no sound roll"
        )
    assert deadline(900.0, deadline_s=60.0) == 60.0
    assert deadline(900.0, desired=2**31 - 1) == 366 * 86400.0, "later there is no date"


@pytest.mark.parametrize(
    ("desired", "unavailable", "share"), [(2, 0, 0.0), (2, 1, 0.5), (4, 1, 0.25), (1, 3, 1.0), (0, 1, 0.0)]
)
def test_a_roll_costs_each_replica_one_start_up_and_takes_a_share_away_at_a_time(desired, unavailable, share):
    spec, few = (
        SpeculativeService.read(SERVICE, "x").spec,
        dataclasses.replace(figures(1.0), replicas=desired),
    )
    case = a_case(spec, Profile.from_json(profile_json()), few, NOW, startup_s=20.0, unavailable=unavailable)
    policy = policy_of(spec, case.context.startup_s, case.away_share)
    assert (policy.roll_seconds, policy.roll_away_share) == (20.0, share)
    assert policy_of(spec).roll_seconds == 600.0


def test_percents_of_a_policy_are_shares_of_its_decisions():
    manifest = copy.deepcopy(SERVICE)
    manifest["spec"]["updatePolicy"] |= {"minGainPercent": 5, "dayRiskPercent": 20}
    policy = policy_of(SpeculativeService.read(manifest, "x").spec)
    assert (policy.min_gain, policy.day_risk) == (0.05, 0.2)


def test_the_pause_after_undone_rolls_doubles_up_to_sixteen_times():
    def pause_s(failures):
        context = RolloutContext(
            Timing(backoff_seconds=60),
            DEPLOYMENT,
            MemoryStatus(failures=failures),
            None,
            may_write=True,
            startup_s=20.0,
            now=NOW,
            service=CHAT,
        )
        step = undo(context, Rollout(id="x"), ClusterReason.INSUFFICIENT_GPU, "why")
        return (step.memory.backoff_until_time - NOW).total_seconds()

    assert [pause_s(failures) for failures in (0, 1, 2, 3, 4, 5, 50)] == [60, 120, 240, 480, 960, 960, 960]


def test_pods_of_the_template_before_do_not_tell_what_the_present_one_is():
    """The controller has not made the new ReplicaSet yet: the old one still passes for the newest."""
    assert DEPLOYMENT.identifiable
    assert not dataclasses.replace(DEPLOYMENT, generation=DEPLOYMENT.observed_generation + 1).identifiable
    assert not dataclasses.replace(DEPLOYMENT, pods=()).identifiable


@pytest.mark.parametrize(("restarts", "startup_s"), [(0, 20.0), (1, None)])
def test_a_container_that_was_restarted_tells_no_start_up_time(restarts, startup_s):
    world = FleetWorld()
    for pod in world.cluster.of(PODS):
        (container,) = pod["status"]["containerStatuses"]
        container["restartCount"] = restarts
        world.cluster.put(PODS, pod)
    assert world.target.startup_s == startup_s

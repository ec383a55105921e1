"""The first wave of a roll: how many pods it has, when it stands, and the word for what was measured of it."""

from __future__ import annotations

import math
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from breakeven.arm import NO_SPECULATION
from breakeven.estimate import Estimate
from breakeven.planning.roll_experiment import MeasuredSpeedup, Witness
from breakeven.reasons import Reason
from breakeven_operator.actions import WriteAnnotation
from breakeven_operator.cluster_reasons import ClusterReason
from breakeven_operator.reconcile.first_wave import give_up, partition_of, stands
from breakeven_operator.reconcile.roll_outcome import wave_outcome
from breakeven_operator.reconcile.rollout import ArmChange, begin, deadline_s, watch
from breakeven_operator.reconcile.steps import RolloutContext
from breakeven_operator.resources.memorystatus import MemoryStatus
from breakeven_operator.resources.rolloutstatus import Rollout, RolloutPhase
from breakeven_operator.resources.updatepolicy import FirstWave, UpdatePolicy
from draws import draws
from fakes.fleet_world import EAGLE, VALUE, FleetWorld

NOW = datetime(2026, 11, 26, 12, 0, tzinfo=UTC)
STATEFUL = FleetWorld(stateful=True).target
DEPLOYMENT = FleetWorld().target
POD = STATEFUL.pods[0]
AT_ONCE = frozenset({ClusterReason.PINNED, Reason.SLO_VIOLATED})
LATER = NOW + timedelta(hours=1)
HELD = Rollout(
    id="x",
    from_arm=NO_SPECULATION.name,
    to_arm=EAGLE.name,
    phase=RolloutPhase.ROLLING,
    value=VALUE,
    started_time=NOW - timedelta(hours=1),
    deadline_time=LATER,
    wave_partition=3,
    wave_time=NOW - timedelta(minutes=10),
)
WAVE = replace(STATEFUL, desired=4, total=4, ready=4, updated=1, own_partition=3, value=VALUE)


ONE_POD = FirstWave()


def context(workload=WAVE, rollout=HELD, *, may_write=True, wave=ONE_POD, now=NOW):
    policy = UpdatePolicy(first_wave=wave)
    return RolloutContext(policy, workload, MemoryStatus(), rollout, may_write, 20.0, now=now)


@draws(60)
@given(
    replicas=st.integers(2, 60),
    pods=st.none() | st.integers(1, 1000),
    percent=st.none() | st.integers(1, 99),
)
def test_a_wave_has_a_pod_at_least_and_leaves_one_at_least(replicas, pods, percent):
    assume(pods is None or percent is None)
    size = FirstWave(pods=pods, percent=percent).size(replicas)
    partition = partition_of(
        UpdatePolicy(first_wave=FirstWave(pods=pods, percent=percent)),
        replace(STATEFUL, desired=replicas),
        EAGLE,
        Reason.GAIN_ABOVE_THRESHOLD,
        AT_ONCE,
    )
    assert 1 <= size <= replicas - 1
    assert size + partition == replicas
    if percent is not None and size < replicas - 1:
        assert (size - 1) * 100 < percent * replicas <= size * 100
    if pods is not None and size < replicas - 1:
        assert size == pods


@pytest.mark.parametrize(
    ("wave", "replicas", "size"),
    [
        (FirstWave(), 0, 0),
        (FirstWave(percent=99), 1, 0),
        (FirstWave(), 8, 1),
        (FirstWave(pods=3), 8, 3),
        (FirstWave(percent=25), 6, 2),
        (FirstWave(percent=25), 8, 2),
        (FirstWave(pods=9), 8, 7),
    ],
)
def test_a_share_is_rounded_up_and_a_single_replica_has_no_wave(wave, replicas, size):
    assert wave.size(replicas) == size


@pytest.mark.parametrize(
    ("wave", "workload", "arm", "reason", "partition"),
    [
        (FirstWave(), STATEFUL, EAGLE, Reason.GAIN_ABOVE_THRESHOLD, 1),
        (None, STATEFUL, EAGLE, Reason.GAIN_ABOVE_THRESHOLD, 0),
        (FirstWave(), DEPLOYMENT, EAGLE, Reason.GAIN_ABOVE_THRESHOLD, 0),
        (FirstWave(), STATEFUL, NO_SPECULATION, Reason.GAIN_ABOVE_THRESHOLD, 0),
        (FirstWave(), STATEFUL, EAGLE, ClusterReason.PINNED, 0),
        (FirstWave(), STATEFUL, EAGLE, Reason.SLO_VIOLATED, 0),
    ],
    ids=["held", "not asked for", "no partition", "back", "ordered", "urgent"],
)
def test_what_is_held(wave, workload, arm, reason, partition):
    assert partition_of(UpdatePolicy(first_wave=wave), workload, arm, reason, AT_ONCE) == partition


def test_annotation_and_partition_are_one_write_and_the_deadline_is_that_of_the_wave_s_pods():
    settled = replace(WAVE, updated=4, own_partition=0, value=None)
    before = context(settled, None)
    step = begin(before, ArmChange(NO_SPECULATION, EAGLE, VALUE, "GainAboveThreshold", partition=3), "u")
    assert step.write == WriteAnnotation(settled.ref, VALUE, settled.generation, partition=3)
    assert step.rollout.wave_partition == 3
    assert step.rollout.deadline_time == NOW + timedelta(seconds=deadline_s(before, 1))
    assert deadline_s(before, 1) < deadline_s(before)
    assert step.message.endswith("; 1 of 4 pods come first")


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, True),
        ({"updated": 0}, False),
        ({"pods": ()}, False),
        ({"pods": (replace(POD, ready_since=None),)}, False),
        ({"pods": (POD, replace(POD, current=False, terminating=True))}, False),
        ({"ready": 3}, False),
        ({"total": 3, "ready": 3}, False),
        ({"total": 5, "ready": 5, "updated": 2}, True),
        ({"total": 5, "ready": 4, "updated": 2}, False),
        ({"generation": WAVE.generation + 1}, False),
        ({"desired": 3, "total": 3, "ready": 3}, False),
    ],
    ids=["stands", "not updated", "no pod", "not ready", "one ends", "an old one is not ready", "one is missing", "one beside them", "one beside them is not ready",
         "not seen", "scaled below its partition"],
)  # fmt: skip
def test_a_wave_stands_when_its_pods_and_all_others_serve(changes, expected):
    assert stands(replace(WAVE, **{"pods": (POD,), **changes})) is expected


def test_what_stands_is_held_from_then_on_for_as_long_as_the_policy_says():
    coming = HELD.replace(wave_time=None, deadline_time=NOW + timedelta(seconds=60))
    step = watch(context(replace(WAVE, pods=(POD,)), coming, wave=FirstWave(deadline_seconds=600)))
    assert (step.reason, step.busy, step.write) == (ClusterReason.FIRST_WAVE_HELD, True, None)
    assert step.rollout.wave_time == NOW
    assert step.rollout.deadline_time == NOW + timedelta(seconds=600)
    assert [event.reason for event in step.events] == ["FirstWaveHeld"]
    again = watch(context(replace(WAVE, pods=(POD,)), step.rollout, now=NOW + timedelta(seconds=30)))
    assert (again.events, again.rollout) == ((), step.rollout)


def test_one_that_nobody_measures_is_undone_at_its_deadline_by_one_write():
    step = watch(context(replace(WAVE, pods=(POD,)), now=LATER + timedelta(seconds=1)))
    assert step.reason is ClusterReason.FIRST_WAVE_UNPROVEN
    assert step.write == WriteAnnotation(WAVE.ref, None, WAVE.generation)
    assert step.rollout.phase is RolloutPhase.UNDOING


def test_what_may_not_be_written_stays_held():
    step = watch(context(replace(WAVE, pods=(POD,)), may_write=False, wave=None))
    assert (step.write, step.reason) == (None, ClusterReason.FIRST_WAVE_HELD)
    assert "stays held while paused" in step.message
    assert give_up(context(rollout=None, may_write=False)) is None


def test_another_hand_s_partition_is_left_alone():
    theirs = replace(WAVE, own_partition=0)
    step = watch(context(theirs))
    assert (step.write, step.rollout.wave_partition) == (None, None)
    assert (step.reason, step.events[0].warning) == (ClusterReason.FIRST_WAVE_RELEASED, True)
    assert step.message.endswith("has no partition any more; the operator leaves it alone")


ENDED = HELD.replace(wave_partition=None)


@pytest.mark.parametrize(
    ("rollout", "workload", "value"),
    [
        (None, replace(WAVE, value_managers=("breakeven",)), VALUE),
        (None, replace(WAVE, value="null", value_managers=("kubectl-edit",)), None),
        (ENDED, replace(WAVE, value_managers=("breakeven",)), VALUE),
        (ENDED.replace(phase=RolloutPhase.CONFIRMING), replace(WAVE, value_managers=("breakeven",)), VALUE),
        (HELD.replace(phase=RolloutPhase.UNDOING), replace(WAVE, value=None), None),
    ],
    ids=["no roll", "the annotation is another's", "released and not written", "finished", "undone, and not given up"],
)  # fmt: skip
def test_a_partition_that_no_roll_accounts_for_is_given_up_and_the_annotation_stays(rollout, workload, value):
    step = give_up(context(workload, rollout))
    assert step.write == WriteAnnotation(WAVE.ref, value, WAVE.generation)
    assert step.reason is ClusterReason.FIRST_WAVE_RELEASED


@pytest.mark.parametrize(
    ("rollout", "workload"),
    [
        (HELD, WAVE),
        (HELD.replace(phase=RolloutPhase.INTENDED), WAVE),
        (HELD.replace(phase=RolloutPhase.UNDOING), WAVE),
        (None, replace(WAVE, own_partition=0)),
    ],
    ids=["held", "intended", "undone by its own write", "nobody's"],
)
def test_one_that_a_roll_accounts_for_is_not(rollout, workload):
    assert give_up(context(workload, rollout)) is None


def measured(speedup, sd):
    return MeasuredSpeedup(math.log(speedup), sd, sd, 9, 0.0, 3.0, 5000.0, Witness.SIDE_BY_SIDE)


def word(speedup, *, promise=1.5, sd=0.02, windows=3.0, last=False):
    found = wave_outcome(
        measured(speedup, sd), Estimate(promise, 0.9 * promise, 1.1 * promise), windows, last_look=last
    )
    return None if found is None else str(found.reason)


def test_a_wave_is_released_once_a_loss_is_excluded_by_bounds_that_hold_at_all_looks():
    assert word(1.5, windows=2.9) is None
    assert word(1.5) == "FirstWaveReleased"
    assert word(1.0) is None
    assert word(1.0, last=True) == "FirstWaveUnproven"
    # Bounds of one look are narrower than those of all.
    assert word(1.02) is None
    assert word(1.02, last=True) == "FirstWaveReleased"
    assert word(0.7, windows=0.1) == "RollDisproved"
    assert word(0.92, last=True) == "RollDisproved"
    assert word(2.5, sd=0.5, last=True) == "FirstWaveUnproven"


def test_a_loss_that_was_promised_for_this_load_releases():
    assert word(0.8, promise=0.8, last=True) == "FirstWaveReleased"
    assert word(0.5, promise=0.8, last=True) == "RollDisproved"


@draws(60)
@given(st.floats(0.3, 3.0), st.floats(0.3, 3.0), st.floats(0.001, 1.0), st.floats(0.0, 10.0), st.booleans())
def test_nothing_that_may_lose_is_released_and_a_last_look_always_has_a_word(
    speedup, promise, sd, windows, last
):
    found = wave_outcome(
        measured(speedup, sd), Estimate(promise, 0.9 * promise, 1.1 * promise), windows, last_look=last
    )
    assert found is not None or not last
    assume(found is not None)
    bar = min(1.0, 0.9 * promise)
    if found.reason == "FirstWaveReleased":
        assert found.bounds.lower >= 0.95 * bar
        assert last or windows >= 3.0
    assert (found.reason == "RollDisproved") == (found.bounds.upper < bar)

"""The word for a roll from what was measured and promised, and what a service does with it."""

from __future__ import annotations

import math
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from breakeven.arm import NO_SPECULATION
from breakeven.estimate import Estimate
from breakeven.planning.roll_experiment import MeasuredSpeedup
from breakeven.profile import Conditions, Profile
from breakeven.readers.prometheus import Samples, TimedValue
from breakeven.reasons import Witness
from breakeven_operator.case import Case, RollAnswer, RollReading
from breakeven_operator.observing.fleet_query import SAMPLED, STAT
from breakeven_operator.observing.roll_metrics import RolledPods, both_arms, read_roll
from breakeven_operator.resources import SpeculativeService
from breakeven_operator.resources.memorystatus import MemoryStatus
from breakeven_operator.resources.targetstatus import Rollout, RolloutPhase
from breakeven_operator.resources.updatepolicy import PRODUCTION
from breakeven_operator.rolls.roll_evidence import CONFIDENCE, outcome, so_far
from breakeven_operator.rolls.under_way import verify
from breakeven_operator.step import RolloutContext, settled
from draws import draws
from fakes.cases import CHAT
from fakes.fleet_world import EAGLE, SERVICE, FleetWorld, profile_json

NOW = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)
WINDOW_S = 300.0
WORKLOAD = FleetWorld().target


def measured(speedup, sd=0.02):
    return MeasuredSpeedup(math.log(speedup), sd, sd, 9, 0.0, 3.0, 5000.0, Witness.SIDE_BY_SIDE)


def word(speedup, promise=1.5, *, sd=0.02, windows=6.5):
    found = outcome(measured(speedup, sd), Estimate(promise, 0.9 * promise, 1.1 * promise), windows)
    return None if found is None else str(found.result)


@pytest.mark.parametrize(
    ("speedup", "promise", "said"),
    [
        (1.5, 1.5, "Confirmed"),
        (2.0, 1.5, "Confirmed"),
        (1.4, 1.5, "Confirmed"),
        (1.15, 1.8, "NotWorse"),
        (1.0, 1.5, "Unproven"),
        (1.03, 1.5, "NotWorse"),
        (0.8, 1.5, "Disproved"),
        (0.8, 0.8, "Unmeasured"),
        (0.5, 0.8, "Disproved"),
        (0.98, 0.8, "Unproven"),
    ],
    ids=[
        "as promised", "better than promised", "perhaps short of its promise", "surely short of its promise", "perhaps a loss of a twentieth", "surely no such loss", "a loss",
        "a loss that was promised", "a greater loss than was promised", "perhaps better than the loss that was promised",
    ],
)  # fmt: skip
def test_a_word_is_what_was_measured_against_the_promise_for_that_load(speedup, promise, said):
    assert word(speedup, promise) == said


def test_a_gain_that_falls_short_of_its_promise_says_so():
    found = outcome(measured(1.15), Estimate(1.8, 1.6, 2.0), 3.5)
    assert found.remark == "; it gains, and significantly less than was promised"


def test_a_gain_whose_bound_touches_its_promise_does_not_surely_fall_short_of_it():
    upper = measured(1.15).bounds(CONFIDENCE).upper
    assert outcome(measured(1.15), Estimate(1.8, upper, 2.0), 3.5).reason == "RollConfirmed"
    assert outcome(measured(1.15), Estimate(1.8, 1.001 * upper, 2.0), 3.5).reason == "RollNotWorse"


def test_a_loss_within_the_bounds_of_what_was_promised_is_not_disproved():
    """Promised were 0.72 to 0.88: significantly below 0.8 is not significantly below the promise."""
    assert outcome(measured(0.76, 0.005), Estimate(0.8), 3.5).reason == "RollDisproved"
    assert word(0.76, 0.8, sd=0.005) == "Unmeasured"


def test_only_a_sure_loss_is_said_before_three_windows_have_passed():
    for windows in (-1.0, 0.0, 2.9):
        assert word(1.5, windows=windows) is None
        assert word(1.0, windows=windows) is None
        assert word(0.7, windows=windows) == "Disproved"
    # Bounds for all looks are wider than those for one.
    assert word(0.92, windows=1.0) is None
    assert word(0.92, windows=3.0) == "Disproved"


def test_bounds_that_hold_a_gain_and_a_loss_are_waited_for_and_then_said_to_prove_nothing():
    for speedup, sd in ((1.0, 0.15), (1.0, 0.02), (0.91, 0.04)):
        assert word(speedup, sd=sd, windows=5.9) is None
        assert word(speedup, sd=sd, windows=6.0) == "Unproven"
    assert word(2.5, sd=0.15, windows=3.0) == "Confirmed"
    assert word(1.03, windows=3.0) == "NotWorse"


def test_pods_that_may_be_cold_are_disproved_once_their_caches_cannot_explain_the_loss():
    for cold, said in ((0.0, "RollDisproved"), (0.3, "RollUnproven")):
        found = outcome(replace(measured(0.8), new_cold=cold), Estimate(1.5, 1.4, 1.6), 6.0)
        assert found.reason == said
        assert ("up to 35 % more once their prefix caches are filled" in found.remark) == (cold > 0.0)
    assert outcome(replace(measured(0.5), new_cold=0.3), Estimate(1.5), -1.0).reason == "RollDisproved"


def test_an_arm_whose_predecessor_was_cold_is_not_confirmed_for_it():
    assert outcome(measured(1.2), Estimate(1.2), 6.0).reason == "RollConfirmed"
    found = outcome(replace(measured(1.2), old_cold=0.2), Estimate(1.2), 6.0)
    assert found.reason == "RollUnproven"
    assert "the other arm's pods had begun shortly before" in found.remark


@draws(60)
@given(st.floats(0.3, 3.0), st.floats(0.3, 3.0), st.floats(0.001, 1.0), st.floats(-1.0, 10.0))
def test_what_is_confirmed_gains_surely_and_what_is_disproved_loses_surely(speedup, promise, sd, windows):
    found = outcome(measured(speedup, sd), Estimate(promise, 0.9 * promise, 1.1 * promise), windows)
    assume(found is not None)
    lower, upper = found.bounds
    if found.reason == "RollConfirmed":
        assert lower > 1.0
        assert upper >= 0.9 * promise
    assert (found.reason == "RollDisproved") <= (upper < min(1.0, 0.9 * promise))


def context(*, windows=1.0, reason="GainAboveThreshold", phase=RolloutPhase.CONFIRMING, **changes):
    rollout = Rollout(
        id="x",
        from_arm=NO_SPECULATION.name,
        to_arm=EAGLE.name,
        reason=reason,
        phase=phase,
        started_time=NOW - timedelta(seconds=(windows + 1) * WINDOW_S),
        finished_time=NOW - timedelta(seconds=windows * WINDOW_S)
        if phase is RolloutPhase.CONFIRMING
        else None,
        from_replica_set="chat-vllm-7d9f8b6c5d",
        to_replica_set="chat-vllm-64bd5fcf9",
        **changes,
    )
    memory = MemoryStatus(failures=2, backoff_until_time=NOW)
    return RolloutContext(
        PRODUCTION, WORKLOAD, memory, rollout, may_write=True, startup_s=20.0, now=NOW, service=CHAT
    )


def seen(context, reading, profile=None, conditions=None):
    """The case whose roll is judged: what Prometheus says of it, and the profile in force."""
    state = SimpleNamespace(profile=profile, profile_name="chat-p1" if profile is not None else None)
    live, service = (
        SimpleNamespace(conditions=conditions or Conditions()),
        SpeculativeService.read(SERVICE, "service"),
    )
    assert service.spec.metrics_source.window_seconds == WINDOW_S
    return Case(
        service, context, state, None, live, None, model_name="chat", roll=RollAnswer(latencies=reading)
    )


def test_a_roll_without_figures_ends_unmeasured_after_six_windows_and_says_why():
    for reading, why in (
        (None, "it was not asked"),
        (RollReading(error="query timed out"), "query timed out"),
        (RollReading(), "the profile in force does not hold both arms"),
    ):
        assert verify(seen(context(windows=5.9), reading)) is None
        step = verify(seen(context(windows=6.0), reading))
        assert step.ended[0].result == "Unmeasured"
        assert why in step.ended[0].message
        assert step.memory.failures == 2, "nothing was confirmed, and nothing failed"
    unseen = replace(context(windows=6.0), rollout=context().rollout.model_copy(update={"to_replica_set": None,
        "finished_time": NOW - timedelta(hours=1)}))  # fmt: skip
    assert "which pods run which arm was not seen" in verify(seen(unseen, RollReading())).ended[0].message


def test_a_roll_that_is_only_intended_or_undone_is_not_measured():
    for phase in (RolloutPhase.INTENDED, RolloutPhase.UNDOING):
        assert verify(seen(context(phase=phase), None)) is None
    assert verify(seen(replace(context(), rollout=None), None)) is None


def test_windows_teach_once_what_a_roll_left_behind_is_worked_off():
    assert not settled(context(windows=2.0), WINDOW_S)
    assert settled(context(windows=2.05), WINDOW_S)
    assert settled(replace(context(), rollout=None), WINDOW_S)
    assert not settled(context(phase=RolloutPhase.ROLLING), WINDOW_S)


OLD, NEW = "chat-vllm-7d9f8b6c5d-b2c4d", "chat-vllm-64bd5fcf9-x2c4d"


def series(pod, *, every_s=60.0, first=0, count=20, n_each=100.0, latency_s=1.0, model_name="chat", **odd):
    """Counters of a pod that is scraped so often, read once a minute."""
    start_s = NOW.timestamp() - 1200.0
    times = [start_s + 60.0 * index for index in range(first, count)]
    sampled = [start_s + (time - start_s) // every_s * every_s for time in times]
    done = [n_each * (at - start_s) / 60.0 for at in sampled]
    stats = {
        "ttft_s": [0.1 * latency_s * n for n in done],
        "started": done,
        "step_s": [0.9 * latency_s * n for n in done],
        "generated": [100.0 * n for n in done],
        "waiting": [0.0] * len(times),
        SAMPLED: sampled,
    } | odd
    labels = {"namespace": "llm", "pod": pod, "model_name": model_name}
    return [
        Samples({**labels, STAT: stat}, tuple(map(TimedValue, times, values)))
        for stat, values in stats.items()
    ]


def blocks(*samples):
    rolled = RolledPods.of(context(windows=1.0).rollout, WORKLOAD, "chat")
    return both_arms(read_roll([one for pod in samples for one in pod]), rolled)


def test_pods_are_told_apart_by_their_replica_sets_and_those_of_others_are_left_out():
    found = blocks(
        series(OLD),
        series(NEW, first=12),
        series("chat-vllm-large-7d9f8b6c5d-b2c4d", n_each=999.0),
        series(f"{OLD[:-5]}zzzzz", model_name="another", n_each=999.0),
    )
    assert found[0].begun.shape == found[1].begun.shape == (1, 20)
    assert np.nansum(found[0].begun) == 1900.0
    assert np.nansum(found[1].begun) == 700.0


def test_a_replica_set_that_is_brought_back_has_no_blocks_of_the_roll_before():
    """The new arm's template has run before: what its pods did then is of another roll."""
    found = blocks(series(OLD), series(NEW))
    began = NOW.timestamp() - 2 * WINDOW_S
    times = np.array([NOW.timestamp() - 1200.0 + 60.0 * index for index in range(20)])
    assert (np.isfinite(found[1].begun[0]) == (times > began)).all()


def test_a_time_without_a_new_sample_ends_no_block():
    """Scrapes every two minutes and blocks of one: each block between two samples is counted once."""
    found = blocks(series(OLD, every_s=120.0))
    seen = np.isfinite(found[0].begun[0])
    assert seen.sum() == 9
    assert set(found[0].watched_s[0][seen]) == {120.0}
    assert set(found[0].begun[0][seen]) == {200.0}


def test_counters_that_fall_or_are_none_make_no_block():
    restarted = series(OLD, started=[100.0 * (i % 10) for i in range(20)])
    assert np.isfinite(blocks(restarted)[0].begun).sum() == 18
    odd = series(OLD, step_s=[math.nan, -1.0, 1e300, math.inf] * 5)
    assert not np.isfinite(blocks(odd)[0].begun).any()
    assert not np.isfinite(blocks(series(OLD)[:3])[0].begun).any()
    assert not np.isfinite(blocks()[0].begun).any()


def test_a_name_that_kubernetes_cut_still_tells_its_replica_set():
    long = "a-deployment-with-a-name-of-fifty-letters-and-more-7d9f8b6c5d"
    rolled = RolledPods("llm", "chat", long, "chat-vllm-64bd5fcf9", NOW)
    pod = f"{long}-"[:58] + "b2c4d"
    assert np.nansum(both_arms(read_roll(series(pod)), rolled)[0].begun) == 1900.0


def test_a_promise_is_the_decision_s_own_figure_moved_to_the_load_that_was_measured():
    profile = Profile.from_json(profile_json())
    reading = read_roll([*series(OLD), *series(NEW, first=12)])
    case = seen(context(), reading, profile)

    def lawful(rps):
        return profile.compare(EAGLE, NO_SPECULATION, rps=rps).speedup

    bare = so_far(context().rollout, case)
    assert bare.predicted_speedup == pytest.approx(lawful(bare.load_rps))
    decided = so_far(context(predicted_speedup=3.0, load_rps=6.0).rollout, case)
    assert decided.load_rps == bare.load_rps < 6.0
    assert decided.predicted_speedup == pytest.approx(3.0 * lawful(bare.load_rps) / lawful(6.0))


def test_a_promise_under_bursts_is_moved_by_the_laws_of_bursts():
    profile = Profile.from_json(profile_json())
    reading = read_roll([*series(OLD), *series(NEW, first=12)])
    conditions = Conditions(dispersion=9.0)
    case = seen(context(), reading, profile, conditions)
    found = so_far(context(predicted_speedup=1.3, load_rps=6.0).rollout, case)

    def lawful(rps):
        return profile.curve(NO_SPECULATION, conditions).at_rps(rps) / profile.curve(
            EAGLE, conditions
        ).at_rps(rps)

    assert found.predicted_speedup == pytest.approx(1.3 * lawful(found.load_rps) / lawful(6.0))

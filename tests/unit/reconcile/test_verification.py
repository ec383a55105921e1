"""What a measurement after a roll confirms, what it disproves, and what it leaves open."""

from __future__ import annotations

import math
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from breakeven.arm import NO_SPECULATION
from breakeven.laws.latency import open_loop_latency
from breakeven.profile import Profile
from breakeven_operator.cluster_reasons import ClusterReason
from breakeven_operator.reconcile.live_metrics import Figures, Live
from breakeven_operator.reconcile.steps import RolloutContext
from breakeven_operator.reconcile.verification import confirm, disproved, settled
from breakeven_operator.resources.memorystatus import MemoryStatus
from breakeven_operator.resources.rolloutstatus import Rollout, RolloutPhase
from breakeven_operator.resources.updatepolicy import UpdatePolicy
from draws import draws
from fakes.fleet_world import BREAK_EVEN_RPS, EAGLE, LAWS, FleetWorld, profile_json

NOW = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)
WINDOW_S = 300.0
WORKLOAD = FleetWorld().target
PROFILE = Profile.from_json(profile_json())


def law_s(arm, rps):
    return float(open_loop_latency(*LAWS[arm], rps))


def measured(
    old,
    new,
    *,
    rps,
    latency_s,
    windows=3.5,
    requests=10_000.0,
    reason="GainAboveThreshold",
    prompt_tokens=200.0,
):
    """A roll and what is seen so many windows after it."""
    finished = NOW - timedelta(seconds=windows * WINDOW_S)
    rollout = Rollout(
        id="x",
        from_arm=old.name,
        to_arm=new.name,
        reason=reason,
        phase=RolloutPhase.CONFIRMING,
        finished_time=finished,
    )
    memory = MemoryStatus(failures=2, backoff_until_time=NOW)
    context = RolloutContext(
        UpdatePolicy(), WORKLOAD, memory, rollout, may_write=True, startup_s=20.0, now=NOW
    )
    figures = Figures(
        rps=rps,
        total_rps=2 * rps,
        requests=requests,
        window_s=WINDOW_S,
        inflight=rps * (latency_s or 0.0),
        waiting=0.0,
        latency_s=latency_s,
        ttft_s=0.1,
        tpot_s=0.01,
        tokens_per_step=1.0,
        acceptance=(),
        prompt_tokens=prompt_tokens,
        output_tokens=100.0,
        saturated=False,
        replicas=2,
        age_s=1.0,
    )
    return context, Live(ClusterReason.METRICS_AVAILABLE, "2 pods", figures)


def judged(old, new, *, profile=PROFILE, **seen):
    """The step that a measurement leads to."""
    context, live = measured(old, new, **seen)
    return confirm(context, profile, live, WINDOW_S)


def gone_back(old, new, **seen):
    """The step where the decision wants the old arm back."""
    context, live = measured(old, new, **seen)
    return disproved(context, PROFILE, live, old)


def outcome(step):
    if step is None:
        return "too early"
    return step.ended[0].result if step.ended else step.rollout.phase


def test_an_arm_as_fast_as_promised_is_confirmed_though_the_load_fell_to_where_the_old_one_is_faster():
    """Left at a high load, which fell before the measurement: the roll was right, and there is nothing to undo."""
    assert BREAK_EVEN_RPS > 3.0
    promised_s = law_s(NO_SPECULATION, 3.0)
    assert promised_s > 1.5 * law_s(EAGLE, 3.0)
    step = judged(
        EAGLE, NO_SPECULATION, rps=3.0, latency_s=0.98 * promised_s, reason="BeyondBreakEven", windows=1
    )
    assert outcome(step) == "Confirmed"
    assert step.memory.failures == 0
    assert step.ended[0].measured_speedup < 0.8
    assert "measured 0.57x against predicted 0.56x at 3 rps per replica" in step.ended[0].message


@pytest.mark.parametrize("reason", ["PeakAhead", "AcceptanceCollapsed", "SloViolated", "NeverPays"])
def test_whatever_it_was_decided_for_an_arm_as_fast_as_promised_is_confirmed(reason):
    """After a collapse the old arm's calibrated law promises what no text accepts any more."""
    step = judged(EAGLE, NO_SPECULATION, rps=3.0, latency_s=law_s(NO_SPECULATION, 3.0), reason=reason)
    assert outcome(step) == "Confirmed"


def test_requests_that_take_longer_than_either_arm_should_disprove_a_roll():
    step = judged(NO_SPECULATION, EAGLE, rps=3.0, latency_s=2.0)
    assert outcome(step) == "Undoing"
    assert (step.reason, step.rollout.reason) == ("RollDisproved", "RollDisproved")
    assert step.memory.failures == 3
    assert step.message == (
        "none -> eagle/3 undone: measured 0.59x against predicted 1.79x at 3 rps per replica; requests take 2 s where "
        "eagle/3 is predicted to take 0.657 s and none 1.18 s; next change in 7200 s at the earliest"
    )


def test_a_gain_smaller_than_promised_is_a_gain():
    between_s = (law_s(EAGLE, 3.0) + law_s(NO_SPECULATION, 3.0)) / 2
    assert outcome(judged(NO_SPECULATION, EAGLE, rps=3.0, latency_s=between_s, windows=1)) == "Confirmed"


def test_an_arm_faster_than_one_that_would_be_saturated_is_confirmed():
    step = judged(EAGLE, NO_SPECULATION, rps=13.0, latency_s=law_s(NO_SPECULATION, 13.0), windows=1)
    assert outcome(step) == "Confirmed"
    assert step.ended[0].measured_speedup is None
    assert "where eagle/3 would be saturated" in step.ended[0].message


def test_a_decision_that_goes_back_on_what_was_measured_undoes_the_roll():
    """By so much that going back pays: no window is waited for, and the next change waits longer."""
    step = gone_back(NO_SPECULATION, EAGLE, rps=3.0, latency_s=2.0, windows=0.5)
    assert outcome(step) == "Undoing"
    assert (step.reason, step.memory.failures) == ("RollDisproved", 3)


@pytest.mark.parametrize(
    "seen",
    [
        {"latency_s": law_s(EAGLE, 3.0)},
        {"latency_s": law_s(NO_SPECULATION, 3.0)},
        {"latency_s": 2.0, "reason": "Pinned"},
        {"latency_s": 2.0, "requests": 3.0},
        {"latency_s": None},
    ],
    ids=["as promised", "no slower than the old one", "a person's", "by chance", "not measured"],
)
def test_going_back_for_any_other_reason_is_a_change_of_its_own(seen):
    assert gone_back(NO_SPECULATION, EAGLE, rps=3.0, windows=0.5, **seen) is None


def test_windows_teach_once_what_a_roll_left_behind_is_worked_off():
    seen = {"rps": 3.0, "latency_s": 2.0}
    context, _ = measured(NO_SPECULATION, EAGLE, **seen, windows=2.0)
    assert not settled(context, WINDOW_S)
    context, _ = measured(NO_SPECULATION, EAGLE, **seen, windows=2.05)
    assert settled(context, WINDOW_S)
    assert settled(replace(context, rollout=None), WINDOW_S)


def test_a_third_arm_undoes_nothing():
    context, live = measured(NO_SPECULATION, EAGLE, rps=3.0, latency_s=2.0)
    assert disproved(context, PROFILE, live, EAGLE) is None


def test_a_disproof_must_outlast_the_windows_of_a_load_that_changed():
    slow = {"rps": 3.0, "latency_s": 2.0}
    assert outcome(judged(NO_SPECULATION, EAGLE, **slow, windows=0.9)) == "too early"
    assert outcome(judged(NO_SPECULATION, EAGLE, **slow, windows=1.0)) == "too early"
    assert outcome(judged(NO_SPECULATION, EAGLE, **slow, windows=2.9)) == "too early"
    assert outcome(judged(NO_SPECULATION, EAGLE, **slow, windows=3.0)) == "Undoing"


def test_what_chance_explains_disproves_nothing():
    """Forty requests that share an engine tell little: 30 % more than promised is within their scatter."""
    slow_s = 1.3 * law_s(NO_SPECULATION, 8.0)
    assert outcome(judged(NO_SPECULATION, EAGLE, rps=8.0, latency_s=slow_s, requests=40)) == "Unconfirmed"
    assert outcome(judged(NO_SPECULATION, EAGLE, rps=8.0, latency_s=slow_s)) == "Undoing"


def test_where_no_law_is_to_be_trusted_nothing_is_disproved():
    # Eagle is at 92 % of its saturation, then beyond it.
    assert outcome(judged(NO_SPECULATION, EAGLE, rps=11.5, latency_s=20.0)) == "Unconfirmed"
    beyond = judged(NO_SPECULATION, EAGLE, rps=13.0, latency_s=20.0)
    assert outcome(beyond) == "Unconfirmed"
    assert "eagle/3 is predicted to take ever longer (saturated)" in beyond.ended[0].message


def test_a_pinned_arm_is_not_undone_by_figures():
    step = judged(NO_SPECULATION, EAGLE, rps=3.0, latency_s=2.0, reason="Pinned")
    assert outcome(step) == "Unconfirmed"
    assert step.write is None
    assert outcome(judged(NO_SPECULATION, EAGLE, rps=3.0, latency_s=0.6, reason="Pinned")) == "Confirmed"


def test_a_change_that_cannot_be_measured_ends_unconfirmed_after_six_windows():
    for missing in ({"latency_s": None}, {"latency_s": 1.0, "profile": None}):
        assert outcome(judged(NO_SPECULATION, EAGLE, rps=3.0, windows=5.9, **missing)) == "too early"
        step = judged(NO_SPECULATION, EAGLE, rps=3.0, windows=6.0, **missing)
        assert outcome(step) == "Unconfirmed"
        assert "none -> eagle/3 could not be measured: " in step.ended[0].message


MEASURED = st.fixed_dictionaries(
    {
        "requests": st.floats(1.0, 1e6),
        "windows": st.floats(0.0, 10.0),
        "reason": st.sampled_from(["GainAboveThreshold", "BeyondBreakEven", "Pinned", "PeakAhead"]),
    }
)


@draws(60)
@given(st.booleans(), st.floats(0.1, 25.0), st.floats(0.001, 1.029), MEASURED)
def test_what_is_as_fast_as_one_of_the_predictions_is_never_undone(entering, rps, factor, measured):
    old, new = (NO_SPECULATION, EAGLE) if entering else (EAGLE, NO_SPECULATION)
    slower_s = max(law_s(old, rps), law_s(new, rps))
    # Beyond saturation no latency is predicted, and none is too high.
    latency_s = factor * (slower_s if math.isfinite(slower_s) else 60.0)
    assert outcome(judged(old, new, rps=rps, latency_s=latency_s, **measured)) != "Undoing"


@draws(60)
@given(
    st.booleans(),
    st.floats(0.1, 25.0),
    st.floats(0.05, 60.0),
    MEASURED,
    st.floats(0.0, 3.0, exclude_max=True),
)
def test_nothing_is_undone_before_the_third_window_nor_against_a_pin(
    entering, rps, latency_s, measured, early
):
    old, new = (NO_SPECULATION, EAGLE) if entering else (EAGLE, NO_SPECULATION)
    for given_up in ({"windows": early}, {"reason": "Pinned"}):
        step = judged(old, new, rps=rps, latency_s=latency_s, **{**measured, **given_up})
        assert outcome(step) != "Undoing"


@draws(60)
@given(st.booleans(), st.floats(0.1, 20.0), st.floats(1.3, 60.0, exclude_min=True), MEASURED)
def test_what_is_slower_than_both_predictions_is_never_confirmed(entering, rps, factor, measured):
    old, new = (NO_SPECULATION, EAGLE) if entering else (EAGLE, NO_SPECULATION)
    assume(rps < 1 / LAWS[new][1])
    step = judged(old, new, rps=rps, latency_s=factor * max(law_s(old, rps), law_s(new, rps)), **measured)
    assert outcome(step) != "Confirmed"

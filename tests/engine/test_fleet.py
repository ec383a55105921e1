"""Fleets, rolls and replays: what happens to requests, and that both kinds of replay agree."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

from breakeven.arm import NO_SPECULATION, Arm
from breakeven.planning.objective import Policy
from breakeven.profile import Profile
from breakeven_sim.engine.costs import EngineCosts, parse_costs
from breakeven_sim.engine.requests import Request
from breakeven_sim.replay.fleet import Fleet
from breakeven_sim.replay.fleet_arms import CostArms, LawArms
from breakeven_sim.replay.loops import closed_loop
from breakeven_sim.replay.measured import measured_profile
from breakeven_sim.replay.stepping import PiecewiseLaw, SteppedFleet
from breakeven_sim.replay.study import Study
from breakeven_sim.replay.traces import RateTrace, RequestTrace
from fakes.lawful_profile import lawful_profile_json

EAGLE = Arm("eagle3", 3)
LENGTHS = np.array([40]), np.array([48])


@pytest.fixture(scope="module")
def costs() -> EngineCosts:
    """The demo's H100: no speculation saturates near 24 rps, eagle3/3 breaks even near 9."""
    from pathlib import Path

    text = (Path(__file__).parents[2] / "examples/engine-costs/demo.json").read_text()
    return parse_costs(text, "H100", "demo")


@pytest.fixture(scope="module")
def profile(costs):
    return measured_profile(CostArms(costs), [NO_SPECULATION, EAGLE], *LENGTHS, seed=3)


def rates_trace(rates: list[float], length_s: float = 600.0) -> RateTrace:
    starts = np.arange(len(rates)) * length_s
    return RateTrace(starts, np.full(len(rates), length_s), np.array(rates))


def poisson_of(trace: RateTrace, seed: int = 1) -> RequestTrace:
    random = np.random.default_rng(seed)
    arrivals = [
        start + np.sort(random.uniform(0, length, random.poisson(rate * length)))
        for start, length, rate in zip(trace.start_s, trace.length_s, trace.rate_rps, strict=True)
    ]
    times = np.concatenate(arrivals)
    return RequestTrace(times, np.full(len(times), 40), np.full(len(times), 48))


def test_a_roll_renews_one_replica_after_another_and_loses_nobody(costs):
    fleet = Fleet(CostArms(costs), NO_SPECULATION, 3, roll_s=10.0)
    random = np.random.default_rng(1)
    arrivals = np.cumsum(random.exponential(0.1, 1200))
    serving = []
    for number, at in enumerate(arrivals.tolist()):
        if number == 300:
            fleet.roll(EAGLE, at)
        fleet.offer(Request(number, at, 40, 48))
        serving.append(fleet.serving)
    assert serving[:300] == [3] * 300
    assert set(serving[300:]) == {2, 3}
    # Three drains and start-ups one after another, then all three serve again.
    begin, end = arrivals[300], arrivals[len(serving) - serving[::-1].index(2)]
    assert 30.0 <= end - begin <= 40.0
    fleet.to(math.inf)
    assert sorted(r.number for r in fleet.finished) == list(range(1200))
    assert (fleet.switches, fleet.rolling, fleet.arm) == (1, False, EAGLE)
    assert [r.drafts > 0 for r in sorted(fleet.finished, key=lambda r: r.number)[:300]] == [False] * 300
    assert all(r.drafts for r in fleet.finished if r.arrival_s > end)


@pytest.mark.parametrize(("replicas", "away", "turns"), [(2, 1, 2), (8, 2, 4), (9, 2, 5), (200, 50, 4)])
def test_a_large_fleet_is_rolled_a_quarter_at_a_time_in_both_kinds_of_replay(costs, replicas, away, turns):
    fleet = Fleet(CostArms(costs), NO_SPECULATION, replicas, roll_s=10.0)
    fleet.roll(EAGLE, 0.0)
    assert fleet.serving == replicas - away
    fleet.to(turns * 10.0 - 0.1)
    assert fleet.rolling
    fleet.to(turns * 10.0)
    assert (fleet.rolling, fleet.serving, fleet.away_s) == (False, replicas, replicas * 10.0)

    stepped = SteppedFleet(lambda _: PiecewiseLaw(1.0, 0.04), NO_SPECULATION, replicas, roll_s=10.0)
    stepped.roll(EAGLE, 0.0)
    assert (stepped.rolling(turns * 10.0 - 0.1), stepped.rolling(turns * 10.0)) == (True, False)
    # The same replica-seconds are lost.
    window = stepped.step(0, 0.0, turns * 10.0, 1.0 * replicas)
    assert window.rps == pytest.approx(replicas / (replicas - replicas / turns))


def test_a_single_replica_is_rolled_with_a_surge(costs):
    fleet = Fleet(CostArms(costs), NO_SPECULATION, 1, roll_s=10.0)
    fleet.roll(EAGLE, 0.0)
    for number, at in enumerate((5.0, 9.9, 10.1)):
        fleet.offer(Request(number, at, 40, 48))
        assert fleet.serving == 1
    fleet.to(math.inf)
    assert [r.drafts > 0 for r in sorted(fleet.finished, key=lambda r: r.number)] == [False, False, True]
    assert fleet.away_s == 0.0


def test_one_roll_at_a_time(costs):
    fleet = Fleet(CostArms(costs), NO_SPECULATION, 2, roll_s=10.0)
    fleet.roll(NO_SPECULATION, 0.0)
    assert fleet.switches == 0
    fleet.roll(EAGLE, 1.0)
    with pytest.raises(RuntimeError, match="one roll at a time"):
        fleet.roll(NO_SPECULATION, 2.0)


def test_a_change_in_place_keeps_requests_and_changes_their_pace(costs):
    changed = Fleet(CostArms(costs), NO_SPECULATION, 1, roll_s=0.0)
    changed.offer(Request(0, 0.0, 40, 400))
    changed.roll(EAGLE, 2.0)
    changed.to(math.inf)
    request = changed.finished[0]
    assert request.generated == 400
    plain = Fleet(CostArms(costs), NO_SPECULATION, 1, roll_s=0.0)
    plain.offer(Request(0, 0.0, 40, 400))
    plain.to(math.inf)
    assert request.finished_s < 0.7 * plain.finished[0].finished_s
    assert request.drafts > 0


def test_a_closed_loop_follows_its_law(costs, profile):
    fit = profile.arm(NO_SPECULATION)
    requests = [Request(i, 0.0, 40, 48) for i in range(600)]
    closed_loop(CostArms(costs), NO_SPECULATION, requests, clients=8)
    latency = np.mean([r.finished_s - r.arrival_s for r in requests[16:-16]])
    assert latency == pytest.approx(fit.c1_s + 7 * fit.c2_s, rel=0.05)


def test_calibration_finds_the_engine_s_own_coefficients(costs, profile):
    tokens, prompt = 48, 40
    fit = profile.arm(NO_SPECULATION)
    step = costs.step
    assert fit.c2_s == pytest.approx(tokens * step.per_token_s + prompt * step.per_prefill_token_s, rel=0.05)
    # Alone: every step, the prompt, and on average half a step before it begins.
    assert fit.c1_s == pytest.approx((tokens + 0.4) * (step.base_s + step.per_token_s), rel=0.03)
    assert profile.arm(EAGLE).tokens_per_step == pytest.approx(2.7, rel=0.08)


@pytest.fixture(scope="module")
def slow_arms(costs) -> CostArms:
    """At 4 times the step times an hour has few requests."""
    return CostArms(costs.model_copy(update={"time_scale": 4.0}))


@pytest.fixture(scope="module")
def slow_profile(slow_arms):
    return measured_profile(slow_arms, [NO_SPECULATION, EAGLE], *LENGTHS, seed=3)


@pytest.mark.parametrize("name", ["none", "static:eagle3:3"])
def test_both_kinds_of_replay_agree_where_they_overlap(slow_arms, slow_profile, name):
    """The same hours as rates and as Poisson requests, up to utilisation 0.65."""
    rates = rates_trace([3.0, 5.0, 6.0], 1200.0)
    outcomes = [
        Study(slow_arms, slow_profile, trace, [EAGLE], 4, Policy()).outcome(name)
        for trace in (rates, poisson_of(rates))
    ]
    one, other = outcomes
    assert one.requests == pytest.approx(other.requests, rel=0.03)
    assert one.mean_latency_s == pytest.approx(other.mean_latency_s, rel=0.05)
    assert one.p95_latency_s == pytest.approx(other.p95_latency_s, rel=0.15)


def test_the_decision_code_switches_alike_in_both(slow_arms, slow_profile):
    """Speculation below the break-even, none beyond it, speculation again."""
    rates = rates_trace([3.0] * 2 + [7.8] * 2 + [3.0] * 2)
    policy = Policy(cooldown_s=600, dwell_s=300, roll_seconds=10.0)
    for trace in (rates, poisson_of(rates)):
        of_now = Study(slow_arms, slow_profile, trace, [EAGLE], 4, policy, every_s=150.0, lookback_s=0.0)
        assert of_now.outcome("breakeven").switches == 3
        assert {"GainAboveThreshold", "BeyondBreakEven", "BelowBreakEven"} <= set(of_now.reasons)
        # Who remembers the peak of an hour ago does not enter again at once.
        remembering = Study(slow_arms, slow_profile, trace, [EAGLE], 4, policy, every_s=150.0)
        assert remembering.outcome("breakeven").switches < 3
        assert {"PeakAhead", "RiskTooHigh"} & set(remembering.reasons)


@pytest.mark.parametrize(
    ("replicas", "roll_seconds", "switches", "reason"),
    [(1, 300.0, 1, "BelowBreakEven"), (4, 300.0, 1, "BelowBreakEven"), (4, 6000.0, 0, "RollNotWorthIt")],
)
def test_a_roll_that_takes_replicas_away_has_to_pay_for_them(replicas, roll_seconds, switches, reason):
    """A lone replica is renewed with a surge pod; of four, three would have to serve 9 rps each."""
    laws = {NO_SPECULATION: (1.2, 0.07), EAGLE: (0.92, 0.072)}
    tokens_per_step = {NO_SPECULATION: 1.0, EAGLE: 2.4}
    profile = Profile.from_json(
        lawful_profile_json(laws, tokens_per_step, prompt_tokens=64, output_tokens=64, gpu="A100")
    )
    policy = Policy(
        cooldown_s=600, dwell_s=300, horizon_s=3600, min_gain=0.02, roll_seconds=roll_seconds, lookback_s=0.0
    )
    trace = rates_trace([9.0 * replicas] * 6)
    study = Study(LawArms(profile, tokens=64), profile, trace, [EAGLE], replicas, policy, lookback_s=0.0)
    assert study.outcome("breakeven").switches == switches
    assert reason in study.reasons


def test_the_peak_of_yesterday_is_left_in_time(slow_profile):
    """Three days with four busy hours: the first two surprise, the third one is seen coming.

    One day is a third of what is expected then: too little to give up what speculation saves until the first busy minute.
    """
    day = [3.0] * 20 + [7.2] * 4
    trace = RateTrace(np.arange(72.0) * 3600.0, np.full(72, 3600.0), np.array(day * 3))
    policy = Policy(cooldown_s=600, dwell_s=300, roll_seconds=60.0, day_risk=1.0)
    study = Study(LawArms(slow_profile, tokens=64), slow_profile, trace, [EAGLE], 4, policy)
    outcome, none = study.outcome("breakeven"), study.outcome("none")
    assert outcome.switches == 6
    busy = np.isclose(none.window_latency_s, none.window_latency_s.max(), rtol=0.2).reshape(3, -1)
    slower = (outcome.window_latency_s / none.window_latency_s).reshape(3, -1)
    assert slower[0][busy[0]].max() > 1.5
    # The third peak is met without speculation, and the night is not.
    assert slower[2][busy[2]].max() < 1.05
    assert slower[2, 24 * 8 : 24 * 14].max() < 0.8
    assert outcome.mean_latency_s < 1.08 * study.outcome("oracle").mean_latency_s


def test_a_stepped_fleet_rests_at_the_law_and_drains_a_queue():
    law = PiecewiseLaw(1.0, 0.05)
    fleet = SteppedFleet(lambda _: law, NO_SPECULATION, 4, 0.0)
    rest = fleet.step(0, 0.0, 6000.0, 4 * 10.0)
    assert rest.latency_s == pytest.approx(1.0 / (1 - 10 * 0.05), rel=1e-9)
    flooded = fleet.step(1, 600.0, 600.0, 4 * 30.0)
    assert flooded.saturated
    # 10 requests per second stay behind: 6,000 after the window, 3,000 on average.
    assert flooded.inflight == pytest.approx(3000, rel=0.15)
    after = fleet.step(2, 1200.0, 600.0, 4 * 5.0)
    assert after.inflight > 500
    calm = fleet.step(3, 1800.0, 600.0, 4 * 5.0)
    assert calm.latency_s == pytest.approx(1.0 / (1 - 5 * 0.05), rel=0.05)


def test_a_stepped_roll_goes_through_a_mixture_with_one_replica_away():
    laws = {NO_SPECULATION: PiecewiseLaw(1.0, 0.04), EAGLE: PiecewiseLaw(0.5, 0.08)}
    fleet = SteppedFleet(laws.__getitem__, NO_SPECULATION, 4, roll_s=300.0)
    before = fleet.step(0, 0.0, 600.0, 20.0)
    fleet.roll(EAGLE, 600.0)
    during = [fleet.step(1 + i, 600.0 + 600.0 * i, 600.0, 20.0) for i in range(2)]
    after = fleet.step(3, 1800.0, 600.0, 20.0)
    assert (before.rps, during[0].rps, during[1].rps, after.rps) == pytest.approx((5.0, 20 / 3, 20 / 3, 5.0))
    # A quarter of the way through the roll on average, then three quarters.
    for window, share in zip(during, (0.25, 0.75), strict=True):
        c1, c2 = 1.0 - share * 0.5, 0.04 + share * 0.04
        assert window.latency_s == pytest.approx(c1 / (1 - 20 / 3 * c2), rel=0.02)
    assert after.latency_s == pytest.approx(0.5 / (1 - 5 * 0.08), rel=0.02)


def test_law_arms_follow_the_profile_on_the_event_clock(profile):
    fit = profile.arm(EAGLE)
    arms = LawArms(profile, tokens=48)
    rps = 0.5 / fit.c2_s
    trace = poisson_of(rates_trace([rps], 3000.0))
    outcome = Study(arms, profile, trace, [EAGLE], 1, Policy()).outcome("static:eagle3:3")
    assert outcome.mean_latency_s == pytest.approx(fit.c1_s / (1 - rps * fit.c2_s), rel=0.06)


def test_a_schedule_drafts_less_in_larger_batches(costs, profile):
    for arms in (CostArms(costs), LawArms(profile, 48)):
        study = Study(arms, profile, rates_trace([6.0, 24.0]), [EAGLE], 2, Policy())
        outcome = study.outcome("schedule")
        (schedule,) = arms.schedules.values()
        lengths = [k for _, k in schedule.tiers]
        assert lengths[0] == 3
        assert lengths == sorted(lengths, reverse=True)
        none = study.outcome("none").window_latency_s
        # Drafts while few are there, and as the load rises hardly more than what resting drafters cost.
        assert outcome.window_latency_s[0] < 0.75 * none[0]
        assert outcome.window_latency_s[1] < 2.0 * none[1]


def test_requests_longer_than_the_pool_are_counted_out(costs, profile):
    trace = RequestTrace(np.array([0.0, 1.0]), np.array([10**7, 40]), np.array([48, 48]))
    study = Study(CostArms(costs), profile, trace, [EAGLE], 1, Policy())
    assert study.left_out == 1
    assert study.outcome("none").requests == 1


def test_time_below_one_is_told_by_window(costs, profile):
    rates = rates_trace([8.0] * 3 + [26.0] * 3)
    study = Study(CostArms(costs), profile, rates, [EAGLE], 2, Policy())
    none = study.outcome("none")
    assert none.seconds_below_one(none) == 0.0
    assert study.outcome("static:eagle3:3").seconds_below_one(none) == 1800.0


def test_slo_attainment_counts_requests(costs, profile):
    from breakeven.planning.objective import Slo

    rates = rates_trace([8.0] * 2)
    policy = Policy(slo=Slo(e2e_s=1.5))
    shares = [
        Study(CostArms(costs), profile, trace, [EAGLE], 2, policy).outcome("none").slo_attainment
        for trace in (rates, poisson_of(rates))
    ]
    assert 0.5 < shares[1] < 1.0
    assert shares[0] == pytest.approx(shares[1], abs=0.1)


def test_the_same_seed_gives_the_same_replay(costs, profile):
    trace = poisson_of(rates_trace([10.0]))
    runs = [
        Study(CostArms(costs, seed=4), profile, trace, [EAGLE], 2, Policy(), seed=4).outcome("breakeven")
        for _ in range(2)
    ]
    assert runs[0].mean_latency_s == runs[1].mean_latency_s
    other = Study(CostArms(costs, seed=5), profile, trace, [EAGLE], 2, Policy(), seed=5).outcome("breakeven")
    assert other.mean_latency_s != runs[0].mean_latency_s


def test_outcome_documents_are_json(costs, profile):
    study = Study(CostArms(costs), profile, rates_trace([0.0, 0.0]), [EAGLE], 1, Policy())
    outcome = study.outcome("none")
    assert (outcome.requests, outcome.mean_latency_s) == (0.0, None)
    json.dumps(outcome.mean_latency_s)

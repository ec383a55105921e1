"""Hindsight bounds every policy: planned exactly as fleets are replayed, with and without paying for rolls."""

from __future__ import annotations

import copy
import itertools
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from breakeven.arm import NO_SPECULATION, Arm
from breakeven.fitting import fit_points
from breakeven.planning.objective import Policy
from breakeven.points.point import LoadMode, Origin, Point
from breakeven_sim.engine.costs import parse_costs
from breakeven_sim.replay import hindsight
from breakeven_sim.replay.controllers import follow
from breakeven_sim.replay.fleet_arms import CostArms, LawArms
from breakeven_sim.replay.hindsight import best_plan, free_windows
from breakeven_sim.replay.measured import measured_profile
from breakeven_sim.replay.stepping import SUBSTEPS, PiecewiseLaw, SteppedFleet, implicit, step_through
from breakeven_sim.replay.study import Study
from breakeven_sim.replay.trace_files import read_trace
from breakeven_sim.replay.traces import RateTrace, RequestTrace
from draws import draws
from validation.published import data_folder

EAGLE, LONGER = Arm("eagle3", 3), Arm("eagle3", 5)
SCHEDULE = Arm("eagle3", 5, candidate="schedule:eagle3")
# Fast alone; slower alone but nearly as good as none among many; none. The bent one follows no single line.
LAWS = {
    NO_SPECULATION: PiecewiseLaw(1.20, 0.070),
    EAGLE: PiecewiseLaw(0.78, 0.085),
    LONGER: PiecewiseLaw(0.92, 0.072),
    SCHEDULE: PiecewiseLaw(0.80, 0.071, ((0.0, 0.80), (10.0, 1.62), (40.0, 3.85))),
}
DATA = data_folder()


def rates_trace(rates: list[float], length_s: float = 600.0) -> RateTrace:
    starts = np.arange(len(rates)) * length_s
    return RateTrace(starts, np.full(len(rates), length_s), np.array(rates))


def poisson_of(trace: RateTrace, seed: int = 1) -> RequestTrace:
    random = np.random.default_rng(seed)
    rows = zip(trace.start_s, trace.length_s, trace.rate_rps, strict=True)
    times = np.concatenate(
        [
            start + np.sort(random.uniform(0, length, random.poisson(rate * length)))
            for start, length, rate in rows
        ]
    )
    return RequestTrace(times, np.full(len(times), 40), np.full(len(times), 48))


def replayed_s(trace: RateTrace, fleet: SteppedFleet, changes: list[tuple[float, Arm]]) -> float:
    """Total latency of all requests while a fleet follows its changes."""
    left = list(changes)
    windows = step_through(fleet, trace, lambda _, end_s: follow(left, fleet, end_s))
    return float(
        sum(w.latency_s * r * h for w, r, h in zip(windows, trace.rate_rps, trace.length_s, strict=True))
    )


def spent_s(trace: RateTrace, plan: hindsight.SwitchPlan, law, replicas: int, roll_s: float) -> float:
    fleet = SteppedFleet(law, plan.changes[0][1], replicas, roll_s)
    return replayed_s(trace, fleet, list(plan.changes[1:]))


def freely_spent_s(trace: RateTrace, laws: dict[Arm, PiecewiseLaw], replicas: int) -> float:
    windows, _ = free_windows(trace, laws, replicas)
    return float(
        sum(w.latency_s * r * h for w, r, h in zip(windows, trace.rate_rps, trace.length_s, strict=True))
    )


def laws_of(*arms: Arm) -> dict[Arm, PiecewiseLaw]:
    return {arm: LAWS[arm] for arm in arms}


def every_way_s(trace: RateTrace, arms: list[Arm], law, replicas: int, roll_s: float) -> float:
    """The least that any arm at the start and any rolls at the ends of windows let requests spend."""
    rows = list(zip(trace.start_s.tolist(), trace.length_s.tolist(), trace.rate_rps.tolist(), strict=True))

    def least_s(fleet: SteppedFleet, index: int) -> float:
        if index == len(rows):
            return 0.0
        start_s, length_s, rate = rows[index]
        here_s = fleet.step(index, start_s, length_s, rate).latency_s * rate * length_s
        ways = []
        for arm in [fleet.arm] if fleet.rolling(start_s + length_s) else arms:
            other = copy.copy(fleet)
            other.roll(arm, start_s + length_s)
            ways.append(least_s(other, index + 1))
        return here_s + min(ways)

    return min(least_s(SteppedFleet(law, arm, replicas, roll_s), 0) for arm in arms)


# Loads around saturation (14 rps per replica), with gaps as in traces with missing windows -----------------


@st.composite
def loads(draw, most: int, peak: float = 1.3) -> RateTrace:
    """Per replica: quiet and busy stretches and bursts beyond what any arm can serve."""
    quiet, busy = draw(st.floats(0.0, 0.6)), draw(st.floats(0.6, 1.0))
    shares = draw(
        st.lists(st.sampled_from([quiet, busy, (quiet + busy) / 2, peak]), min_size=3, max_size=most)
    )
    lengths = np.array(draw(st.sampled_from([[150.0], [600.0], [150.0, 40.0], [300.0, 150.0, 150.0]])))
    lengths = np.resize(lengths, len(shares))
    starts = np.cumsum(lengths) - lengths
    if draw(st.booleans()):
        starts[len(shares) // 2 :] += 700.0
    return RateTrace(starts, lengths, 14.0 * np.array(shares))


def scaled(trace: RateTrace, replicas: int) -> RateTrace:
    return trace.faster(float(replicas))


@draws(40)
@given(loads(6), st.sampled_from([1, 2, 4, 9]), st.sampled_from([0.0, 30.0, 75.0, 300.0]), st.booleans())
def test_a_plan_is_the_best_of_all_sequences_with_rolls(trace, replicas, roll_s, bent):
    arms = [NO_SPECULATION, EAGLE, SCHEDULE if bent else LONGER]
    trace = scaled(trace, replicas)
    plan = best_plan(trace, laws_of(*arms), replicas, roll_s)
    assert plan.spent_s == pytest.approx(
        every_way_s(trace, arms, LAWS.__getitem__, replicas, roll_s), rel=1e-6
    )


@draws(40)
@given(loads(30), st.sampled_from([1, 3, 8, 40]), st.sampled_from([0.0, 20.0, 300.0, 1000.0]))
def test_a_plan_costs_what_its_replay_costs(trace, replicas, roll_s):
    trace = scaled(trace, replicas)
    plan = best_plan(trace, LAWS, replicas, roll_s)
    assert spent_s(trace, plan, LAWS.__getitem__, replicas, roll_s) == pytest.approx(plan.spent_s, rel=1e-9)


def test_a_plan_with_few_fleets_kept_costs_what_its_replay_costs():
    random = np.random.default_rng(3)
    trace = rates_trace((4 * random.choice([5.0, 11.0, 17.0], 20).repeat(4)).tolist(), 150.0)
    args = (laws_of(NO_SPECULATION, EAGLE, LONGER), 4, 100.0)
    full = best_plan(trace, *args)
    thin = best_plan(trace, *args, kept_per_arm=1, starts_per_roll=2)
    assert len(full.changes) > 2
    assert full.spent_s < thin.spent_s < 1.2 * full.spent_s
    assert spent_s(trace, thin, LAWS.__getitem__, *args[1:]) == pytest.approx(thin.spent_s, rel=1e-9)


def test_rolls_begin_seldom_enough_for_short_windows():
    """Within the 600 s that a roll takes, 32 moments to begin one: every 19 s, not at the end of every second."""
    trace = rates_trace([5.0] * 950 + [16.5] * 1500, 1.0)
    args = (laws_of(NO_SPECULATION, EAGLE), 1, 600.0)

    def begun_s(**options):
        return [at_s for at_s, _ in best_plan(trace, *args, **options).changes[1:]]

    assert begun_s()
    assert all((at_s - 1.0) % 19.0 == 0.0 for at_s in begun_s())
    assert any((at_s - 1.0) % 19.0 for at_s in begun_s(starts_per_roll=600))


def test_the_greedy_choice_is_the_best_of_all_sequences():
    # From few in flight into a load at which the break-even (28 in flight) is crossed within the window.
    laws, h = [LAWS[NO_SPECULATION], LAWS[EAGLE]], 1.0
    trace = rates_trace([1.0, 13.5], h * SUBSTEPS)
    windows, changes = free_windows(trace, laws_of(NO_SPECULATION, EAGLE), 1)
    found = []
    for sequence in itertools.product((0, 1), repeat=SUBSTEPS):
        n, mean_s = 1.0 * LAWS[EAGLE].at_rps(1.0), 0.0
        for place in sequence:
            n = implicit(n, 13.5, laws[place], h)
            mean_s += laws[place].mean_s(n) / SUBSTEPS
        found.append((mean_s, sequence))
    best_s, best = min(found)
    assert windows[1].latency_s == pytest.approx(best_s, rel=1e-9)
    assert best == tuple(sorted(best, reverse=True))
    assert 0 < sum(best) < SUBSTEPS
    assert [w.arm for w in windows] == [EAGLE, NO_SPECULATION]
    assert changes == 1


@draws(30)
@given(loads(20), st.sampled_from([1, 4, 40]))
def test_no_plan_is_better_than_the_greedy_choice(trace, replicas):
    trace = scaled(trace, replicas)
    laws = laws_of(NO_SPECULATION, EAGLE, LONGER)
    free_s = freely_spent_s(trace, laws, replicas)
    for roll_s in (0.0, 60.0):
        plan = best_plan(trace, laws, replicas, roll_s)
        assert free_s <= plan.spent_s * (1 + 1e-9)


def test_rolls_are_planned_only_when_they_are_worth_it():
    laws = {NO_SPECULATION: PiecewiseLaw(1.0, 0.04), EAGLE: PiecewiseLaw(0.5, 0.09)}
    swing = rates_trace([2.0, 2.0, 10.0, 10.0, 2.0, 2.0])
    free = best_plan(swing, laws, 1, 0.0)
    # At rest before the rise, and back when the queue is gone.
    assert free.changes == ((0.0, EAGLE), (1200.0, NO_SPECULATION), (2400.0, EAGLE))
    short = rates_trace([16.0, 16.0, 64.0, 16.0, 16.0])
    assert len(best_plan(short, laws, 8, 0.0).changes) == 3
    assert best_plan(short, laws, 8, 600.0).changes == ((0.0, EAGLE),)


def test_a_short_roll_costs_its_own_time_only():
    # A minute of a roll in a window of ten: two such rolls cost less than a peak on the slower arm.
    trace = rates_trace([10.0, 10.0, 26.0, 26.0, 10.0, 10.0])
    laws = {NO_SPECULATION: PiecewiseLaw(1.0, 0.05), EAGLE: PiecewiseLaw(0.5, 0.065)}
    arms = [arm for _, arm in best_plan(trace, laws, 2, 30.0).changes]
    assert arms == [EAGLE, NO_SPECULATION, EAGLE]
    assert len(best_plan(trace, laws, 2, 900.0).changes) == 1


# Against the policies that are compared -------------------------------------------------------------------


def fitted(laws: dict[Arm, tuple[float, float]]):
    """A profile whose arms follow their laws at closed loads."""
    return fit_points(
        [
            Point(
                method=arm.method,
                k=arm.k,
                load_mode=LoadMode.CLOSED,
                mean_latency_s=c1 + c2 * (clients - 1),
                origin=Origin("law", row),
                concurrency=clients,
                requests=1000.0,
            )
            for arm, (c1, c2) in laws.items()
            for row, clients in enumerate((1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0), start=2)
        ],
        provenance={},
    )


POLICIES = ("oracle-free", "oracle", "static:eagle3:5", "breakeven", "static:eagle3:3", "none")


def bounds_hold(study: Study) -> None:
    """In the order that would find them out, should they depend on what was asked before."""
    mean_s = {name: study.outcome(name).mean_latency_s for name in study.compared}
    compared = {name: value for name, value in mean_s.items() if not name.startswith("oracle")}
    assert mean_s["oracle"] <= min(compared.values()), mean_s
    assert mean_s["oracle-free"] <= mean_s["oracle"], mean_s


def plans_hold(study: Study) -> None:
    """The plans bound the others by themselves, not only because the best of all is taken."""
    laws = {arm: study.law(arm) for arm in (NO_SPECULATION, *study.candidates)}
    plan = best_plan(study.trace, laws, study.replicas, study.policy.roll_seconds)
    free_s = freely_spent_s(study.trace, laws, study.replicas)
    others_s = [study.outcome(name).mean_latency_s * study.trace.requests for name in POLICIES[2:]]
    assert plan.spent_s <= min(others_s) * (1 + 1e-6)
    oracle_s, free_oracle_s = (
        study.outcome(name).mean_latency_s * study.trace.requests for name in ("oracle", "oracle-free")
    )
    assert oracle_s <= plan.spent_s * (1 + 1e-9)
    assert free_oracle_s <= free_s * (1 + 1e-9)
    assert free_s <= plan.spent_s * (1 + 1e-9)


@draws(15)
@given(
    loads(25, peak=1.15).filter(lambda trace: trace.requests > 0),
    st.sampled_from([1, 4, 40]),
    st.sampled_from([0.0, 60.0, 300.0]),
    st.tuples(st.floats(0.5, 1.1), st.floats(0.06, 0.1)),
    st.tuples(st.floats(0.5, 1.3), st.floats(0.05, 0.09)),
)
def test_no_policy_is_faster_than_hindsight(trace, replicas, roll_s, one, other):
    profile = fitted({NO_SPECULATION: (1.2, 0.07), EAGLE: one, LONGER: other})
    policy = Policy(cooldown_s=600.0, dwell_s=150.0, roll_seconds=roll_s)
    study = Study(
        LawArms(profile, 256.0),
        profile,
        scaled(trace, replicas),
        [EAGLE, LONGER],
        replicas,
        policy,
        compared=POLICIES,
    )
    bounds_hold(study)
    plans_hold(study)


@pytest.mark.skipif(
    DATA is None, reason="no recorded traces: set BREAKEVEN_DATA or put them at ../shared/data"
)
@pytest.mark.parametrize(
    ("name", "replicas"),
    [
        ("servegen_m_large_week1_10min", 30),
        ("servegen_m_mid_10min", 250),
        ("servegen_m_small_10min", 200),
        ("servegen_m_small_10min", 300),
    ],
)
def test_no_policy_is_faster_than_hindsight_under_real_loads(name, replicas):
    """Three days around saturation, where plans from the latency at rest were 5 % behind a policy without hindsight."""
    loaded = read_trace(DATA / "traces" / f"{name}.csv")
    assert isinstance(loaded, RateTrace)
    trace = RateTrace(loaded.start_s[:432], loaded.length_s[:432], loaded.rate_rps[:432])
    profile = fitted({arm: (LAWS[arm].c1_s, LAWS[arm].c2_s) for arm in (NO_SPECULATION, EAGLE, LONGER)})
    policy = Policy(roll_seconds=300.0)
    study = Study(
        LawArms(profile, 256.0), profile, trace, [EAGLE, LONGER], replicas, policy, compared=POLICIES
    )
    bounds_hold(study)
    plans_hold(study)


@pytest.fixture(scope="module")
def engine():
    """The demo's H100: no speculation saturates near 24 rps, eagle3/3 breaks even near 9; and its profile."""
    path = Path(__file__).parents[2] / "examples/engine-costs/demo.json"
    costs = parse_costs(path.read_text(), "H100", "demo")
    lengths = np.array([40]), np.array([48])
    return costs, measured_profile(CostArms(costs), [NO_SPECULATION, EAGLE], *lengths, seed=3)


@pytest.mark.parametrize(
    ("rates", "schedule"), [([6.0, 26.0, 6.0], ()), ([6.0, 26.0, 6.0], ("schedule",)), ([5.0, 47.0, 5.0], ())]
)
def test_no_policy_is_faster_than_hindsight_in_both_kinds_of_replay(engine, rates, schedule):
    costs, profile = engine
    policy = Policy(cooldown_s=60.0, dwell_s=60.0, roll_seconds=10.0)
    compared = ("oracle-free", "oracle", "breakeven", "static:eagle3:3", "none", *schedule)
    load = rates_trace(rates, 200.0)
    for trace in (load, poisson_of(load)):
        bounds_hold(Study(CostArms(costs), profile, trace, [EAGLE], 2, policy, compared=compared))


def test_hindsight_may_choose_a_schedule_that_is_compared(engine):
    costs, profile = engine
    rates = rates_trace([14.0, 14.0], 300.0)
    for trace in (rates, poisson_of(rates)):
        study = Study(
            CostArms(costs), profile, trace, [EAGLE], 2, Policy(roll_seconds=10.0), compared=["schedule"]
        )
        scheduled = study.outcome("schedule").mean_latency_s
        oracle, free = (study.outcome(name).mean_latency_s for name in ("oracle", "oracle-free"))
        assert scheduled < study.outcome("static:eagle3:3").mean_latency_s
        assert oracle <= scheduled
        assert free <= scheduled


@pytest.mark.parametrize("kind", ["rates", "requests"])
def test_hindsight_does_what_the_decisions_did_where_its_plan_is_worse(engine, monkeypatch, kind):
    """On the event clock a plan of rates may lose to decisions by chance, as fluid knows no drains."""
    costs, profile = engine
    # None runs at first, and is right; that the other one pays later is noticed with a delay that costs little.
    rates = rates_trace([18.0] * 3 + [5.0] * 6, 120.0)
    hasty = Policy(dwell_s=0.0, cooldown_s=0.0, roll_seconds=2.0)
    monkeypatch.setattr(
        "breakeven_sim.replay.study.best_plan", lambda *_: hindsight.SwitchPlan(((0.0, NO_SPECULATION),), 0.0)
    )
    trace = rates if kind == "rates" else poisson_of(rates)
    means_s = {}
    for compared in ((), ("breakeven",)):
        study = Study(CostArms(costs), profile, trace, [EAGLE], 2, hasty, compared=compared, lookback_s=0.0)
        means_s[compared] = study.outcome("oracle").mean_latency_s
    assert means_s["breakeven",] == study.outcome("breakeven").mean_latency_s < means_s[()]


def test_free_rolls_follow_what_is_in_flight_on_the_event_clock(engine):
    costs, profile = engine
    trace = poisson_of(rates_trace([5.0, 20.0, 5.0, 20.0, 5.0], 120.0))
    study = Study(
        CostArms(costs), profile, trace, [EAGLE], 2, Policy(roll_seconds=1000.0), compared=("none",)
    )
    free = study.outcome("oracle-free")
    statics = [study.outcome(name).mean_latency_s for name in ("none", "static:eagle3:3")]
    # A start-up longer than the trace leaves no roll that pays, and free ones gain at every change of the load.
    assert study.outcome("oracle").switches == 0
    assert free.switches == 4
    assert free.mean_latency_s < 0.96 * min(statics)


def test_without_requests_there_is_nothing_to_be_faster_at():
    profile = fitted({NO_SPECULATION: (1.2, 0.07), EAGLE: (0.78, 0.085)})
    study = Study(LawArms(profile, 256.0), profile, rates_trace([0.0, 0.0]), [EAGLE], 2, Policy())
    assert [study.outcome(name).mean_latency_s for name in ("oracle", "oracle-free")] == [None, None]
    assert math.isfinite(best_plan(study.trace, {EAGLE: study.law(EAGLE)}, 2, 300.0).spent_s)

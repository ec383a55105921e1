"""Stepping takes a schedule's law from its measured points and from its last tier; the event clock runs the schedule itself."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from breakeven.arm import NO_SPECULATION, Arm
from breakeven.fitting import fit_points
from breakeven.planning.objective import Policy
from breakeven.points.point import LoadMode, Point
from breakeven.profile import Profile
from breakeven.tiers import Schedule
from breakeven_sim.engine.costs import parse_costs
from breakeven_sim.engine.requests import Request
from breakeven_sim.replay.fleet_arms import CostArms, LawArms
from breakeven_sim.replay.loops import closed_loop
from breakeven_sim.replay.measured import measured_profile
from breakeven_sim.replay.study import Study
from breakeven_sim.replay.traces import RateTrace
from fakes.scheduled_points import LEVEL, STEEP, all_points

EAGLE = Arm("eagle3", 3)
TOKENS = 64
CONSTANT = RateTrace(np.arange(4) * 600.0, np.full(4, 600.0), np.full(4, 4.0))


def profile_of(laws: dict[Arm, tuple[float, float]], tail: float = 2.0) -> Profile:
    return fit_points(
        [
            Point(
                method=arm.method,
                k=arm.k,
                load_mode=LoadMode.POISSON,
                request_rate_rps=share / c2_s,
                mean_latency_s=c1_s / (1.0 - share),
                p95_latency_s=tail * c1_s / (1.0 - share),
                output_tokens=float(TOKENS),
            )
            for arm, (c1_s, c2_s) in laws.items()
            for share in (0.05, 0.2, 0.4, 0.6, 0.8)
        ]
    )


def study_of(laws: dict[Arm, tuple[float, float]], believed: Profile | None = None) -> Study:
    truth = profile_of(laws)
    candidates = [arm for arm in laws if arm.k]
    return Study(
        LawArms(truth, TOKENS), believed or truth, CONSTANT, candidates, 1, Policy(), compared=["schedule"]
    )


@pytest.mark.parametrize("laws", [STEEP, LEVEL])
def test_beyond_its_points_a_schedule_goes_on_as_its_last_tier(laws):
    study = study_of(laws)
    study.outcome("schedule")
    (schedule, _), *_ = study.arms.schedules.items()
    clients = 200
    requests = [Request(number, 0.0, 1, TOKENS) for number in range(6 * clients)]
    closed_loop(study.arms, schedule, requests, clients)
    # The first generation starts together and the last one is not filled up again.
    inner = [one.finished_s - one.arrival_s for one in requests[clients:-clients]]
    # More clients than any row had.
    assert study.law(schedule).mean_s(clients - 1) == pytest.approx(np.mean(inner), rel=0.2)


def test_the_fleet_follows_its_own_laws_whatever_the_decision_believes():
    right, wrong = study_of(LEVEL), study_of(LEVEL, slow_drafters())
    for policy in ("none", "static:eagle3:3", "static:eagle3:5"):
        assert wrong.outcome(policy).mean_latency_s == right.outcome(policy).mean_latency_s
        assert wrong.outcome(policy).p95_latency_s == right.outcome(policy).p95_latency_s


def test_a_schedule_is_tuned_by_what_is_believed_and_runs_in_the_laws_that_are_true():
    study = study_of(LEVEL, slow_drafters())
    study.outcome("schedule")
    ((arm, table),) = study.arms.schedules.items()
    assert table == LawArms(slow_drafters(), TOKENS).schedule_of("eagle3", 0.066)[1]
    assert table != LawArms(profile_of(LEVEL), TOKENS).schedule_of("eagle3", 0.066)[1]
    last = Arm("eagle3", table.last) if table.last else NO_SPECULATION
    assert study.law(arm).c2_s == pytest.approx(LEVEL[last][1], rel=0.1)


def slow_drafters() -> Profile:
    """The drafters are believed slower than they are, with the same saturation."""
    return profile_of(
        {arm: (1.4 * c1_s, c2_s) if arm.k else (c1_s, c2_s) for arm, (c1_s, c2_s) in LEVEL.items()}, tail=3.0
    )


def candidate(
    laws: dict[Arm, tuple[float, float]], trace: RateTrace, profile: Profile | None = None, tax: float = 0.066
) -> Study:
    """A study in which the schedule is a candidate like the static arms."""
    believed = profile or profile_of(laws)
    static = [arm for arm in laws if arm.k]
    return Study(
        LawArms(profile_of(laws), TOKENS), believed, trace, static, 2, Policy(), tax, scheduled=["eagle3"]
    )


RISING = RateTrace(np.arange(12) * 3600.0, np.full(12, 3600.0), np.repeat([2.0, 8.0, 16.0, 27.0], 3))


def test_a_schedule_among_the_candidates_is_measured_for_the_decision_and_not_read_off_the_truth():
    study = candidate(STEEP, RISING)
    (arm,) = [arm for arm in study.candidates if arm.scheduled]
    fit = study.profile.arm(arm)
    assert (fit.points, fit.schedule) == (8, str(study.arms.schedules[arm]))
    # Its last tier drafts nothing: that tier's cost comes from points, not from the instrument.
    saturation_rps = study.profile.curve(arm).saturation_rps
    assert saturation_rps == pytest.approx(1.0 / (0.05 * 1.066), rel=0.12)
    assert not profile_of(STEEP).measured(arm)


@pytest.mark.parametrize("policy", ["oracle", "oracle-free", "static:eagle3:schedule"])
def test_a_schedule_among_the_candidates_is_run_by_every_kind_of_policy(policy):
    study = candidate(STEEP, RISING, tax=0.0)
    alone = study.outcome("static:eagle3:schedule")
    without = study_of(STEEP)
    without.trace, without.compared, without.replicas = study.trace, (), 2
    found = study.outcome(policy)
    # Neither static arm is near it over these loads: nobody else has this latency.
    best = min(without.outcome(name).mean_latency_s for name in ("none", "static:eagle3:3"))
    assert alone.mean_latency_s < 0.95 * best
    assert found.mean_latency_s < 0.97 * best


def test_a_profiles_own_schedule_is_taken_as_it_was_measured():
    table = Schedule(((1, 3), (9, 0)))
    scheduled = Arm("eagle3", 3, scheduled=True)
    profile = fit_points(all_points(STEEP, table, tax=0.2))
    study = candidate(STEEP, RISING, profile)
    assert study.arms.schedules == {scheduled: table}
    assert study.profile is profile
    # Where the fleet's own laws hold it too, it runs as it was measured there.
    same = Study(LawArms(profile, TOKENS), profile, RISING, [scheduled], 2, Policy())
    assert same.law(scheduled).c2_s == pytest.approx(1.2 * 0.05, rel=0.1)
    assert same.law(scheduled).mean_s(15.0) == pytest.approx(
        profile.curve(scheduled).loop_latency_s(15.0, closed=False)
    )


def test_a_schedule_of_an_engine_with_costs_is_measured_on_that_engine():
    demo = Path(__file__).parents[2] / "examples/engine-costs/demo.json"
    arms = CostArms(parse_costs(demo.read_text(), "H100", "demo"))
    trace = RateTrace(np.arange(4) * 600.0, np.full(4, 600.0), np.full(4, 8.0))
    profile = measured_profile(arms, [NO_SPECULATION, EAGLE], np.array([64]), np.array([48]), 0)
    study = Study(arms, profile, trace, [EAGLE], 2, Policy(), scheduled=["eagle3"])
    (scheduled,) = [arm for arm in study.candidates if arm.scheduled]
    fit = study.profile.arm(scheduled)
    assert fit.schedule == str(arms.schedules[scheduled])
    assert fit.acceptance.tokens_per_step > 1.0
    assert study.outcome("oracle").mean_latency_s <= study.outcome("static:eagle3:schedule").mean_latency_s

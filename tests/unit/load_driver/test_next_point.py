"""Which point is bought next, and when nothing more is."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from breakeven.arm import NO_SPECULATION, Arm
from breakeven.errors import InputError
from breakeven.load_driver.design import Finished, SweepSettings
from breakeven.load_driver.next_point import (
    Purchase,
    next_point,
    rival_pairs,
    tellable_regret,
)
from breakeven.load_driver.question import (
    COEFFICIENTS,
    FEWEST_POINTS,
    Question,
    Seen,
    after_points,
    before_any_point,
    known_from,
)
from breakeven.points.point import ImposedLoad, LoadMode, Point
from breakeven.points.quality import FEWEST_GENERATIONS
from sweeps import closed, planned, poisson, recommended

EAGLES = tuple(Arm("eagle3", k) for k in (1, 3, 7))
ARMS = (NO_SPECULATION, *EAGLES)
SETTINGS = SweepSettings(loads=12, warmup_seconds=2.0)
QUESTION = Question(ARMS, SETTINGS, running=NO_SPECULATION, startup_s=100.0)
CLIENTS = (1, 4, 16, 64)
NONE = closed("none", 0, 1.2, 0.07, clients=CLIENTS, requests=200.0, window_s=60.0)
"""No speculation saturates at 14.3 rps."""
THREE = closed("eagle3", 3, 0.7, 0.1, clients=CLIENTS, requests=200.0, window_s=60.0)
"""Faster than none below 6.9 rps."""


def bought(question: Question, measured: list[Point], left_s: float = np.inf) -> Purchase:
    step = next_point(question, measured, left_s)
    assert isinstance(step, Purchase)
    return step


def test_it_begins_with_a_lone_request_and_the_ceiling_of_the_engine_that_runs():
    first = bought(QUESTION, [])
    assert (first.arm, str(first.load)) == (NO_SPECULATION, "1 client")
    second = bought(QUESTION, NONE[:1])
    assert (second.arm, str(second.load)) == (NO_SPECULATION, "64 clients")
    assert second.startup_s == 0.0


def test_what_speedups_are_said_against_gets_a_law_even_where_it_surely_loses():
    faster = closed("eagle3", 3, 0.3, 0.02, clients=CLIENTS, requests=500.0)
    ends = [NONE[0], NONE[-1]]
    third = bought(QUESTION, [*ends, *faster])
    assert third.arm == NO_SPECULATION
    assert third.load.mode is LoadMode.POISSON
    after = poisson("none", 0, 1.2, 0.07, (third.load.value,), requests=200.0, window_s=60.0)
    fourth = next_point(QUESTION, [*ends, *faster, *after])
    assert isinstance(fourth, Finished) or fourth.arm != NO_SPECULATION


def test_another_engine_is_started_for_what_it_may_save():
    step = bought(QUESTION, NONE)
    assert step.arm in EAGLES
    assert str(step.load) == "1 client"
    assert step.startup_s == 100.0


def test_points_are_bought_where_two_arms_change_places():
    question = Question((EAGLES[1],), SETTINGS, expected_rps=(0.5, 6.9), running=EAGLES[1])
    step = bought(question, [*NONE, *THREE[:1], *THREE[2:3], *THREE[1:2]])
    # At 0.5 rps the arm is 1.7 times faster, and the next digit decides nothing.
    assert step.inflight > 4.0


def test_no_arm_is_recommended_without_points_enough_for_a_law():
    faster = closed("eagle3", 7, 0.7, 0.05, clients=(1, 64), requests=500.0)
    assert len(faster) < FEWEST_POINTS
    assert {arm for _, arm in recommended(QUESTION, [*NONE, *faster])} == {NO_SPECULATION}
    third = closed("eagle3", 7, 0.7, 0.05, clients=(16,), requests=500.0)
    assert {arm for _, arm in recommended(QUESTION, [*NONE, *faster, *third])} == {EAGLES[2]}
    assert {arm for _, arm in recommended(QUESTION, [])} == {None}


@pytest.mark.parametrize(
    ("clients", "arm"), [((1, 4, 16, 64), NO_SPECULATION), ((1, 4, 8, 16, 64), EAGLES[1])]
)
def test_an_arm_whose_law_bends_is_recommended_from_five_points_on(clients, arm):
    bent = [
        replace(point, mean_latency_s=point.mean_latency_s * (1.0 if point.concurrency == 1 else 1.4))
        for point in closed("eagle3", 3, 0.4, 0.02, clients=clients, requests=500.0)
    ]
    assert {named for _, named in recommended(QUESTION, [*NONE, *bent])} == {arm}


def test_what_lacks_one_point_to_be_recommended_gets_it():
    faster = closed("eagle3", 7, 0.7, 0.05, clients=(1, 64), requests=500.0)
    assert bought(QUESTION, [*NONE, *faster]).arm == EAGLES[2]


def test_an_arm_that_surely_loses_gets_no_third_point():
    slower = closed("eagle3", 7, 3.0, 0.5, clients=(1, 64), requests=500.0)
    plan = planned(QUESTION, [*NONE, *THREE, *slower], 60.0)
    assert plan
    assert all(step.arm != EAGLES[2] for step in plan)


def test_an_arm_may_have_its_loads_however_few_they_are():
    few = replace(QUESTION, settings=SweepSettings(loads=4, warmup_seconds=2.0))
    assert bought(few, NONE[:3]).arm in few.arms
    assert bought(replace(few, arms=(NO_SPECULATION,)), NONE[:1]).arm == NO_SPECULATION


def test_it_ends_when_the_regret_is_small_enough():
    settled = closed("eagle3", 3, 0.3, 0.02, clients=CLIENTS, requests=500.0)
    question = Question((EAGLES[1],), SETTINGS, running=EAGLES[1])
    finished = next_point(question, [*NONE, *settled])
    assert isinstance(finished, Finished)
    assert finished.complete
    assert "expected regret" in finished.reason


def test_it_ends_when_nothing_fits_into_the_rest():
    finished = next_point(QUESTION, NONE, left_s=3.0)
    assert isinstance(finished, Finished)
    assert not finished.complete
    assert "nothing more fits into 3 s" in finished.reason


def test_an_arm_is_not_begun_without_time_for_its_law():
    # A lone point takes 8 s, the three that make a law 27.
    assert next_point(replace(QUESTION, arms=EAGLES, running=None), NONE, left_s=20.0) == Finished(
        complete=False, reason="nothing more fits into 20 s", out_of_time=True
    )


def test_a_lonely_arm_is_held_against_a_rival_as_fast():
    alone = Question((NO_SPECULATION,), SETTINGS, running=NO_SPECULATION)
    states = [known_from(alone, points) for points in (NONE[:2], NONE)]
    before, after = (tellable_regret(state, rival_pairs(state)) for state in states)
    assert before > after > 0.0
    assert not rival_pairs(states[1]).ahead.any()


def test_the_fastest_arm_of_each_load_is_held_against_all_others():
    question = Question((NO_SPECULATION, EAGLES[1]), SETTINGS, expected_rps=(1.0, 7.5))
    state = known_from(question, [*NONE, *THREE])
    pairs = rival_pairs(state)
    assert (pairs.loads.tolist(), pairs.rivals.tolist()) == ([0, 1], [0, 1])
    none_s, three_s = ([one.latency_s for one in ones] for ones in state.latencies)
    assert np.exp(pairs.ahead) == pytest.approx([none_s[0] / three_s[0], three_s[1] / none_s[1]])
    # A longer lone latency of the rival puts it further behind, and one of the fastest arm less far.
    assert np.sign(pairs.rows[:, [0, COEFFICIENTS]]).tolist() == [[1, -1], [-1, 1]]


@pytest.mark.parametrize(
    ("saturated", "aimed_at"), [((), True), ((7.0,), True), ((5.0,), False), ((5.0, 7.0), False)]
)
def test_no_rate_is_aimed_at_from_which_the_arm_was_seen_saturated(saturated, aimed_at):
    question = Question((EAGLES[1],), SETTINGS, expected_rps=(6.0,), running=EAGLES[1])
    overrun = poisson("eagle3", 3, 0.7, 0.1, saturated, requests=100.0, flag="SaturatedPoint")
    plan = planned(question, [*NONE, *THREE[:2], *overrun], 400.0)
    assert (6.0 in [step.load.rps for step in plan]) is aimed_at


def test_no_arm_is_recommended_beyond_its_points_and_the_point_that_reaches_is_bought():
    near = closed("eagle3", 3, 0.7, 0.07, clients=(1, 4, 16), requests=200.0, window_s=60.0)
    # Among 16 its rate is 9.1 rps. At 9.5 rps a request meets 20 others.
    question = Question((EAGLES[1],), SETTINGS, expected_rps=(9.5,), running=EAGLES[1])
    assert recommended(question, [*NONE, *near]) == ((9.5, NO_SPECULATION),)
    assert bought(question, [*NONE, *near]).inflight > 20.0
    far = closed("eagle3", 3, 0.7, 0.07, clients=(32,), requests=200.0, window_s=60.0)
    assert recommended(question, [*NONE, *near, *far]) == ((9.5, EAGLES[1]),)


def test_until_an_arm_has_a_law_its_loads_are_spread():
    ends = closed("eagle3", 3, 0.5, 0.05, clients=(1, 64), requests=200.0, window_s=60.0)
    question = Question((EAGLES[1],), SETTINGS, running=EAGLES[1])
    assert 4.0 < bought(question, [*NONE, *ends]).inflight < 16.0
    low = replace(question, expected_rps=(1.0,))
    near = closed("eagle3", 3, 0.5, 0.05, clients=(1, 4), requests=200.0, window_s=60.0)
    assert str(bought(low, [*NONE, *near]).load) == "2 clients"


def test_a_closed_loop_is_planned_as_long_as_its_clients_need_to_be_answered_often_enough():
    slow = closed("none", 0, 12.0, 0.7, clients=(1,), requests=200.0, window_s=60.0)
    ceiling = bought(QUESTION, slow)
    assert str(ceiling.load) == "64 clients"
    assert ceiling.window_s == pytest.approx(FEWEST_GENERATIONS * ceiling.latency_s)


def test_points_at_other_lengths_choose_no_load():
    own = [replace(point, prompt_tokens=256.0) for point in [*NONE, *THREE]]
    longer = [
        replace(point, prompt_tokens=1024.0)
        for arm, k in (("none", 0), ("eagle3", 3))
        for point in closed(arm, k, 9.0, 2.0, clients=(1, 16), requests=30.0)
    ]
    assert next_point(QUESTION, [*own, *longer]) == next_point(QUESTION, own)


def test_a_rate_that_was_measured_elsewhere_stands_in_for_one_beside_it():
    settings = replace(SETTINGS, reference_rps=(6.1,))
    question = Question((EAGLES[1],), settings, expected_rps=(6.0,), running=EAGLES[1])
    plan = planned(question, [*NONE, *THREE[:2]])
    assert ImposedLoad(LoadMode.POISSON, 6.1) in [step.load for step in plan]
    assert ImposedLoad(LoadMode.POISSON, 6.0) not in [step.load for step in plan]


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"arms": ()}, "at least one arm"),
        ({"expected_rps": (3.0, 0.0)}, "rates above 0"),
        ({"target_regret": 0.0}, "a share above 0"),
    ],
)
def test_a_question_that_cannot_be_answered_is_refused(wrong, said):
    with pytest.raises(InputError, match=said):
        replace(QUESTION, **wrong)


def test_a_bend_is_learned_and_shared():
    # Experts: 2 requests already load what 64 load.
    def latency_s(others: float) -> float:
        return (1.0 + 0.03 * others) * (1.0 if others == 0 else 1.4)

    seen = [Seen(0, others, latency_s(others), 400.0) for others in (0.0, 3.0, 7.0, 15.0, 200.0)]
    belief = after_points(before_any_point((NO_SPECULATION, EAGLES[0]), 1.0), seen)
    assert belief.curvature(0) > 0.1
    assert belief.curvature(1) > 0.05


def test_a_belief_follows_the_points_and_knows_its_error():
    seen = [Seen(0, others, 1.2 + 0.07 * others, 1000.0) for others in (0.0, 3.0, 15.0, 63.0)]
    belief = after_points(before_any_point((NO_SPECULATION,), 30.0), seen)
    assert belief.at_rps(0, 7.0).latency_s == pytest.approx(1.2 / (1 - 7.0 * 0.07), rel=0.03)
    assert np.sqrt(belief.covariance[0, 0]) < 0.05

"""Laws of the choice of points, whatever the engines."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from breakeven.arm import NO_SPECULATION, Arm
from breakeven.load_driver.design import SweepSettings
from breakeven.load_driver.next_point import Purchase, next_point
from breakeven.load_driver.question import Question, before_any_point
from breakeven.points.point import Point
from draws import draws
from sweeps import closed, planned, recommended

ARMS = (NO_SPECULATION, Arm("eagle3", 2), Arm("eagle3", 5), Arm("ngram", 3))
laws = st.tuples(st.floats(0.2, 5.0), st.floats(0.005, 0.3))
counts = st.lists(st.sampled_from([1, 2, 4, 8, 16, 32, 64]), min_size=0, max_size=4, unique=True)
engines = st.lists(st.tuples(laws, counts), min_size=len(ARMS), max_size=len(ARMS))


def question(**changes: object) -> Question:
    settings = SweepSettings(loads=6, warmup_seconds=2.0)
    return replace(Question(ARMS, settings, running=NO_SPECULATION, startup_s=60.0), **changes)


def points_of(found: list[tuple[tuple[float, float], list[int]]]) -> list[Point]:
    return [
        point
        for arm, ((c1_s, c2_s), clients) in zip(ARMS, found, strict=True)
        for point in closed(arm.method, arm.k, c1_s, c2_s, clients=clients, noise=0.02, requests=100.0)
    ]


@draws(30)
@given(engines, st.floats(1.0, 400.0))
def test_what_is_planned_never_costs_more_than_is_left(found, left_s):
    plan = planned(question(), points_of(found), left_s)
    assert sum(step.measuring_s for step in plan) <= left_s + 1e-6


@draws(30)
@given(engines, st.randoms(use_true_random=False))
def test_equal_points_in_any_order_give_an_equal_choice(found, shuffler: random.Random):
    points = points_of(found)
    shuffled = points[:]
    shuffler.shuffle(shuffled)
    assert next_point(question(), points, 300.0) == next_point(question(), points, 300.0)
    first, second = next_point(question(), points, 300.0), next_point(question(), shuffled, 300.0)
    assert type(first) is type(second)
    if isinstance(first, Purchase) and isinstance(second, Purchase):
        assert (first.arm, first.load, first.window_s) == (second.arm, second.load, second.window_s)


@draws(30)
@given(engines)
def test_only_what_was_measured_is_recommended(found):
    points = points_of(found)
    measured = {point.arm for point in points}
    for _, arm in recommended(question(), points):
        assert arm is None or (arm in measured and sum(point.arm == arm for point in points) >= 3)


@draws(30)
@given(st.integers(0, 3), st.floats(0.0, 200.0), st.floats(5.0, 1000.0), st.integers(0, 2**32 - 1))
def test_a_point_never_widens_what_is_believed(arm, others, requests, seed):
    belief = before_any_point(ARMS, 1.0)
    after = belief.after(belief.step(arm, others, requests))
    directions = np.random.default_rng(seed).standard_normal((20, belief.mean.size))
    before = np.einsum("pi,ij,pj->p", directions, belief.covariance, directions)
    now = np.einsum("pi,ij,pj->p", directions, after.covariance, directions)
    assert np.all(now <= before * (1 + 1e-9) + 1e-9)
    assert np.all(now >= -1e-9)


@draws(15)
@given(engines)
def test_every_purchase_is_expected_to_save_something(found):
    step = next_point(question(), points_of(found))
    if isinstance(step, Purchase) and not np.isnan(step.saved):
        assert step.saved > 0
        assert step.regret > 0

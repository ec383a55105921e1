"""Which points at other lengths a sweep has, and when its own loads need all of the time."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from breakeven.load_driver.course import LONGER, missing_probes, planned_probes, probes_of
from breakeven.load_driver.design import SweepSettings, of_the_sweep
from breakeven.load_driver.sent_workload import SentWorkload
from breakeven.points.point import POINTS_AT_OTHER_LENGTHS, ImposedLoad, LoadMode, Point
from breakeven.points.quality import FEWEST_GENERATIONS
from sweeps import seen

SETTINGS = SweepSettings(loads=8, point_seconds=60.0, min_point_seconds=5.0, max_concurrency=32)
WORKLOAD = SentWorkload(500, 100)


def closed(clients: int, prompt_tokens: float) -> Point:
    point = seen(ImposedLoad(LoadMode.CLOSED, clients), 1.0, clients, float(clients), 30.0)
    return replace(point, prompt_tokens=prompt_tokens)


def test_an_arm_has_two_of_them_at_the_length_that_the_engine_counted():
    probes = missing_probes([closed(1, 520.0)], SETTINGS)
    assert [probe.prompt_tokens for probe in probes] == [LONGER * 520] * 2
    assert len(probes) == POINTS_AT_OTHER_LENGTHS, "what plans and estimates count with"


def test_nothing_is_asked_before_a_point_tells_how_long_prompts_are_and_nothing_twice():
    assert missing_probes([], SETTINGS) == ()
    own = closed(1, 520.0)
    first, second = missing_probes([own], SETTINGS)
    done = closed(first.load.clients or 0, 2080.0)
    assert missing_probes([own, done], SETTINGS) == (second,)
    assert missing_probes([own, done, closed(second.load.clients or 0, 2080.0)], SETTINGS) == ()
    assert of_the_sweep([own, done]) == [own]


@pytest.mark.parametrize(("left_s", "window_s"), [(math.inf, 60.0), (240.0, 30.0), (39.0, None)])
def test_the_sweeps_own_loads_come_first_where_time_is_short(left_s, window_s):
    steps = probes_of(500.0, SETTINGS, left_s)
    assert [step.longest_s for step in steps] == ([] if window_s is None else [window_s] * 2)


def test_a_plan_counts_what_they_take():
    steps = planned_probes([], WORKLOAD, SETTINGS, math.inf, lambda clients: 1.0 + 0.1 * (clients - 1))
    assert [(step.load.clients, step.prompt_tokens) for step in steps] == [(1, 2000), (16, 2000)]
    # Seven answers one after the other, of four steps for the prompt and one more; six generations of 2.5 s.
    assert [step.expected_s for step in steps] == pytest.approx([7 * 0.05, 6 * 2.5])
    timed = replace(closed(1, 500.0), ttft_mean_s=0.1)
    lone, busy = planned_probes([timed], WORKLOAD, SETTINGS, math.inf, lambda _: 1.0)
    assert lone.expected_s == pytest.approx(7 * 0.41)
    done = closed(busy.load.clients or 0, 2000.0)
    left = planned_probes([timed, done], WORKLOAD, SETTINGS, math.inf, lambda _: 1.0)
    assert [step.load.clients for step in left] == [1]
    assert planned_probes([timed], WORKLOAD, SETTINGS, 39.0, lambda _: 1.0) == ()


def test_two_clients_are_planned_for_enough_generations_and_no_window_beyond_a_points():
    few = replace(SETTINGS, max_concurrency=4)
    _, pair = planned_probes([], WORKLOAD, few, math.inf, lambda _: 2.0)
    assert (pair.load.clients, pair.window_s) == (2, FEWEST_GENERATIONS * 2.0)
    _, slow = planned_probes([], WORKLOAD, few, math.inf, lambda _: 30.0)
    assert slow.window_s == few.point_seconds

"""The steps that a sweep has left, and how they are counted."""

from __future__ import annotations

from dataclasses import replace
from itertools import groupby

import pytest

from breakeven.arm import NO_SPECULATION, Arm
from breakeven.load_driver.course import Sweep
from breakeven.load_driver.design import Finished, SweepSettings, SweepStep
from breakeven.load_driver.next_point import believed, imagined
from breakeven.load_driver.question import Question
from breakeven.points.point import Point
from breakeven.reasons import Reason
from sweeps import closed, poisson

EAGLE = Arm("eagle3", 3)
SETTINGS = SweepSettings(loads=8, warmup_seconds=2.0, max_concurrency=64)


@pytest.mark.parametrize("question", [None, Question((EAGLE,), SETTINGS, running=EAGLE)])
def test_steps_are_numbered_after_the_points_and_each_knows_how_many_there_will_be(question):
    none = tuple(closed("none", 0, 1.2, 0.07, clients=(1, 4, 16, 64), requests=200.0))
    measured = closed("eagle3", 3, 0.7, 0.1, clients=(1,), requests=200.0)
    steps = Sweep((EAGLE,), settings=SETTINGS, question=question, others=none).load_steps(
        measured, lone_s=1.2
    )
    last = 1 + len(steps)
    assert last > 2
    numbered = [(arm, step.number, step.total) for arm, step in steps]
    assert numbered == [(EAGLE, number, last) for number in range(2, last + 1)]


def believed_at(question: Question, points: list[Point], course: Sweep, step: SweepStep) -> Point:
    """The point of a step that comes out as it is believed."""
    (expected,) = believed(question, [*points, *course.others], [EAGLE], step.load, step.window_s)
    return imagined(expected)


def swept(course: Sweep, measured: tuple[Point, ...] = ()) -> tuple[list[Point], list[SweepStep], Finished]:
    """A start of the sweep, every point of which comes out as it is believed."""
    points, steps = list(measured), list[SweepStep]()
    asked = course.question or Question((EAGLE,), SETTINGS, running=EAGLE)
    while isinstance(turn := course.next_step(points), tuple):
        steps.append(turn[1])
        points.append(believed_at(asked, points, course, turn[1]))
    return points, steps, turn


@pytest.mark.parametrize("auto", [False, True])
def test_two_starts_measure_the_loads_of_one_and_one_of_the_first_once_more(auto):
    none = tuple(closed("none", 0, 1.2, 0.07, clients=(1, 4, 16, 64), requests=200.0))
    # More than half of the loads are worth buying.
    question = Question((EAGLE,), SETTINGS, target_regret=1e-6, running=EAGLE) if auto else None
    one, whole, _ = swept(Sweep((EAGLE,), settings=SETTINGS, question=question, others=none))
    first, begun, ended = swept(
        Sweep((EAGLE,), settings=replace(SETTINGS, halved=True), question=question, others=none)
    )
    assert [step.load for step in begun] == [step.load for step in whole[:4]]
    assert not ended.complete
    assert ended.reason == "4 of 8 loads measured; a second start measures the others"
    second = Sweep((EAGLE,), settings=SETTINGS, question=question, others=none, before=tuple(first))
    both, rest, _ = swept(second, tuple(first))
    # A sweep that has bought all that it may buy repeats nothing.
    wanted = whole[4:] if auto else whole[4:-1]
    assert [(one.load, one.number) for one in rest[:-1]] == [(one.load, one.number) for one in wanted]
    assert rest[-1].load == first[rest[-1].number - 1].load
    assert len(both) == len(one) + auto
    assert isinstance(second.next_step(both), Finished), (
        "an operator that starts again measures nothing twice"
    )


def test_a_first_start_goes_on_until_it_has_points_for_a_law():
    settings = replace(SETTINGS, loads=5, halved=True)
    course, points = (
        Sweep((EAGLE,), settings=settings),
        list(closed("eagle3", 3, 0.7, 0.1, clients=(1, 64), requests=200.0)),
    )
    points[1] = replace(points[1], flag=str(Reason.SATURATED_POINT))
    asked = Question((EAGLE,), settings, running=EAGLE)
    for _ in range(2):
        turn = course.next_step(points)
        assert isinstance(turn, tuple), "two usable points are no law"
        points.append(believed_at(asked, points, course, turn[1]))
    assert isinstance(course.next_step(points), Finished)


def walked(arms: dict[Arm, tuple[float, float]], question: Question | None = None) -> list[Point]:
    """The points of a joint sweep of engines that obey their laws, in their order."""
    course, points = Sweep(tuple(arms), settings=SETTINGS, question=question), list[Point]()
    while isinstance(turn := course.next_step(points), tuple):
        arm, step = turn
        c1_s, c2_s = arms[arm]
        shown, at = {"requests": 200.0, "window_s": step.window_s}, (step.load.value,)
        if step.load.clients:
            points += closed(arm.method, arm.k, c1_s, c2_s, clients=at, **shown)
        else:
            points += poisson(arm.method, arm.k, c1_s, c2_s, at, **shown)
        assert len(points) < 100
    assert turn.complete
    return points


@pytest.mark.parametrize("auto", [False, True])
def test_each_load_is_measured_on_all_arms_that_carry_it_before_the_next_one(auto):
    arms = {NO_SPECULATION: (1.2, 0.07), EAGLE: (0.7, 0.075), Arm("ngram", 5): (0.6, 0.2)}
    question = Question((EAGLE,), SETTINGS, expected_rps=(3.0, 9.0)) if auto else None
    points = walked(arms, question)
    found = [[point.arm for point in block] for _, block in groupby(points, key=lambda point: point.load)]
    assert len(found) == len({point.load for point in points}) + 1, "no load twice but the first"
    for number, block in enumerate(found, start=1):
        order = list(arms) if number % 2 else list(arms)[::-1]
        assert block == [arm for arm in order if arm in block]
    fast = [point.load.rps for point in points if point.arm == NO_SPECULATION and point.load.rps]
    slow = [point.load.rps for point in points if point.arm == Arm("ngram", 5) and point.load.rps]
    assert slow == [rps for rps in fast if rps * 0.2 < 0.85]
    assert auto or (slow and slow != fast)


def test_rates_reach_from_easy_for_the_slowest_arm_to_the_capacity_of_the_fastest():
    points = walked({NO_SPECULATION: (1.2, 0.1), EAGLE: (0.7, 0.05)})
    rates = [point.load.rps for point in points if point.load.rps]
    assert (min(rates), max(rates)) == (pytest.approx(0.15 / 0.1), pytest.approx(0.8 / 0.05))

"""The steps that a sweep has left, and how they are counted."""

from __future__ import annotations

from dataclasses import replace

import pytest

from breakeven.arm import Arm
from breakeven.load_driver.course import Course
from breakeven.load_driver.design import Finished, SweepSettings, SweepStep
from breakeven.load_driver.next_point import believed_point
from breakeven.load_driver.question import Question
from breakeven.points.point import Point
from breakeven.reasons import Reason
from sweeps import closed

EAGLE = Arm("eagle3", 3)
SETTINGS = SweepSettings(loads=8, warmup_seconds=2.0, max_concurrency=64)


@pytest.mark.parametrize("question", [None, Question((EAGLE,), SETTINGS, running=EAGLE)])
def test_steps_are_numbered_after_the_points_and_each_knows_how_many_there_will_be(question):
    none = tuple(closed("none", 0, 1.2, 0.07, clients=(1, 4, 16, 64), requests=200.0))
    measured = closed("eagle3", 3, 0.7, 0.1, clients=(1,), requests=200.0)
    steps = Course(SETTINGS, question, none).steps(EAGLE, measured, lone_s=1.2)
    last = 1 + len(steps)
    assert last > 2
    assert [(step.number, step.total) for step in steps] == [(number, last) for number in range(2, last + 1)]


def swept(course: Course, measured: tuple[Point, ...] = ()) -> tuple[list[Point], list[SweepStep], Finished]:
    """A start of the sweep, every point of which comes out as it is believed."""
    points, steps = list(measured), list[SweepStep]()
    asked = course.question or Question((EAGLE,), SETTINGS, running=EAGLE)
    while isinstance(step := course.step_or_last(points), SweepStep):
        steps.append(step)
        points.append(believed_point(asked, [*points, *course.others], step.load, step.window_s))
    return points, steps, step


@pytest.mark.parametrize("auto", [False, True])
def test_two_starts_measure_the_loads_of_one_and_one_of_the_first_once_more(auto):
    none = tuple(closed("none", 0, 1.2, 0.07, clients=(1, 4, 16, 64), requests=200.0))
    # More than half of the loads are worth buying.
    question = Question((EAGLE,), SETTINGS, target_regret=1e-6, running=EAGLE) if auto else None
    one, whole, _ = swept(Course(SETTINGS, question, none))
    first, begun, ended = swept(Course(replace(SETTINGS, halved=True), question, none))
    assert [step.load for step in begun] == [step.load for step in whole[:4]]
    assert not ended.complete
    assert ended.reason == "4 of 8 loads measured; a second start measures the others"
    second = Course(SETTINGS, question, none, before=tuple(first))
    both, rest, _ = swept(second, tuple(first))
    # A sweep that has bought all that it may buy repeats nothing.
    wanted = whole[4:] if auto else whole[4:-1]
    assert [(one.load, one.number) for one in rest[:-1]] == [(one.load, one.number) for one in wanted]
    assert rest[-1].load == first[rest[-1].number - 1].load
    assert len(both) == len(one) + auto
    assert isinstance(second.step_or_last(both), Finished), (
        "an operator that starts again measures nothing twice"
    )


def test_a_first_start_goes_on_until_it_has_points_for_a_law():
    settings = replace(SETTINGS, loads=5, halved=True)
    course, points = Course(settings), list(closed("eagle3", 3, 0.7, 0.1, clients=(1, 64), requests=200.0))
    points[1] = replace(points[1], flag=str(Reason.SATURATED_POINT))
    step = course.step_or_last(points)
    assert isinstance(step, SweepStep)
    asked = Question((EAGLE,), settings, running=EAGLE)
    points.append(believed_point(asked, points, step.load, step.window_s))
    assert isinstance(course.step_or_last(points), SweepStep), "two usable points are no law"
    points.append(believed_point(asked, points, course.step_or_last(points).load, 60.0))
    assert isinstance(course.step_or_last(points), Finished)

"""The steps that a sweep has left, and how they are counted."""

from __future__ import annotations

import pytest

from breakeven.arm import Arm
from breakeven.load_driver.course import Course
from breakeven.load_driver.design import SweepSettings
from breakeven.load_driver.question import Question
from sweeps import closed

EAGLE = Arm("eagle3", 3)
SETTINGS = SweepSettings(loads=8, warmup_seconds=2.0, max_concurrency=64)


@pytest.mark.parametrize("question", [None, Question((EAGLE,), SETTINGS, running=EAGLE)])
def test_steps_are_numbered_after_the_points_and_each_knows_how_many_there_will_be(question):
    none = tuple(closed("none", 0, 1.2, 0.07, clients=(1, 4, 16, 64), requests=200.0))
    measured = closed("eagle3", 3, 0.7, 0.1, clients=(1,), requests=200.0)
    steps = Course((EAGLE,), SETTINGS, question, none).steps(measured, lone_s=1.2)
    last = 1 + len(steps)
    assert last > 2
    numbered = [(arm, step.number, step.total) for arm, step in steps]
    assert numbered == [(EAGLE, number, last) for number in range(2, last + 1)]

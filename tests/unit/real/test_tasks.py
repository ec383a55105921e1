"""Answers of a language model to tasks, beside those of no speculation."""

from __future__ import annotations

import pytest

from breakeven.arm import NO_SPECULATION, Arm
from real.tasks import TaskAnswer, task_rows

LOOKUP = Arm("ngram", 4, "lookup")


@pytest.mark.parametrize(
    ("text", "cell"),
    [
        ("a box of nails", "equal"),
        ("a box of ropes", "differs from character 10"),
        ("a box", "differs from character 6"),
    ],
)
def test_an_answer_is_compared_with_that_of_no_speculation_to_the_same_task(text, cell):
    plain = [
        TaskAnswer(task, NO_SPECULATION, f"a box of {what}", 96, 1.0, 9.0)
        for task, what in [("story", "x"), ("repeat", "nails")]
    ]
    (row,) = task_rows([*plain, TaskAnswer("repeat", LOOKUP, text, 96, 2.09, 5.0)])
    assert row == ("repeat", "lookup/4", "96", "2.09", "5.0", "9.0", cell)


def test_an_answer_without_another_beside_it_is_a_row_that_says_so():
    (row,) = task_rows([TaskAnswer("story", LOOKUP, "once", 1, None, 0.5)])
    assert row[3:] == ("-", "0.5", "-", "-")

"""Counts of what the house has too much of. A count may only fall."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[3]


class Budget(NamedTuple):
    """How often a pattern may stand in the Python files below some folders."""

    counted: str
    pattern: str
    folders: tuple[str, ...]
    most: int


BUDGETS = (
    # `Model.replace` checks names and values. Its own copy, and the sharing of equal parts, copy what is checked already.
    Budget("updates of a model that nothing checks", r"\bmodel_copy\(", ("operator",), 2),
    # A row of the status says it: `Renewal`, `FigureGauge`, `LOGGED`.
    Budget(
        "fields of the status that are named elsewhere by a path",
        r"""["'](?:workings|decision|capacity|model|objectives|rollout)\.[a-z]""",
        ("operator",),
        0,
    ),
    # `breakeven.phrases.figure` has no exponent. Three are of a schedule, below a thousand.
    Budget("figures put into words by hand", r":\.[23]g\}", ("operator", "demo", "tuner/breakeven"), 3),
    Budget("bounds that are taken apart by hand", r"\bor \(None, None\)", ("operator", "tuner"), 0),
)


def count(budget):
    texts = (
        file.read_text(encoding="utf-8")
        for folder in budget.folders
        for file in (ROOT / folder).rglob("*.py")
    )
    return sum(len(re.findall(budget.pattern, text)) for text in texts)


@pytest.mark.parametrize("budget", BUDGETS, ids=lambda one: f"{one.counted}: {one.folders}")
def test_a_count_only_falls(budget):
    assert count(budget) <= budget.most

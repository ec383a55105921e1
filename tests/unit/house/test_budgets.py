"""Budgets of the house: counts that may only fall. A lower count is written here in the commit that reached it."""

from __future__ import annotations

import ast
from collections import Counter
from pathlib import Path

from breakeven.serving.promql import COUNTED

ROOT = Path(__file__).parents[3]
PRODUCT = ("tuner/breakeven", "operator/breakeven_operator")
# These are the place: growths of counters, what is wrong with them, and the figures that follow.
THE_PLACE = {"growths", "plausibility", "counted_window"}
GAUGED = {
    "running",
    "waiting",
    "waiting_min",
    "running_growth",
    "waiting_growth",
    "running_scatter",
    "waiting_scatter",
}
STATISTICS = {*COUNTED, *GAUGED}
MAPPINGS = {"stats", "total", "counters", "grown"}
COUNTERS_READ_ELSEWHERE = 0


def called(mapping: ast.expr) -> str:
    """Name of a variable, or the last one of `one.stats`."""
    match mapping:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
    return ""


def counters_read(text: str) -> int:
    """How often a file takes a statistic by its name out of a mapping: `stats["steps"]`, `stats.get("steps")`."""
    found = 0
    if not any(f'"{name}"' in text or f"'{name}'" in text for name in STATISTICS):
        return 0
    for node in ast.walk(ast.parse(text)):
        match node:
            case ast.Subscript(value=mapping, slice=ast.Constant(value=str(name)), ctx=ast.Load()):
                found += name in STATISTICS and called(mapping) in MAPPINGS
            case ast.Call(
                func=ast.Attribute(value=mapping, attr="get"), args=[ast.Constant(value=str(name)), *_]
            ):
                found += name in STATISTICS and called(mapping) in MAPPINGS
    return found


def test_counters_become_figures_in_one_place():
    found = Counter(
        {
            str(file.relative_to(ROOT)): number
            for folder in PRODUCT
            for file in sorted((ROOT / folder).rglob("*.py"))
            if file.stem not in THE_PLACE and (number := counters_read(file.read_text(encoding="utf-8")))
        }
    )
    assert found.total() <= COUNTERS_READ_ELSEWHERE, dict(found)


def test_every_way_to_take_a_counter_is_seen():
    assert counters_read('total["completed"] + one.stats.get("drafts", 0.0) + stats["waiting_min"]') == 3
    assert counters_read('labels["pod"] + stats[name] + row["completed"]') == 0

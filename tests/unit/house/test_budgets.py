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


# Of the operator, whose folders form no circle (`pyproject.toml`). The first is of one folder, the second of the longest chain of
# imports within one.
MOST_FILES = 16
MOST_FLOORS = 7
OPERATOR = ROOT / "operator"


def imports_of(file: Path) -> set[Path]:
    """Files of the operator that a file imports."""
    found: set[Path] = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("breakeven_operator"):
            place = OPERATOR / (node.module or "").replace(".", "/")
            found |= {place.with_suffix(".py"), *(place / f"{name.name}.py" for name in node.names)}
    return {one for one in found if one.exists()}


def floors(folder: Path) -> int:
    """How many modules of a folder stand above each other."""
    below = {file: imports_of(file) for file in folder.glob("*.py") if file.stem != "__init__"}

    def floor(file: Path) -> int:
        return 1 + max((floor(one) for one in below[file] if one in below and one != file), default=0)

    return max(map(floor, below), default=0)


def test_no_folder_of_the_operator_is_crowded_or_high():
    folders = sorted({file.parent for file in OPERATOR.rglob("*.py")})
    crowded = {str(one.relative_to(OPERATOR)): len([*one.glob("*.py")]) for one in folders}
    assert max(crowded.values()) <= MOST_FILES, crowded
    high = {
        str(one.relative_to(OPERATOR)): floors(one) for one in folders if one.name != "breakeven_operator"
    }
    assert max(high.values()) <= MOST_FLOORS, high

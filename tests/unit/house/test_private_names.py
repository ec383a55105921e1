"""Tests stand on what callers call: no test imports, calls or replaces what a module or an object keeps to itself.

A name is private where it begins with one underscore. A test file may use what it defines itself.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path

TESTS = Path(__file__).parents[2]
# Private names without a public way, each with the reason.
ALLOWED = {
    ("draws.py", "_get_local_constants"),  # Hypothesis has no setting for it
    ("realvllm/flags.py", "_HelpAction"),  # argparse names its actions nowhere else
    ("realvllm/flags.py", "_actions"),
}
# Each way to such a name has it after a dot, in a line of imports, or in a text; parsing takes far longer than this look.
LIKELY = re.compile(
    r"""\._[a-zA-Z]|import\b[^\n]*\b_[a-zA-Z]|^\s+_\w+( as \w+)?,?\s*$|["']_[a-zA-Z]""", re.MULTILINE
)


def private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__") and name != "_"


def own_names(tree: ast.AST) -> set[str]:
    """Names that a file defines: functions, classes, fields, and those it assigns to itself or as a name."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and is_own(node.value):
            found.add(node.attr)
    return found


def is_own(value: ast.AST) -> bool:
    return isinstance(value, ast.Name) and value.id in {"self", "cls"}


def used(text: str) -> list[tuple[int, str]]:
    """(line, private name) that a file takes from elsewhere, ascending."""
    if not LIKELY.search(text):
        return []
    tree = ast.parse(text)
    own, found = own_names(tree), []
    for node in ast.walk(tree):
        names: list[str] = []
        if isinstance(node, ast.ImportFrom):
            names = [*(node.module or "").split("."), *(alias.name for alias in node.names)]
        elif isinstance(node, ast.Attribute) and not is_own(node.value):
            names = [node.attr]
        elif isinstance(node, ast.Call) and getattr(node.func, "attr", "") in {
            "setattr",
            "patch",
            "object",
            "getattr",
        }:
            # Of monkeypatch and mock, which take the name, or the way to it, as text.
            names = [
                part
                for argument in node.args
                if isinstance(argument, ast.Constant) and isinstance(argument.value, str)
                for part in argument.value.split(".")
            ]
        found += [(getattr(node, "lineno", 0), name) for name in names if private(name) and name not in own]
    return sorted(found)


def test_no_test_reaches_for_what_is_private():
    found = {
        (str(file.relative_to(TESTS)), name): line
        for file in sorted(TESTS.rglob("*.py"))
        for line, name in used(file.read_text(encoding="utf-8"))
    }
    assert {place: line for place, line in found.items() if place not in ALLOWED} == {}


def test_every_way_to_a_private_name_is_seen():
    ways = """
from breakeven.laws.law import _one
from breakeven_operator._two import three
law._four()
monkeypatch.setattr(law, "_five", 1)
monkeypatch.setattr("breakeven.laws._six", 1)
mock.patch.object(law, "_seven")
"""
    assert [name for _, name in used(ways)] == ["_one", "_two", "_four", "_five", "_six", "_seven"]


def test_what_a_test_defines_is_its_own():
    assert (
        used("class Fake:\n    def __init__(self):\n        self._end = 1\n\nfake = Fake()\nfake._end") == []
    )

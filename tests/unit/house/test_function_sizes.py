"""Functions that a reader takes in at once: the longest one and the longest parameter list of each root may only shrink."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[3]
# Lower a number when its root's largest function has shrunk.
LINES = {"operator": 60, "tuner": 60}
PARAMETERS = {"operator": 6, "tuner": 6}


class Function(NamedTuple):
    """A function of the product: where it is, its lines with docstring, and its parameters without self and cls."""

    place: str
    lines: int
    parameters: int
    is_command: bool


def is_command(node):
    """Whether click calls it: its parameters are options, one each."""
    names = (one.func if isinstance(one, ast.Call) else one for one in node.decorator_list)
    return any(isinstance(name, ast.Attribute) and name.attr in {"command", "group"} for name in names)


def functions_in(text, path):
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            every = node.args
            named = [*every.posonlyargs, *every.args, *every.kwonlyargs, every.vararg, every.kwarg]
            names = [one.arg for one in named if one is not None and one.arg not in {"self", "cls"}]
            lines = node.end_lineno - node.lineno + 1
            yield Function(f"{path}:{node.lineno} {node.name}", lines, len(names), is_command(node))


@cache
def functions(root):
    files = sorted((ROOT / root).rglob("*.py"))
    return [
        one for file in files for one in functions_in(file.read_text("utf-8"), str(file.relative_to(ROOT)))
    ]


@pytest.mark.parametrize("root", LINES)
def test_no_function_is_longer_than_the_budget(root):
    long = {one.place: one.lines for one in functions(root) if one.lines > LINES[root]}
    assert long == {}


@pytest.mark.parametrize("root", PARAMETERS)
def test_no_function_has_more_parameters_than_the_budget(root):
    many = {
        one.place: one.parameters
        for one in functions(root)
        if one.parameters > PARAMETERS[root] and not one.is_command
    }
    assert many == {}


def test_what_is_counted():
    text = "@click.command('a')\ndef f(a, /, b, *c, d, **e):\n    '''Text.'''\n    return a\nclass G:\n    async def g(self, h): ..."
    assert sorted(functions_in(text, "x.py")) == [
        ("x.py:2 f", 3, 5, True),
        ("x.py:6 g", 1, 1, False),
    ]

"""Laws are tried on the same draws on every machine, whatever else was imported and wherever the repository lies."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]
LAW = """
import importlib.util, sys
for path in sys.argv[1:]:
    spec = importlib.util.spec_from_file_location("odd", path)
    sys.modules["odd"] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
import draws
draws.choose_profile()
from hypothesis import given, strategies as st
@draws.draws(100)
@given(st.floats(0.0, 1e6), st.integers(0, 10**6))
def law(number, count):
    drawn.append((number, count))
drawn = []
law()
print(len(drawn), drawn)
"""


def tried(profile: str, *modules: Path) -> str:
    done = subprocess.run(
        [sys.executable, "-c", LAW, *map(str, modules)],
        env={**os.environ, "PYTHONPATH": str(ROOT / "tests"), "HYPOTHESIS_PROFILE": profile},
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout or done.stderr


def test_constants_of_the_modules_imported_so_far_are_not_drawn(tmp_path):
    module = tmp_path / "odd.py"
    module.write_text("SOME = [" + ", ".join(f"{n}.0625, {n}" for n in range(900, 990)) + "]\n")
    assert tried("repeatable") == tried("repeatable", module)


def test_a_check_tries_a_fifth_of_the_draws():
    count = {profile: int(tried(profile).partition(" ")[0]) for profile in ("quick", "repeatable", "explore")}
    assert count == {"quick": 20, "repeatable": 100, "explore": 500}


def test_an_unknown_profile_is_refused_in_one_line():
    assert tried("fast") == "HYPOTHESIS_PROFILE=fast: expected quick, repeatable, explore\n"


def test_no_law_returns_early():
    """An early return passes unseen when nothing is left to test; `assume` fails when it discards almost everything."""
    early = []
    for file in sorted((ROOT / "tests").rglob("test_*.py")):
        for law in laws(ast.parse(file.read_text(encoding="utf-8"))):
            helpers = {
                id(node) for inner in ast.walk(law) if is_helper(inner, law) for node in ast.walk(inner)
            }
            early += [
                (file.name, law.name, node.lineno)
                for node in ast.walk(law)
                if isinstance(node, ast.Return) and id(node) not in helpers
            ]
    assert early == []


def laws(tree: ast.AST) -> list[ast.FunctionDef]:
    """The functions that Hypothesis draws for."""
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    return [one for one in functions if any("given(" in ast.unparse(made) for made in one.decorator_list)]


def is_helper(node: ast.AST, law: ast.AST) -> bool:
    return isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node is not law

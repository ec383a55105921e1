"""Laws are tried on the same draws on every machine, whatever else was imported and wherever the repository lies."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
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


def test_a_check_tries_a_tenth_of_the_draws():
    count = {profile: int(tried(profile).partition(" ")[0]) for profile in ("quick", "repeatable", "explore")}
    assert count == {"quick": 10, "repeatable": 100, "explore": 500}


def test_an_unknown_profile_is_refused_in_one_line():
    assert tried("fast") == "HYPOTHESIS_PROFILE=fast: expected quick, repeatable, explore\n"

"""The operator as a process: how a wrong setting ends it, and what it imports."""

from __future__ import annotations

import subprocess
import sys

IMPORT_ALL = """
import importlib, pkgutil, sys
sys.modules["breakeven_sim"] = None
import breakeven, breakeven_operator
count = 0
for package in (breakeven, breakeven_operator):
    for module in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
        if not module.name.endswith(".__main__"):
            importlib.import_module(module.name)
            count += 1
print(count)
"""


def test_a_wrong_setting_ends_it_with_one_line():
    done = subprocess.run(
        [sys.executable, "-m", "breakeven_operator", "run", "--once"],
        env={"PATH": "/usr/bin", "BREAKEVEN_CYCLE_SECONDS": "soon"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 1
    assert done.stderr.strip().splitlines() == [
        "breakeven-operator: BREAKEVEN_CYCLE_SECONDS: is 'soon'; expected a number"
    ]


def test_the_operator_process_imports_no_solver_and_no_plotting():
    code = (
        "import sys; import breakeven_operator.handlers; from breakeven.profile import Profile; "
        "print([m for m in ('scipy', 'matplotlib', 'pandas', 'jinja2') if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True
    )
    assert done.stdout.strip() == "[]"


def test_every_module_of_the_product_is_imported_without_the_instrument():
    done = subprocess.run([sys.executable, "-c", IMPORT_ALL], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert int(done.stdout) > 150

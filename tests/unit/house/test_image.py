"""The operator's image leaves the instrument out, and nothing in it misses it before a command asks for it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]
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


def test_the_image_is_built_without_the_instrument():
    ignored = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    # The last line that matches a path wins.
    assert ignored.index("tuner/breakeven_sim") > ignored.index("!tuner")


def test_every_module_of_the_product_is_imported_without_the_instrument():
    done = subprocess.run([sys.executable, "-c", IMPORT_ALL], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert int(done.stdout) > 150

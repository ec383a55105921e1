"""No class name and no module name twice in the product: a reader who looks for a name finds the right one."""

from __future__ import annotations

import re
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).parents[3]
PACKAGES = ("tuner/breakeven", "operator/breakeven_operator")


def files():
    return [file for package in PACKAGES for file in sorted((ROOT / package).rglob("*.py"))]


def repeated(names):
    """Names that stand for more than one thing, with the files they are in."""
    places = defaultdict(list)
    for name, file in names:
        places[name].append(str(file.relative_to(ROOT)))
    return {name: found for name, found in sorted(places.items()) if len(found) > 1}


def test_no_class_name_is_used_twice():
    assert (
        repeated(
            (name, file)
            for file in files()
            for name in re.findall(r"^ *class (\w+)[(:]", file.read_text(encoding="utf-8"), re.MULTILINE)
        )
        == {}
    )


def test_no_module_name_is_used_twice():
    named = [(file, file.parent if file.stem == "__init__" else file) for file in files()]
    assert repeated((module.stem, file) for file, module in named if file.stem != "__main__") == {}

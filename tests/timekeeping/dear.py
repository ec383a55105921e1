"""Tests that `make check` leaves to `make test`: those that use much CPU even with few draws."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from timekeeping.report import Records

LISTED: Final = Path(__file__).with_name("dear_tests.txt")
YARDSTICKS: Final = 5.0
"""Times the yardstick that a test may take with all its parameters: about half a second on a busy machine."""

ROUNDS: Final = 4
"""Times that tests are measured for the list."""

ALWAYS: Final = "tests/unit/house/"
"""Rules of the house are in `make check` whatever they take: they answer what one just wrote."""


def listed() -> frozenset[str]:
    """Returns the dear tests, each as `tests/FILE::NAME`, for all its parameters."""
    return frozenset(LISTED.read_text(encoding="utf-8").split())


def write(names: Iterable[str]) -> None:
    """Make these the dear tests."""
    LISTED.write_text("".join(f"{name}\n" for name in sorted(names)), encoding="utf-8")


def named(nodeid: str) -> str:
    """Returns the name in the list of a collected test."""
    return nodeid.partition("[")[0]


def dear(records: Records, yardstick_s: float) -> list[str]:
    """Returns the tests of some runs that belong into the list, by name.

    Args:
        records: of runs with few draws.
        yardstick_s: CPU seconds of the yardstick beside them.
    """
    took: dict[str, float] = defaultdict(float)
    for nodeid, one in records.tests.items():
        took[named(nodeid)] += one.cpu_s
    limit_s = YARDSTICKS * yardstick_s
    return sorted(name for name, cpu_s in took.items() if cpu_s > limit_s and not name.startswith(ALWAYS))

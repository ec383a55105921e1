"""The stages of `make test` and `make test-thorough`, one after another.

A stage that fails keeps no other from running, but what cannot be done without it. Nothing runs beside the cluster tests: they
measure arms in real time.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
STATIC: Final = ("types", "lint", "contracts", "generated", "compatible-crds")
"""Targets of the Makefile that run no test."""
REPORTS: Final = ROOT / ".local" / "times"
"""Junit files of the stages."""
# One more than the cores: a quarter of the time is waited for processes and clocks.
_PYTEST: Final = (
    *(sys.executable, "-m", "pytest", "-q", "--dist=worksteal"),
    f"--numprocesses={(os.cpu_count() or 1) + 1}",
)
IN_MEMORY: Final = tuple(
    f"tests/{name}" for name in ("fleet", "engine", "golden", "unit", "property", "reference", "tools")
)
"""The dearest first, so that none of them is left for one process when the others have ended."""


@dataclass(frozen=True)
class Stage:
    """A part of the tests.

    Attributes:
        name: as printed.
        command: fails with a status other than 0.
        needed: the stages after it cannot be done without it.
    """

    name: str
    command: tuple[str, ...]
    needed: bool = False


@dataclass(frozen=True)
class Outcome:
    """A stage that is over.

    Attributes:
        status: of its command; None: not begun.
        wall_s, cpu_s: that it took, with everything below it.
    """

    stage: Stage
    status: int | None
    wall_s: float = 0.0
    cpu_s: float = 0.0


def _junit(name: str) -> str:
    return f"--junitxml={REPORTS / name}.xml"


_STATIC: Final = Stage("static checks", ("make", "--jobs=2", "--output-sync", "--keep-going", *STATIC))
_PROGRAMS: Final = Stage("programs", (sys.executable, "-m", "localcluster", "build"), needed=True)


def _real_parts(tier: str) -> Stage:
    return Stage("real parts", (sys.executable, "-m", "timekeeping", "real-parts", tier))


def landing_stages(tier: str) -> tuple[Stage, ...]:
    """Stages of `make test`, with the tests on real parts of a tier."""
    tests = Stage("in memory", (*_PYTEST, *IN_MEMORY, _junit("in-memory")))
    return _STATIC, tests, _PROGRAMS, _real_parts(tier)


def thorough_stages() -> tuple[Stage, ...]:
    """Stages of `make test-thorough`."""
    return (
        _STATIC,
        # A test in a browser looks at it.
        Stage("site", ("make", "docs")),
        Stage("lines counted", ("make", "coverage")),
        _PROGRAMS,
        _real_parts("all"),
        # A newcomer was promised this time.
        Stage("demo", ("timeout", "16m", "make", "demo")),
        Stage("faults repeated", ("make", "test-faults")),
        Stage("mutants", ("make", "mutants", "COUNT=60", f"SEED={int(time.time()) // 86400}")),
        Stage("Pythons", ("make", "matrix")),
    )


def run(stages: Sequence[Stage]) -> list[Outcome]:
    """Run all stages; return their outcomes."""
    outcomes: list[Outcome] = []
    for stage in stages:
        print(f"== {stage.name} ==", flush=True)
        outcomes.append(_outcome(stage, outcomes))
    return outcomes


def exit_status(outcomes: Iterable[Outcome]) -> int:
    """0 if every stage was run and passed."""
    return 0 if all(outcome.status == 0 for outcome in outcomes) else 1


def _outcome(stage: Stage, before: Iterable[Outcome]) -> Outcome:
    if any(outcome.stage.needed and outcome.status != 0 for outcome in before):
        return Outcome(stage, None)
    began_s = time.monotonic()
    child = subprocess.Popen(stage.command, cwd=ROOT, stdin=subprocess.DEVNULL)
    # Only wait4 says what one child and all below it used.
    _, status, used = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    return Outcome(stage, child.returncode, time.monotonic() - began_s, used.ru_utime + used.ru_stime)

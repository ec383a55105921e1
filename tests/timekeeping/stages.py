"""The stages of `make test`, one after another, and what each took beside the last landing.

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
CLUSTER_TESTS: Final = (
    *(sys.executable, "-m", "pytest"),
    *("--numprocesses=3", "--dist=loadfile", "--no-loadscope-reorder", "tests/cluster", "tests/faults"),
    *("-m", "not table"),
)
"""They wait more than they compute; each process has clusters of its own (tests/README.md)."""


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


STAGES: Final = (
    Stage("static checks", ("make", "--jobs=2", "--output-sync", "--keep-going", *STATIC)),
    Stage("lines counted", ("make", "coverage")),
    Stage("not counted", ("make", "uncounted")),
    Stage("programs", (sys.executable, "-m", "localcluster", "build"), needed=True),
    Stage("cluster tests", CLUSTER_TESTS),
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

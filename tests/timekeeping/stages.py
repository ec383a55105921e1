"""The stages of `make test`: some side by side, and what each took beside the last landing.

Stages of a lane follow each other; lanes run side by side. The last lane is shown while it runs; the others fill the cores that
it leaves, and show what they said when they are over. A stage that fails keeps no other from running, but what cannot be done
without it.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final

ROOT: Final = Path(__file__).parents[2]
STATIC: Final = ("types", "lint", "contracts", "generated", "compatible-crds")
"""Targets of the Makefile that run no test."""
CLUSTER_TESTS: Final = (
    *(sys.executable, "-m", "pytest"),
    *("--numprocesses=3", "--dist=loadfile", "--no-loadscope-reorder", "tests/cluster", "tests/faults"),
    *("-m", "not table"),
)
"""They wait more than they compute; each process has clusters of its own (tests/README.md)."""
_NICENESS: Final = 10
"""Of what runs beside the lane that is shown: that one compares times."""


@dataclass(frozen=True)
class Stage:
    """A part of the tests.

    Attributes:
        name: as printed.
        command: fails with a status other than 0.
        needed: the stages after it in its lane cannot be done without it.
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


LANES: Final = (
    (Stage("static checks", ("make", "--jobs=2", "--output-sync", "--keep-going", *STATIC)),),
    (
        Stage("tests in memory", ("make", "coverage")),
        Stage("programs", (sys.executable, "-m", "localcluster", "build"), needed=True),
        # Not beside the tests in memory: arms are measured there in real time, and niceness counts for nothing where the
        # kernel shares its cores by session.
        Stage("cluster tests", CLUSTER_TESTS),
    ),
)


def run(lanes: Sequence[Sequence[Stage]]) -> list[Outcome]:
    """Runs all stages, and returns their outcomes lane by lane."""
    outcomes: list[list[Outcome]] = [[] for _ in lanes]
    printing = threading.Lock()

    def run_beside(lane: Sequence[Stage], into: list[Outcome]) -> None:
        for stage in lane:
            with tempfile.TemporaryFile() as said:
                into.append(_outcome(stage, into, said, niceness=_NICENESS))
                said.seek(0)
                with printing:
                    _print_title(stage)
                    sys.stdout.buffer.write(said.read())
                    sys.stdout.flush()

    beside = [
        threading.Thread(target=run_beside, args=pair) for pair in zip(lanes[:-1], outcomes[:-1], strict=True)
    ]
    for thread in beside:
        thread.start()
    for stage in lanes[-1]:
        with printing:
            _print_title(stage)
        outcomes[-1].append(_outcome(stage, outcomes[-1], None, niceness=0))
    for thread in beside:
        thread.join()
    return [outcome for lane in outcomes for outcome in lane]


def exit_status(outcomes: Iterable[Outcome]) -> int:
    """0 if every stage was run and passed."""
    return 0 if all(outcome.status == 0 for outcome in outcomes) else 1


def _outcome(stage: Stage, before: Iterable[Outcome], said: IO[bytes] | None, *, niceness: int) -> Outcome:
    if any(outcome.stage.needed and outcome.status != 0 for outcome in before):
        return Outcome(stage, None)
    began_s = time.monotonic()
    child = subprocess.Popen(
        ("nice", "-n", str(niceness), *stage.command),
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        stdout=said,
        stderr=said,
    )
    # Only wait4 says what one child and all below it used, while other threads have children too.
    _, status, used = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    return Outcome(stage, child.returncode, time.monotonic() - began_s, used.ru_utime + used.ru_stime)


def _print_title(stage: Stage) -> None:
    print(f"== {stage.name} ==", flush=True)

"""`make test`, `make test-times`, `make times-baseline`, `make dear-tests` and `make goals`."""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from timekeeping import dear, landings, report
from timekeeping.readings import read, spent, yardstick_cpu_s
from timekeeping.stages import CLUSTER_TESTS, ROOT, STAGES, exit_status, run

_PYTEST: Final = (sys.executable, "-m", "pytest")
GOALS: Final = {
    "make test": ("make", "test"),
    "make check": ("make", "check"),
    "one file of unit tests": (*_PYTEST, "-q", "tests/unit/planning/test_decision.py"),
    "one file, operator": (*_PYTEST, "-q", "tests/unit/reconcile/test_target.py"),
    "one file, command line": (*_PYTEST, "-q", "tests/unit/readers/test_result_files.py"),
    "cold make demo": ("make", "demo"),
}
"""Commands whose seconds have a goal; the last one builds its programs first."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Carry out a command; return its exit status."""
    parser = argparse.ArgumentParser(prog="timekeeping", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("test", help="run every stage of the tests, and compare what each took")
    commands.add_parser("store", help="take the last whole run as the one to compare with")
    measured = commands.add_parser("measure", help="run tests, and print where their time goes")
    measured.add_argument("tests", nargs="*", help="what pytest may select; none: all")
    quick = commands.add_parser("dear", help="list the tests that `make check` leaves to `make test`")
    quick.add_argument(
        "--of",
        action="append",
        required=True,
        metavar="TESTS",
        help="what a run of `make check` selects from; again for each run",
    )
    goals = commands.add_parser("goals", help="run commands whose seconds have a goal, several times")
    goals.add_argument("--runs", type=int, default=3)
    goals.add_argument("rows", nargs="*", metavar="row", help=f"of {', '.join(GOALS)}; none: all")
    given = parser.parse_args(arguments)
    match given.command:
        case "test":
            return _test()
        case "store":
            return _store()
        case "measure":
            return _measure(given.tests)
        case "dear":
            return _dear([tests.split() for tests in given.of])
        case _:
            return _goals(given.rows or list(GOALS), given.runs)


def _test() -> int:
    began_s = time.monotonic()
    outcomes = run(STAGES)
    now = landings.landing(outcomes, time.monotonic() - began_s)
    failed = [outcome.stage.name for outcome in outcomes if outcome.status != 0]
    print()
    print(*landings.comparison(now, landings.read(landings.STORED), failed), sep="\n", flush=True)
    if not failed:
        landings.write(landings.LAST, now)
    return exit_status(outcomes)


def _store() -> int:
    if not landings.LAST.exists():
        print("no whole run of `make test` has passed here; run it first", file=sys.stderr)
        return 1
    landings.write(landings.STORED, landings.read(landings.LAST))
    return 0


def _measure(tests: Sequence[str]) -> int:
    in_memory = (*_PYTEST, "-q", "--numprocesses=auto", "--dist=worksteal", *_in_memory())
    commands = [(*_PYTEST, "-q", *tests)] if tests else [in_memory, CLUSTER_TESTS]
    status = 0
    with tempfile.TemporaryDirectory() as folder:
        files = [Path(folder) / f"{number}.json" for number in range(len(commands))]
        for command, file in zip(commands, files, strict=True):
            done = subprocess.run((*command, f"--times={file}"), cwd=ROOT, check=False)
            status = status or done.returncode
        print()
        print(*report.tables(report.load([file for file in files if file.exists()])), sep="\n")
    return status


def _dear(runs: Sequence[Sequence[str]]) -> int:
    """Measure tests with few draws and list those that are dear.

    A fixture that many tests share is charged to the first of them: without it the next one is dear. So the others are measured
    again, a few times: the last ones to be found would be those that a busy moment made dear.

    Args:
        runs: tests that `make check` selects from, by run; measured side by side, as there.
    """
    listed: set[str] = set()
    dear.write(listed)
    for _ in range(dear.ROUNDS):
        found = _dear_of(runs)
        if found is None:
            return 1
        print(f"{len(found)} more tests take more than {dear.YARDSTICKS:g} times the yardstick", flush=True)
        listed |= found
        dear.write(listed)
    print(f"{len(listed)} tests: {dear.LISTED}")
    return 0


def _dear_of(runs: Sequence[Sequence[str]]) -> set[str] | None:
    """Dear tests that are not listed yet; None if a test fails."""
    with tempfile.TemporaryDirectory() as folder:
        files = [Path(folder) / f"{number}.json" for number in range(len(runs))]
        quick = os.environ | {"HYPOTHESIS_PROFILE": "quick"}
        started = [
            subprocess.Popen((*_PYTEST, "-q", *tests, f"--times={file}"), cwd=ROOT, env=quick)
            for tests, file in zip(runs, files, strict=True)
        ]
        # Each is waited for, whatever the one before it ended with.
        statuses = [one.wait() for one in started]
        if any(statuses):
            return None
        return set(dear.dear(report.load(files), yardstick_cpu_s()))


def _in_memory() -> list[str]:
    tests = ROOT / "tests"
    found = {file.relative_to(ROOT).parts[1] for file in tests.glob("*/**/test_*.py")}
    return sorted(f"tests/{name}" for name in found - {"cluster", "faults"})


def _goals(rows: Sequence[str], runs: int) -> int:
    unknown = [row for row in rows if row not in GOALS]
    if unknown:
        print(f"{', '.join(unknown)}: expected {', '.join(GOALS)}", file=sys.stderr)
        return 2
    status = 0
    print(f"{'':26}{'seconds: median':>16}{'worst':>9}{'CPU: median':>13}{'worst':>9}", flush=True)
    for row in rows:
        walls, cpus = [], []
        for _ in range(runs):
            with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryFile() as said:
                cold = {"XDG_CACHE_HOME": folder} if row.startswith("cold") else {}
                start = read()
                done = subprocess.run(
                    GOALS[row], cwd=ROOT, env=os.environ | cold, stdout=said, stderr=said, check=False
                )
                took = spent(start, read())
                if done.returncode:
                    said.seek(0)
                    sys.stderr.buffer.write(said.read()[-10_000:])
                    status = done.returncode
            walls.append(took.wall_s)
            cpus.append(took.cpu_s)
        figures = (statistics.median(walls), max(walls), statistics.median(cpus), max(cpus))
        columns = (f"{one:{width}.1f}" for one, width in zip(figures, (16, 9, 13, 9), strict=True))
        print(f"{row:26}{''.join(columns)}{f' FAILED ({status})' if status else ''}", flush=True)
    return status


if __name__ == "__main__":
    sys.exit(main())

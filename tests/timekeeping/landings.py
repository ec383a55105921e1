"""Seconds by test file and by stage at the last landing that was stored, and the comparison with it."""

from __future__ import annotations

import json
import os
import platform
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Final
from xml.etree.ElementTree import parse

from timekeeping.stages import ROOT, Outcome

STORED: Final = ROOT / "tests" / "times.json"
LAST: Final = ROOT / ".local" / "times" / "last.json"
"""The last run on this machine in which every stage passed."""
ALL: Final = "all"
GREW_MOST: Final = 10


@dataclass(frozen=True)
class Landing:
    """A whole run.

    Attributes:
        measured: when, on what and by which command.
        stages: seconds and CPU seconds by stage; None if nobody measured it.
        files: seconds by test file, fixtures included, of whatever ran.
    """

    measured: str
    stages: Mapping[str, tuple[float | None, float | None]] = field(default_factory=dict)
    files: Mapping[str, float] = field(default_factory=dict)


def landing(
    outcomes: Sequence[Outcome], wall_s: float, reports: Iterable[Path] = (), before: Landing | None = None
) -> Landing:
    """A run that took so many seconds from begin to end.

    Args:
        outcomes: of its stages.
        wall_s: of the whole.
        reports: junit files of its stages.
        before: an earlier run, for the files that were not run now.
    """
    stages = {outcome.stage.name: (round(outcome.wall_s), round(outcome.cpu_s)) for outcome in outcomes}
    whole = round(wall_s), round(sum(outcome.cpu_s for outcome in outcomes))
    here = f"{os.cpu_count()} cores, Python {platform.python_version()}, {platform.system()} {platform.machine()}"
    files = {**(before.files if before else {}), **seconds_by_file(reports)}
    kept = {name: seconds for name, seconds in sorted(files.items()) if (ROOT / name).exists()}
    return Landing(f"{datetime.now(UTC):%Y-%m-%d} on {here}", {**stages, ALL: whole}, kept)


def seconds_by_file(reports: Iterable[Path]) -> dict[str, float]:
    """Seconds that the tests of each file took in some runs of pytest, by their junit files."""
    took: dict[str, float] = defaultdict(float)
    for report in reports:
        if report.exists():
            for case in parse(report).iter("testcase"):
                took[file_of(case.get("classname", ""))] += float(case.get("time", 0.0))
    return {name: round(seconds, 1) for name, seconds in took.items()}


def file_of(classname: str) -> str:
    """`tests/unit/planning/test_decision.py` of `tests.unit.planning.test_decision`."""
    return f"{classname.replace('.', '/')}.py"


def read(file: Path) -> Landing:
    """The run that `write` wrote; nothing was measured if there is no such file."""
    if not file.exists():
        return Landing("never")
    written = json.loads(file.read_text(encoding="utf-8"))
    stages = {name: (wall, cpu) for name, (wall, cpu) in written["stages"].items()}
    return Landing(written["measured"], stages, written.get("files", {}))


def write(file: Path, what: Landing) -> None:
    """Write a run for the next ones to be compared with."""
    file.parent.mkdir(parents=True, exist_ok=True)
    document = {"measured": what.measured, "stages": what.stages, "files": what.files}
    file.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


def comparison(now: Landing, before: Landing, failed: Sequence[str]) -> Iterator[str]:
    """The lines of the table, and the files that grew most.

    Args:
        now: this run.
        before: the one beside it.
        failed: names of stages that failed or were not begun.
    """
    yield f"{'stage':20}{'seconds':>9}{'CPU':>9}{'seconds':>13}{'CPU':>9} at the last stored landing ({before.measured})"
    for name, took in now.stages.items():
        figures = (*took, *before.stages.get(name, (None, None)))
        columns = (f"{_figure(one):>{width}}" for one, width in zip(figures, (9, 9, 13, 9), strict=True))
        yield f"{name:20}{''.join(columns)}{' FAILED' if name in failed else ''}"
    grown = {name: now.files[name] - before.files[name] for name in now.files.keys() & before.files.keys()}
    for name in sorted(grown, key=lambda name: -grown[name])[:GREW_MOST]:
        if grown[name] > 0.0:
            yield f"{now.files[name]:9.1f} s, {grown[name]:.1f} s more than then: {name}"


def _figure(value: float | None) -> str:
    return "-" if value is None else f"{value:.0f}"

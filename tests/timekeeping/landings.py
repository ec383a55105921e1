"""The seconds of `make test`'s stages at the last landing that was measured, and the comparison with it."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from timekeeping.stages import ROOT, Outcome

STORED: Final = ROOT / "tests" / "times.json"
LAST: Final = ROOT / ".local" / "times" / "stages.json"
"""The last run on this machine in which every stage passed."""
ALL: Final = "all"


@dataclass(frozen=True)
class Landing:
    """A whole run.

    Attributes:
        measured: when, on what and by which command.
        stages: seconds and CPU seconds by stage; a figure that nobody measured is None.
    """

    measured: str
    stages: Mapping[str, tuple[float | None, float | None]] = field(default_factory=dict)


def landing(outcomes: Sequence[Outcome], wall_s: float) -> Landing:
    """Returns a run that took so many seconds from begin to end."""
    stages = {outcome.stage.name: (round(outcome.wall_s), round(outcome.cpu_s)) for outcome in outcomes}
    whole = round(wall_s), round(sum(outcome.cpu_s for outcome in outcomes))
    here = f"{os.cpu_count()} cores, Python {platform.python_version()}, {platform.system()} {platform.machine()}"
    return Landing(f"{datetime.now(UTC):%Y-%m-%d} by `make test` on {here}", {**stages, ALL: whole})


def read(file: Path) -> Landing:
    """Returns what `write` wrote; a file that is not there holds nothing."""
    if not file.exists():
        return Landing("never")
    written = json.loads(file.read_text(encoding="utf-8"))
    return Landing(
        written["measured"], {name: (wall, cpu) for name, (wall, cpu) in written["stages"].items()}
    )


def write(file: Path, what: Landing) -> None:
    """Writes a run for the next ones to be compared with."""
    file.parent.mkdir(parents=True, exist_ok=True)
    stages = ",\n".join(f"    {json.dumps(name)}: {json.dumps(took)}" for name, took in what.stages.items())
    text = f'{{\n  "measured": {json.dumps(what.measured)},\n  "stages": {{\n{stages}\n  }}\n}}\n'
    file.write_text(text, encoding="utf-8")


def comparison(now: Landing, before: Landing, failed: Sequence[str]) -> Iterator[str]:
    """The lines of the table.

    Args:
        now: this run.
        before: the one beside it.
        failed: names of stages that failed or were not begun.
    """
    yield f"{'stage':20}{'seconds':>9}{'CPU':>9}{'seconds':>13}{'CPU':>9} at the last landing ({before.measured})"
    for name, took in now.stages.items():
        figures = (*took, *before.stages.get(name, (None, None)))
        columns = (f"{_figure(one):>{width}}" for one, width in zip(figures, (9, 9, 13, 9), strict=True))
        yield f"{name:20}{''.join(columns)}{' FAILED' if name in failed else ''}"


def _figure(value: float | None) -> str:
    return "-" if value is None else f"{value:.0f}"

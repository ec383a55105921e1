"""Tables of what the plugin wrote: seconds and CPU seconds by folder, the longest tests and fixtures, and their waiting."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

from timekeeping.plugin import BUDGET_CPU_S

DEAREST: Final = 20


class Took(NamedTuple):
    """Seconds that passed, and CPU seconds with those of every process below."""

    wall_s: float
    cpu_s: float

    @property
    def waiting(self) -> float:
        """Share of the seconds in which no core worked for it; processes side by side can hide some."""
        return max(0.0, 1 - self.cpu_s / self.wall_s) if self.wall_s else 0.0


@dataclass(frozen=True)
class Fixture:
    """A fixture and every time it was set up."""

    name: str
    scope: str
    place: str
    times: int
    took: Took


@dataclass(frozen=True)
class Records:
    """The seconds of runs of pytest.

    Attributes:
        tests: by node id, with the fixtures that were set up for each.
        fixtures: longest first.
        whole: of the runs, with their start, imports and collection; the wall's seconds of one after another.
    """

    tests: Mapping[str, Took]
    fixtures: Sequence[Fixture]
    whole: Took


def load(files: Iterable[Path]) -> Records:
    """Returns what the plugin wrote into these files."""
    tests: dict[str, Took] = {}
    fixtures: dict[tuple[str, str, str], list[Took]] = {}
    wholes = []
    for file in files:
        written: Mapping[str, Any] = json.loads(file.read_text(encoding="utf-8"))
        wholes.append(Took(written["whole"]["wall_s"], written["whole"]["cpu_s"]))
        for name, test in written["tests"].items():
            tests[name] = total(Took(**phase) for phase in test["phases"].values())
            for fixture, scope, place, wall_s, cpu_s in test["fixtures"]:
                fixtures.setdefault((fixture, scope, place), []).append(Took(wall_s, cpu_s))
    made = [Fixture(*key, len(took), total(took)) for key, took in fixtures.items()]
    made.sort(key=lambda fixture: -max(fixture.took))
    return Records(tests, made, total(wholes))


def total(parts: Iterable[Took]) -> Took:
    """Returns the sum."""
    each = list(parts)
    return Took(sum(took.wall_s for took in each), sum(took.cpu_s for took in each))


def by_folder(tests: Mapping[str, Took]) -> dict[str, Took]:
    """Returns the sums of the folders of tests/, largest first."""
    groups: dict[str, list[Took]] = {}
    for name, took in tests.items():
        groups.setdefault("/".join(Path(name.partition("::")[0]).parts[:2]), []).append(took)
    sums = {folder: total(each) for folder, each in groups.items()}
    return dict(sorted(sums.items(), key=lambda item: -item[1].cpu_s))


def tables(records: Records) -> Iterator[str]:
    """The lines of the report."""
    yield f"{'seconds':>9} {'CPU':>9} {'waiting':>8}  folder"
    for folder, took in by_folder(records.tests).items():
        yield f"{_row(took)}  {folder} ({sum(name.startswith(f'{folder}/') for name in records.tests)} tests)"
    tests = total(records.tests.values())
    yield f"{_row(tests)}  all tests, one after another"
    outside = records.whole.cpu_s - tests.cpu_s
    yield f"{records.whole.wall_s:9.1f} {records.whole.cpu_s:9.1f}           the whole run; {outside:.1f} CPU seconds of it start, import, collect and report"
    yield ""
    yield f"{'seconds':>9} {'CPU':>9} {'waiting':>8}  dearest tests by CPU seconds (above {BUDGET_CPU_S:g} a docstring says why)"
    for name, took in sorted(records.tests.items(), key=lambda item: -item[1].cpu_s)[:DEAREST]:
        yield f"{_row(took)}  {name}"
    yield ""
    yield f"{'seconds':>9} {'CPU':>9} {'waiting':>8}  longest waits"
    waits = sorted(records.tests.items(), key=lambda item: item[1].cpu_s - item[1].wall_s)
    for name, took in waits[:DEAREST]:
        yield f"{_row(took)}  {name}"
    yield ""
    yield f"{'seconds':>9} {'CPU':>9} {'waiting':>8}  dearest fixtures"
    for fixture in records.fixtures[:DEAREST]:
        times = f"{fixture.times} times, each {fixture.scope}"
        yield f"{_row(fixture.took)}  {fixture.name} ({times}) of {fixture.place}"


def _row(took: Took) -> str:
    return f"{took.wall_s:9.1f} {took.cpu_s:9.1f} {took.waiting:8.0%}"

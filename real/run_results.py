"""Results of a run on CPU: a folder that is rewritten after every step, and the same on the screen.

A run that is cut off keeps what it has measured: whatever is complete is in the files already.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console
from rich.table import Table

from breakeven.profile import Profile
from demo.sight import Object
from localcluster.progress import duration
from real import alternation, deployments, findings, tasks
from real.alternation import Probed
from real.findings import BrokenStage, ObservedRoll, Row, RunFinding
from real.tasks import MixSeen, TaskAnswer

_FILES = ("progress.txt", "tables.txt", "tables.json", "findings.json", "profile.json", "points.json")
_WIDTH = 160


@dataclass(slots=True)
class RunRecord:
    """Everything that a run has seen so far.

    Attributes:
        profile: the one in force; None until calibration has ended.
        run: the latest CalibrationRun.
        decision_rps: the load at which the operator decides; 0 before.
        wanted: names of the arms that the measured laws ask for there.
        decided: name of the arm that the operator runs there, and its reason.
        rolls, probes: in the order in which they were seen.
        yardsticks_ms: time of a fixed loop on the engine's core, about once per point of the calibration.
        tasks: answers of a language model, task by task.
        mixes: the operator's view of mixes of tasks, in their order.
        likeness: differences between the engines by what was compared.
        left_out: of the script of a GPU, a sentence each; None if it was not run.
        broken: stages that did not go to their end.
    """

    profile: Profile | None = None
    run: Object = field(default_factory=dict)
    decision_rps: float = 0.0
    wanted: frozenset[str] = frozenset()
    decided: str = ""
    reason: str = ""
    rolls: list[ObservedRoll] = field(default_factory=list)
    probes: list[Probed] = field(default_factory=list)
    yardsticks_ms: list[float] = field(default_factory=list)
    tasks: list[TaskAnswer] = field(default_factory=list)
    mixes: list[MixSeen] = field(default_factory=list)
    likeness: dict[str, list[str]] = field(default_factory=dict)
    left_out: list[str] | None = None
    broken: list[BrokenStage] = field(default_factory=list)


class RunResults:
    """The folder of one run. Files of an earlier run are removed.

    Args:
        folder: exists.
        console: takes lines and tables.
    """

    def __init__(self, folder: Path, console: Console) -> None:
        self.record = RunRecord()
        self._folder = folder
        self._console = console
        self._started_s = time.monotonic()
        for name in _FILES:
            (folder / name).unlink(missing_ok=True)

    def say(self, line: str) -> None:
        """Print a line with the seconds since the begin, and add it to `progress.txt`."""
        dated = f"{time.monotonic() - self._started_s:5.0f} s  {line}"
        self._print(dated)
        with (self._folder / "progress.txt").open("a") as file:
            file.write(f"{dated}\n")

    def keep(self) -> None:
        """Write all that the record holds."""
        record = self.record
        tables = tables_of(record)
        with (self._folder / "tables.txt").open("w") as file:
            _print_tables(Console(file=file, width=_WIDTH), tables)
        self._write("tables.json", {title: [list(head), *map(list, rows)] for title, head, rows in tables})
        self._write("points.json", (record.run.get("status") or {}).get("points", []))
        if record.profile is not None:
            (self._folder / "profile.json").write_text(record.profile.to_json())
        self._write_findings(findings_of(record))

    def print_tables(self) -> None:
        """Print the tables as far as they go, and where everything is."""
        _print_tables(self._console, tables_of(self.record))
        took = duration(time.monotonic() - self._started_s)
        self.say(f"took {took}; tables, profile, points and findings: {os.path.relpath(self._folder)}")

    def conclude(self, operator_failures: Sequence[str] | None) -> tuple[int, str]:
        """Print and write every check and goal; exit status and its words.

        Args:
            operator_failures: from its log; None if it was asked for nothing.
        """
        found = findings_of(self.record)
        if operator_failures is not None:
            found.append(findings.judge_operator(operator_failures))
        for one in found:
            self._print(f"{one.word}  {one.what}: {one.detail}")
        self._write_findings(found)
        return findings.last_line(found)

    def _print(self, line: str) -> None:
        self._console.print(line, markup=False, highlight=False, soft_wrap=True)

    def _write_findings(self, found: Sequence[RunFinding]) -> None:
        self._write(
            "findings.json",
            {
                "findings": [
                    {"what": o.what, "ok": o.ok, "detail": o.detail, "goal": o.goal is not None}
                    for o in found
                ],
                "differences": self.record.likeness,
            },
        )

    def _write(self, name: str, content: object) -> None:
        (self._folder / name).write_text(json.dumps(content, indent=1))


def findings_of(record: RunRecord) -> list[RunFinding]:
    """Every check and goal of what was seen so far; none of a step that has not been taken."""
    found = [*findings.judge_stages(record.broken), *findings.judge_likeness(record.likeness)]
    if record.left_out is not None:
        detail = record.left_out[0] if record.left_out else "nothing left out"
        found.append(RunFinding("the script of a GPU was measured whole", not record.left_out, detail))
    if (record.run.get("status") or {}).get("armStatuses") or record.profile is not None:
        found += findings.judge_arms(record.run, deployments.LOOKUP)
    found += findings.judge_answers(record.run)
    if record.profile is None:
        return found
    loads = alternation.predicted(record.profile, record.probes, record.yardsticks_ms)
    found += findings.judge_fits(record.profile, findings.residuals(record.profile, record.yardsticks_ms))
    if record.decided:
        found.append(
            RunFinding(
                f"the operator runs what the measured laws ask for at {record.decision_rps:.2f} rps",
                record.decided in record.wanted,
                f"{record.decided} runs ({record.reason}); asked for: {', '.join(sorted(record.wanted))}",
            )
        )
    found += alternation.judge_predictions(loads)
    found += alternation.judge_speedups(alternation.speedups(loads))
    if loads:
        found += alternation.judge_accounts(loads)
    return [*found, *findings.judge_rolls(record.rolls)]


def tables_of(record: RunRecord) -> list[tuple[str, Sequence[str], list[Row]]]:
    """Title, head and rows of each table that has any."""
    profile = record.profile
    if profile is None:
        return []
    loads = alternation.predicted(profile, record.probes, record.yardsticks_ms)
    goals = findings.residuals(profile, record.yardsticks_ms)
    loads_rps = (record.decision_rps, 2 * record.decision_rps) if record.decision_rps else ()
    tables: list[tuple[str, Sequence[str], list[Row]]] = [
        ("What calibration found", findings.FIT_HEAD, findings.fit_rows(profile, goals)),
        ("Answers beside those of no speculation", findings.ANSWERS_HEAD, findings.answers_rows(record.run)),
        ("Does it pay?", findings.PAYS_HEAD, findings.pays_rows(profile, loads_rps)),
        ("Latency not fitted", alternation.PREDICTION_HEAD, alternation.prediction_rows(loads)),
        ("Speedup there", alternation.SPEEDUP_HEAD, alternation.speedup_rows(alternation.speedups(loads))),
        ("Tokens per step by task", tasks.TASK_HEAD, tasks.task_rows(record.tasks)),
        ("A mix of tasks that drifts", tasks.MIX_HEAD, tasks.mix_rows(record.mixes)),
        ("Users and engine on the same requests", alternation.ACCOUNT_HEAD, alternation.account_rows(loads)),
        ("Rolls under load", findings.ROLL_HEAD, findings.roll_rows(record.rolls)),
    ]
    return [table for table in tables if table[2]]


def _print_tables(
    console: Console, tables: Sequence[tuple[str, Sequence[str], Sequence[Sequence[str]]]]
) -> None:
    for title, head, rows in tables:
        shown = Table(title=title, title_justify="left")
        for word in head:
            shown.add_column(word)
        for row in rows:
            shown.add_row(*row)
        console.print(shown)

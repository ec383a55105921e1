"""Display of the running demo: a live screen on a terminal, one line per change anywhere else."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Self

from rich.console import Console, Group
from rich.live import Live
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from demo.record import Happening, Record, Sample

_EVENTS_SHOWN = 10
# Beside each column the width that it has where every change is a line of its own.
_COLUMNS = {
    "SERVICE": 8, "LOAD rps": 9, "ARM": 22, "LATENCY s": 10, "PAYS": 11, "RECOMMENDED": 15, "SPEEDUP": 27, "ALERT": 7,
    "REASON": 0,
}  # fmt: skip


class View:
    """Shows a record as it grows; `with View(record):` around the run."""

    def __init__(self, record: Record, console: Console) -> None:
        self._record = record
        self._console = console
        self._step = ""
        self._said: dict[str, tuple[object, ...]] = {}
        self._events_said = 0
        self._live = (
            Live(console=console, refresh_per_second=4, transient=True) if console.is_terminal else None
        )

    def __enter__(self) -> Self:
        if self._live:
            self._live.start()
        return self

    def __exit__(self, *failure: object) -> None:
        if self._live:
            self._live.stop()

    def step(self, text: str) -> None:
        """Say what happens next; stays on the screen as a heading."""
        self._step = text
        self._console.print(f"[bold]{self._elapsed_s():5.0f} s  {escape(text)}[/bold]", highlight=False)

    def refresh(self) -> None:
        """Show what is new."""
        if self._live:
            self._live.update(self._screen())
            return
        for event in self._record.events[self._events_said :]:
            self._console.print(_event_line(event, self._record.started_s), highlight=False, soft_wrap=True)
        self._events_said = len(self._record.events)
        for service in self._record.services.values():
            if not service.samples:
                continue
            sample = service.samples[-1]
            # Progress and measured figures change every second; only what decides is worth a line.
            arm_under_test, reason = sample.calibration.split(" ")[:2], sample.reason.split(" ")[0]
            decides = (sample.arm, sample.recommended, sample.alert, sample.offered_rps)
            words = (*decides, arm_under_test, reason)
            if self._said.get(service.name) != words:
                if not self._said:
                    self._say("time", list(_COLUMNS))
                self._said[service.name] = words
                self._say(f"{self._elapsed_s():5.0f} s", _row(service.name, sample))

    def _say(self, when: str, cells: Sequence[str]) -> None:
        """A row of the table that grows where there is no screen."""
        row = "".join(f"{cell:<{width}}" for cell, width in zip(cells, _COLUMNS.values(), strict=True))
        self._console.print(f"{when:7}  {row}", highlight=False, soft_wrap=True, markup=False)

    def _elapsed_s(self) -> float:
        return time.time() - self._record.started_s

    def _screen(self) -> Group:
        table = Table(title=f"{self._elapsed_s():.0f} s   {self._step}", title_justify="left", expand=True)
        for head in _COLUMNS:
            table.add_column(head, no_wrap=head not in {"SPEEDUP", "REASON"})
        for service in self._record.services.values():
            if service.samples:
                table.add_row(*_row(service.name, service.samples[-1]))
        lines = [
            Text(_event_line(event, self._record.started_s), overflow="ellipsis", no_wrap=True)
            for event in self._record.events[-_EVENTS_SHOWN:]
        ]
        return Group(table, *lines)


def _row(name: str, sample: Sample) -> Sequence[str]:
    return (
        name,
        f"{sample.offered_rps:.1f}",
        sample.arm or "-",
        "-" if sample.latency_s is None else f"{sample.latency_s:.2f}",
        sample.pays or "?",
        sample.recommended or "-",
        sample.speedup or "-",
        "FIRING" if sample.alert else "-",
        sample.calibration or sample.reason,
    )


def _event_line(event: Happening, started_s: float) -> str:
    return f"{event.at_s - started_s:5.0f} s  {event.kind:7} {event.service}  {event.reason}: {event.message}"

"""The row of a fault, and the table of them."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from faults.client import Ledger

_COLUMNS = ("fault", "times", "promised", "seen", "requests", "lost", "unwanted writes", "recovered in")


@dataclass
class FaultRow:
    """One fault.

    Attributes:
        fault: what is done to the operator, in a few words.
        promised: what the product says that happens then.
        times: how often it is done.
        writes: changes of the target that are wanted while the row lasts.
        seen: what happened; empty until it has.
        excused: requests are lost by the fault itself, whatever the operator does.
        users: the streaming users' own count.
        unwanted_writes: changes of the target beyond the wanted ones.
        recovery_s: the longest time from the end of the fault until everything was as promised; None: nothing to recover.
    """

    fault: str
    promised: str
    times: int = 1
    writes: int = 0
    seen: str = ""
    unwanted_writes: int = 0
    recovery_s: float | None = None
    excused: bool = False
    users: Ledger = field(default_factory=Ledger)
    _since: float = field(default_factory=time.monotonic)

    def over(self) -> None:
        """The fault ends now: recovery is measured from here."""
        self._since = time.monotonic()

    def recovered(self) -> None:
        """Everything is as promised again."""
        self.recovery_s = max(self.recovery_s or 0.0, time.monotonic() - self._since)

    @property
    def kept(self) -> bool:
        """Whether the promise held."""
        return bool(self.seen) and (self.excused or not self.users.lost) and not self.unwanted_writes

    def cells(self) -> dict[str, Any]:
        """The row as plain values, by column; `kept` beside them."""
        lost = ", ".join(f"{count} {how}" for how, count in self.users.lost.items()) or "0"
        recovery = "-" if self.recovery_s is None else f"{self.recovery_s:.0f} s"
        seen = self.seen or "NOT SEEN"
        cells = (
            self.fault,
            self.times,
            self.promised,
            seen,
            self.users.sent,
            lost,
            self.unwanted_writes,
            recovery,
        )
        return dict(zip(_COLUMNS, cells, strict=True)) | {"kept": self.kept}


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Rows as `FaultRow.cells` gives them, as a Markdown table."""
    lines = [_COLUMNS, tuple("---" for _ in _COLUMNS)]
    lines += [tuple(str(row[column]) for column in _COLUMNS) for row in rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)

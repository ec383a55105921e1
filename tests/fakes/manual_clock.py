"""Time that moves when a test says so."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta


class FakeClock:
    """The `Clock` port."""

    def __init__(self) -> None:
        self._now = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)
        self._monotonic = 1000.0

    def now(self) -> datetime:
        return self._now

    def monotonic(self) -> float:
        return self._monotonic

    def advance(self, seconds: float) -> None:
        self._now += timedelta(seconds=seconds)
        self._monotonic += seconds

"""The machine's own time."""

from __future__ import annotations

import time
from datetime import UTC, datetime


class SystemClock:
    """The `Clock` port."""

    def now(self) -> datetime:
        """Wall clock, UTC."""
        return datetime.now(UTC)

    def monotonic(self) -> float:
        """Seconds that never go back."""
        return time.monotonic()

"""Lines for the person who waits; always on standard error, so that standard output stays for results."""

from __future__ import annotations

import sys
from collections.abc import Callable

Say = Callable[[str], None]


def say(line: str) -> None:
    """Prints one line of progress."""
    sys.stderr.write(f"localcluster: {line}\n")
    sys.stderr.flush()


def duration(seconds: float) -> str:
    """`45 s` up to two minutes, then `4 min`."""
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"

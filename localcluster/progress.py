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
    """`45 s`, then `2 min 30 s`; whole minutes without seconds."""
    minutes, rest = divmod(round(seconds), 60)
    return " ".join(
        filter(None, [f"{minutes} min" if minutes else "", f"{rest} s" if rest or not minutes else ""])
    )

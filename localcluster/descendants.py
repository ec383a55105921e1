"""Processes below a process, read from /proc."""

from __future__ import annotations

import contextlib
import os
import signal
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path


def of(root: int) -> list[int]:
    """Ids of all living processes below `root`, nearest first; zombies are not among them."""
    children: dict[int, list[int]] = defaultdict(list)
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            with contextlib.suppress(OSError):
                state, parent = parse_stat((entry / "stat").read_text())
                if state not in "ZX":
                    children[parent].append(int(entry.name))
    found: list[int] = []
    frontier = [root]
    while frontier:
        frontier = [child for parent in frontier for child in children[parent]]
        found += frontier
    return found


def parse_stat(stat: str) -> tuple[str, int]:
    """State letter and parent of a `/proc/PID/stat` line; the program's name in it may hold spaces and brackets."""
    state, parent, *_ = stat.rpartition(")")[2].split()
    return state, int(parent)


def kill_all(processes: Iterable[int]) -> None:
    """SIGKILL to each that still exists."""
    for process in processes:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)


def resident_bytes(process: int) -> int:
    """Memory that a process and everything below it holds in RAM; 0 for a process that has ended."""
    return sum(_resident(pid) for pid in (process, *of(process)))


def _resident(process: int) -> int:
    with contextlib.suppress(OSError):
        pages = Path(f"/proc/{process}/statm").read_text().split()[1]
        return int(pages) * os.sysconf("SC_PAGE_SIZE")
    return 0

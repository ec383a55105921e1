"""Seconds that pass, and CPU seconds that this process and everything below it use."""

from __future__ import annotations

import os
import resource
import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import numpy as np

_PROC: Final = Path("/proc")
_TICK_S: Final = 1 / os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Reading:
    """A moment.

    Attributes:
        wall_s: of a clock that only moves forward.
        finished_cpu_s: of this process, and of its children that have ended and theirs.
        running_cpu_s: of each process below this one that still runs, by process id; with its children that have ended.
        children: process ids of this process' own children that still run.
    """

    wall_s: float
    finished_cpu_s: float
    running_cpu_s: dict[int, float] = field(default_factory=dict)
    children: frozenset[int] = frozenset()


@dataclass(frozen=True)
class Spent:
    """Seconds between two moments.

    Attributes:
        wall_s: that passed.
        cpu_s: that this process and everything below it used.
        own_cpu_s: the same without processes that ran already at the first moment: a cluster of all tests works on.
    """

    wall_s: float = 0.0
    cpu_s: float = 0.0
    own_cpu_s: float = 0.0

    def __add__(self, other: Spent) -> Spent:
        return Spent(self.wall_s + other.wall_s, self.cpu_s + other.cpu_s, self.own_cpu_s + other.own_cpu_s)

    def __sub__(self, other: Spent) -> Spent:
        return Spent(self.wall_s - other.wall_s, self.cpu_s - other.cpu_s, self.own_cpu_s - other.own_cpu_s)


def read() -> Reading:
    """Returns the moment that is now."""
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    here = os.getpid()
    return Reading(
        time.monotonic(),
        time.process_time() + ended.ru_utime + ended.ru_stime,
        dict(_running(here)),
        frozenset(_children(here)),
    )


def spent(start: Reading, end: Reading) -> Spent:
    """Returns what passed and was used between two moments of the same process."""
    finished = end.finished_cpu_s - start.finished_cpu_s
    gone = {pid: cpu_s for pid, cpu_s in start.running_cpu_s.items() if pid not in end.running_cpu_s}
    new = sum(cpu_s for pid, cpu_s in end.running_cpu_s.items() if pid not in start.running_cpu_s)
    grown = sum(
        cpu_s - start.running_cpu_s[pid]
        for pid, cpu_s in end.running_cpu_s.items()
        if pid in start.running_cpu_s
    )
    # The earlier time of a process that ended is part of its parent's finished children now.
    own = finished + new - sum(cpu_s for pid, cpu_s in gone.items() if pid in start.children)
    return Spent(
        end.wall_s - start.wall_s, max(0.0, finished + new + grown - sum(gone.values())), max(0.0, own)
    )


def yardstick_cpu_s() -> float:
    """Returns the CPU seconds that a fixed piece of work takes now: small systems of equations and plain Python, as tests do.

    Some 0.04 on a quick machine, and 0.1 on one whose cores others use too.
    """
    return statistics.median(_yardstick() for _ in range(3))


def _yardstick() -> float:
    begin_s = time.process_time()
    values = np.linspace(1.0, 2.0, 16)
    matrix = np.outer(values, values) + np.eye(values.size)
    for _ in range(3000):
        np.linalg.solve(matrix, values)
        sum({str(number): number for number in range(20)}.values())
    return time.process_time() - begin_s


def _children(pid: int) -> list[int]:
    try:
        threads = list((_PROC / str(pid) / "task").iterdir())
        return [int(child) for thread in threads for child in (thread / "children").read_text().split()]
    except (FileNotFoundError, ProcessLookupError):
        return []


def _running(pid: int) -> Iterator[tuple[int, float]]:
    """Processes below one, each with its CPU seconds; one that ends meanwhile is passed over."""
    for child in _children(pid):
        try:
            # After the command's name, which may hold spaces: the state is field 3, the four times are 14 to 17.
            fields = (_PROC / str(child) / "stat").read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        yield child, sum(map(int, fields[11:15])) * _TICK_S
        yield from _running(child)

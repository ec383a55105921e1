"""Who runs on which core: the engine has one to itself, so that what is measured is the engine."""

from __future__ import annotations

import os
import time
from collections.abc import Collection
from dataclasses import dataclass
from statistics import median

_LOOPS, _ROUNDS = 7, 100_000


@dataclass(frozen=True, slots=True)
class CoreSplit:
    """The cores of this process, divided.

    Attributes:
        engine: the core that the engine's processes are bound to.
        others: where everything else runs: users, front end, cluster, operator, Prometheus. The engine's own core where
            there is no second one.
    """

    engine: int
    others: tuple[int, ...]

    @property
    def shared(self) -> bool:
        """Whether the engine has to share its core."""
        return self.engine in self.others

    def sentence(self) -> str:
        """The consequence for the figures, as a sentence."""
        if self.shared:
            return (
                f"there is one core ({self.engine}): the engine shares it with the users that measure it, so its"
                " latency is theirs too"
            )
        rest = ", ".join(map(str, self.others))
        return f"the engine has core {self.engine} to itself; everything else runs on core {rest}"


def split(allowed: Collection[int]) -> CoreSplit:
    """The last core for the engine (interrupts like the first), the others for the rest.

    Args:
        allowed: the cores that this process may use; at least one.

    Raises:
        ValueError: there is none.
    """
    if not allowed:
        raise ValueError("no core to run on")
    *others, engine = sorted(allowed)
    return CoreSplit(engine, tuple(others) or (engine,))


def take(cores: CoreSplit) -> None:
    """Bind this process, and whatever it starts from now on, to the cores beside the engine's."""
    os.sched_setaffinity(0, cores.others)


def yardstick_ms(core: int) -> float:
    """Time that a fixed loop of plain Python takes on a core (ms, median of several); blocks for some 50 ms.

    It is time on the core, not on the wall: an engine that runs there meanwhile does not count. What a machine takes from a
    core without saying so does, and that is looked for.

    Args:
        core: one that this process may be bound to.
    """
    # Of this thread alone.
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {core})
    try:
        return median(_loop_ms() for _ in range(_LOOPS))
    finally:
        os.sched_setaffinity(0, allowed)


def _loop_ms() -> float:
    begun = time.thread_time()
    total = 0
    for number in range(_ROUNDS):
        total += number
    return (time.thread_time() - begun) * 1e3

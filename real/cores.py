"""Who runs on which core: the engine has one to itself, so that what is measured is the engine."""

from __future__ import annotations

import os
from collections.abc import Collection
from dataclasses import dataclass


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

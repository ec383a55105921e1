"""State of a container, as frozen data: the input of decisions and the source of the pod's status."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias


@dataclass(frozen=True)
class Waiting:
    """Not running, with the reason word `kubectl get pods` shows."""

    reason: str
    message: str = ""


@dataclass(frozen=True)
class Running:
    """Running since `started_at` (seconds since the epoch)."""

    started_at: float


@dataclass(frozen=True)
class Terminated:
    """Ended; exit codes above 128 mean signal (code - 128), as container runtimes report it."""

    exit_code: int
    reason: str
    started_at: float
    finished_at: float
    message: str = ""
    container_id: str = ""


Activity: TypeAlias = Waiting | Running | Terminated


@dataclass(frozen=True)
class ContainerState:
    """One container now.

    Attributes:
        activity: what it is doing.
        restarts: how often it was started again.
        last: how the run before the present one ended.
        started: its startup probe passed (or it has none and runs).
        ready: its readiness probe passes (or it has none and it is started).
        image: the image of the present or last run; a changed image in the spec restarts the container.
    """

    activity: Activity = Waiting("ContainerCreating")
    restarts: int = 0
    last: Terminated | None = None
    started: bool = False
    ready: bool = False
    container_id: str = ""
    image: str = ""
    image_id: str = ""

    @property
    def running(self) -> bool:
        """Whether a process of it exists."""
        return isinstance(self.activity, Running)

    @property
    def ended(self) -> Terminated | None:
        """How its latest run ended, if it is not running now and ever ran."""
        if isinstance(self.activity, Terminated):
            return self.activity
        return None if self.running else self.last

    @property
    def ever_ran(self) -> bool:
        """Whether it was ever started."""
        return self.running or self.ended is not None

"""Lessons of windows since the status was written; the process carries them from one decision to the next.

The status is for an operator that starts again, and need not hold every window. A decision needs every window: with an
older memory it would take its present window for all the time since.
"""

from __future__ import annotations

from dataclasses import dataclass

from breakeven_operator.resources import SpeculativeService
from breakeven_operator.resources.memorystatus import MemoryStatus


@dataclass(frozen=True, slots=True)
class UnwrittenMemory:
    """The memory after a decision whose status was not worth a write.

    Attributes:
        stored: memory in the status as the API server held it then.
        memory: after it.
    """

    stored: MemoryStatus | None
    memory: MemoryStatus | None


def with_unwritten(service: SpeculativeService, last: UnwrittenMemory | None) -> SpeculativeService:
    """The service with the memory of its last decision, if nobody has written another one since.

    Args:
        service: as the API server holds it.
        last: the newest decision that was not written; None: there is none.
    """
    status = service.status
    if last is None or status.workings is None or status.memory != last.stored:
        return service
    workings = status.workings.replace(memory=last.memory)
    return service.with_status(status.replace(workings=workings))

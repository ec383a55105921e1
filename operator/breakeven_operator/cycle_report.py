"""Outcome of one cycle, for those who run cycles and those who watch them."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class CycleReport:
    """Outcome of a cycle, for the health probe, the log and the tests.

    Attributes:
        services: seen. errors: plans that were not carried out to their end.
        left: services that should have been decided about, and were not for lack of time.
    """

    services: int = 0
    left: int = 0
    errors: list[str] = field(default_factory=list)

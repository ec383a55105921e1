"""Columns of one point collected from a JSON document, each with the path it came from."""

from __future__ import annotations

from breakeven.arm import Arm
from breakeven.points.point import Origin, Point
from breakeven.points.row import point
from breakeven.readers.jsonwalk import Node


class Fields:
    """Collects columns; what is absent is left out."""

    def __init__(self, arm: Arm) -> None:
        self.values: dict[str, str | float] = {"method": arm.method, "k": float(arm.k)}
        if arm.candidate:
            self.values["candidate"] = arm.candidate
        self._places: dict[str, str] = {}
        self._flags: list[str] = []

    def put(self, column: str, place: str, value: str | float | None) -> None:
        """Set a column, unless the value is None."""
        if value is not None:
            self.values[column], self._places[column] = value, place

    def take(self, column: str, node: Node, scale: float = 1.0) -> None:
        """Set a column from a number; absent and 0 leave it out, since tools write 0 for "not counted"."""
        value = node.optional_number()
        if value:
            self.put(column, node.path, value * scale)

    def number(self, column: str) -> float | None:
        """Return a column taken before."""
        value = self.values.get(column)
        return value if isinstance(value, float) else None

    def flag(self, word: str, *, when: object) -> None:
        """Add a reason word against the point."""
        if when:
            self._flags.append(word)

    def point(self, source: str, row: int) -> Point:
        """Check what was collected.

        Raises:
            InputError: as `row.point`.
        """
        if self._flags:
            self.values["flag"] = " ".join(self._flags)
        return point(self.values, Origin(source, row, places=self._places))

"""Walking a JSON document whose refusals name the path: `benchmarks[2].metrics.request_latency`."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from breakeven.errors import InputError
from breakeven.intake import json_value, kind_of


@dataclass(frozen=True, slots=True)
class Node:
    """A value of a JSON document with its place.

    Attributes:
        value: what stands there, as `json` reads it.
        source: the file's name.
        path: from the root, as `a.b[0]`; empty for the root.
    """

    value: Any
    source: str
    path: str = ""

    @property
    def where(self) -> str:
        """File and path, as messages show it."""
        return f"{self.source}: {self.path}" if self.path else self.source

    def refuse(self, expected: str) -> InputError:
        """Build the refusal of what stands here."""
        found = "nothing there" if self.value is None else kind_of(self.value)
        return InputError(self.where, found, expected)

    def get(self, key: str) -> Node:
        """Return a member; a member that is absent or null is a Node of None.

        Raises:
            InputError: this is not an object.
        """
        if not isinstance(self.value, dict):
            raise self.refuse(f"an object with {key!r}")
        return Node(self.value.get(key), self.source, f"{self.path}.{key}" if self.path else key)

    def at(self, *keys: str) -> Node:
        """Follow several keys; below an absent member everything is absent."""
        node = self
        for key in keys:
            node = Node(None, self.source, f"{node.path}.{key}") if node.value is None else node.get(key)
        return node

    def items(self) -> Iterator[Node]:
        """Return the elements of a list.

        Raises:
            InputError: this is not a list.
        """
        if not isinstance(self.value, list):
            raise self.refuse("a list")
        for index, value in enumerate(self.value):
            yield Node(value, self.source, f"{self.path}[{index}]")

    def number(self, expected: str = "a number") -> float:
        """Return a finite number.

        Raises:
            InputError: anything else stands here.
        """
        number = self.optional_number(expected)
        if number is None:
            raise self.refuse(expected)
        return number

    def optional_number(self, expected: str = "a number or null") -> float | None:
        """Return a finite number, None where nothing stands.

        Raises:
            InputError: anything else stands here.
        """
        if self.value is None:
            return None
        if isinstance(self.value, bool) or not isinstance(self.value, int | float):
            raise self.refuse(expected)
        try:
            number = float(self.value)
        except OverflowError:
            number = math.inf
        if not math.isfinite(number):
            raise self.refuse(expected)
        return number

    def text(self, expected: str = "a text") -> str:
        """Return a text.

        Raises:
            InputError: anything else stands here.
        """
        if not isinstance(self.value, str):
            raise self.refuse(expected)
        return self.value


def parse(text: str, source: str) -> Node:
    """Parse a document.

    Raises:
        InputError: it is not JSON; the line and column are named.
    """
    return Node(json_value(text.removeprefix("\ufeff"), source, "a result file of a load generator"), source)

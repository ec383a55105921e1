"""Sampling fields of a request, by the names of vLLM's API."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import Any

from breakeven.errors import InputError

# Field: lowest and highest value that vLLM takes, and whether only whole numbers are meant.
_RANGES: dict[str, tuple[float, float, bool]] = {
    "temperature": (0.0, 10.0, False),
    "top_p": (1e-6, 1.0, False),
    "top_k": (-1, 1_000_000, True),
    "min_p": (0.0, 1.0, False),
    "presence_penalty": (-2.0, 2.0, False),
    "frequency_penalty": (-2.0, 2.0, False),
    "repetition_penalty": (1e-6, 10.0, False),
    "seed": (0, 2**63 - 1, True),
}


@dataclass(frozen=True, slots=True)
class Sampling:
    """Sampling fields; a field that is None is left to the engine. At temperature 0, the likeliest token, drafts are accepted most often."""

    temperature: float = 0.0
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    seed: int | None = None

    def __post_init__(self) -> None:
        for name, (low, high, whole) in _RANGES.items():
            value = getattr(self, name)
            if value is None:
                continue
            if not (math.isfinite(value) and low <= value <= high) or (whole and value != int(value)):
                kind = "a whole number" if whole else "a number"
                raise InputError(name, f"{value:g}", f"{kind} from {low:g} to {high:g}")

    def body(self) -> dict[str, Any]:
        """The fields as they stand in a request's body."""
        given = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: value for name, value in given.items() if value is not None}

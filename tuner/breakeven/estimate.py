"""A figure with its bounds: what a law, a histogram or a measurement says of one number."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Estimate:
    """A figure and its bounds; None if one is not known, or open."""

    value: float | None = None
    lower: float | None = None
    upper: float | None = None

    @classmethod
    def of(cls, value: float | None, bounds: tuple[float | None, float | None] | None) -> Estimate:
        """A figure whose bounds stand beside it; None if both are open."""
        return cls(value) if bounds is None else cls(value, *bounds)

    @property
    def bounds(self) -> tuple[float | None, float | None] | None:
        """Both ends; None if both are open."""
        return None if self.lower is self.upper is None else (self.lower, self.upper)

    def above(self, limit: float) -> bool:
        """Whether the lower bound lies above a limit."""
        return self.lower is not None and self.lower > limit

    def below(self, limit: float) -> bool:
        """Whether the upper bound lies below a limit."""
        return self.upper is not None and self.upper < limit

    def by(self, rising: Callable[[float], float]) -> Estimate:
        """The estimate of a figure that rises with this one."""
        return Estimate(
            *(None if end is None else rising(end) for end in (self.value, self.lower, self.upper))
        )

    def times(self, factor: float) -> Estimate:
        """The figure and its bounds in another unit: times a factor above 0."""
        return self.by(lambda end: factor * end)

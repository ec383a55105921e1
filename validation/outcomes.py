"""Outcome of a check: the split, the errors, the goal."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np


class Goal(NamedTuple):
    """A limit, and whether a figure must stay below it rather than above."""

    limit: float
    below: bool


@dataclass(frozen=True, slots=True)
class ValidationOutcome:
    """One check, as a row of the validation table.

    Attributes:
        what: the question.
        dataset: which data.
        split: what was fitted and what was predicted.
        figures: name -> value, all shares.
        goals: by name of the figure.
        count: how many predictions.
        note: why a goal is missed.
    """

    what: str
    dataset: str
    split: str
    figures: dict[str, float]
    goals: dict[str, Goal]
    count: int
    note: str = ""

    @property
    def met(self) -> bool:
        """Whether every goal is met."""
        return all(
            self.figures[name] <= limit if below else self.figures[name] >= limit
            for name, (limit, below) in self.goals.items()
        )


def error_outcome(
    what: str,
    dataset: str,
    split: str,
    errors: Sequence[float],
    goals: dict[str, Goal],
    note: str = "",
) -> ValidationOutcome:
    """Mean, 90th percentile and worst of relative errors, compared with goals."""
    size = np.abs(errors)
    figures = {"mean": float(size.mean()), "p90": float(np.quantile(size, 0.9)), "worst": float(size.max())}
    return ValidationOutcome(what, dataset, split, figures, goals, len(size), note)

"""The error of form: how far an engine lies from the law of steps, at the rows of an arm and away from them.

Engines are no formula. Around the law each arm departs by a smooth function of its load, whose size the residuals tell. At the
measured rows the departure is known up to their noise; away from them it fades, and what it may be there widens the bounds.
It is a Gaussian process over the logarithms of load and lengths, one for each arm (Rasmussen and Williams 2006, section 2.7).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from breakeven.laws.arrays import FloatArray

LENGTHS_REACH = 1.0
"""Difference in ln(tokens) of prompts or answers over which an arm departs in the same way."""


class Places(NamedTuple):
    """Where an arm is looked at, each shape (n,).

    Attributes:
        load: ln(1 + others in flight).
        prompt: ln(prompt tokens), 0 without a prompt.
        output: ln(output tokens).
    """

    load: FloatArray
    prompt: FloatArray
    output: FloatArray

    @classmethod
    def of(cls, others: FloatArray, prompt_tokens: FloatArray, output_tokens: FloatArray) -> Places:
        """Of loads and lengths, which are scalars or one per load."""
        logs = (
            np.log1p(np.maximum(others, 0.0)),
            *(np.log(np.maximum(x, 1.0)) for x in (prompt_tokens, output_tokens)),
        )
        return cls(*(np.array(x) for x in np.broadcast_arrays(*logs)))


@dataclass(frozen=True, slots=True)
class FormError:
    """Size of the departures.

    Attributes:
        sd: standard deviation (ln) of a departure where nothing was measured.
        reach: difference in ln(1 + others) over which it stays much the same.
    """

    sd: float
    reach: float

    def covariance(self, left: Places, right: Places) -> FloatArray:
        """Between departures at n and at m places, shape (n, m)."""
        reaches = (self.reach, LENGTHS_REACH, LENGTHS_REACH)
        apart = sum(
            (np.subtract.outer(a, b) / reach) ** 2 for a, b, reach in zip(left, right, reaches, strict=True)
        )
        return np.asarray(self.sd**2 * np.exp(-0.5 * apart))


class Departures(NamedTuple):
    """How an arm departs from the law at n loads.

    Attributes:
        mean: expected ln(latency over law), shape (n,).
        pulled: what a change of each figure of the law moves it by, shape (n, figures): a law that lies higher at the rows
            leaves less to depart.
        sd: standard deviation that is left, shape (n,).
    """

    mean: FloatArray
    pulled: FloatArray
    sd: FloatArray


@dataclass(frozen=True)
class ArmGaps:
    """The rows of an arm beside the law.

    Attributes:
        places: load, prompt and output of each row, as in `Places`.
        gaps: ln(measured over law) of each.
        slopes: d ln(law)/d(figure) of each, shape (rows, figures).
    """

    places: tuple[tuple[float, ...], ...]
    gaps: tuple[float, ...]
    slopes: tuple[tuple[float, ...], ...]

    @cached_property
    def _at(self) -> Places:
        return Places(*np.array(self.places))

    def departures(self, form: FormError, noise: float, wanted: Places) -> Departures:
        """The departures at other places of the same arm.

        Args:
            form: their size.
            noise: standard deviation of one row (ln).
            wanted: n places.
        """
        across = form.covariance(wanted, self._at)
        scattered = form.covariance(self._at, self._at) + noise**2 * np.eye(len(self.gaps))
        weights = np.linalg.solve(scattered, across.T).T
        left = form.sd**2 - np.sum(weights * across, axis=-1)
        return Departures(
            weights @ np.array(self.gaps),
            -weights @ np.array(self.slopes),
            np.sqrt(np.maximum(left, 0.0)),
        )

"""The error of form: departure of an engine from the law of steps, at the rows of an arm and away from them.

Latency departs from the law by a smooth function of load, draft length and request lengths, whose size comes from the
residuals. At the measured rows the departure is known up to their noise. Away from them its expectation fades to 0, and
its standard deviation widens the bounds. It is a Gaussian process over logarithms (Rasmussen and Williams 2006, section 2.7).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from breakeven.arm import Arm
from breakeven.laws.arrays import FloatArray

LENGTHS_REACH = 1.0
"""Difference in ln(tokens) of prompts or answers over which the engine departs in the same way."""

DRAFT_REACH = 1.2
"""Difference in ln(1 + draft length) over which the engine departs in the same way."""

SCHEDULE_APART = 5.0
"""Distance of a schedule from all draft lengths, because it mixes them."""


class Whereabouts(NamedTuple):
    """Coordinates of n loads of arms in the space of departures, each of shape (n,).

    Attributes:
        draft: ln(1 + draft length).
        load: ln(1 + others in flight).
        prompt: ln(prompt tokens), 0 without a prompt.
        output: ln(output tokens).
    """

    draft: FloatArray
    load: FloatArray
    prompt: FloatArray
    output: FloatArray

    @classmethod
    def of(
        cls, arm: Arm, others: FloatArray, prompt_tokens: FloatArray, output_tokens: FloatArray
    ) -> Whereabouts:
        """The coordinates of loads and lengths, which are scalars or one per load."""
        draft = np.log1p(float(arm.k)) + SCHEDULE_APART * arm.scheduled
        logs = (
            np.asarray(draft),
            np.log1p(np.maximum(others, 0.0)),
            *(np.log(np.maximum(x, 1.0)) for x in (prompt_tokens, output_tokens)),
        )
        return cls(*(np.array(x) for x in np.broadcast_arrays(*logs)))


@dataclass(frozen=True, slots=True)
class FormError:
    """Size of the departures: standard deviation (ln) where nothing was measured, and reach in ln(1 + others)."""

    sd: float
    reach: float

    def covariance(self, left: Whereabouts, right: Whereabouts) -> FloatArray:
        """Covariance between departures at n and at m places, shape (n, m)."""
        reaches = (DRAFT_REACH, self.reach, LENGTHS_REACH, LENGTHS_REACH)
        apart = sum(
            (np.subtract.outer(a, b) / reach) ** 2 for a, b, reach in zip(left, right, reaches, strict=True)
        )
        return np.asarray(self.sd**2 * np.exp(-0.5 * apart))


class Departures(NamedTuple):
    """Departures of the engine from the law at n loads of an arm.

    Attributes:
        mean: expected ln(latency over law), shape (n,).
        pulled: its derivative by each figure of the law, shape (n, figures): a law that lies higher at the rows leaves a
            smaller departure.
        sd: standard deviation that is left, shape (n,).
    """

    mean: FloatArray
    pulled: FloatArray
    sd: FloatArray


LARGEST_MISS = 10.0
"""Largest gap (ln), a factor of twenty thousand: a law that misses a row by more is refused."""


@dataclass(frozen=True)
class Gaps:
    """The rows of all arms beside the law.

    Attributes:
        places: draft, load, prompt and output of each row, as in `Whereabouts`.
        gaps: ln(measured over law) of each.
        slopes: d ln(law)/d(figure) of each, shape (rows, figures).
        noises: standard deviation (ln) of each; none in profiles that were fitted as if rows were all as certain.
        blocks: the stretch of time of each, whose windows share a factor; a row alone has one of its own.
        block_sd: standard deviation (ln) of that factor.
    """

    places: tuple[tuple[float, ...], ...]
    gaps: tuple[float, ...]
    slopes: tuple[tuple[float, ...], ...]
    noises: tuple[float, ...] = ()
    blocks: tuple[float, ...] = ()
    block_sd: float = 0.0

    @cached_property
    def _at(self) -> Whereabouts:
        return Whereabouts(*np.array(self.places))

    def departures(self, form: FormError, noise: float, wanted: Whereabouts) -> Departures:
        """The departures at other places; `noise` is the standard deviation of one row (ln), if rows have none of their own."""
        across = form.covariance(wanted, self._at)
        scattered = self._scattered(form, noise)
        weights = np.linalg.solve(scattered, across.T).T
        left = form.sd**2 - np.sum(weights * across, axis=-1)
        return Departures(
            weights @ np.array(self.gaps), -weights @ np.array(self.slopes), np.sqrt(np.maximum(left, 0.0))
        )

    def _scattered(self, form: FormError, noise: float) -> FloatArray:
        own = np.square(self.noises or [noise] * len(self.gaps))
        blocks = np.array(self.blocks or [np.nan] * len(self.gaps))
        shared = self.block_sd**2 * in_one_block(blocks)
        return np.asarray(form.covariance(self._at, self._at) + np.diag(own) + shared)

    def left_out(self, form: FormError, noise: float, covariance: FloatArray) -> FloatArray:
        """Gap of each row to what all others predict for it, shape (rows,), with the covariance of the law's figures."""
        # For a normal model each left-out gap is (K^-1 y)/diag(K^-1), with K the covariance of rows before any was seen.
        inverse = np.linalg.inv(self._scattered(form, noise))
        slopes = inverse @ np.array(self.slopes)
        own = np.diag(inverse) - np.sum((slopes @ covariance) * slopes, axis=-1)
        return np.asarray(inverse @ np.array(self.gaps) / np.maximum(own, 1e-3 * np.diag(inverse)))


def in_one_block(blocks: FloatArray) -> FloatArray:
    """1 where two rows stand in one stretch of time, else 0; shape (rows, rows)."""
    return np.asarray(np.equal.outer(blocks, blocks), dtype=float)


def together(places: Sequence[Whereabouts]) -> Whereabouts:
    """The places of several arms, one after another."""
    return Whereabouts(*(np.concatenate(column) for column in zip(*places, strict=True)))

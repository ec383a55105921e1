"""The error of form: departure of an engine from the law of steps, at the rows of an arm and away from them.

Latency departs from the law by a smooth function of load, draft length and request lengths, whose size comes from the
residuals. At the measured rows the departure is known up to their noise. Away from them its expectation fades to 0, and
its standard deviation widens the bounds. It is a Gaussian process over logarithms (Rasmussen and Williams 2006, section 2.7).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Annotated, NamedTuple

import numpy as np
from pydantic import GetPydanticSchema
from pydantic_core import core_schema

from breakeven.arm import Arm
from breakeven.laws.arrays import FloatArray

LENGTHS_REACH = 1.0
"""Difference in ln(tokens) of prompts or answers over which the engine departs in the same way."""

DRAFT_REACH = 1.2
"""Difference in ln(1 + draft length) over which the engine departs in the same way."""

SCHEDULE_APART = 5.0
"""Distance of a schedule from all draft lengths, because it mixes them."""


def _matrix(rows: Sequence[Sequence[float]]) -> FloatArray:
    """The rows of a file as one array, a fifth of their size; empty if they are not equally long."""
    return np.array(rows if len({len(row) for row in rows}) == 1 else [[]], dtype=float)


Matrix = Annotated[
    FloatArray,
    GetPydanticSchema(
        lambda _, handler: core_schema.no_info_after_validator_function(
            _matrix,
            handler.generate_schema(tuple[tuple[float, ...], ...]),
            serialization=core_schema.plain_serializer_function_ser_schema(np.ndarray.tolist),
        )
    ),
]
"""An array that a file holds as rows of numbers. Values that hold one are compared by their other fields, which it follows from."""


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

    def covariance(self, left: Iterable[FloatArray], right: Iterable[FloatArray]) -> FloatArray:
        """Covariance between departures at n and at m places, as `Whereabouts` or its rows; shape (n, m)."""
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
        places: draft, load, prompt and output of each row, as in `Whereabouts`, shape (4, rows).
        gaps: ln(measured over law) of each.
        slopes: d ln(law)/d(figure) of each, shape (rows, figures).
        noises: standard deviation (ln) of each.
        blocks: the stretch of time of each, whose windows share a factor; a row alone has one of its own.
        block_sd: standard deviation (ln) of that factor.
    """

    places: Matrix = field(compare=False)
    gaps: tuple[float, ...]
    slopes: Matrix = field(compare=False)
    noises: tuple[float, ...]
    blocks: tuple[float, ...]
    block_sd: float

    def departures(self, form: FormError, wanted: Whereabouts) -> Departures:
        """The departures at other places."""
        across = form.covariance(wanted, self.places)
        weights = np.linalg.solve(self._scattered(form), across.T).T
        left = form.sd**2 - np.sum(weights * across, axis=-1)
        return Departures(
            weights @ np.array(self.gaps), -weights @ self.slopes, np.sqrt(np.maximum(left, 0.0))
        )

    def _scattered(self, form: FormError) -> FloatArray:
        shared = self.block_sd**2 * in_one_block(np.array(self.blocks))
        return np.asarray(
            form.covariance(self.places, self.places) + np.diag(np.square(self.noises)) + shared
        )

    def left_out(self, form: FormError, covariance: FloatArray) -> FloatArray:
        """Gap of each row to what all others predict for it, to first order, shape (rows,), with the covariance of the law's figures."""
        # For a normal model each left-out gap is (K^-1 y)/diag(K^-1), with K the covariance of rows before any was seen.
        inverse = np.linalg.inv(self._scattered(form))
        slopes = inverse @ self.slopes
        own = np.diag(inverse) - np.sum((slopes @ covariance) * slopes, axis=-1)
        return np.asarray(inverse @ np.array(self.gaps) / np.maximum(own, 1e-3 * np.diag(inverse)))


def in_one_block(blocks: FloatArray) -> FloatArray:
    """1 where two rows stand in one stretch of time, else 0; shape (rows, rows)."""
    return np.asarray(np.equal.outer(blocks, blocks), dtype=float)

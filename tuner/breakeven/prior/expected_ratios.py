"""Ratios of arms that were never run, as a joint distribution given the rows of the table and what is known.

The logarithms of the figures are jointly normal beforehand (`row_likeness`); rows, and tokens per step that are known, are conditions.
Few sources stand behind them, so bounds are Student's, with as many degrees of freedom as sources of the figure less one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from breakeven.arm import Arm
from breakeven.errors import InputError
from breakeven.estimate import Estimate
from breakeven.laws.arrays import FloatArray
from breakeven.prior.public_table import RatioRow, ServiceFacts
from breakeven.prior.row_likeness import covariances, usual
from breakeven.profile.student_t import t_quantile

_STEPS, _LONE, _SLOPE = range(3)
_SLOPE_OF_STEPS = 0.5
"""Share of the slope that decoding is, and that tokens per step divide: prompts of other requests are read whatever E is."""
_LOADINGS = np.array([[1.0, 0.0, 0.0], [-1.0, 1.0, 0.0], [-_SLOPE_OF_STEPS, 0.0, 1.0]])
"""Of ln E, ln of the lone ratio and ln of the slope's ratio on the three figures of a row."""
_JITTER = 1e-9
_DRAWN_FROM = 20_261_126


class AskedArm(NamedTuple):
    """An arm whose ratios are wanted; tokens per step are None if nobody knows them."""

    arm: Arm
    tokens_per_step: float | None = None


@dataclass(frozen=True, slots=True, eq=False)
class ExpectedRatios:
    """Joint distribution of the logarithms of arms' ratios.

    Attributes:
        arms: the A arms, in the order of the arrays.
        mean: of ln C1 ratio and ln C2 ratio, shape (A, 2).
        covariance: shape (2A, 2A), an arm's two figures beside each other.
        dof: degrees of freedom of the two figures.
    """

    arms: tuple[Arm, ...]
    mean: FloatArray
    covariance: FloatArray
    dof: tuple[int, int]

    def ratios(self, place: int, confidence: float) -> tuple[Estimate, Estimate]:
        """An arm's lone ratio and slope ratio; the value is the median."""
        sd = np.sqrt(np.diag(self.covariance)).reshape(-1, 2)[place]
        return tuple(  # type: ignore[return-value]
            Estimate(
                *(math.exp(middle + side * t_quantile(confidence, dof) * one) for side in (0.0, -1.0, 1.0))
            )
            for middle, one, dof in zip(self.mean[place], sd, self.dof, strict=True)
        )

    def draws(self, count: int) -> FloatArray:
        """Drawn ratios, the same ones at every call; shape (count, A, 2)."""
        random = np.random.default_rng(_DRAWN_FROM)
        size = len(self.arms)
        root = np.linalg.cholesky(self.covariance + _JITTER * np.eye(2 * size))
        normal = (random.standard_normal((count, 2 * size)) @ root.T).reshape(count, size, 2)
        wider = np.stack([np.sqrt(dof / random.chisquare(dof, count)) for dof in self.dof], axis=1)
        return np.asarray(np.exp(self.mean + normal * wider[:, None, :]))


def expected_ratios(
    facts: ServiceFacts, asked: Sequence[AskedArm], rows: Sequence[RatioRow]
) -> ExpectedRatios:
    """Give the ratios of arms that were never run. Pure: equal arguments give equal answers.

    Args:
        facts: of the service.
        asked: arms, at least one.
        rows: measurements of others, of three sources or more for each figure.

    Raises:
        InputError: an arm that does not speculate or has no single draft length, tokens per step that it cannot make, or
            too few sources.
    """
    own = [_asked_row(facts, one) for one in asked]
    every = [*rows, *own]
    known = _Figures.of(
        [
            (place, figure, math.log(value))
            for place, row in enumerate(every)
            for figure, value in enumerate((row.tokens_per_step, row.lone_ratio, row.slope_ratio))
            if value is not None
        ]
    )
    wanted = _Figures.of(
        [(len(rows) + place, figure, 0.0) for place in range(len(own)) for figure in (_LONE, _SLOPE)]
    )
    middle, between = usual(every), covariances(every)
    across = wanted.covariance(known, between)
    weights = np.linalg.solve(
        known.covariance(known, between) + _JITTER * np.eye(known.values.size), across.T
    ).T
    mean = wanted.means(middle) + weights @ (known.values - known.means(middle))
    covariance = wanted.covariance(wanted, between) - weights @ across.T
    return ExpectedRatios(
        tuple(one.arm for one in asked),
        mean.reshape(-1, 2),
        0.5 * (covariance + covariance.T),
        (_freedom(rows, "lone_ratio"), _freedom(rows, "slope_ratio")),
    )


def _asked_row(facts: ServiceFacts, one: AskedArm) -> RatioRow:
    arm, steps = one
    if not arm.k or arm.scheduled:
        raise InputError(
            f"arm {arm}", "no single draft length", "a method and a draft length, such as eagle3/3"
        )
    if steps is not None and not 1.0 <= steps <= arm.k + 1.0:
        raise InputError(f"arm {arm}", f"{steps:g} tokens per step", f"1 to {arm.k + 1}")
    return RatioRow(facts, arm.method, arm.k, tokens_per_step=steps)


def _freedom(rows: Sequence[RatioRow], figure: str) -> int:
    sources = {row.source for row in rows if getattr(row, figure) is not None}
    if len(sources) < 3:
        raise InputError("the table of ratios", f"{len(sources)} sources of {figure}", "three or more")
    return len(sources) - 1


class _Figures(NamedTuple):
    """Figures of rows: which row, which of the three (ln E, ln lone ratio, ln slope ratio), and its value."""

    rows: np.ndarray[tuple[int], np.dtype[np.int64]]
    loadings: FloatArray
    values: FloatArray

    @classmethod
    def of(cls, figures: Sequence[tuple[int, int, float]]) -> _Figures:
        rows, which, values = zip(*figures, strict=True)
        return cls(np.array(rows), _LOADINGS[list(which)], np.array(values))

    def means(self, middle: Sequence[FloatArray]) -> FloatArray:
        return np.asarray(np.einsum("of,fo->o", self.loadings, np.stack(middle)[:, self.rows]))

    def covariance(self, other: _Figures, between: Sequence[FloatArray]) -> FloatArray:
        """Covariance with other figures, of what lies behind the rows."""
        parts = np.stack([one[np.ix_(self.rows, other.rows)] for one in between])
        return np.asarray(np.einsum("of,pf,fop->op", self.loadings, other.loadings, parts))

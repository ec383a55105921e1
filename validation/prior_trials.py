"""The prior judged by leaving one source out: do bounds of 90 % hold the ratios of a source that it has not seen?

A source's rows share an error, so that each source counts once however many rows it has. Knowing nothing is what the other sources' ratios
say of any arm: their mean, and Student's bounds from the scatter between sources and within them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from breakeven.arm import Arm
from breakeven.prior.calibration_worth import DRAWS, share_of_saturation
from breakeven.prior.expected_ratios import AskedArm, ExpectedRatios, expected_ratios
from breakeven.prior.public_table import RatioRow, ServiceFacts
from breakeven.profile.student_t import t_quantile

LEVEL = 0.9
FIGURES = ("lone_ratio", "slope_ratio")
BREAK_EVEN = "break-even"


class PriorKnowledge(NamedTuple):
    """Facts of an arm that a trial gives to the prior."""

    name: str
    facts: bool
    steps: bool


KNOWLEDGE = (
    PriorKnowledge("method and length", facts=False, steps=False),
    PriorKnowledge("and model, GPU, quantisation", facts=True, steps=False),
    PriorKnowledge("and tokens per step", facts=True, steps=True),
)


@dataclass(frozen=True, slots=True)
class PriorTrial:
    """Bounds of one figure of one row, from the other sources.

    Attributes:
        source: of the row.
        held: whether the bounds hold what was measured.
        held_blindly: whether those of knowing nothing do.
        width, width_blindly: upper over lower bound (ln), of both; of a break-even, the width as a share of saturation.
    """

    source: str
    held: bool
    held_blindly: bool
    width: float
    width_blindly: float


def prior_trials(figure: str, known: PriorKnowledge, rows: Sequence[RatioRow]) -> Iterator[PriorTrial]:
    """A trial for each row that has the figure, and tokens per step if these are given."""
    for row in rows:
        measured = _measured(row, figure)
        if measured is None or (known.steps and row.tokens_per_step is None):
            continue
        others = [one for one in rows if one.source != row.source]
        low, high = _bounds(figure, _expected(row, known, others))
        blind_low, blind_high = _blind_bounds(figure, others)
        yield PriorTrial(
            row.source,
            low <= measured <= high,
            blind_low <= measured <= blind_high,
            high - low,
            blind_high - blind_low,
        )


def _measured(row: RatioRow, figure: str) -> float | None:
    if figure == BREAK_EVEN:
        if row.lone_ratio is None or row.slope_ratio is None:
            return None
        return _share(np.array([[[row.lone_ratio, row.slope_ratio]]]))[0]
    value = getattr(row, figure)
    return None if value is None else math.log(value)


def _share(ratios: np.ndarray) -> list[float]:
    """Break-evens as shares of the saturation of no speculation; 1 where an arm pays up to there."""
    return [min(one, 1.0) for one in share_of_saturation(ratios)[:, 0]]


def _expected(row: RatioRow, known: PriorKnowledge, others: Sequence[RatioRow]) -> ExpectedRatios:
    asked = AskedArm(Arm(row.method, row.k), row.tokens_per_step if known.steps else None)
    return expected_ratios(row.facts if known.facts else ServiceFacts(), [asked], others)


def _bounds(figure: str, expected: ExpectedRatios) -> tuple[float, float]:
    if figure == BREAK_EVEN:
        return _middle(_share(expected.draws(DRAWS)))
    found = expected.ratios(0, LEVEL)[FIGURES.index(figure)]
    return math.log(found.lower or math.nan), math.log(found.upper or math.nan)


def _middle(drawn: Sequence[float]) -> tuple[float, float]:
    low, high = np.quantile(drawn, (0.5 - 0.5 * LEVEL, 0.5 + 0.5 * LEVEL))
    return float(low), float(high)


def _blind_bounds(figure: str, others: Sequence[RatioRow]) -> tuple[float, float]:
    if figure == BREAK_EVEN:
        random = np.random.default_rng(0)
        drawn = np.empty((DRAWS, 1, 2))
        for place, name in enumerate(FIGURES):
            middle, spread, dof = _blind(name, others)
            drawn[:, 0, place] = np.exp(middle + spread * random.standard_t(dof, DRAWS))
        return _middle(_share(drawn))
    middle, spread, dof = _blind(figure, others)
    reach = t_quantile(LEVEL, dof) * spread
    return middle - reach, middle + reach


def _blind(figure: str, others: Sequence[RatioRow]) -> tuple[float, float, int]:
    """Mean, standard deviation and degrees of freedom of a figure's logarithm for an arm of which nothing is known."""
    by_source: dict[str, list[float]] = {}
    for row in others:
        if (value := _measured(row, figure)) is not None:
            by_source.setdefault(row.source, []).append(value)
    means = np.array([np.mean(values) for values in by_source.values()])
    within = np.mean([np.var(values) for values in by_source.values()])
    between = means.var(ddof=1) * (1.0 + 1.0 / means.size)
    return float(means.mean()), float(math.sqrt(between + within)), means.size - 1


def by_source(trials: Sequence[PriorTrial], attribute: str) -> float:
    """Mean of an attribute in which each source counts once."""
    groups: dict[str, list[float]] = {}
    for one in trials:
        groups.setdefault(one.source, []).append(float(getattr(one, attribute)))
    return float(np.mean([np.mean(values) for values in groups.values()]))


PRIOR_HEADER = (
    "figure",
    "known",
    "sources",
    "rows",
    "held %",
    "width",
    "blind held %",
    "blind width",
    "narrower by %",
)


def prior_rows(rows: Sequence[RatioRow]) -> Iterator[tuple[str, ...]]:
    """A line of the table for each figure and each state of knowledge; widths of ratios are factors, upper over lower."""
    for figure in (*FIGURES, BREAK_EVEN):
        for known in KNOWLEDGE:
            trials = list(prior_trials(figure, known, rows))
            width, blind = by_source(trials, "width"), by_source(trials, "width_blindly")
            shown = [
                f"{one:.2f}" if figure == BREAK_EVEN else f"x{math.exp(one):.2f}" for one in (width, blind)
            ]
            yield (
                figure.replace("_", " "),
                known.name,
                str(len({one.source for one in trials})),
                str(len(trials)),
                f"{100 * by_source(trials, 'held'):.0f}",
                shown[0],
                f"{100 * by_source(trials, 'held_blindly'):.0f}",
                shown[1],
                f"{100 * (1.0 - width / blind):.0f}",
            )

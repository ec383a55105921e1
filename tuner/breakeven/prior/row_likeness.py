"""How much the figures of two rows have in common: the more facts two rows share, the more one says about the other.

Three figures lie behind a row: its acceptance, what a step costs a lone request over a step without speculation, and the same of the
slope. Each is a sum of parts that rows share: one of all rows, one of its method, one of its GPU, and so on. A part's
standard deviation is known beforehand. A fact that is not known is shared with no row, so that its part stays open.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence
from typing import NamedTuple

import numpy as np

from breakeven.laws.acceptance_numbers import tokens_per_step_iid
from breakeven.laws.arrays import FloatArray
from breakeven.methods import LOOKUP_METHODS, MTP_ALIAS
from breakeven.prior.public_table import RatioRow

_GENERATIONS = {
    "Ampere": ("A100", "A30", "A40", "A10", "RTX 3090"),
    "Ada": ("L4", "L40S", "L40", "RTX 4090"),
    "Hopper": ("H100", "H200", "GH200", "H20", "H800"),
    "Blackwell": ("B100", "B200", "B300", "GB200", "GB300", "GB10", "RTX PRO 6000", "RTX 5090"),
    "CDNA3": ("MI300X", "MI325X"),
    "CDNA4": ("MI350X", "MI355X"),
}
_ALPHA_MODEL, _ALPHA_LOOKUP = 0.7, 0.25
"""Middle of what is accepted of a drafter's tokens, and of copied ones."""
_SIZE_REACH = 1.4
"""Difference (ln) of the number of parameters over which likeness falls to 1/e."""
_MIDDLE_K = 3.0


class PartSpread(NamedTuple):
    """Standard deviations of the parts of one figure; each `bend` is of a part that grows with the draft length.

    Attributes:
        every, bend: of all rows.
        drafting, drafting_bend: of rows that draft with a model, or that copy text.
        method, experts, gpu, quantisation, size: of rows that share the fact.
        source, source_bend: of rows of one source.
        text: of rows of one source on one text.
        row: of one row alone.
    """

    every: float
    bend: float
    drafting: float
    drafting_bend: float
    method: float
    experts: float
    gpu: float
    quantisation: float
    size: float
    source: float
    source_bend: float
    text: float
    row: float


ACCEPTANCE = PartSpread(0.6, 0.2, 0.5, 0.0, 0.3, 0.2, 0.0, 0.0, 0.0, 0.4, 0.2, 0.25, 0.08)
"""Of the logit of the acceptance rate."""
LONE = PartSpread(0.3, 0.2, 0.15, 0.2, 0.12, 0.15, 0.1, 0.07, 0.08, 0.13, 0.1, 0.06, 0.05)
SLOPE = PartSpread(0.3, 0.2, 0.1, 0.2, 0.1, 0.2, 0.05, 0.05, 0.05, 0.15, 0.1, 0.08, 0.05)
"""Of the logarithms of what a step costs a lone request, and of what it adds to the slope."""


class ThreeFigures(NamedTuple):
    """The three figures of rows before any was measured: ln E, ln of the lone cost and of the slope's; each of shape (N,)."""

    steps: FloatArray
    lone: FloatArray
    slope: FloatArray


def usual(rows: Sequence[RatioRow]) -> ThreeFigures:
    """The middle of each figure beforehand, by draft length and way of drafting alone.

    A step with a drafter's tokens costs a lone request a third more at three tokens, and one that copies text costs the same.
    """
    length, looked_up = _lengths(rows), _looked_up(rows)
    return ThreeFigures(
        np.log(tokens_per_step_iid(np.where(looked_up, _ALPHA_LOOKUP, _ALPHA_MODEL), _drafted(rows))),
        np.where(looked_up, 0.0, 0.25 + 0.25 * length),
        np.where(looked_up, 0.15, 0.4 + 0.3 * length),
    )


def covariances(rows: Sequence[RatioRow]) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Covariance of each of the three figures between rows, beforehand; each of shape (N, N)."""
    alpha = np.where(_looked_up(rows), _ALPHA_LOOKUP, _ALPHA_MODEL)
    k, step = _drafted(rows), 1e-4
    # d ln E / d logit(alpha): what a change of the acceptance does to E.
    moved = 1.0 / (1.0 + (1.0 - alpha) / alpha * math.exp(-step))
    rise = np.log(tokens_per_step_iid(moved, k) / tokens_per_step_iid(alpha, k)) / step
    shared = _shared(rows)
    return (
        _covariance(shared, ACCEPTANCE) * np.outer(rise, rise),
        _covariance(shared, LONE),
        _covariance(shared, SLOPE),
    )


def _covariance(shared: Sequence[FloatArray], spread: PartSpread) -> FloatArray:
    return np.asarray(sum(sd**2 * part for sd, part in zip(spread, shared, strict=True)))


def _shared(rows: Sequence[RatioRow]) -> list[FloatArray]:
    """For each part of `PartSpread`, how much of it two rows share (0 to 1), times the lengths for a bend."""
    length = _lengths(rows)
    bends = np.outer(length, length)
    drafting = _alike(rows, lambda row: row.method in LOOKUP_METHODS)
    source = _alike(rows, lambda row: row.source)
    return [
        np.ones_like(bends),
        bends,
        drafting,
        drafting * bends,
        _alike(rows, lambda row: "mtp" if row.method.endswith(MTP_ALIAS) else row.method),
        _alike(rows, lambda row: row.facts.experts),
        _alike(rows, lambda row: generation(row.facts.gpu)),
        _alike(rows, lambda row: row.facts.quantisation and row.facts.quantisation.lower()),
        _sizes_alike(rows),
        source,
        source * bends,
        _alike(rows, lambda row: (row.source, row.workload)),
        np.eye(len(rows)),
    ]


def _alike(rows: Sequence[RatioRow], fact: Callable[[RatioRow], Hashable]) -> FloatArray:
    """1 where two rows have a fact in common, 0 where they do not or where it is not known; 1 of a row with itself."""
    known = [fact(row) for row in rows]
    numbers = {value: number for number, value in enumerate(dict.fromkeys(known)) if value is not None}
    # Each unknown fact gets a number of its own.
    places = np.array([numbers.get(value, -1 - place) for place, value in enumerate(known)])
    return np.asarray(places[:, None] == places[None, :], dtype=float)


def _sizes_alike(rows: Sequence[RatioRow]) -> FloatArray:
    logs = np.log([row.facts.parameters_b or math.nan for row in rows])
    likeness = np.nan_to_num(np.exp(-np.abs(logs[:, None] - logs[None, :]) / _SIZE_REACH))
    np.fill_diagonal(likeness, 1.0)
    return np.asarray(likeness)


def _drafted(rows: Sequence[RatioRow]) -> FloatArray:
    return np.array([float(row.k) for row in rows])


def _lengths(rows: Sequence[RatioRow]) -> FloatArray:
    """Draft lengths on a scale that is 0 at three tokens and -1 without a draft."""
    return np.log1p(_drafted(rows)) / math.log1p(_MIDDLE_K) - 1.0


def _looked_up(rows: Sequence[RatioRow]) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    return np.array([row.method in LOOKUP_METHODS for row in rows])


def generation(gpu: str | None) -> str | None:
    """Generation of a GPU by its product name, as Kubernetes labels and DCGM have it; an unknown product is one of its own."""
    if gpu is None:
        return None
    words = " ".join(gpu.upper().replace("-", " ").replace("_", " ").split())
    for name, products in _GENERATIONS.items():
        if any(f" {product} " in f" {words} " for product in products):
            return name
    return words

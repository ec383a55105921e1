"""The speculation-aware form, fitted over all draft lengths of one method and the arm without speculation.

Linear in its coefficients, so nonnegative least squares with relative residuals is its optimum. What the measured
arms do not determine is named, not invented: prefill terms need more than one output length, a flat drafting cost two
draft lengths. Predictions that depend on what was left open carry its whole range in their bounds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from breakeven.fitting.arms import lengths_of
from breakeven.fitting.departures import Miss, departures
from breakeven.fitting.observations import Observation, observe
from breakeven.fitting.solve import solve
from breakeven.laws.arrays import BoolArray, FloatArray
from breakeven.laws.speculation import COEFFICIENTS, design, estimable, latency_design, mean_kv_tokens
from breakeven.points.point import Point
from breakeven.profile.fits import ArmFit, Lengths, PooledFit
from breakeven.reasons import Reason

_LENGTHS_DIFFER = 1.15
"""Ratio of the largest to the smallest output length that the fit needs to separate prefill from decoding."""

_FEWEST_ROWS = 6

_RANK = 1e-4
"""Singular values below this share of the largest are noise in E, not information."""


@dataclass(frozen=True, slots=True)
class _Row:
    observation: Observation
    tokens_per_step: float
    drafted_per_step: float
    output_tokens: float


def fit_pooled(
    family: str, fits: Sequence[ArmFit], points: Sequence[Point], ramp_share: float
) -> PooledFit | None:
    """Fit one family; None where its rows lack output lengths or acceptance, or are too few.

    Args:
        family: candidate or method name.
        fits: fits of all arms; rows that they excluded are not used here either, except for other lengths.
        points: all rows.
        ramp_share: rho of short closed-loop runs.
    """
    # What a schedule accepts and how long it takes is a mixture over its tiers.
    members = [fit for fit in fits if fit.k == 0 or (fit.arm.family == family and not fit.arm.scheduled)]
    rows = [row for fit in members for row in _rows(fit, points, ramp_share)]
    speculating = [
        fit for fit in members if fit.k > 0 and any(row.observation.point.arm == fit.arm for row in rows)
    ]
    if not speculating:
        return None
    reference = lengths_of([row.observation for row in rows])
    x = _design(rows, reference)
    usable = _entering(rows)
    if len(rows) < _FEWEST_ROWS:
        return None
    y = np.array([row.observation.latency_s for row in rows])
    solution = solve(x[:, usable], y)
    coefficients, covariance = np.zeros(len(COEFFICIENTS)), np.zeros((len(COEFFICIENTS), len(COEFFICIENTS)))
    coefficients[usable] = solution.coefficients
    noise = solution.noise()
    covariance[np.ix_(usable, usable)] = noise**2 * solution.unscaled_covariance
    others = [row.observation.others for row in rows]
    return PooledFit(
        method=family,
        coefficients=dict(zip(COEFFICIENTS, coefficients.tolist(), strict=True)),
        mape=float(np.mean(np.abs(solution.fitted / y - 1.0))),
        unidentified=_unidentified(rows),
        covariance=tuple(tuple(float(v) for v in line) for line in covariance),
        dof=max(len(rows) - int(solution.free.sum()), 0),
        noise=noise,
        points=len(rows),
        draft_lengths=tuple(sorted({row.observation.point.arm.k for row in rows})),
        others_range=(min(others), max(others)),
        lengths=reference,
        tokens_per_step={
            fit.k: fit.tokens_per_step for fit in speculating if fit.tokens_per_step is not None
        },
        survival={
            fit.k: fit.acceptance.survival
            for fit in speculating
            if fit.acceptance and fit.acceptance.survival
        },
        drafted_per_step={fit.k: fit.acceptance.drafted_per_step for fit in speculating if fit.acceptance},
        vllm_method=speculating[0].method,
        departures=departures(_misses(rows, np.log(y / solution.fitted))),
    )


def _misses(rows: Sequence[_Row], misses: FloatArray) -> dict[int, list[Miss]]:
    found: dict[int, list[Miss]] = {}
    for row, miss in zip(rows, misses, strict=True):
        one = row.observation
        found.setdefault(one.point.arm.k, []).append(Miss(one.load, one.others, float(miss)))
    return found


def _rows(fit: ArmFit, points: Sequence[Point], ramp_share: float) -> list[_Row]:
    left_out = {(row.source, row.row) for row in fit.excluded if row.reason != Reason.OTHER_LENGTHS}
    used, _ = observe([point for point in points if point.arm == fit.arm], ramp_share)
    rows = []
    for one in used:
        point = one.point
        # A row's own acceptance explains its own latency better than the arm's mean does.
        e = 1.0 if fit.k == 0 else (point.tokens_per_step or fit.tokens_per_step)
        if e is None or point.output_tokens is None or (point.origin.source, point.origin.row) in left_out:
            continue
        drafted = 0.0 if fit.k == 0 else (point.drafted_per_step or _drafted(fit))
        rows.append(_Row(one, e, drafted, point.output_tokens))
    return rows


def _drafted(fit: ArmFit) -> float:
    return fit.acceptance.drafted_per_step if fit.acceptance else float(fit.k)


def _design(rows: Sequence[_Row], reference: Lengths) -> FloatArray:
    e, drafted, tokens = (
        np.array([getattr(row, name) for row in rows])
        for name in ("tokens_per_step", "drafted_per_step", "output_tokens")
    )
    prompt_ratio, kv_ratio = (
        np.array(x) for x in zip(*(_ratios(row, reference) for row in rows), strict=True)
    )
    return latency_design(
        design(e, drafted, tokens),
        design(e, drafted, tokens, prompt_ratio=prompt_ratio, kv_ratio=kv_ratio),
        np.array([row.observation.others for row in rows]),
    )


def _ratios(row: _Row, reference: Lengths) -> tuple[float, float]:
    point = row.observation.point
    if not point.prompt_tokens or not reference.prompt_tokens or not reference.output_tokens:
        return 1.0, 1.0
    here = mean_kv_tokens(point.prompt_tokens, row.output_tokens, point.output_tokens_sq)
    mean = mean_kv_tokens(reference.prompt_tokens, reference.output_tokens)
    return point.prompt_tokens / reference.prompt_tokens, float(here / mean)


def _entering(rows: Sequence[_Row]) -> BoolArray:
    """Which of the eight coefficients enter the fit.

    All of them, though three arms at one length leave some open: least squares then stops at a solution that the
    data allow, and predictions carry the range of the others. One speculating arm tells nothing of a flat cost; with
    that left out the form is the published one.
    """
    lengths = {row.observation.point.arm.k for row in rows} - {0}
    flat = np.array([name.endswith("s") for name in COEFFICIENTS])
    return ~flat if len(lengths) < 2 else np.ones(len(COEFFICIENTS), dtype=bool)


def _unidentified(rows: Sequence[_Row]) -> tuple[str, ...]:
    """Name the coefficients that the measured arms leave open.

    Prefill and decoding differ in how they grow with output length, so without two lengths there is no p: what fits
    best comes from differences in acceptance alone and is no measurement. v, d and s are then judged without it.
    """
    tokens = [row.output_tokens for row in rows]
    open_prefill = max(tokens) < _LENGTHS_DIFFER * min(tokens)
    kept = slice(1, None) if open_prefill else slice(None)
    by_arm: dict[tuple[int, float], list[_Row]] = {}
    for row in rows:
        by_arm.setdefault((row.observation.point.arm.k, round(row.output_tokens)), []).append(row)
    arms = np.array(
        [
            design(
                np.mean([row.tokens_per_step for row in group]),
                np.mean([row.drafted_per_step for row in group]),
                group[0].output_tokens,
            )
            for group in by_arm.values()
        ]
    )[:, kept]
    determined = estimable(arms, np.eye(arms.shape[1]), _RANK)
    open_terms = {"p"} if open_prefill else set()
    open_terms |= {term for term, sure in zip("pvds"[kept], determined, strict=True) if not sure}
    return tuple(name for name in COEFFICIENTS if name[2] in open_terms)

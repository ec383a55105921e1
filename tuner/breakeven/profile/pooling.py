"""Arms that were not measured: their curve from the pooled form of their method.

Three sources of doubt enter the bounds: the coefficients, the acceptance E at a draft length that was not tried, and
the form itself, which real drafters leave by some percent.
"""

from __future__ import annotations

import itertools

import numpy as np

from breakeven.arm import Arm
from breakeven.errors import NotIdentifiedError
from breakeven.laws.acceptance_numbers import TokensPerStep
from breakeven.laws.arrays import FloatArray
from breakeven.laws.law import Law
from breakeven.laws.speculation import COEFFICIENTS, design, mean_kv_tokens
from breakeven.methods import LOOKUP_METHODS
from breakeven.profile.curves import Curve
from breakeven.profile.fits import PooledFit
from breakeven.profile.operating_conditions import Conditions

FORM_ERROR = 0.02
"""Relative standard deviation of an unmeasured arm's level around the form: 2.2 to 3.3 % mean error on two real
drafters with three measured draft lengths."""

_SAME = 0.25

_FEWEST_KNOTS = 3

_WIDE = 0.15
"""Where the measured arms leave a coefficient open by more than this share of it, a prediction is extrapolation."""


def pooled_curve(fit: PooledFit, arm: Arm, conditions: Conditions) -> Curve:
    """Curve of an arm that was not measured.

    Raises:
        NotIdentifiedError: no acceptance is known for it.
        InputError: impossible conditions.
    """
    conditions.check(arm)
    e = _tokens_per_step(fit, arm, conditions)
    drafted = drafted_per_step(fit, arm)
    output = conditions.output_tokens or fit.lengths.output_tokens or 1.0
    covariance = np.asarray(fit.covariance, dtype=float)
    rows = _rows(fit, conditions, e.value, drafted, output)
    vector = np.array([fit.coefficients[name] for name in COEFFICIENTS])
    level = rows @ vector + _at_other_lengths(fit, conditions, e.value, output)
    if not np.all(level > 0):
        raise NotIdentifiedError(
            f"{arm}: the pooled form of {fit.method} has a coefficient of 0 there: too few arms"
        )
    slope = (
        _rows(fit, conditions, e.upper, drafted, output) - _rows(fit, conditions, e.lower, drafted, output)
    ) @ vector
    # The bounds of E are limits, not a confidence interval: a uniform spread between them.
    doubt_of_e = np.outer(slope, slope) / 12.0
    left_open = _left_open(fit, rows, vector)
    doubt = rows @ covariance @ rows.T + doubt_of_e + FORM_ERROR**2 * np.outer(level, level)
    doubt += np.diag(left_open**2) / 12.0 + _doubt_of_lengths(fit, conditions, e.value, output)
    law = Law(float(level[0]), float(level[1]), doubt)
    return Curve(
        law,
        fit.dof,
        fit.noise,
        "pooled",
        fit.others_range,
        _knots(fit, arm.k, law),
        strayed=_strays(fit, arm, conditions) or bool(np.any(left_open > _WIDE * level)),
    )


def _knots(fit: PooledFit, k: int, law: Law) -> FloatArray | None:
    """The form bent as its measured neighbours in draft length bend it, shape (K, 2); None where they do not.

    Between two measured draft lengths their departures are mixed by ln(k + 1), beyond them the nearest one's holds.
    """
    if not fit.departures:
        return None
    lengths = sorted(fit.departures)
    loads = np.unique(np.concatenate([np.array(fit.departures[j])[:, 0] for j in lengths]))
    # Rates differ between arms, so open-loop loads lie anywhere: knots too close make a slope of any size.
    loads = loads[np.concatenate([[True], np.diff(loads) > np.maximum(0.05, 0.02 * loads[1:])])]
    if loads.size < _FEWEST_KNOTS:
        return None
    bends = [np.interp(loads, *np.array(fit.departures[j]).T) for j in lengths]
    bend = [np.interp(np.log1p(k), np.log1p(lengths), at_load) for at_load in np.transpose(bends)]
    return np.stack([loads, (law.c1 + loads * law.c2) * np.exp(bend)], axis=-1)


def tokens_per_step(fit: PooledFit, k: int) -> TokensPerStep | None:
    """E of the family at any draft length, from what was measured; None without any acceptance."""
    model = fit.acceptance
    return None if model is None else model.at(k)


def _tokens_per_step(fit: PooledFit, arm: Arm, conditions: Conditions) -> TokensPerStep:
    given = conditions.tokens_per_step
    if given is not None:
        return TokensPerStep(given, given, given, "measured", 0)
    known = tokens_per_step(fit, arm.k)
    if known is None:
        raise NotIdentifiedError(
            f"{arm}: no acceptance was measured for {fit.method}; give --tokens-per-step or --alpha"
        )
    return known


def drafted_per_step(fit: PooledFit, arm: Arm) -> float:
    """Return k for model drafters; lookup drafts at some steps only, the same share of them at every k."""
    if fit.vllm_method not in LOOKUP_METHODS or not fit.drafted_per_step:
        return float(arm.k)
    return arm.k * float(np.mean([drafted / k for k, drafted in fit.drafted_per_step.items()]))


def _rows(fit: PooledFit, conditions: Conditions, e: float, drafted: float, output: float) -> FloatArray:
    """Both rows in all eight coefficients, shape (2, 8): C1 and C2 are their products with them."""
    prompt_ratio, kv_ratio = 1.0, 1.0
    measured = fit.lengths
    if measured.prompt_tokens and measured.output_tokens and fit.prefill_token is None:
        prompt = conditions.prompt_tokens or measured.prompt_tokens
        prompt_ratio = prompt / measured.prompt_tokens
        here = mean_kv_tokens(prompt, output)
        kv_ratio = float(here / mean_kv_tokens(measured.prompt_tokens, measured.output_tokens))
    rows = np.zeros((2, len(COEFFICIENTS)))
    rows[0, :4] = design(e, drafted, output)
    rows[1, 4:] = design(e, drafted, output, prompt_ratio=prompt_ratio, kv_ratio=kv_ratio)
    return rows


def _more(fit: PooledFit, conditions: Conditions, e: float, output: float) -> tuple[float, float]:
    """Prompt tokens, and token-steps of context, beyond those at which the coefficients hold."""
    measured = fit.lengths
    if fit.prefill_token is None or not measured.prompt_tokens or not measured.output_tokens:
        return 0.0, 0.0
    prompt = conditions.prompt_tokens or measured.prompt_tokens
    square = measured.output_tokens_sq
    there = mean_kv_tokens(measured.prompt_tokens, measured.output_tokens, square)
    if square is not None:
        # Spread as measured: nobody says how the lengths of now vary.
        square *= (output / measured.output_tokens) ** 2
    context = float(mean_kv_tokens(prompt, output, square) - there)
    return prompt - measured.prompt_tokens, context * output / e


def _at_other_lengths(fit: PooledFit, conditions: Conditions, e: float, output: float) -> FloatArray:
    """What other lengths add to C1 and to C2 (s), shape (2,): every request is prefilled once, every step reads all context."""
    prompt, context = _more(fit, conditions, e, output)
    u_s = fit.prefill_token.value_s if fit.prefill_token else 0.0
    w_s = fit.kv_token.value_s if fit.kv_token else 0.0
    return np.full(2, u_s * prompt + w_s * context)


def _doubt_of_lengths(fit: PooledFit, conditions: Conditions, e: float, output: float) -> FloatArray:
    """Covariance of that, shape (2, 2)."""
    prompt, context = _more(fit, conditions, e, output)
    u_sd = fit.prefill_token.sd_s if fit.prefill_token else 0.0
    w_sd = fit.kv_token.sd_s if fit.kv_token else 0.0
    return np.full((2, 2), (u_sd * prompt) ** 2 + (w_sd * context) ** 2)


def _left_open(fit: PooledFit, rows: FloatArray, vector: FloatArray) -> FloatArray:
    """Width of the range of C1 and of C2 that the measured arms allow at `rows`, shape (2,).

    Coefficients of at least 0 that reproduce the fitted C1 (or C2) of every measured arm form a polytope; what is
    linear in them is extreme at its corners, of which there are at most six.
    """
    if not fit.unidentified or not fit.lengths.output_tokens:
        return np.zeros(2)
    arms = [(1.0, 0.0)] if 0 in fit.draft_lengths else []
    arms += [(e, fit.drafted_per_step.get(k, float(k))) for k, e in fit.tokens_per_step.items()]
    measured = np.array([design(e, drafted, fit.lengths.output_tokens) for e, drafted in arms])
    widths = []
    for prefill, half, row in (("c1p", vector[:4], rows[0, :4]), ("c2p", vector[4:], rows[1, 4:])):
        # A prefill term that was measured is no longer free.
        known = [] if prefill in fit.unidentified else [np.array([1.0, 0.0, 0.0, 0.0])]
        fixed = np.array([*measured, *known])
        values = [float(row @ corner) for corner in _corners(fixed, fixed @ half)] or [float(row @ half)]
        values.append(float(row @ half))
        widths.append(max(values) - min(values))
    return np.array(widths)


def _corners(design_rows: FloatArray, levels: FloatArray) -> list[FloatArray]:
    """Corners of {b >= 0: design_rows @ b = levels}: basic solutions with as many columns as the rank."""
    scaled = design_rows / np.linalg.norm(design_rows, axis=0).clip(1e-300)
    rank = int(np.linalg.matrix_rank(scaled, tol=1e-6))
    corners = []
    for columns in itertools.combinations(range(design_rows.shape[1]), rank):
        part = design_rows[:, columns]
        if np.linalg.matrix_rank(scaled[:, columns], tol=1e-6) < rank:
            continue
        found = np.linalg.lstsq(part, levels, rcond=None)[0]
        if np.all(found >= 0) and np.allclose(part @ found, levels, rtol=1e-6):
            corner = np.zeros(design_rows.shape[1])
            corner[list(columns)] = found
            corners.append(corner)
    return corners


def _strays(fit: PooledFit, arm: Arm, conditions: Conditions) -> bool:
    """Whether draft length or lengths are outside what was measured."""
    lengths = any(
        wanted is not None and measured and abs(wanted / measured - 1.0) > _SAME
        for wanted, measured in (
            (conditions.prompt_tokens, fit.lengths.prompt_tokens),
            (conditions.output_tokens, fit.lengths.output_tokens),
        )
    )
    return bool(arm.k > max(fit.draft_lengths) or (lengths and fit.unidentified))

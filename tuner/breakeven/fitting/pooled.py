"""The speculation-aware form, fitted over all draft lengths of one method and the arm without speculation.

Linear in its coefficients, so nonnegative least squares with relative residuals is its optimum. What the measured
arms do not determine is named, not invented: prefill terms need more than one output length, a flat drafting cost two
draft lengths. Predictions that depend on what was left open carry its whole range in their bounds.

Rows at other prompt lengths are brought to the commonest one by what the arms' steps cost, u per prompt token and w per token
of context: c2p then is u*p, and answers of two tokens tell c1p. Without u such rows are left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from breakeven.fitting.arms import lengths_of
from breakeven.fitting.departures import Miss, departures
from breakeven.fitting.observations import SAME_PROMPT, Observation, observe, of_commonest_length
from breakeven.fitting.solve import Solution, solve
from breakeven.laws.arrays import BoolArray, FloatArray
from breakeven.laws.speculation import COEFFICIENTS, design, estimable, latency_design, mean_kv_tokens
from breakeven.points.point import Point
from breakeven.profile.fits import ArmFit, Lengths, PooledFit, StepCost
from breakeven.reasons import Reason

_LENGTHS_DIFFER = 1.15
"""Ratio of the largest to the smallest output length that the fit needs to separate prefill from decoding."""

_FEW_TOKENS = 8.0
"""Answers of fewer tokens end in the middle of a step: their E is no acceptance."""

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
    u, w = (_of_all(members, name) for name in ("prefill_token", "kv_token"))
    own = of_commonest_length(rows, lambda row: row.observation.point.prompt_tokens, SAME_PROMPT)
    reference = lengths_of([row.observation for row in own])
    u = u if reference.prompt_tokens else None
    if u is None:
        rows, w = own, None
    if len(rows) < _FEWEST_ROWS:
        return None
    usable = _entering(rows)
    y = np.array([row.observation.latency_s for row in rows])
    x, known = _design(rows, reference, moved=u is not None), _KnownPart.of(rows, reference, u, w)
    if u is not None:
        usable[COEFFICIENTS.index("c2p")] = False
    solution = solve(x[:, usable], y, known.latency_s)
    noise = solution.noise()
    coefficients, covariance = known.coefficients, np.zeros((len(COEFFICIENTS), len(COEFFICIENTS)))
    coefficients[usable] = solution.coefficients
    covariance[np.ix_(usable, usable)] = noise**2 * solution.unscaled_covariance
    covariance += known.covariance(x[:, usable], usable, solution)
    others = [row.observation.others for row in rows]
    return PooledFit(
        method=family,
        coefficients=dict(zip(COEFFICIENTS, coefficients.tolist(), strict=True)),
        mape=float(np.mean(np.abs(solution.fitted / y - 1.0))),
        unidentified=_unidentified(rows, prefill_known=u is not None),
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
        # Clients at other prompts are no replicates of the same number of clients at these.
        departures=departures(
            _misses(
                [
                    (row, float(miss))
                    for row, miss in zip(rows, np.log(y / solution.fitted), strict=True)
                    if row in own
                ]
            )
        ),
        prefill_token=u,
        kv_token=w,
    )


def _misses(missed: Sequence[tuple[_Row, float]]) -> dict[int, list[Miss]]:
    found: dict[int, list[Miss]] = {}
    for row, miss in missed:
        one = row.observation
        found.setdefault(one.point.arm.k, []).append(Miss(one.load, one.others, miss))
    return found


def _of_all(fits: Sequence[ArmFit], name: str) -> StepCost | None:
    """One cost of a step over all arms, each as precise as it is; None where no arm's rows tell it."""
    costs = [cost for fit in fits if fit.steps is not None and (cost := getattr(fit.steps, name)) is not None]
    if not costs:
        return None
    weights = [1.0 / max(cost.sd_s, 1e-3 * cost.value_s, 1e-15) ** 2 for cost in costs]
    value_s = float(np.average([cost.value_s for cost in costs], weights=weights))
    return StepCost(value_s, float(sum(weights)) ** -0.5)


@dataclass(frozen=True, slots=True)
class _KnownPart:
    """What u and w say of the rows before anything is fitted.

    Attributes:
        latency_s: the known part of each row, shape (n,).
        coefficients: c2p, zeros elsewhere, shape (8,).
        slopes: (standard error, change of the known part per unit, change of the coefficients per unit) of u and of w.
    """

    latency_s: FloatArray
    coefficients: FloatArray
    slopes: tuple[tuple[float, FloatArray, FloatArray], ...] = ()

    @classmethod
    def of(
        cls, rows: Sequence[_Row], reference: Lengths, u: StepCost | None, w: StepCost | None
    ) -> _KnownPart:
        """Nothing is known without u."""
        nothing = cls(np.zeros(len(rows)), np.zeros(len(COEFFICIENTS)))
        if u is None or not reference.prompt_tokens:
            return nothing
        others = np.array([row.observation.others for row in rows])
        steps = np.array([row.output_tokens / row.tokens_per_step for row in rows])
        more = np.array([_more(row, reference) for row in rows])
        # Each request is prefilled once in every other's time, and every step reads the context of all.
        of_u = (1.0 + others) * more[:, 0] + others * reference.prompt_tokens
        of_w = (1.0 + others) * more[:, 1] * steps
        prefill = np.zeros(len(COEFFICIENTS))
        prefill[COEFFICIENTS.index("c2p")] = reference.prompt_tokens
        slopes = [(u.sd_s, of_u, prefill)]
        latency_s = u.value_s * of_u
        if w is not None:
            slopes.append((w.sd_s, of_w, np.zeros(len(COEFFICIENTS))))
            latency_s = latency_s + w.value_s * of_w
        return cls(latency_s, u.value_s * prefill, tuple(slopes))

    def covariance(self, x: FloatArray, usable: BoolArray, solution: Solution) -> FloatArray:
        """What the errors of u and w add to the coefficients' covariance, shape (8, 8)."""
        found = np.zeros((len(usable), len(usable)))
        for sd, latency, coefficients in self.slopes:
            change = coefficients.copy()
            weighted = x / solution.fitted[:, None] ** 2
            change[usable] -= solution.unscaled_covariance @ (weighted.T @ latency)
            found += sd**2 * np.outer(change, change)
        return found


def _more(row: _Row, reference: Lengths) -> tuple[float, float]:
    """Prompt tokens, and tokens of context, that a row's requests have more than the reference."""
    point = row.observation.point
    if not point.prompt_tokens or not reference.prompt_tokens or not reference.output_tokens:
        return 0.0, 0.0
    here = mean_kv_tokens(point.prompt_tokens, row.output_tokens, _square(row))
    mean = mean_kv_tokens(reference.prompt_tokens, reference.output_tokens, reference.output_tokens_sq)
    return point.prompt_tokens - reference.prompt_tokens, float(here - mean)


def _square(row: _Row) -> float | None:
    square = row.observation.point.output_tokens_sq
    return None if square is None else max(square, row.output_tokens**2)


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
        tokens = point.output_tokens
        if fit.tokens_per_step is not None and tokens < _FEW_TOKENS:
            # As many tokens as would take so many steps at the arm's E.
            tokens, e = 1.0 + (tokens - 1.0) * fit.tokens_per_step / e, fit.tokens_per_step
        drafted = 0.0 if fit.k == 0 else (point.drafted_per_step or _drafted(fit))
        rows.append(_Row(one, e, drafted, tokens))
    return rows


def _drafted(fit: ArmFit) -> float:
    return fit.acceptance.drafted_per_step if fit.acceptance else float(fit.k)


def _design(rows: Sequence[_Row], reference: Lengths, *, moved: bool) -> FloatArray:
    """Rows in all eight coefficients; `moved`: u and w have brought them to the reference already."""
    e, drafted, tokens = (
        np.array([getattr(row, name) for row in rows])
        for name in ("tokens_per_step", "drafted_per_step", "output_tokens")
    )
    ratios = [(1.0, 1.0) if moved else _ratios(row, reference) for row in rows]
    prompt_ratio, kv_ratio = (np.array(x) for x in zip(*ratios, strict=True))
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


def _unidentified(rows: Sequence[_Row], *, prefill_known: bool) -> tuple[str, ...]:
    """Name the coefficients that the measured arms leave open.

    Prefill and decoding differ in how they grow with output length, so without two lengths there is no p: what fits
    best comes from differences in acceptance alone and is no measurement. v, d and s are then judged without it.
    Where u is known, c2p is.
    """
    tokens = [row.output_tokens for row in rows]
    open_prefill = max(tokens) < _LENGTHS_DIFFER * min(tokens)
    alone = _open_terms(rows, with_prefill=not open_prefill) | ({"p"} if open_prefill else set())
    if prefill_known:
        company = _open_terms([row for row in rows if row.observation.others > 0], with_prefill=False)
    else:
        company = alone
    return tuple(name for name in COEFFICIENTS if name[2] in (alone if name[1] == "1" else company))


def _open_terms(rows: Sequence[_Row], *, with_prefill: bool) -> set[str]:
    kept = slice(None) if with_prefill else slice(1, None)
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
    return {term for term, sure in zip("pvds"[kept], determined, strict=True) if not sure}

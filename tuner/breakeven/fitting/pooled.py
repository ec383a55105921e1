"""The draft lengths of one method seen together: what they accept, and the paper's form nearest to the law of steps.

C1 and C2 of every draft length come from the law, at the lengths of the points; the eight coefficients are the nonnegative
ones nearest to them. What the measured arms do not determine is named: their figures are then as the law's priors say.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from breakeven.fitting.arms import lengths_of
from breakeven.fitting.observations import Observation, observe
from breakeven.fitting.solve import solve
from breakeven.laws.arrays import FloatArray
from breakeven.laws.speculation import COEFFICIENTS, design, estimable
from breakeven.points.point import Point
from breakeven.profile.fits import ArmFit, PooledFit
from breakeven.reasons import Reason

_LENGTHS_DIFFER = 1.15
"""Ratio of the largest to the smallest output length that separates prefill from decoding."""

_FEWEST_ROWS = 6

_RANK = 1e-4
"""Singular values below this share of the largest are noise in E, not information."""


class MemberLine(NamedTuple):
    """A draft length's C1 and C2 (s) by the law of steps, and what it drafts and accepts per step."""

    drafted: float
    tokens_per_step: float
    c1_s: float
    c2_s: float


def family_of(
    family: str, fits: Sequence[ArmFit], points: Sequence[Point], ramp_share: float
) -> PooledFit | None:
    """Acceptance of the draft lengths of a family; None if its rows lack output lengths or acceptance, or are too few.

    Args:
        family: candidate or method name.
        fits: fits of all arms; rows that they excluded are not used here either, except for other lengths.
        points: all rows.
        ramp_share: rho of short closed-loop runs.
    """
    # The acceptance of a schedule is a mixture over its tiers.
    members = [fit for fit in fits if fit.k == 0 or (fit.arm.family == family and not fit.arm.scheduled)]
    rows = {fit.k: _rows(fit, points, ramp_share) for fit in members}
    speculating = [fit for fit in members if fit.k > 0 and rows[fit.k]]
    count = sum(map(len, rows.values()))
    if not speculating or count < _FEWEST_ROWS:
        return None
    accepted = [(fit.k, fit.acceptance) for fit in speculating if fit.acceptance]
    return PooledFit(
        method=family,
        coefficients={},
        mape=0.0,
        unidentified=_unidentified(members, rows),
        points=count,
        draft_lengths=tuple(sorted(k for k, of_arm in rows.items() if of_arm)),
        lengths=lengths_of([row for of_arm in rows.values() for row in of_arm]),
        tokens_per_step={
            fit.k: fit.tokens_per_step for fit in speculating if fit.tokens_per_step is not None
        },
        survival={k: found.survival for k, found in accepted if found.survival},
        drafted_per_step={k: found.drafted_per_step for k, found in accepted},
        vllm_method=speculating[0].method,
    )


def coefficients(members: Sequence[MemberLine], output_tokens: float) -> dict[str, float]:
    """The eight coefficients (s) nearest to the C1 and C2 of several draft lengths, by their relative errors."""
    rows = np.array([design(one.tokens_per_step, one.drafted, output_tokens) for one in members])
    halves = (
        solve(rows, np.array([getattr(one, name) for one in members])).coefficients
        for name in ("c1_s", "c2_s")
    )
    return dict(zip(COEFFICIENTS, np.concatenate([*halves]).tolist(), strict=True))


def _rows(fit: ArmFit, points: Sequence[Point], ramp_share: float) -> list[Observation]:
    """Rows that say how long their answers were, of an arm whose acceptance is known."""
    if fit.tokens_per_step is None:
        return []
    left_out = {(row.source, row.row) for row in fit.excluded if row.reason != Reason.OTHER_LENGTHS}
    used, _ = observe([point for point in points if point.arm == fit.arm], ramp_share)
    return [
        one
        for one in used
        if one.point.output_tokens and (one.point.origin.source, one.point.origin.row) not in left_out
    ]


def _unidentified(members: Sequence[ArmFit], rows: dict[int, list[Observation]]) -> tuple[str, ...]:
    """Name the coefficients that the measured arms leave open.

    Prefill and decoding differ in how they grow with output length, so without two lengths there is no p: what fits
    best comes from differences in acceptance alone and is no measurement. v, d and s are then judged without it.
    """
    tokens = [row.point.output_tokens or 0.0 for of_arm in rows.values() for row in of_arm]
    known = max(tokens) >= _LENGTHS_DIFFER * min(tokens)
    kept = slice(None) if known else slice(1, None)
    arms = [
        design(
            fit.tokens_per_step or 1.0,
            fit.acceptance.drafted_per_step if fit.acceptance else 0.0,
            float(length),
        )
        for fit in members
        for length in {round(row.point.output_tokens or 0.0) for row in rows[fit.k]}
    ]
    matrix: FloatArray = np.array(arms)[:, kept]
    determined = estimable(matrix, np.eye(matrix.shape[1]), _RANK)
    open_terms = {term for term, sure in zip("pvds"[kept], determined, strict=True) if not sure}
    if not known:
        open_terms.add("p")
    return tuple(name for name in COEFFICIENTS if name[2] in open_terms)

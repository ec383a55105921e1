"""The law of steps of all rows of a fit, and the line of each arm through rows of one acceptance."""

from __future__ import annotations

import math
from collections.abc import Sequence

from breakeven.errors import InputError
from breakeven.fitting.arms import carried, fit_observed
from breakeven.fitting.engine_starts import fit_law_of_starts
from breakeven.fitting.observations import Observation, observe
from breakeven.fitting.one_law import ArmRows, latency_factors
from breakeven.phrases import figure
from breakeven.points.point import Point
from breakeven.profile.fits import ArmFit, PooledFit
from breakeven.profile.step_fit import StepLaw
from breakeven.profile.step_form import LARGEST_MISS
from breakeven.reasons import Reason

_UNLIKE = frozenset({Reason.RESIDUAL_TOO_LARGE.value, Reason.TOO_NOISY.value})
"""Arms whose rows obey no law: they would be taken for the noise of all."""

_ANOTHER_ACCEPTANCE = 0.10
"""Share by which a row's E differs from that of its arm where the difference may put the row off the line."""


def law_of_points(
    points: Sequence[Point], fits: Sequence[ArmFit], pooled: Sequence[PooledFit], share: float
) -> StepLaw | None:
    """The law of steps, of every usable row at whatever lengths."""
    rows, measured = [], []
    for fit in fits:
        if fit.reason in _UNLIKE:
            continue
        left_out = {(row.source, row.row) for row in fit.excluded if row.reason == Reason.OUTLIER}
        used, _ = observe([one for one in points if one.arm == fit.arm], share)
        kept = [
            row
            for row in used
            if (row.point.origin.source, row.point.origin.row) not in left_out or _accepts_otherwise(row, fit)
        ]
        if kept:
            rows.append(ArmRows(fit.arm, kept))
            measured.append(used)
    acceptance = {one.method: model for one in pooled if (model := one.acceptance) is not None}
    law = fit_law_of_starts(rows, measured, acceptance)
    if law is not None:
        _refuse_misses(law, [row for one in rows for row in one.rows])
    return law


def _accepts_otherwise(row: Observation, fit: ArmFit) -> bool:
    """Whether a row is off its arm's line by an acceptance of its own, which the law reckons with and the line does not."""
    own, mean = row.point.tokens_per_step, fit.tokens_per_step
    return own is not None and mean is not None and abs(own / mean - 1.0) > _ANOTHER_ACCEPTANCE


def _refuse_misses(law: StepLaw, rows: Sequence[Observation]) -> None:
    """Refuse rows of which one is so far off the law of all that no engine gave both.

    Raises:
        InputError: the row that is farthest off.
    """
    miss, row = max(zip(law.gaps.gaps, rows, strict=True), key=lambda pair: abs(pair[0]))
    if abs(miss) > LARGEST_MISS:
        raise InputError(
            row.point.origin.of("mean_latency_s"),
            f"{row.latency_s:g} is {figure(math.exp(abs(miss)), 2)} times {'above' if miss > 0 else 'below'} the law of all rows",
            "rows of one engine, times in seconds, lengths in tokens per request",
        )


def at_mean_acceptance(
    fit: ArmFit, points: Sequence[Point], steps: StepLaw, share: float, confidence: float
) -> ArmFit:
    """The line of an arm through rows of one acceptance.

    A few lone requests may accept a tenth less than their arm does on average. They take that many more steps, and are no
    evidence of what a lone request takes: one such row put C1 3 % too high.
    """
    own = [one for one in points if one.arm == fit.arm]
    mean = fit.tokens_per_step
    if not fit.k or mean is None or not any(one.tokens_per_step for one in own):
        return fit
    rows, rejected = observe(own, share)
    factors = latency_factors(steps, ArmRows(fit.arm, rows), mean)
    moved = [carried(row, factor) for row, factor in zip(rows, factors.tolist(), strict=True)]
    return fit_observed(fit.arm, moved, rejected, share, confidence)

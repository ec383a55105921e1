"""Findings that a profile has by its law of steps alone: arms that decide nothing, the paper's form, bounds over starts."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from breakeven.arm import Arm
from breakeven.estimate import Estimate
from breakeven.fitting.arms import over_starts
from breakeven.fitting.pooled import MemberLine, coefficients
from breakeven.profile.curves import Curve
from breakeven.profile.document import Profile
from breakeven.profile.fits import ArmFit, Lengths, PooledFit
from breakeven.profile.operating_conditions import Conditions
from breakeven.profile.student_t import t_quantile
from breakeven.reasons import Reason

_DECIDES_NOTHING = 4.0
"""Upper over lower bound of a measured latency from which arms cannot be distinguished."""


def judged(profile: Profile) -> Profile:
    """The profile with what only the law of steps says: arms that decide nothing, parts of a latency, the paper's form."""
    if profile.steps is None:
        return profile
    curves = {
        fit.arm: profile.curve(fit.arm, _as_far_as_measured(fit.lengths, fit.lengths))
        for fit in profile.arms
        if fit.measurements
    }
    arms = tuple(
        _beside_the_law(fit, curves[fit.arm], profile.confidence) if fit.arm in curves else fit
        for fit in profile.arms
    )
    found = replace(profile, arms=arms)
    return replace(found, pooled=tuple(_as_paper(one, found, curves) for one in profile.pooled))


def held_over_starts(profile: Profile, arms: Sequence[Arm]) -> Profile:
    """The profile with bounds of some arms' lines that hold over starts of their engine, as those of their curves do."""
    steps = profile.steps
    if steps is None:
        return profile
    found = (
        over_starts(fit, steps.starts_of(fit.arm), profile.confidence) if fit.arm in arms else fit
        for fit in profile.arms
    )
    return replace(profile, arms=tuple(found))


def _beside_the_law(fit: ArmFit, curve: Curve, confidence: float) -> ArmFit:
    """The fit with the ratios of TTFT and TPOT to the law; not believable if its bounds are too wide for any decision."""
    over = {}
    for name in ("ttft", "tpot"):
        measured, by_law = getattr(fit, name), getattr(curve, name)
        if measured is not None and by_law is not None:
            alone, most = (measured.among(n) / by_law.among(n) for n in curve.line_ends.tolist())
            over[name] = (alone, most)
    low, high = curve.others_range
    t = t_quantile(confidence, curve.dof)
    seen = [Estimate.of(None, curve.bounds_among(n, t)) for n in (low, 0.5 * (low + high), high)]
    widest = max(one.upper / one.lower if one.lower and one.upper else math.inf for one in seen)
    if fit.believable and fit.bend is None and widest > _DECIDES_NOTHING:
        return replace(fit, over_law=over, believable=False, reason=Reason.TOO_NOISY.value)
    return replace(fit, over_law=over)


def _as_paper(one: PooledFit, profile: Profile, curves: Mapping[Arm, Curve]) -> PooledFit:
    """The family with its eight coefficients, and by how much the law misses its rows."""
    members, missed = [], []
    for fit in profile.arms:
        of_another = fit.k not in one.draft_lengths or bool(fit.k and fit.arm.family != one.method)
        if fit.arm not in curves or fit.arm.scheduled or of_another:
            continue
        own, line = (
            curves[fit.arm],
            profile.curve(fit.arm, _as_far_as_measured(one.lengths, fit.lengths)).line,
        )
        members.append(MemberLine(one.drafts(fit.k), fit.tokens_per_step or 1.0, line.c1_s, line.c2_s))
        for row in fit.measurements:
            predicted_s = own.loop_latency_s(row.others, closed=row.mode == "closed")
            missed.append(abs(predicted_s / row.latency_s - 1.0))
    found = coefficients(members, one.lengths.output_tokens or 1.0)
    return replace(one, coefficients=found, mape=float(np.mean(missed)))


def _as_far_as_measured(wanted: Lengths, measured: Lengths) -> Conditions:
    """The lengths of a family, where those of the arm were measured and something decodes."""
    return Conditions(
        prompt_tokens=wanted.prompt_tokens if measured.prompt_tokens else None,
        output_tokens=wanted.output_tokens if (measured.output_tokens or 0.0) > 1.0 else None,
    )

"""Fit an arm whose draft length follows the batch size: its own points, and beyond them the law of its last tier.

The line through its last points is no guide beyond them: measured on two tiers it has the slope of neither, and a fleet
that follows it carries a third too little or a third too much.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from breakeven.arm import NO_SPECULATION, Arm
from breakeven.errors import BreakevenError, InputError
from breakeven.fitting.arms import fit_arm
from breakeven.fitting.uncertainty import bounds, inverse_bounds
from breakeven.points.point import Point
from breakeven.profile.curves import Curve
from breakeven.profile.document import Profile
from breakeven.profile.fits import ArmFit, LawFit
from breakeven.profile.operating_conditions import Conditions, measured_curve
from breakeven.tiers import Schedule

_LARGEST_TAX = 0.216
"""Largest measured excess of drafting nothing inside the engine over no speculation; the least was 0.066."""

_CARRIED = 0.999
"""What a point carried is at most this share of saturation."""


def schedules_of(points: Sequence[Point]) -> tuple[Arm, ...]:
    """The arms among the rows whose draft length follows the batch size.

    Raises:
        InputError: a family with more than one schedule; its arms would have one name.
    """
    first: dict[str, Point] = {}
    for one in points:
        if one.schedule is None:
            continue
        known = first.setdefault(one.arm.family, one)
        if (known.k, known.schedule) != (one.k, one.schedule):
            raise InputError(
                one.origin.of("schedule"),
                f"{one.schedule} with k = {one.k}, beside {known.schedule} with k = {known.k} ({known.origin})",
                f"one schedule of {one.arm.family}, or a name of its own in the column candidate",
            )
    return tuple(one.arm for _, one in sorted(first.items()))


def fit_schedule(
    arm: Arm, points: Sequence[Point], ramp_share: float, confidence: float, static: Profile
) -> ArmFit:
    """Fit the rows of one schedule; never raises for what the data cannot tell, the result says so.

    Args:
        arm: the arm.
        points: its rows, at least one.
        ramp_share: as of `fit_arm`.
        confidence: two-sided level of all bounds.
        static: the arms that the last tier's law is taken from.
    """
    fit = fit_arm(arm, points, ramp_share, confidence)
    if fit.fit is None or fit.basis != "points" or fit.schedule is None:
        return fit
    table = Schedule.parse(fit.schedule, "schedule")
    last = Arm(arm.method, table.last, arm.candidate) if table.last else NO_SPECULATION
    try:
        tier = static.curve(last, _lengths(fit, static, last))
    except BreakevenError:
        return fit
    found = replace(fit, beyond=_beyond(fit, fit.fit, table, tier))
    saturation_rps = measured_curve(found, Conditions()).saturation_rps
    return replace(
        found,
        saturation_rps=saturation_rps,
        saturation_ci_rps=_saturation_bounds(found, saturation_rps, confidence),
    )


def _lengths(fit: ArmFit, static: Profile, last: Arm) -> Conditions:
    """The schedule's own lengths, as far as the last tier's arm can be converted to them."""
    own = fit.lengths
    known = static.arm(last).lengths if static.measured(last) else own
    return Conditions(
        None,
        own.prompt_tokens if known.prompt_tokens else None,
        own.output_tokens if known.output_tokens else None,
    )


def _beyond(fit: ArmFit, own: LawFit, table: Schedule, tier: Curve) -> LawFit:
    """The line from the last point on, in the slope of the last tier's law.

    Drafting nothing inside the engine is slower than no speculation. By how much, points tell that lie in the last tier
    for sure; without any, by anything from nothing to the most that was ever measured.
    """
    first = table.tiers[-1][0]
    # Batches vary around the mean number in flight: two standard deviations above the border, nearly all are in the tier.
    settled = [one for one in fit.measurements if one.inflight >= first + 2.0 * first**0.5]
    law = tier.outer_law()
    c2_s, relative_variance = float(law.c2), float(law.variances()[1]) / float(law.c2) ** 2
    if table.last == 0 and settled:
        taxes = [one.latency_s / tier.among(one.others).latency_s for one in settled]
        c2_s *= max(float(np.mean(taxes)), 1.0)
        relative_variance += tier.noise**2 / len(settled)
    elif table.last == 0:
        relative_variance += _LARGEST_TAX**2 / 12.0
    knots = measured_curve(fit, Conditions()).knots
    if knots is None:
        raise ValueError(f"{fit.arm}: a curve that follows points has points")
    others, latency_s = knots[-1].tolist()
    c2_s = min(c2_s, _CARRIED / float(np.max(knots[:, 0] / knots[:, 1])))
    variance = relative_variance * c2_s**2
    # It turns about the last point, which errs as points of the last tier's arm do: those of a schedule lie on no line
    # whose residuals would tell.
    at_point = (tier.noise * latency_s) ** 2
    covariance = (
        (at_point + others**2 * variance, -others * variance),
        (-others * variance, variance),
    )
    return LawFit(latency_s - others * c2_s, c2_s, covariance, own.dof, tier.noise, 0.0)


def _saturation_bounds(
    fit: ArmFit, saturation_rps: float, confidence: float
) -> tuple[float | None, float | None] | None:
    beyond = fit.beyond
    if beyond is None or (
        fit.measured_saturation_rps is not None and fit.measured_saturation_rps <= saturation_rps
    ):
        return fit.saturation_ci_rps
    return inverse_bounds(bounds(beyond.c2_s, beyond.covariance[1][1], beyond.dof, confidence))

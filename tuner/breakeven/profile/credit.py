"""What an arm is measured to carry outranks what its profile says it can carry."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from breakeven.arm import Arm
from breakeven.profile.document import Profile
from breakeven.profile.fits import ArmFit, LawFit
from breakeven.profile.operating_conditions import Conditions

_ROOM = 1.05
"""Saturation lies above a rate that was carried in a steady state: at it, no state would be steady."""
_DISPROVED = 1.15
"""Times a measured ceiling: whoever carries so much shows that it was none. Two sweeps of one engine differ by less."""


def credited(profile: Profile, arm: Arm, rps: float, latency_s: float, conditions: Conditions) -> Profile:
    """Give the profile of an arm that is saturated nowhere at or below a rate which that arm carries.

    A measured ceiling below the rate rises above it, and one far below it falls away. A law whose 1/C2 lies below it becomes faster by one factor, so that it
    predicts the measured latency at the measured rate. Below its saturation the profile is left as it is: this is no
    correction of latencies. Other arms are never changed.

    Args:
        profile: of the service.
        arm: a measured arm that runs.
        rps: rate (1/s) that it carries in a steady state.
        latency_s: mean latency at that rate, above 0.
        conditions: acceptance and lengths at that rate.

    Raises:
        NotIdentifiedError: the arm has no law, or cannot be converted to the conditions.
        InputError: impossible conditions.
    """
    fit = profile.arm(arm)
    curve = profile.curve(arm, conditions)
    if rps < curve.saturation_rps:
        return profile
    ceiling = fit.measured_saturation_rps
    raised = replace(
        fit,
        measured_saturation_rps=(
            None if ceiling is None or rps > _DISPROVED * ceiling else max(ceiling, _ROOM * rps)
        ),
        saturation_rps=max(fit.saturation_rps or 0.0, _ROOM * rps),
    )
    found = _with(profile, raised)
    if not np.isnan(found.curve(arm, conditions).at_rps(rps).latency_s):
        return found
    promised_s = curve.among(rps * latency_s).latency_s
    return _with(profile, _faster(raised, latency_s / promised_s))


def _with(profile: Profile, fit: ArmFit) -> Profile:
    return replace(profile, arms=tuple(fit if one.arm == fit.arm else one for one in profile.arms))


def _faster(fit: ArmFit, factor: float) -> ArmFit:
    """The arm with its law and its points times a factor below 1."""
    return replace(
        fit,
        c1_s=_scaled(fit.c1_s, factor),
        c2_s=_scaled(fit.c2_s, factor),
        fit=None if fit.fit is None else _faster_law(fit.fit, factor),
        beyond=None if fit.beyond is None else _faster_law(fit.beyond, factor),
        measurements=tuple(replace(one, latency_s=factor * one.latency_s) for one in fit.measurements),
    )


def _faster_law(law: LawFit, factor: float) -> LawFit:
    (v1, v12), (v21, v2) = law.covariance
    square = factor**2
    return replace(
        law,
        c1_s=factor * law.c1_s,
        c2_s=factor * law.c2_s,
        covariance=((square * v1, square * v12), (square * v21, square * v2)),
    )


def _scaled(value: float | None, factor: float) -> float | None:
    return None if value is None else factor * value

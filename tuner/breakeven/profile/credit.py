"""A measured load that an arm carries outranks the saturation of its profile, and a measured latency its steps."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from breakeven.arm import Arm
from breakeven.profile.document import Profile
from breakeven.profile.operating_conditions import Conditions

_ROOM = 1.05
"""Factor of saturation over a rate that was carried in a steady state: at saturation no state is steady."""
_ROUNDS = 6
"""Rounds until the predicted latency is near the measured one: steps are only a part of a latency."""
_DISPROVED = 1.15
"""Multiple of a measured ceiling that disproves it if it is carried. Two sweeps of one engine differ by less."""


def credited(profile: Profile, arm: Arm, rps: float, latency_s: float, conditions: Conditions) -> Profile:
    """The profile in which an arm that runs is not saturated at a rate (1/s) which it carries in a steady state, nor below.

    A measured ceiling below the rate rises above it, and one far below it is dropped. If the law of steps is saturated at the
    rate, one factor makes the arm's steps shorter, so that the law predicts the measured latency there. Below its
    saturation the profile is left as it is: this is no correction of latencies. Other arms are never changed.

    Raises:
        NotIdentifiedError: the arm has no rows, or its acceptance or lengths were not measured.
        InputError: impossible conditions.
    """
    fit = profile.arm(arm)
    if rps < profile.curve(arm, conditions).saturation_rps:
        return profile
    ceiling = fit.measured_saturation_rps
    raised = replace(
        fit,
        measured_saturation_rps=(
            None if ceiling is None or rps > _DISPROVED * ceiling else max(ceiling, _ROOM * rps)
        ),
        saturation_rps=max(fit.saturation_rps or 0.0, _ROOM * rps),
    )
    found = replace(profile, arms=tuple(raised if one.arm == arm else one for one in profile.arms))
    if not np.isnan(found.curve(arm, conditions).at_rps(rps)):
        return found
    for _ in range(_ROUNDS):
        promised_s = found.curve(arm, conditions).loop_latency_s(rps * latency_s, closed=False)
        found = with_steps_times(found, arm, latency_s / promised_s)
    return found


def with_steps_times(profile: Profile, arm: Arm, factor: float) -> Profile:
    """The profile with the steps of an arm times a factor; the very profile, whose curves are known, if that changes nothing."""
    law = profile.steps
    level = None if law is None else law.level(arm.name)
    if law is None or level is None or factor == 1.0:
        return profile
    figures = list(law.figures)
    figures[level] += math.log(factor)
    return replace(profile, steps=replace(law, figures=tuple(figures)))

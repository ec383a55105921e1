"""Conditions that follow from the observed load of a service for each arm."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cache

from breakeven.arm import NO_SPECULATION, Arm
from breakeven.laws.acceptance_numbers import TokensPerStep
from breakeven.laws.moved_acceptance import SeenAt, carried
from breakeven.planning.decision_memory import LiveAcceptance
from breakeven.profile import ArmFit, Conditions, Profile
from breakeven.serving.counted_window import Load

AVERAGED_S = 900.0
"""Time (s) over which live acceptance is averaged, with weights of e^(-age/A): three windows of five minutes."""

_ENDS = 2.0 * 1.645
"""Standard deviations between both ends of a range that 90 % bounds hold."""


def live_conditions(
    profile: Profile, load: Load, live: Sequence[LiveAcceptance]
) -> Callable[[Arm], Conditions]:
    """Conditions under which the load is to be predicted for each arm: its lengths, and the newest live acceptance of its drafter."""
    calibrated = {fit.arm: fit for fit in profile.arms}

    @cache
    def conditions(arm: Arm) -> Conditions:
        e = _tokens_per_step(arm, calibrated, live)
        bursts = load.dispersion_or_poisson
        if e is None:
            return Conditions(None, load.prompt_tokens, load.output_tokens, dispersion=bursts)
        error = math.hypot(
            sampling_error(calibrated.get(arm), load, live), (e.upper - e.lower) / (_ENDS * e.value)
        )
        return Conditions(e.value, load.prompt_tokens, load.output_tokens, error, bursts)

    return conditions


def _tokens_per_step(
    arm: Arm, calibrated: dict[Arm, ArmFit], live: Sequence[LiveAcceptance]
) -> TokensPerStep | None:
    """Live E of the arm, or the E of another draft length of its drafter carried over; None as calibrated."""
    # E of a schedule is a mixture over its draft lengths that changes with the load.
    if arm == NO_SPECULATION or arm.scheduled:
        return None
    for seen in live:
        if seen.arm == arm:
            e = min(max(seen.tokens_per_step, 1.0), arm.k + 1.0)
            return TokensPerStep(e, e, e, "measured", len(seen.survival))
        if seen.arm.family != arm.family:
            continue
        here, there = _calibrated_at(calibrated.get(arm)), _calibrated_at(calibrated.get(seen.arm))
        if here is not None and there is not None:
            now = SeenAt(there.k, min(max(seen.tokens_per_step, 1.0), there.k + 1.0), seen.survival)
            return carried(arm.method, now, there, here)
    return None


def _calibrated_at(fit: ArmFit | None) -> SeenAt | None:
    if fit is None or fit.acceptance is None or fit.tokens_per_step is None:
        return None
    return SeenAt(fit.k, fit.tokens_per_step, fit.acceptance.survival)


def sampling_error(fit: ArmFit | None, load: Load, live: Sequence[LiveAcceptance]) -> float:
    """Relative standard error of a live E.

    It is the scatter between windows of live traffic, over the windows that are averaged: tokens of one request are similar,
    and so are requests of one hour. It is at least the scatter of requests when the arm was calibrated, over the requests of now,
    because a single window shows no scatter.
    """
    scatter = fit.acceptance.request_scatter if fit is not None and fit.acceptance is not None else None
    calibrated = scatter / math.sqrt(load.requests) if scatter and load.requests else 0.0
    # Weights of e^(-age/A) count 2A/window windows: their squares sum to window/(2A).
    share = math.sqrt(min(load.window_s / (2.0 * AVERAGED_S), 1.0))
    known = [seen for seen in live if fit is not None and seen.arm.family == fit.arm.family]
    return max([calibrated, *(share * seen.relative_scatter for seen in known)])

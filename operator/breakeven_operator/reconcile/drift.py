"""Whether the text under a service is still that of the calibration: what is accepted, and how long requests are.

Neither makes a profile wrong: a well converted prediction holds at other acceptance. But each makes its figures converted
ones, with the wider bounds of such, and only a calibration at the live text ends that.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import NamedTuple

from breakeven.arm import Arm
from breakeven.errors import BreakevenError
from breakeven.planning.observed_load import LiveAcceptance, Load, sampling_error
from breakeven.profile import ArmFit, Conditions, Profile

SAMPLES_DIFFER = 0.11
"""Acceptance of two samples of one text, of thousands of drafts each, differs by 5 to 11 %."""

MADE_UP_TEXT = frozenset({"synthetic text", "random tokens", "synthetic acceptance"})
"""Texts that nobody's users have written; see `breakeven.load_driver.sent_workload`."""


class Survival(NamedTuple):
    """Share of drafts whose first tokens up to a position (from 1) were all accepted; None if not known."""

    position: int
    live: float | None
    calibrated: float | None


@dataclass(frozen=True, slots=True)
class Drift:
    """Figures significantly outside the calibrated ones, each as a clause with both; empty: none is.

    Attributes:
        acceptance: of the drafts. lengths: of prompts and answers.
    """

    acceptance: str = ""
    lengths: str = ""


def survival(profile: Profile, arm: Arm, seen: Sequence[LiveAcceptance]) -> tuple[Survival, ...]:
    """Live and calibrated survival by draft position; empty for what drafts nothing, or lengths that follow the load."""
    live = next((one.survival for one in seen if one.arm == arm), ())
    fit = _fit(profile, arm)
    calibrated = fit.survival_per_draft if fit is not None else ()
    if arm.scheduled:
        return ()
    size = min(max(len(live), len(calibrated)), arm.k)
    return tuple(
        Survival(i + 1, live[i] if i < len(live) else None, calibrated[i] if i < len(calibrated) else None)
        for i in range(size)
    )


def drift(profile: Profile, arm: Arm, seen: Sequence[LiveAcceptance], load: Load) -> Drift:
    """Figures of the arm in place by which its text differs significantly from the calibrated one.

    Args:
        profile: in force.
        arm: in place.
        seen: live acceptance, averaged over windows.
        load: of the present window.
    """
    fit = _fit(profile, arm)
    if fit is None:
        return Drift()
    return Drift(_of_acceptance(profile, fit, seen, load), _of_lengths(profile, fit, load))


def _of_acceptance(profile: Profile, fit: ArmFit, seen: Sequence[LiveAcceptance], load: Load) -> str:
    live = next((one for one in seen if one.arm == fit.arm), None)
    if live is None or fit.tokens_per_step is None or fit.arm.k == 0:
        return ""
    z = NormalDist().inv_cdf(0.5 + profile.confidence / 2.0)
    error = z * sampling_error(fit, load, seen)
    e, calibrated = live.tokens_per_step, fit.tokens_per_step
    if abs(e - calibrated) > SAMPLES_DIFFER * calibrated + error * e:
        return f"{e:.2f} tokens per step where {calibrated:.2f} were calibrated"
    # Accepted drafts make E - 1: an error of E is a larger share of E - 1.
    of_accepted = error * e / max(e - 1.0, 0.1)
    for one in survival(profile, fit.arm, seen):
        if one.live is None or one.calibrated is None:
            continue
        if abs(one.live - one.calibrated) > SAMPLES_DIFFER + of_accepted * one.live:
            return f"position {one.position} survives in {one.live:.0%} of drafts where {one.calibrated:.0%} were calibrated"
    return ""


def _of_lengths(profile: Profile, fit: ArmFit, load: Load) -> str:
    """Lengths beyond which the arm's prediction is an extrapolation, whatever the load."""
    try:
        strayed = profile.curve(fit.arm, Conditions(None, load.prompt_tokens, load.output_tokens)).strayed
    except BreakevenError:
        # The profile does not say at which lengths it was measured: there is nothing to be outside of.
        return ""
    if not strayed:
        return ""
    measured = fit.lengths
    pairs = (
        ("prompts", load.prompt_tokens, measured.prompt_tokens),
        ("answers", load.output_tokens, measured.output_tokens),
    )
    told = [
        f"{name} of {live:.0f} tokens where {calibrated:.0f} were calibrated"
        for name, live, calibrated in pairs
        if live is not None and calibrated and abs(live / calibrated - 1.0) > SAMPLES_DIFFER
    ]
    return " and ".join(told) or "lengths that were not calibrated"


def _fit(profile: Profile, arm: Arm) -> ArmFit | None:
    return next((fit for fit in profile.arms if fit.arm == arm), None)

"""Conditions that differ from those measured: other acceptance, other lengths.

E2E = TTFT + (g-1)*TPOT on means, so C1 and C2 each have a first-token part and a decode part. Acceptance E instead of
E0 and g instead of g0 output tokens rescale the decode part by (E0/E)*(g-1)/(g0-1); p instead of p0 prompt tokens
rescale the first-token part by p/p0.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from breakeven.arm import Arm
from breakeven.errors import InputError, NotIdentifiedError
from breakeven.laws.arrays import FloatArray
from breakeven.laws.latency import latency_among
from breakeven.laws.law import Law
from breakeven.profile.curves import Curve, rescaled
from breakeven.profile.fits import ArmFit, Measurement

_SD_OF_MEAN_ERROR = 1.25
"""Standard deviation over mean absolute error, of normal errors."""

_LEAST_ALONE = 0.5
"""A lone request takes at least this share of the latency at the lowest load that was measured."""

_SAME = 0.25
"""Lengths within this share of the measured ones are not extrapolation."""


@dataclass(frozen=True, slots=True)
class Conditions:
    """What is known about the load to predict for; None: as measured.

    Attributes:
        tokens_per_step: E per request-step of the arm.
        prompt_tokens: mean prompt tokens per request.
        output_tokens: mean output tokens per request.
    """

    tokens_per_step: float | None = None
    prompt_tokens: float | None = None
    output_tokens: float | None = None

    def check(self, arm: Arm) -> None:
        """Refuse conditions that no arm of this draft length can meet.

        Raises:
            InputError: E outside 1 to k + 1, or a length outside its range.
        """
        e = self.tokens_per_step
        if e is not None and arm.k and not 1.0 <= e <= arm.k + 1.0:
            raise InputError("tokens per step", f"{e:g} for {arm}", f"1 to k + 1 = {arm.k + 1}")
        if self.prompt_tokens is not None and not self.prompt_tokens > 0:
            raise InputError("prompt tokens", f"{self.prompt_tokens:g}", "a number above 0")
        if self.output_tokens is not None and not self.output_tokens >= 1:
            raise InputError("output tokens", f"{self.output_tokens:g}", "a number of at least 1")


def decode_factor(fit: ArmFit, conditions: Conditions) -> float:
    """Multiplier of the decode part of an arm's latency; of all of it where TPOT was not measured.

    Raises:
        NotIdentifiedError: other conditions are asked for than measured and the measured ones are not known.
    """
    factor = 1.0
    if conditions.tokens_per_step is not None and fit.k > 0:
        if fit.arm.scheduled:
            raise NotIdentifiedError(
                f"{fit.arm}: another acceptance cannot be converted, since its draft length changes with the load; "
                "ask without it, or measure the schedule again"
            )
        if fit.tokens_per_step is None:
            raise NotIdentifiedError(
                f"{fit.arm}: its acceptance was not measured, so another one cannot be converted; "
                "measure tokens_per_step, or ask without it"
            )
        factor *= fit.tokens_per_step / conditions.tokens_per_step
    if conditions.output_tokens is not None:
        measured = fit.lengths.output_tokens
        if measured is None or measured <= 1.0:
            raise NotIdentifiedError(
                f"{fit.arm}: its output length was not measured, so another one cannot be converted; "
                "give output_tokens in the points file, or ask without --output-tokens"
            )
        # Without a measured TTFT the first token's time is part of what is scaled and must remain.
        first = 1.0 if fit.tpot is not None else 0.0
        factor *= (conditions.output_tokens - first) / (measured - first)
    return factor


def prompt_factor(fit: ArmFit, conditions: Conditions) -> float:
    """Multiplier of the first-token part of an arm's latency.

    Raises:
        NotIdentifiedError: the measured prompt length is not known.
    """
    if conditions.prompt_tokens is None:
        return 1.0
    if not fit.lengths.prompt_tokens:
        raise NotIdentifiedError(
            f"{fit.arm}: its prompt length was not measured, so another one cannot be converted; "
            "give prompt_tokens in the points file, or ask without --prompt-tokens"
        )
    return conditions.prompt_tokens / fit.lengths.prompt_tokens


def strays(fit: ArmFit, conditions: Conditions) -> bool:
    """Whether the lengths asked for are far from those measured."""
    return any(
        wanted is not None and measured and abs(wanted / measured - 1.0) > _SAME
        for wanted, measured in (
            (conditions.prompt_tokens, fit.lengths.prompt_tokens),
            (conditions.output_tokens, fit.lengths.output_tokens),
        )
    )


def measured_curve(fit: ArmFit, conditions: Conditions) -> Curve:
    """Curve of a measured arm under given conditions.

    Raises:
        NotIdentifiedError: the arm has no law, or cannot be converted to the conditions.
        InputError: impossible conditions.
    """
    conditions.check(fit.arm)
    if fit.fit is None:
        raise NotIdentifiedError(
            f"{fit.arm}: {fit.points} usable points do not determine a latency law ({fit.reason})"
        )
    law = original = fit.fit.law
    decode, prompt = decode_factor(fit, conditions), prompt_factor(fit, conditions)
    if decode != 1.0 or prompt != 1.0:
        law = rescaled(law, *(_factor(part, decode, prompt) for part in _decode_shares(fit)))
    others = [one.others for one in fit.measurements]
    knots = _knots(fit, original, law) if fit.basis == "points" else None
    if knots is not None and fit.arm.scheduled:
        knots = _rising_from_alone(knots)
    return Curve(
        law,
        fit.fit.dof,
        fit.fit.noise,
        "arm",
        (min(others), max(others)),
        knots,
        _SD_OF_MEAN_ERROR * fit.bend.points_error if fit.bend is not None else 0.0,
        fit.measured_saturation_rps,
        strays(fit, conditions),
        # The curve moves it to the last knot, which other lengths have moved already.
        None if fit.beyond is None else fit.beyond.law,
    )


def _decode_shares(fit: ArmFit) -> tuple[float, float]:
    """Share of C1 and of C2 that is decoding; all of it where TPOT was not measured."""
    if fit.fit is None or fit.tpot is None or not fit.lengths.output_tokens:
        return 1.0, 1.0
    steps = fit.lengths.output_tokens - 1.0
    return (
        min(steps * fit.tpot.c1_s / fit.fit.c1_s, 1.0),
        min(steps * fit.tpot.c2_s / fit.fit.c2_s, 1.0),
    )


def _factor(decode_share: float, decode: float, prompt: float) -> float:
    # A request of one token has no decode part; its latency still is above 0.
    return max(decode_share * decode + (1.0 - decode_share) * prompt, 1e-9)


def _knots(fit: ArmFit, original: Law, law: Law) -> FloatArray:
    """Measured (others, latency) in ascending load, moved with the law where that was rescaled.

    Rows at nearly the same load are one knot: between replicates a straight line has any slope.
    """
    groups: list[list[Measurement]] = []
    for one in sorted(fit.measurements, key=lambda row: row.others):
        near = groups and one.others - groups[-1][0].others <= max(0.05, 0.02 * one.others)
        if near:
            groups[-1].append(one)
        else:
            groups.append([one])
    knots = np.array(
        [
            [np.mean([one.others for one in group]), np.mean([one.latency_s for one in group])]
            for group in groups
        ]
    )
    moved = latency_among(law.c1, law.c2, knots[:, 0]) / latency_among(original.c1, original.c2, knots[:, 0])
    knots[:, 1] *= moved
    return knots


def _rising_from_alone(knots: FloatArray) -> FloatArray:
    """The knots of a schedule: none lower than one before it, and the first at a lone request.

    The line nearest to all points is none of its tiers, so it is no guide below the first point either.
    """
    others, latency_s = knots.T
    # The mean of the least rising curve above all points and the largest one below them.
    rising = (np.maximum.accumulate(latency_s) + np.minimum.accumulate(latency_s[::-1])[::-1]) / 2.0
    found = np.stack([others, rising], axis=-1)
    if others[0] <= 0.0:
        return found
    slope = (rising[1] - rising[0]) / (others[1] - others[0])
    alone_s = max(rising[0] - slope * others[0], _LEAST_ALONE * rising[0])
    return np.vstack([[0.0, alone_s], found])

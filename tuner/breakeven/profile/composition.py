"""One profile of requests that several engines answer: each one by an engine of some class, or by two engines in turn.

Requests of a fleet on several GPU classes are spread over them. Their mean latency at a rate is the mean of the classes'
latencies, each at its own rate and by its share of the requests. If another engine reads the prompts, the time until the
first token is a measured one, and a law says only what comes after it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from breakeven.arm import Arm
from breakeven.errors import NotIdentifiedError
from breakeven.laws.arrays import FloatArray, Span
from breakeven.profile.curves import Curve
from breakeven.profile.document import Profile
from breakeven.profile.fits import ArmFit, LawFit
from breakeven.profile.operating_conditions import Conditions
from breakeven.reasons import Reason

_LAST = 1.0 - 1e-4
"""Share of the saturation up to which knots lie; beyond it the last piece of a curve goes on."""
_SHARES = np.concatenate([np.linspace(0.0, 0.9, 46), 1.0 - np.geomspace(0.1, 1.0 - _LAST, 40)])
_APART = 1e-9
"""Least relative distance between the numbers in flight of two knots."""
_LEAST_DECODING = 0.01
"""Share of a latency that decoding takes at least."""
_SURE = ((0.0, 0.0), (0.0, 0.0))


class CurvePart(NamedTuple):
    """Engines of one class among those that share the requests.

    Attributes:
        curve: latency of one engine.
        requests: share of all requests that they answer; those of all parts sum to 1.
        pace: rate of one of them over the mean rate of all engines.
    """

    curve: Curve
    requests: float
    pace: float


class ProfilePart(NamedTuple):
    """The same with the profile of the class."""

    profile: Profile
    requests: float
    pace: float


@dataclass(frozen=True, slots=True)
class ComposedProfile(Profile):
    """A profile of the requests of several classes of engines; it is made for one decision and never stored.

    An arm is in it if every class has measured it, and believable if it is in every class. Quantiles of parts do not add up
    to those of the whole, so that it has none: objectives are checked against means.

    Attributes:
        parts: the classes.
        first_token_s: measured time (s) to the first token, which stands for that of the laws; None: theirs counts.
    """

    parts: tuple[ProfilePart, ...] = ()
    first_token_s: float | None = None

    def curve(self, arm: Arm, conditions: Conditions | None = None) -> Curve:
        """Mean latency of the requests against the mean rate of all engines.

        Raises:
            NotIdentifiedError: what was measured of a class does not determine its curve, or its time to the first token is
                asked for and was not measured.
            InputError: impossible conditions.
        """
        curves = [CurvePart(one.profile.curve(arm, conditions), one.requests, one.pace) for one in self.parts]
        if self.first_token_s is not None and any(one.curve.ttft is None for one in curves):
            raise NotIdentifiedError(
                f"{arm}: its time to the first token was not measured, so that its time of decoding alone is not known"
            )
        return composed_curve(curves, self.first_token_s)


def composed(parts: Sequence[ProfilePart], first_token_s: float | None = None) -> ComposedProfile:
    """The profile of requests that these classes of engines share.

    Args:
        parts: at least one; their shares of the requests sum to 1.
        first_token_s: measured time (s) to the first token, which stands for that of the laws; None: theirs counts.
    """
    first = parts[0].profile
    others = [{fit.arm: fit for fit in one.profile.arms} for one in parts[1:]]
    return ComposedProfile(
        confidence=min(one.profile.confidence for one in parts),
        arms=tuple(
            _fit([fit, *(of[fit.arm] for of in others)])
            for fit in first.arms
            if all(fit.arm in of for of in others)
        ),
        warnings=tuple(dict.fromkeys(text for one in parts for text in one.profile.warnings)),
        parts=tuple(parts),
        first_token_s=first_token_s,
    )


def _fit(fits: Sequence[ArmFit]) -> ArmFit:
    """One arm's fits as one: the first, as far as all agree."""
    doubtful = next((fit for fit in fits if not fit.believable), fits[0])
    rooms = [fit.kv_requests for fit in fits if fit.kv_requests is not None]
    # Agreement on one class says nothing about another one: its kernels round in another way.
    differing = next((fit.answers for fit in fits if fit.answers != Reason.ANSWERS_AGREE), fits[0].answers)
    unlined = any(fit.fit is None for fit in fits)
    return replace(
        fits[0],
        believable=doubtful.believable,
        reason=doubtful.reason,
        fit=None if unlined else fits[0].fit,
        points=sum(fit.points for fit in fits),
        max_relative_error=max(fit.max_relative_error or 0.0 for fit in fits),
        quantiles={},
        ttft_quantiles={},
        tpot_quantiles={},
        kv_requests=min(rooms, default=None),
        measured_saturation_rps=None,
        answers=differing,
    )


def composed_curve(parts: Sequence[CurvePart], first_token_s: float | None = None) -> Curve:
    """The mean latency of requests that engines of several classes share, against what one engine of their mean holds.

    The whole saturates with the class that saturates first: the queue of its engines grows without end. Errors of one
    class's law move the mean by the class's part of it; laws of different classes err by themselves.

    Args:
        parts: at least one; with a law of the time to the first token if that is given.
        first_token_s: measured time (s) to the first token, which stands for that of the laws; None: theirs counts.
    """
    limits = [one.curve.saturation_rps / one.pace for one in parts]
    limiting, most = int(np.argmin(limits)), min(limits)
    rates = _rates(parts, most)
    of_parts = np.stack([one.curve.latencies_at_rps(one.pace * rates) for one in parts])
    first = [one.curve.ttft if first_token_s is not None else None for one in parts]
    latency_s = _means(parts, rates, of_parts, first) + (first_token_s or 0.0)
    others = rates * latency_s
    kept = np.isfinite(others)
    kept[1:] &= np.diff(others) > _APART * (1.0 + others[:-1])
    rates, of_parts, latency_s, others = rates[kept], of_parts[:, kept], latency_s[kept], others[kept]
    loadings, own_sds, start_sd = _doubts(
        parts, rates, of_parts, latency_s, [0.0 if one is None else one.c2_s for one in first]
    )
    ceiling_rps = parts[limiting].curve.ceiling_rps
    return Curve(
        knots=np.column_stack([others, latency_s]),
        saturation_rps=most,
        dof=min(one.curve.dof for one in parts),
        noise=max(one.curve.noise for one in parts),
        basis="pooled" if any(one.curve.basis == "pooled" for one in parts) else "arm",
        others_range=_measured(parts, rates, others),
        loadings=loadings,
        own_sds=own_sds,
        ceiling_rps=None if ceiling_rps is None else ceiling_rps / parts[limiting].pace,
        strayed=any(one.curve.strayed for one in parts),
        bent=any(one.curve.bent for one in parts),
        start_sd=start_sd,
        ttft=_line(parts, [one.curve.ttft for one in parts], rates, others)
        if first_token_s is None
        else LawFit(max(first_token_s, 1e-9), 1e-12, _SURE, min(one.curve.dof for one in parts), 0.0, 0.0),
        tpot=_line(parts, [one.curve.tpot for one in parts], rates, others),
    )


def _means(
    parts: Sequence[CurvePart], rates: FloatArray, of_parts: FloatArray, first: Sequence[LawFit | None]
) -> FloatArray:
    """The mean latency (s) at each mean rate, NaN where a class has none; without the time to the first token of a law in `first`.

    Decoding takes some time however wrong two laws are.
    """
    found = np.zeros_like(rates)
    for one, latency_s, law in zip(parts, of_parts, first, strict=True):
        before_s = 0.0 if law is None else law.c1_s + law.c2_s * one.pace * rates * latency_s
        found += one.requests * np.maximum(latency_s - before_s, _LEAST_DECODING * latency_s)
    return found


def _rates(parts: Sequence[CurvePart], most: float) -> FloatArray:
    """Mean rates (1/s) of the knots: those of the parts, and shares of the saturation between them."""
    own = [one.curve.knots[:, 0] / one.curve.knots[:, 1] / one.pace for one in parts]
    rates = np.unique(np.concatenate([*own, _measured_rps(parts), most * _SHARES]))
    return np.asarray(rates[rates <= _LAST * most])


def _doubts(
    parts: Sequence[CurvePart],
    rates: FloatArray,
    of_parts: FloatArray,
    latency_s: FloatArray,
    first_slopes_s: Sequence[float],
) -> tuple[FloatArray, FloatArray, float]:
    """Change of ln(latency among as many others) with each source, (K, sources), its own deviation, (K,), and that over starts.

    Args:
        parts: the classes.
        rates: mean rates of the knots (1/s), shape (K,).
        of_parts: latency of each class there (s), shape (parts, K).
        latency_s: of the whole (s), shape (K,).
        first_slopes_s: what each other request adds (s) to a time to the first token that does not count.
    """
    found = [one.curve.doubts_at_rps(one.pace * rates) for one in parts]
    weights, whole = [], np.ones_like(rates)
    for one, own_s, doubt, slope_s in zip(parts, of_parts, found, first_slopes_s, strict=True):
        # At a fixed rate an error counts as often as it slows its class down, and so does one of the whole.
        part, counted = one.requests * own_s / latency_s, 1.0 - slope_s * one.pace * rates
        whole += part * (doubt.slowed * counted - 1.0)
        weights.append(part * doubt.slowed * counted)
    weights = [weight / whole for weight in weights]
    shared = [weight[:, None] * doubt.shared for weight, doubt in zip(weights, found, strict=True)]
    whole_sd, start_sd = (
        np.sqrt(sum((weight * sd) ** 2 for weight, sd in zip(weights, sds, strict=True)))
        for sds in ([doubt.own for doubt in found], [one.curve.start_sd for one in parts])
    )
    # Over starts a class counts as much as at the load at which it counts most: one figure holds for all loads.
    own = np.sqrt(np.maximum(whole_sd**2 - start_sd**2, 0.0))
    return np.hstack(shared), np.asarray(own), float(np.max(start_sd))


def _measured(parts: Sequence[CurvePart], rates: FloatArray, others: FloatArray) -> Span:
    """The range of others in flight in which every class was measured."""
    low, high = np.interp(_measured_rps(parts), rates, others)
    return float(low), float(high)


def _measured_rps(parts: Sequence[CurvePart]) -> Span:
    """The range of mean rates (1/s) in which every class was measured."""
    ends = [
        [n / one.curve.loop_latency_s(n, closed=False) / one.pace for n in one.curve.others_range]
        for one in parts
    ]
    high = min(high for _, high in ends)
    return min(max(low for low, _ in ends), high), high


def _line(
    parts: Sequence[CurvePart],
    laws: Sequence[LawFit | None],
    rates: FloatArray,
    others: FloatArray,
) -> LawFit | None:
    """The line of a figure between no load and the highest measured one; None if a class has none."""
    known = [law for law in laws if law is not None]
    if len(known) < len(laws):
        return None
    top = max(_measured(parts, rates, others)[1], float(others[1]))
    rps = float(np.interp(top, others, rates))
    met = [one.pace * rps * one.curve.at_rps(one.pace * rps).latency_s for one in parts]
    of_parts = list(zip(parts, known, met, strict=True))
    alone_s = sum(part.requests * law.c1_s for part, law, _ in of_parts)
    at_top_s = sum(part.requests * law.among(n) for part, law, n in of_parts)
    covariance = np.zeros((2, 2))
    for part, law, n in of_parts:
        scale = part.requests * np.diag([1.0, n / top])
        covariance += scale @ np.asarray(law.covariance) @ scale
    (v1, v12), (_, v2) = covariance.tolist()
    return LawFit(
        alone_s,
        max((at_top_s - alone_s) / top, 1e-12),
        ((v1, v12), (v12, v2)),
        min(law.dof for law in known),
        max(law.noise for law in known),
        max(law.max_relative_error for law in known),
    )

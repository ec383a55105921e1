"""Predict one arm at one load."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from breakeven.arm import Arm
from breakeven.errors import InputError, NotIdentifiedError
from breakeven.latency import latency_among
from breakeven.profile.conditions import Conditions, decode_factor, prompt_factor
from breakeven.profile.curves import Basis, Curve
from breakeven.profile.fits import ArmFit, Bounds
from breakeven.profile.student import t_quantile


@dataclass(frozen=True, slots=True)
class LoadPoint:
    """The load to predict for: exactly one of the two is given.

    Attributes:
        rps: rate of an open loop with Poisson arrivals (1/s).
        concurrency: imposed concurrency of a closed loop.
    """

    rps: float | None = None
    concurrency: float | None = None

    def __post_init__(self) -> None:
        if (self.rps is None) == (self.concurrency is None):
            raise InputError("load", "not one figure", "either a rate or a concurrency")
        if self.rps is not None and not 0 <= self.rps < float("inf"):
            raise InputError("rps", f"{self.rps:g}", "requests per second, at least 0")
        if self.concurrency is not None and not 1 <= self.concurrency < float("inf"):
            raise InputError("concurrency", f"{self.concurrency:g}", "clients, at least 1")

    def on(self, curve: Curve) -> tuple[float, float, Basis]:
        """Latency (s), others in flight and basis at this load; NaN when saturated."""
        if self.rps is not None:
            latency_s, basis = curve.at_rps(self.rps)
            return latency_s, self.rps * latency_s, basis
        others = float(self.concurrency or 1.0) - 1.0
        latency_s, basis = curve.among(others)
        return latency_s, others, basis


@dataclass(frozen=True, slots=True)
class Prediction:
    """What is expected of one arm at one load.

    Attributes:
        arm: the arm.
        latency_s: mean end-to-end latency, or the quantile asked for; None when saturated.
        latency_ci_s: its bounds; None without degrees of freedom or when saturated.
        ttft_s: mean time to first token; None where not measured or saturated.
        tpot_s: mean time per output token; as ttft_s.
        inflight: mean number in flight.
        utilisation: share of saturation.
        saturated: no steady state at this load.
        extrapolated: outside the measured loads or lengths, or above utilisation 0.75 of an open loop.
        basis: what it rests on: the arm's measured points, its own law, or the pooled form.
    """

    arm: Arm
    latency_s: float | None
    latency_ci_s: Bounds | None
    ttft_s: float | None
    tpot_s: float | None
    inflight: float | None
    utilisation: float
    saturated: bool
    extrapolated: bool
    basis: Basis


def predict_on(
    arm: Arm,
    curve: Curve,
    load: LoadPoint,
    confidence: float,
    *,
    fit: ArmFit | None = None,
    conditions: Conditions | None = None,
    quantile: float | None = None,
) -> Prediction:
    """Read one load off a curve.

    Args:
        arm: the arm the curve belongs to.
        curve: its latency against load, under the conditions.
        load: the load.
        confidence: two-sided level of the bounds.
        fit: the arm's own fit, for TTFT, TPOT and quantiles; None for an arm that was not measured.
        conditions: as the curve was made with.
        quantile: None for the mean, or a quantile that was measured.

    Raises:
        NotIdentifiedError: a quantile that was not measured.
    """
    latency_s, others, basis = load.on(curve)
    t = t_quantile(confidence, curve.dof)
    if load.rps is not None:
        bounds = curve.bounds_at_rps(load.rps, t)
        inflight = load.rps * latency_s
        utilisation = load.rps / curve.saturation_rps
        extrapolated = curve.extrapolates_at_rps(load.rps, latency_s)
    else:
        bounds = curve.bounds_among(others, t)
        inflight = float(load.concurrency or 1.0)
        utilisation = min(inflight / latency_s / curve.saturation_rps, 1.0)
        extrapolated = curve.strayed or not curve.within_range(others)
    if np.isnan(latency_s):
        return Prediction(arm, None, None, None, None, None, utilisation, True, True, basis)
    ttft_s, tpot_s = _parts(fit, conditions or Conditions(), others)
    if quantile is not None:
        if fit is None or fit.fit is None:
            raise NotIdentifiedError(
                f"{arm}: not measured, so none of its quantiles is known; ask for the mean"
            )
        # Other conditions move a quantile as they move the mean.
        own_mean_s = float(latency_among(fit.fit.c1_s, fit.fit.c2_s, others))
        moved = float(latency_among(curve.law.c1, curve.law.c2, others)) / own_mean_s
        quantile_s = _quantile(arm, fit, others, quantile) * moved
        if bounds is not None:
            share = quantile_s / latency_s
            bounds = (
                None if bounds[0] is None else bounds[0] * share,
                None if bounds[1] is None else bounds[1] * share,
            )
        latency_s = quantile_s
    return Prediction(
        arm, latency_s, bounds, ttft_s, tpot_s, inflight, utilisation, False, extrapolated, basis
    )


def _parts(fit: ArmFit | None, conditions: Conditions, others: float) -> tuple[float | None, float | None]:
    """TTFT and TPOT (s) among `others`, under the conditions; None where not measured."""
    if fit is None:
        return None, None
    ttft_s = tpot_s = None
    if fit.ttft is not None:
        ttft_s = float(latency_among(fit.ttft.c1_s, fit.ttft.c2_s, others)) * prompt_factor(fit, conditions)
    if fit.tpot is not None:
        # TPOT does not know how many tokens follow; only acceptance changes it.
        only_acceptance = Conditions(tokens_per_step=conditions.tokens_per_step)
        tpot_s = float(latency_among(fit.tpot.c1_s, fit.tpot.c2_s, others)) * decode_factor(
            fit, only_acceptance
        )
    return ttft_s, tpot_s


def derived_parts(
    prediction: Prediction, nearest: ArmFit, others: float, conditions: Conditions, output_tokens: float
) -> Prediction:
    """Fill in TTFT and TPOT of an arm that was not measured.

    The first token comes from the prefill, which hardly knows k: it is taken from the nearest measured draft length.
    What is left of the latency is decoding.
    """
    ttft_s, _ = _parts(nearest, Conditions(prompt_tokens=conditions.prompt_tokens), others)
    if ttft_s is None or prediction.latency_s is None or output_tokens <= 1.0:
        return prediction
    tpot_s = max(prediction.latency_s - ttft_s, 0.0) / (output_tokens - 1.0)
    return replace(prediction, ttft_s=ttft_s, tpot_s=tpot_s)


def _quantile(arm: Arm, fit: ArmFit, others: float, quantile: float) -> float:
    """Latency quantile (s) among `others`: an own law with the mean's n, raised to the quantiles below it."""
    measured = {float(share): law for share, law in fit.quantiles.items()}
    if not measured:
        raise NotIdentifiedError(
            f"{arm}: no quantile was measured; give p50_latency_s, p95_latency_s or p99_latency_s in the points file"
        )
    if quantile not in measured:
        known = ", ".join(f"{share:g}" for share in sorted(measured))
        raise NotIdentifiedError(f"{arm}: quantile {quantile:g} was not measured; these were: {known}")
    below = [share for share in measured if share <= quantile]
    return max(float(latency_among(measured[share].c1_s, measured[share].c2_s, others)) for share in below)

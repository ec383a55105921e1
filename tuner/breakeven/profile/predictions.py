"""Predict one arm at one load."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from breakeven.arm import Arm
from breakeven.errors import InputError, NotIdentifiedError
from breakeven.estimate import Estimate
from breakeven.profile.curves import Basis, Curve
from breakeven.profile.fits import ArmFit, Bounds, LineFit
from breakeven.profile.student_t import t_quantile


@dataclass(frozen=True, slots=True)
class LoadPoint:
    """The load to predict for: exactly one of the three is given.

    A rate (1/s) of an open loop with Poisson arrivals, clients of a closed loop, or others in flight of an open loop on average.
    """

    rps: float | None = None
    concurrency: float | None = None
    others: float | None = None

    def __post_init__(self) -> None:
        if sum(one is not None for one in (self.rps, self.concurrency, self.others)) != 1:
            raise InputError("load", "not one figure", "either a rate or a concurrency")
        if self.rps is not None and not 0 <= self.rps < float("inf"):
            raise InputError("rps", f"{self.rps:g}", "requests per second, at least 0")
        if self.concurrency is not None and not 1 <= self.concurrency < float("inf"):
            raise InputError("concurrency", f"{self.concurrency:g}", "clients, at least 1")

    def on(self, curve: Curve) -> tuple[float, float]:
        """Latency of a request on a curve at this load, and the others in flight; NaN when saturated."""
        if self.rps is not None:
            latency_s = curve.at_rps(self.rps)
            return latency_s, self.rps * latency_s
        if self.others is not None:
            return curve.loop_latency_s(self.others, closed=False), self.others
        others = float(self.concurrency or 1.0) - 1.0
        return curve.loop_latency_s(others, closed=True), others

    def others_met(self, others: float, latency_ci_s: Bounds | None) -> Estimate:
        """Others in flight that a request meets: clients impose them; at a rate they are as uncertain as the latency."""
        if self.rps is None:
            return Estimate(others, others, others)
        return replace(Estimate.of(None, latency_ci_s).times(self.rps), value=others)


@dataclass(frozen=True, slots=True)
class Prediction:
    """Expected figures of one arm at one load.

    Attributes:
        latency_s: mean end-to-end latency, or the quantile asked for; None when saturated.
        latency_ci_s: its bounds; None without degrees of freedom or when saturated.
        ttft_s, tpot_s: mean time to first token and per output token, or the quantile asked for; None if not measured, or saturated.
        ttft_ci_s, tpot_ci_s: their bounds; None as for the latency, and for an arm that was not measured.
        utilisation: share of saturation.
        saturated: no steady state at this load.
        outside_measured: outside the measured loads or lengths, or saturated. How close to saturation a prediction may
            be used is not decided here: the policy has a limit of `utilisation`.
        basis: the rows beside the law of steps: the arm's own (`arm`) or rows of other arms (`others`).
        means: names of figures above that are means although a quantile was asked for: it was not measured.
    """

    arm: Arm
    latency_s: float | None
    latency_ci_s: Bounds | None
    ttft_s: float | None
    tpot_s: float | None
    inflight: float | None
    utilisation: float
    saturated: bool
    outside_measured: bool
    basis: Basis
    means: tuple[str, ...] = ()
    ttft_ci_s: Bounds | None = None
    tpot_ci_s: Bounds | None = None


def predict_on(arm: Arm, curve: Curve, load: LoadPoint, confidence: float) -> tuple[Prediction, Estimate]:
    """Read the means at one load off a curve of an arm, and the others in flight that a request meets."""
    latency_s, others = load.on(curve)
    t = t_quantile(confidence, curve.dof)
    if load.rps is not None:
        bounds = curve.bounds_at_rps(load.rps, t)
        inflight = load.rps * latency_s
        utilisation = load.rps / curve.saturation_rps
    else:
        bounds = curve.bounds_of(latency_s, others, t, closed=load.concurrency is not None)
        inflight = load.concurrency if load.concurrency is not None else others
        utilisation = min(inflight / latency_s / curve.saturation_rps, 1.0)
    if np.isnan(latency_s):
        return Prediction(arm, None, None, None, None, None, utilisation, True, True, curve.basis), Estimate()
    met = load.others_met(others, bounds)
    ttft, tpot = (_read_off(law, met, 1.0, confidence) for law in (curve.ttft, curve.tpot))
    outside = curve.outside_measured(others)
    return Prediction(
        arm, latency_s, bounds, ttft.value, tpot.value, inflight, utilisation, False, outside, curve.basis,
        ttft_ci_s=ttft.bounds, tpot_ci_s=tpot.bounds,
    ), met  # fmt: skip


def _read_off(law: LineFit | None, met: Estimate, factor: float, confidence: float) -> Estimate:
    """A figure (s) among the others that are met, times a factor; nothing without a law."""
    if law is None or met.value is None:
        return Estimate()
    value_s, t = factor * law.among(met.value), t_quantile(confidence, law.dof)
    if not law.dof:
        return Estimate(value_s)
    ends = (
        None if n is None else factor * law.among(n) * max(1.0 + sign * t * law.relative_sd(n), 0.0)
        for n, sign in ((met.lower, -1.0), (met.upper, 1.0))
    )
    return Estimate(value_s, *ends)


_FIGURES = ("latency", "ttft", "tpot")


def at_quantile(
    mean: Prediction, quantile: float, met: Estimate, fit: ArmFit | None, measured_s: float, confidence: float
) -> Prediction:
    """Put a quantile (0.5, 0.95, 0.99) in the place of each mean; a figure whose quantile was not measured stays a mean, named in `means`.

    Other conditions move a quantile as they move the mean: `measured_s` is the mean latency among as many others (`met`) under
    the conditions under which the arm was measured. `fit` is None for an arm that was not measured.
    """
    if mean.latency_s is None or met.value is None:
        return mean
    others = met.value
    own = dict.fromkeys(_FIGURES, Estimate())
    if fit is not None:
        laws = {
            "latency": (fit.quantiles, mean.latency_s / measured_s),
            "ttft": (fit.ttft_quantiles, _moved(fit.ttft, mean.ttft_s, others)),
            "tpot": (fit.tpot_quantiles, _moved(fit.tpot, mean.tpot_s, others)),
        }
        own = {
            name: _read_off(quantile_law(of, quantile, others), met, factor, confidence)
            for name, (of, factor) in laws.items()
        }
    changes: dict[str, Any] = {}
    for name, found in own.items():
        if found.value is not None:
            changes |= {f"{name}_s": found.value, f"{name}_ci_s": found.bounds}
    means = (f"{name}_s" for name in _FIGURES)
    kept = (name for name in means if name not in changes and getattr(mean, name) is not None)
    return replace(mean, means=tuple(kept), **changes)


def _moved(law: LineFit | None, mean_s: float | None, others: float) -> float:
    """Mean over the figure of its line through the measured rows, among as many others."""
    return 1.0 if law is None or mean_s is None else mean_s / law.among(others)


def refuse_unmeasured(fit: ArmFit | None, arm: Arm, quantile: float) -> None:
    """Refuse a quantile of the end-to-end latency that was not measured, and name the measured ones."""
    if fit is None:
        raise NotIdentifiedError(f"{arm}: not measured, so none of its quantiles is known; ask for the mean")
    measured = sorted(float(share) for share in fit.quantiles)
    if not measured:
        raise NotIdentifiedError(
            f"{arm}: no quantile was measured; give p50_latency_s, p95_latency_s or p99_latency_s in the points file"
        )
    if quantile not in measured:
        known = ", ".join(f"{share:g}" for share in measured)
        raise NotIdentifiedError(f"{arm}: quantile {quantile:g} was not measured; these were: {known}")


# Quantiles of latency, TTFT and TPOT: each has a law of its own, a line in n like the law of the mean.
#
# n is the mean number of others in flight, as for the mean: there is no Little's law of a quantile. Left out of the fit, a
# p95 is missed by about twice as much as a mean.


def quantile_law(laws: Mapping[str, LineFit], quantile: float, others: float) -> LineFit | None:
    """The law of a quantile among `others`; None if the quantile was not measured.

    Laws that were fitted one by one may cross: the highest of this quantile and of all lower ones counts.
    """
    measured = {float(share): fit for share, fit in laws.items()}
    if quantile not in measured:
        return None
    below = (fit for share, fit in measured.items() if share <= quantile)
    return max(below, key=lambda fit: fit.among(others))

"""One arm's latency against load: its law, and its measured points where the law bends.

Works with numpy alone. A curve is made for one set of conditions (E, lengths); its law is then rescaled, and the
measured points with it.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Literal

import numpy as np

from breakeven.arrays import FloatArray
from breakeven.fieller import ratio_interval
from breakeven.latency import latency_among, open_loop_latency
from breakeven.law import Law, capacity_rps
from breakeven.profile.fits import Bounds

Basis = Literal["points", "arm", "pooled"]

TRUSTED_UTILISATION = 0.75
"""Beyond this share of saturation the open-loop form amplifies a 10 % error to 50 %: predictions are extrapolation."""

_BELOW_RANGE = 0.25
"""A load below the measured range by less than this share of the range is still determined: C1 is an intercept."""


@dataclass(frozen=True, slots=True, eq=False)
class Curve:
    """Latency of one arm against load.

    Attributes:
        law: C1 and C2 with covariance, under the conditions asked for.
        dof: degrees of freedom of the covariance.
        noise: relative standard deviation of one measured point.
        basis: what the law is: the arm's own fit or the pooled form.
        others_range: measured range of others in flight.
        knots: measured (others, latency) in ascending order, shape (K, 2), where the points are used; else None.
        knot_error: relative standard deviation of interpolation between the knots.
        ceiling_rps: measured saturation below 1/C2, if any.
        strayed: whether the conditions lie outside what was measured, so that everything is extrapolation.
    """

    law: Law
    dof: int
    noise: float
    basis: Basis
    others_range: tuple[float, float]
    knots: FloatArray | None = None
    knot_error: float = 0.0
    ceiling_rps: float | None = None
    strayed: bool = False

    @property
    def saturation_rps(self) -> float:
        """Rate beyond which there is no steady state: 1/C2, or the measured ceiling if that comes earlier.

        What a measured point carried in a steady state is never beyond saturation, whatever a law that bends says.
        """
        rate = 1.0 / float(self.law.c2)
        if self.ceiling_rps is not None:
            rate = min(rate, self.ceiling_rps)
        if self.knots is not None:
            rate = max(rate, 1.001 * float(np.max(self.knots[:, 0] / self.knots[:, 1])))
        return rate

    def among(self, others: float) -> tuple[float, Basis]:
        """Latency (s) among `others`, and what it rests on."""
        knots = self.knots
        if knots is not None and knots[0, 0] <= others <= knots[-1, 0]:
            return float(np.interp(others, knots[:, 0], knots[:, 1])), "points"
        return float(latency_among(self.law.c1, self.law.c2, others)), self.basis

    def at_rps(self, rps: float) -> tuple[float, Basis]:
        """Latency (s) under Poisson arrivals at `rps`, and what it rests on; NaN when saturated."""
        if rps >= self.saturation_rps:
            return float("nan"), self.basis
        knots = self.knots
        if knots is not None:
            # On a straight piece L = l0 + m*(n - n0) with n = rps*L; the smallest load that fits is the one reached.
            for (n0, l0), (n1, l1) in itertools.pairwise(knots):
                slope = (l1 - l0) / (n1 - n0)
                if rps * slope >= 1.0:
                    continue
                latency = (l0 - slope * n0) / (1.0 - rps * slope)
                if n0 - 1e-12 <= rps * latency <= n1 + 1e-12:
                    return float(latency), "points"
        return float(open_loop_latency(self.law.c1, self.law.c2, rps)), self.basis

    def bounds_among(self, others: float, t: float) -> Bounds | None:
        """Bounds of the latency among `others`; None without degrees of freedom."""
        if not np.isfinite(t):
            return None
        center, basis = self.among(others)
        if basis == "points":
            half = t * self.knot_error * center
        else:
            v1, v2, v12 = (float(v) for v in self.law.variances())
            half = t * max(v1 + 2.0 * others * v12 + others**2 * v2, 0.0) ** 0.5
        return max(center - half, 0.0), center + half

    def bounds_at_rps(self, rps: float, t: float) -> Bounds | None:
        """Bounds of the latency at `rps`: Fieller's, since C1/(1 - RPS*C2) is a ratio; open near saturation."""
        if not np.isfinite(t) or rps >= self.saturation_rps:
            return None
        center, basis = self.at_rps(rps)
        if basis == "points":
            # An error among n others moves n too: at a fixed rate it grows by 1/(1 - RPS*slope).
            half = t * self.knot_error * center / max(1.0 - rps * self._slope(rps * center), 0.05)
            return max(center - half, 0.0), center + half
        v1, v2, v12 = self.law.variances()
        found = ratio_interval(self.law.c1, 1.0 - rps * self.law.c2, v1, rps**2 * v2, cov=-rps * v12, t=t)
        lower, upper = float(found.lower), float(found.upper)
        return (None if np.isnan(lower) else lower), (upper if np.isfinite(upper) else None)

    def _slope(self, others: float) -> float:
        """Slope (s per other request) of the piece between knots that holds `others`."""
        knots = self.knots
        if knots is None:
            return float(self.law.c2)
        last = int(np.clip(np.searchsorted(knots[:, 0], others), 1, len(knots) - 1))
        (n0, l0), (n1, l1) = knots[last - 1], knots[last]
        return float((l1 - l0) / (n1 - n0))

    def within_range(self, others: float) -> bool:
        """Whether a load lies where the arm was measured; just below the lowest load counts as inside."""
        low, high = self.others_range
        return low - _BELOW_RANGE * (high - low) <= others <= high * 1.001 + 1e-9

    def extrapolates_at_rps(self, rps: float, latency_s: float) -> bool:
        """Whether a prediction at `rps` is extrapolation: beyond the measured loads, or too close to saturation."""
        if np.isnan(latency_s) or self.strayed:
            return True
        return rps > TRUSTED_UTILISATION * self.saturation_rps or not self.within_range(rps * latency_s)

    def capacity_rps(self, limit_s: float) -> float:
        """Largest rate (1/s) whose mean latency keeps `limit_s`; 0 where a lone request misses it."""
        knots = self.knots
        if knots is not None and knots[0, 1] <= limit_s <= knots[-1, 1]:
            beyond = np.nonzero(knots[:, 1] > limit_s)[0]
            last = int(beyond[0]) if beyond.size else len(knots) - 1
            others = float(np.interp(limit_s, knots[last - 1 : last + 1, 1], knots[last - 1 : last + 1, 0]))
            return min(others / limit_s, self.saturation_rps)
        return min(float(capacity_rps(self.law, limit_s)), self.saturation_rps)


def rescaled(law: Law, c1_factor: float, c2_factor: float) -> Law:
    """The law with its coefficients multiplied, bounds and all."""
    factors = np.array([c1_factor, c2_factor])
    return Law(
        float(law.c1) * c1_factor,
        float(law.c2) * c2_factor,
        np.asarray(law.covariance, dtype=float) * np.outer(factors, factors),
    )

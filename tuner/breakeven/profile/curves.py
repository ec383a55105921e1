"""One arm's latency against load: its law, and its measured points where the law bends.

Works with numpy alone. A curve is made for one set of conditions (E, lengths); its law is then rescaled, and the
measured points with it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal, NamedTuple

import numpy as np

from breakeven.laws.arrays import BoolArray, FloatArray, Span
from breakeven.laws.fieller import Interval, ratio_interval
from breakeven.laws.latency import latency_among, open_loop_latency
from breakeven.laws.law import Law
from breakeven.profile.fits import Bounds, LawFit

Basis = Literal["points", "arm", "pooled", "step"]

_LEAST_IDLE = 0.05
"""What is left of 1 - RPS*slope near saturation, where bounds would open without end."""

_BELOW_RANGE = 0.25
"""A load below the measured range by less than this share of the range is still determined: C1 is an intercept."""


_DOUBTED = 0.5
"""Standard deviation of what bursts add, over what they are expected to add (docs/validation.md)."""


class CurveLatency(NamedTuple):
    """A latency (s), and what it rests on."""

    latency_s: float
    basis: Basis


@dataclass(frozen=True, eq=False)
class Curve:
    """Latency of one arm against load.

    Attributes:
        law: C1 and C2 with covariance, under the conditions asked for.
        dof: degrees of freedom of the covariance.
        noise: relative standard deviation of one measured point.
        basis: what the law is: the arm's own fit or the pooled form.
        others_range: measured range of others in flight.
        knots: (others, latency) in ascending order, shape (K, 2), where the law bends; else None. Measured, or of an
            arm that was not measured the law bent as its neighbours bend, of a schedule from a lone request on.
        knot_error: relative standard deviation that the arm has for itself at each knot, shape (K,), or at all of them.
        ceiling_rps: measured saturation below 1/C2, if any.
        strayed: whether the conditions lie outside what was measured, so that every load does.
        beyond: the law above the knots where that is another one, as it is of a schedule's last tier; None: `law` moved.
        ttft, tpot: laws of the means of TTFT and TPOT under the same conditions; None where they were not measured.
        conversion_error: relative standard deviation of what moved the knots from the measured conditions.
        knots_measured: whether the knots are points; those on a mixture of experts are its law's.
        loadings: d ln(latency) at each knot for a standard deviation of each source of doubt, shape (K, sources). Curves of
            one law share their sources, so what raises both arms leaves their ratio alone. None: doubts are the arm's own.
        closed_knots: (others, latency) of a closed loop, shape (K, 2), where it differs from that of an open loop with as
            many in flight on average: the number in flight does not vary there, and nobody waits for a step to end.
    """

    law: Law
    dof: int
    noise: float
    basis: Basis
    others_range: Span
    knots: FloatArray | None = None
    knot_error: FloatArray | float = 0.0
    ceiling_rps: float | None = None
    strayed: bool = False
    beyond: Law | None = None
    ttft: LawFit | None = None
    tpot: LawFit | None = None
    conversion_error: float = 0.0
    knots_measured: bool = True
    loadings: FloatArray | None = None
    closed_knots: FloatArray | None = None

    @cached_property
    def saturation_rps(self) -> float:
        """Rate beyond which there is no steady state: 1/C2, or the measured ceiling if that comes earlier.

        What a measured point carried in a steady state is never beyond saturation, whatever a law that bends says; points
        that lie below the law at high load promise no saturation beyond the law's.
        """
        rate = 1.0 / (max(self._factor(-1), 1.0) * float(self._end_law(-1).c2))
        if self.ceiling_rps is not None:
            rate = min(rate, self.ceiling_rps)
        if self.knots is not None:
            rate = max(rate, 1.001 * float(np.max(self.knots[:, 0] / self.knots[:, 1])))
        return rate

    def saturation_bounds(self, t: float) -> Bounds | None:
        """Bounds of the saturation: those of 1/C2, or of a ceiling, which is as uncertain as any measured point.

        Returns:
            None without degrees of freedom; open above where C2 may be 0.
        """
        if not np.isfinite(t):
            return None
        last = self._end_law(-1)
        rate, half = self.saturation_rps, t * float(last.variances()[1]) ** 0.5 / float(last.c2)
        if self.ceiling_rps is not None and self.ceiling_rps <= rate:
            error = float(np.exp(t * self.noise))
            return self.ceiling_rps / error, max(self.ceiling_rps * error, rate)
        return rate / (1.0 + half), (rate / (1.0 - half) if half < 1.0 else None)

    def _factor(self, end: Literal[0, -1]) -> float:
        """What multiplies the law below (0) or above (-1) the points, so that it meets the first or the last of them.

        Unmoved the latency would jump there, in rates by far more than the law errs, and a jump across another arm's
        latency looks like a break-even.
        """
        if self.knots is None:
            return 1.0
        others, latency_s = self.knots[end].tolist()
        law = self._end_law(end)
        return float(latency_s / (law.c1 + others * law.c2))

    def _end_law(self, end: Literal[0, -1]) -> Law:
        """The law whose line is followed below (0) or above (-1) the points."""
        return self.law if end == 0 or self.beyond is None else self.beyond

    def outer_law(self, *, below: bool = False) -> Law:
        """The law below or above the points, moved so that it meets them."""
        return self._ends[0 if below else -1]

    @cached_property
    def _ends(self) -> tuple[Law, Law]:
        low, high = self._factor(0), self._factor(-1)
        return rescaled(self._end_law(0), low, low), rescaled(self._end_law(-1), high, high)

    def _outer_laws(self, below: BoolArray) -> Law:
        """Both of them, one per load: the law below the points where `below`, else that above them."""
        if self.knots is None:
            return self.law
        low, high = self._ends
        covariance = np.where(below[..., None, None], low.covariance, high.covariance)
        return Law(np.where(below, low.c1, high.c1), np.where(below, low.c2, high.c2), covariance)

    @property
    def _knot_basis(self) -> Basis:
        return "points" if self.basis == "arm" and self.knots_measured else self.basis

    def _on_knots(self, others: FloatArray) -> BoolArray:
        """Whether a load lies between the points."""
        if self.knots is None:
            return np.zeros(np.shape(others), dtype=bool)
        first, last = self.knots[[0, -1], 0]
        return np.asarray((first <= others) & (others <= last))

    def among(self, others: float) -> CurveLatency:
        """Latency (s) among `others`, and what it rests on."""
        load = np.asarray(others)
        basis = self._knot_basis if self._on_knots(load) else self.basis
        return CurveLatency(float(self.latencies_among(load)), basis)

    def latencies_among(self, others: FloatArray) -> FloatArray:
        """Latencies (s) among many numbers of others in flight, as `among`; shape of `others`."""
        if self.knots is None:
            return latency_among(self.law.c1, self.law.c2, others)
        n, latency_s = (self.knots if self.closed_knots is None else self.closed_knots).T
        law = self._outer_laws(np.asarray(others < self.knots[0, 0]))
        by_law = latency_among(law.c1, law.c2, others)
        return np.where(self._on_knots(others), np.interp(others, n, latency_s), by_law)

    def at_rps(self, rps: float) -> CurveLatency:
        """Latency (s) under Poisson arrivals at `rps`, and what it rests on; NaN when saturated."""
        if rps >= self.saturation_rps:
            return CurveLatency(float("nan"), self.basis)
        on_points = float(self._on_points(np.asarray(rps)))
        if not np.isnan(on_points):
            return CurveLatency(on_points, self._knot_basis)
        return CurveLatency(float(self._off_points(np.asarray(rps))), self.basis)

    def latencies_at_rps(self, rps: FloatArray) -> FloatArray:
        """Latencies (s) under Poisson arrivals at many rates (1/s), as `at_rps`; shape of `rps`."""
        on_points = self._on_points(rps)
        latency = np.where(np.isnan(on_points), self._off_points(rps), on_points)
        return np.where(rps >= self.saturation_rps, np.nan, latency)

    def _off_points(self, rps: FloatArray) -> FloatArray:
        """Latencies (s) by the law below and above the points."""
        law = self.law
        if self.knots is not None:
            first_n, first_s = self.knots[0]
            law = self._outer_laws(np.asarray(rps * first_s < first_n))
        return open_loop_latency(law.c1, law.c2, rps)

    def _on_points(self, rps: FloatArray) -> FloatArray:
        """Latencies (s) that rest on the measured points; NaN at rates that they do not reach."""
        if self.knots is None:
            return np.full(np.shape(rps), np.nan)
        n, latency_s = self.knots.T
        # On a straight piece L = l0 + m*(n - n0) with n = rps*L; the smallest load that fits is the one reached.
        rate, slope = rps[..., None], np.diff(latency_s) / np.diff(n)
        left = 1.0 - rate * slope
        on_piece = (latency_s[:-1] - slope * n[:-1]) / np.where(left > 0, left, np.nan)
        fits = (rate * on_piece >= n[:-1] - 1e-12) & (rate * on_piece <= n[1:] + 1e-12)
        reached = np.take_along_axis(on_piece, np.argmax(fits, axis=-1)[..., None], axis=-1)[..., 0]
        return np.where(fits.any(axis=-1), reached, np.nan)

    def bounds_among(self, others: float, t: float) -> Bounds | None:
        """Bounds of the latency among `others`; None without degrees of freedom."""
        if not np.isfinite(t):
            return None
        center = self.among(others).latency_s
        half = t * float(self._relative_sd(np.asarray(others))) * center
        return max(center - half, 0.0), center + half

    def _relative_sd(self, others: FloatArray) -> FloatArray:
        """Relative standard deviation of the latency among `others`: of interpolation, else of the law."""
        law = self.law if self.knots is None else self._outer_laws(np.asarray(others <= self.knots[0, 0]))
        v1, v2, v12 = law.variances()
        variance = np.maximum(v1 + 2.0 * others * v12 + others**2 * v2, 0.0)
        of_law = np.asarray(np.sqrt(variance) / latency_among(law.c1, law.c2, others))
        if self.loadings is not None:
            return np.asarray(
                np.hypot(np.linalg.norm(self.loadings_among(others), axis=-1), self.own_sd(others))
            )
        if self.basis == "pooled":
            return of_law
        return np.where(self._on_knots(others), np.hypot(self.own_sd(others), self.conversion_error), of_law)

    def own_sd(self, others: FloatArray) -> FloatArray:
        """Relative standard deviation that the arm has for itself among others: no other curve shares it."""
        if self.knots is None or np.ndim(self.knot_error) == 0:
            return np.full(np.shape(others), float(self.knot_error))
        return np.asarray(np.interp(others, self.knots[:, 0], self.knot_error))

    def loadings_among(self, others: FloatArray) -> FloatArray:
        """`loadings` among `others`, on a last axis; beyond the knots those of the nearest.

        Raises:
            ValueError: the curve has none.
        """
        if self.loadings is None or self.knots is None:
            raise ValueError("a curve of one arm's own law has no sources of doubt to share")
        n = self.knots[:, 0]
        place = np.interp(others, n, np.arange(n.size))
        low = np.minimum(place.astype(int), n.size - 2)
        share = (place - low)[..., None]
        return np.asarray(self.loadings[low] * (1.0 - share) + self.loadings[low + 1] * share)

    def loadings_at_rps(self, rps: FloatArray) -> FloatArray:
        """`loadings` at many rates (1/s): at a fixed rate a doubt of the latency moves the number in flight too."""
        others = rps * self.latencies_at_rps(rps)
        return self.loadings_among(others) * self._slowed(rps, others)[..., None]

    def own_sd_at_rps(self, rps: FloatArray) -> FloatArray:
        """`own_sd` at many rates (1/s), as `loadings_at_rps`."""
        others = rps * self.latencies_at_rps(rps)
        own = self.own_sd(others)
        return own if self.loadings is None else own * self._slowed(rps, others)

    def _slowed(self, rps: FloatArray, others: FloatArray) -> FloatArray:
        return 1.0 / np.maximum(1.0 - rps * self._slopes(others), _LEAST_IDLE)

    def bounds_at_rps(self, rps: float, t: float) -> Bounds | None:
        """Bounds of the latency at `rps`: Fieller's, since C1/(1 - RPS*C2) is a ratio; open near saturation."""
        if not np.isfinite(t) or rps >= self.saturation_rps:
            return None
        found = self.all_bounds_at_rps(np.asarray(rps), t)
        lower, upper = float(found.lower), float(found.upper)
        return (None if np.isnan(lower) else lower), (upper if np.isfinite(upper) else None)

    def all_bounds_at_rps(self, rps: FloatArray, t: float) -> Interval:
        """Bounds (s) at many rates (1/s), as `bounds_at_rps`; NaN where saturated, and below where that end is open."""
        center = self.latencies_at_rps(rps)
        others = rps * center
        law = self.law if self.knots is None else self._outer_laws(np.asarray(others < self.knots[0, 0]))
        v1, v2, v12 = law.variances()
        found = ratio_interval(law.c1, 1.0 - rps * law.c2, v1, rps**2 * v2, cov=-rps * v12, t=t)
        lower, upper = np.where(np.isnan(center), np.nan, [found.lower, found.upper])
        if self.knots is None:
            return Interval(lower, upper)
        # An error among n others moves n too: at a fixed rate it grows by 1/(1 - RPS*slope).
        half = (
            t * self._relative_sd(others) * center / np.maximum(1.0 - rps * self._slopes(others), _LEAST_IDLE)
        )
        on_knots = self._on_knots(others)
        return Interval(
            np.where(on_knots, np.maximum(center - half, 0.0), lower),
            np.where(on_knots, center + half, upper),
        )

    def _slopes(self, others: FloatArray) -> FloatArray:
        """Slope (s per other request) of the piece between knots that holds each load."""
        knots = np.asarray(self.knots)
        last = np.clip(np.searchsorted(knots[:, 0], others), 1, len(knots) - 1)
        return np.asarray((np.diff(knots[:, 1]) / np.diff(knots[:, 0]))[last - 1])

    def outside_measured(self, others: float) -> bool:
        """Whether load or conditions lie outside what was measured; just below the lowest load counts as inside."""
        low, high = self.others_range
        inside = low - _BELOW_RANGE * (high - low) <= others <= high * 1.001 + 1e-9
        return self.strayed or not inside


def rescaled(law: Law, c1_factor: float, c2_factor: float) -> Law:
    """The law with its coefficients multiplied, bounds and all."""
    factors = np.array([c1_factor, c2_factor])
    return Law(
        float(law.c1) * c1_factor,
        float(law.c2) * c2_factor,
        np.asarray(law.covariance, dtype=float) * np.outer(factors, factors),
    )


def in_bursts(curve: Curve, dispersion: float) -> Curve:
    """The curve of an arm that is asked in bursts, against the requests in flight on average.

    Who comes in a burst meets the rest of it as well, which is dispersion - 1 requests if bursts have a geometric size. How
    they are spread over a request's time is not known: half of what they add is in doubt. Arrivals more even than Poisson's
    are taken for these.

    Args:
        curve: with Poisson arrivals.
        dispersion: variance over mean of the counts of arrivals in spans as long as a request.
    """
    more = dispersion - 1.0
    if more <= 0.0:
        return curve
    knots, loadings, own = curve.knots, curve.loadings, curve.knot_error
    law = curve.law if knots is None or knots[-1, 0] > more else curve.outer_law()
    if knots is not None and knots[-1, 0] > more:
        above = knots[:, 0] > more
        met = np.concatenate([[more], knots[above, 0]])
        if loadings is not None:
            added = 1.0 - curve.latencies_among(met - more) / curve.latencies_among(met)
            loadings = np.hstack([curve.loadings_among(met), _DOUBTED * added[:, None]])
        knots, own = np.stack([met - more, curve.latencies_among(met)], axis=-1), curve.own_sd(met)
    else:
        knots = loadings = None
    moved = _in_bursts(law, more)
    doubt = _DOUBTED * more * float(law.c2 / moved.c1)
    low, high = (max(others - more, 0.0) for others in curve.others_range)
    return replace(
        curve,
        law=moved,
        knots=knots,
        knot_error=own,
        loadings=loadings,
        others_range=(low, high),
        beyond=None if curve.beyond is None else _in_bursts(curve.beyond, more),
        ttft=None if curve.ttft is None else replace(curve.ttft, c1_s=curve.ttft.among(more)),
        tpot=None if curve.tpot is None else replace(curve.tpot, c1_s=curve.tpot.among(more)),
        conversion_error=float(np.hypot(curve.conversion_error, doubt)),
    )


def _in_bursts(law: Law, more: float) -> Law:
    move = np.array([[1.0, more], [0.0, 1.0]])
    doubt = np.diag([(_DOUBTED * more * float(law.c2)) ** 2, 0.0])
    return Law(law.c1 + more * law.c2, law.c2, move @ np.asarray(law.covariance) @ move.T + doubt)

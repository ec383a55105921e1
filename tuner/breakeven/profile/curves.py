"""One arm's latency against load, under given conditions: straight pieces between knots, with their doubt.

The module works with numpy alone. `breakeven.profile.step_curves` makes the knots from the law of steps.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from breakeven.laws.arrays import FloatArray, Span
from breakeven.profile.fits import LARGEST_FIGURE, Bounds, LineFit

Basis = Literal["arm", "others"]
"""Rows beside the law of steps: the arm's own, or rows of other arms only."""

_LEAST_IDLE = 0.05
"""Smallest 1 - RPS*slope near saturation, where bounds would open without end."""

_BELOW_RANGE = 0.25
"""A load below the measured range by less than this share of the range is still determined: C1 is an intercept."""

_MOST_DISPERSED = 1e6
"""Largest dispersion that counts: bursts of a million requests. Of much larger ones no two knots differ."""
_DOUBTED = 0.5
"""Standard deviation of the latency added by bursts, over its expectation (docs/validation.md)."""

_FAR = 1e9
"""More others in flight than any engine holds: where the last piece ends."""

_WIDEST = math.log(1e9)
"""The half-width of a logarithm from which on nothing is known of a figure."""


def doubted(half_width: ArrayLike) -> FloatArray:
    """The factor on a latency for a half-width of its logarithm, which counts as `_WIDEST` at most."""
    return np.asarray(np.exp(np.minimum(half_width, _WIDEST)))


def ends_around(value: FloatArray, half_width: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Bounds of values from the half-widths of their logarithms; 0 and infinity if nothing is known of one."""
    factor, known = doubted(half_width), half_width < _WIDEST
    return np.where(known, value / factor, 0.0), np.where(known, value * factor, np.inf)


def bounds_around(value: float, half_width: float) -> Bounds:
    """Bounds of one value, as `ends_around`; None is an open end; so is an end beyond `LARGEST_FIGURE`."""
    if not half_width < _WIDEST:
        return 0.0, None
    factor = float(np.exp(half_width))
    upper = value * factor
    return value / factor, (upper if upper <= LARGEST_FIGURE else None)


def rows_between(at: FloatArray, rows: FloatArray, wanted: FloatArray) -> FloatArray:
    """Rows (of the last axis) between rows at some places, on straight lines; beyond the places as at the nearest."""
    place = np.interp(wanted, at, np.arange(at.size))
    low = np.minimum(place.astype(int), at.size - 2)
    share = (place - low)[..., None]
    return np.asarray(rows[low] * (1.0 - share) + rows[low + 1] * share)


class StraightLine(NamedTuple):
    """C1 and C2 (s), and their change with each source: shared with other curves, and the arm's own; shape (2, sources)."""

    c1_s: float
    c2_s: float
    shared: FloatArray
    own: FloatArray

    @property
    def covariance(self) -> FloatArray:
        """Covariance of the coefficients (s^2)."""
        return np.asarray(self.shared @ self.shared.T + self.own @ self.own.T)


@dataclass(frozen=True, eq=False)
class Curve:
    """Latency of one arm against load.

    Attributes:
        knots: (others, latency in s) in ascending order, shape (K, 2), from a lone request to near saturation.
        saturation_rps: rate beyond which there is no steady state, above the rate of each knot.
        noise: relative standard deviation of one measured point.
        basis: `arm` if the arm was measured, else `others`.
        others_range: measured range of others in flight.
        loadings: d ln(latency) at each knot for a standard deviation of each source of doubt, shape (K, sources). Curves of
            one law share their sources, so an error that raises both arms leaves their ratio alone.
        own_sds: relative standard deviation at each knot that no other curve shares, shape (K,).
        start_sd: relative standard deviation over starts of the engine; in all bounds, and not in `line`: a decision learns from
            the pods that run.
        beside: others in flight at which it was measured beside no speculation.
        ceiling_rps: measured saturation, if the law has a higher one.
        strayed: whether the conditions lie outside what was measured, so that every load does.
        ttft, tpot: laws of the means of TTFT and TPOT under the same conditions; None if they were not measured.
        closed_knots: (others, latency) of a closed loop, shape (K, 2), where it differs from an open loop with as
            many in flight on average: the number in flight does not vary there, and no request waits for a step to end.
        closed_loadings: `loadings` of a closed loop at each of its knots, where they differ.
    """

    knots: FloatArray
    saturation_rps: float
    dof: int
    noise: float
    basis: Basis
    others_range: Span
    loadings: FloatArray
    own_sds: FloatArray
    ceiling_rps: float | None = None
    strayed: bool = False
    ttft: LineFit | None = None
    tpot: LineFit | None = None
    closed_knots: FloatArray | None = None
    closed_loadings: FloatArray | None = None
    start_sd: float = 0.0
    beside: tuple[float, ...] = ()

    @cached_property
    def open_ends(self) -> FloatArray:
        """Knots of an open loop from no others to beyond all loads, shape (K + 2, 2) at most."""
        return _to_both_ends(self.knots, self.saturation_rps)

    @cached_property
    def closed_ends(self) -> FloatArray:
        """Knots of a closed loop, likewise."""
        knots = self.knots if self.closed_knots is None else self.closed_knots
        return _to_both_ends(knots, self.saturation_rps)

    @property
    def line_ends(self) -> FloatArray:
        """Others in flight at both ends of `line`, shape (2,)."""
        return np.array([0.0, max(self.others_range[1], float(self.knots[1, 0]))])

    @cached_property
    def line(self) -> StraightLine:
        """C1 and C2 as in the paper: the line from a lone request to the highest measured load."""
        ends = self.line_ends
        top = ends[1]
        latency_s = self.met_latencies(ends)
        of_ends = self.loadings_among(ends) * latency_s[:, None]
        own = np.diag(np.interp(ends, self.knots[:, 0], self.own_sds) * latency_s)
        both = np.array([[1.0, 0.0], [-1.0 / top, 1.0 / top]])
        c1_s, c2_s = both @ latency_s
        return StraightLine(float(c1_s), max(float(c2_s), 1e-12), both @ of_ends, both @ own)

    def line_bounds(self, t: float) -> tuple[Bounds, Bounds]:
        """Bounds of C1 and C2 over starts of the engine."""
        values = np.array([self.line.c1_s, self.line.c2_s])
        sds = np.hypot(np.sqrt(np.diag(self.line.covariance)) / values, self.start_sd)
        c1, c2 = (bounds_around(float(value), t * float(sd)) for value, sd in zip(values, sds, strict=True))
        return c1, c2

    def saturation_bounds(self, t: float) -> Bounds:
        """Bounds of the saturation; a ceiling is as uncertain as any measured point."""
        rate = self.saturation_rps
        if self.ceiling_rps is not None and self.ceiling_rps <= rate:
            error = float(doubted(t * self.noise))
            return self.ceiling_rps / error, max(self.ceiling_rps * error, rate)
        return bounds_around(rate, t * float(self._sd_among(self.knots[-1, 0])))

    def latencies_among(self, others: FloatArray) -> FloatArray:
        """Latencies (s) in a closed loop among many numbers of others in flight; shape of `others`."""
        return np.asarray(np.interp(others, *self.closed_ends.T))

    def loop_latency_s(self, others: float, *, closed: bool) -> float:
        """Latency (s) among `others` in a closed or an open loop."""
        at = self.latencies_among if closed else self.met_latencies
        return float(at(np.asarray(others)))

    def met_latencies(self, others: FloatArray) -> FloatArray:
        """Latencies (s) of Poisson arrivals that meet so many others on average; shape of `others`."""
        return np.asarray(np.interp(others, *self.open_ends.T))

    def at_rps(self, rps: float) -> float:
        """Latency (s) under Poisson arrivals at `rps`; NaN when saturated."""
        return float(self.latencies_at_rps(np.asarray(rps)))

    def latencies_at_rps(self, rps: FloatArray) -> FloatArray:
        """Latencies (s) under Poisson arrivals at many rates (1/s); shape of `rps`, NaN where saturated."""
        rates, slopes, starts_s = self._pieces
        piece = np.minimum(np.searchsorted(rates, rps), rates.size - 1)
        left = 1.0 - rps * slopes[piece]
        reached = starts_s[piece] / np.where(left > 0, left, np.nan)
        return np.where((rps <= rates[-1]) & (rps < self.saturation_rps), reached, np.nan)

    @cached_property
    def _pieces(self) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Of the pieces between `open_ends`: rates (1/s) up to which each is reached, and slope and latency (s) of its line alone."""
        n, latency_s = self.open_ends.T
        slopes = np.diff(latency_s) / np.diff(n)
        return np.maximum.accumulate(n[1:] / latency_s[1:]), slopes, latency_s[:-1] - slopes * n[:-1]

    def bounds_of(self, latency_s: float, others: float, t: float, *, closed: bool = False) -> Bounds:
        """Bounds of a latency among `others`, of an open or a closed loop."""
        return bounds_around(latency_s, t * float(self._sd_among(np.asarray(others), closed=closed)))

    def all_bounds_of(
        self, latency_s: FloatArray, others: FloatArray, t: float
    ) -> tuple[FloatArray, FloatArray]:
        """Bounds of latencies among many numbers of others of an open loop."""
        return ends_around(latency_s, t * self._sd_among(others))

    def own_sd(self, others: FloatArray) -> FloatArray:
        """Relative standard deviation among others that no other curve shares, over starts of the engine."""
        return np.asarray(np.hypot(np.interp(others, self.knots[:, 0], self.own_sds), self.start_sd))

    def loadings_among(self, others: FloatArray, *, closed: bool = False) -> FloatArray:
        """`loadings` among `others` of an open or a closed loop, on a last axis; beyond the knots as at the nearest."""
        knots, loadings = self.knots, self.loadings
        if closed and self.closed_knots is not None and self.closed_loadings is not None:
            knots, loadings = self.closed_knots, self.closed_loadings
        return rows_between(knots[:, 0], loadings, others)

    def _sd_among(self, others: FloatArray, *, closed: bool = False) -> FloatArray:
        shared = np.sqrt(np.square(self.loadings_among(others, closed=closed)).sum(axis=-1))
        return np.asarray(np.hypot(shared, self.own_sd(others)))

    def met_at_rps(self, rps: FloatArray, latency_s: FloatArray) -> FloatArray:
        """Others in flight at rates (1/s) with these latencies (s); where saturated, as at the last knot."""
        return np.nan_to_num(rps * latency_s, nan=float(self.knots[-1, 0]))

    def slowed_at_rps(self, rps: FloatArray, others: FloatArray) -> FloatArray:
        """The factor by which a latency moves more at a rate (1/s) than among so many others, because it moves these too."""
        n, (_, slopes, _) = self.open_ends[:, 0], self._pieces
        piece = np.clip(np.searchsorted(n, others), 1, n.size - 1) - 1
        return np.asarray(1.0 / np.maximum(1.0 - rps * slopes[piece], _LEAST_IDLE))

    def raised_at_rps(self, rps: FloatArray, factors: FloatArray) -> FloatArray:
        """Latencies (s) at many rates (1/s) of a curve that is so many times as high as this one.

        Factors are at each of `open_ends` on a last axis, for all rates or for each.
        """
        n = self.open_ends[:, 0]
        latency_s = self.open_ends[:, 1] * factors
        rate = rps[..., None]
        # With n = rps*L, the engine reaches the smallest n that fits: on the piece before the first knot that is not below it.
        passed = n[1:] >= rate * latency_s[..., 1:]
        piece = np.argmax(passed, axis=-1)
        start_s, end_s = _picked(latency_s, piece), _picked(latency_s, piece + 1)
        start = n[piece]
        slope = (end_s - start_s) / (n[piece + 1] - start)
        left = 1.0 - rps * slope
        reached = (start_s - slope * start) / np.where(left > 0, left, np.nan)
        steady = passed.any(axis=-1) & (rps * factors[..., -1] < self.saturation_rps)
        return np.where(steady, reached, np.nan)

    def bounds_at_rps(self, rps: float, t: float) -> Bounds | None:
        """Bounds of the latency at `rps`; None without a steady state, open above near saturation."""
        if rps >= self.saturation_rps:
            return None
        found = self.all_bounds_at_rps(np.asarray(rps), t)
        lower, upper = map(float, found)
        return lower, (upper if np.isfinite(upper) else None)

    def all_bounds_at_rps(self, rps: FloatArray, t: float) -> tuple[FloatArray, FloatArray]:
        """Bounds (s) at many rates (1/s): NaN where there is no steady state, infinite above where that end is open."""
        center = self.latencies_at_rps(rps)
        factors = doubted(t * self._sd_among(self.open_ends[:, 0]))
        upper = np.nan_to_num(self.raised_at_rps(rps, factors), nan=np.inf)
        known = np.where(np.isnan(center), np.nan, 1.0)
        return known * self.raised_at_rps(rps, 1.0 / factors), known * upper

    def outside_measured(self, others: float) -> bool:
        """Whether load or conditions lie outside what was measured; just below the lowest load counts as inside."""
        low, high = self.others_range
        inside = low - _BELOW_RANGE * (high - low) <= others <= high * 1.001 + 1e-9
        return self.strayed or not inside


def _picked(values: FloatArray, place: NDArray[np.intp]) -> FloatArray:
    """One value of the last axis at each place; `values` are for all places or for each."""
    if values.ndim == 1:
        return np.asarray(values[place])
    return np.asarray(np.take_along_axis(values, place[..., None], axis=-1)[..., 0])


def _to_both_ends(knots: FloatArray, saturation_rps: float) -> FloatArray:
    """The knots with one of no others before them, and a piece after them that reaches saturation."""
    (first_n, first_s), (second_n, second_s) = knots[:2]
    last_n, last_s = knots[-1]
    alone_s = first_s - first_n * (second_s - first_s) / (second_n - first_n)
    start = np.array([[0.0, max(float(alone_s), 1e-9)]])[: int(first_n > 0)]
    return np.concatenate([start, knots, [[_FAR, last_s + (_FAR - last_n) / saturation_rps]]])


def in_bursts(curve: Curve, dispersion: float) -> Curve:
    """The curve of an arm whose requests arrive in bursts, against the requests in flight on average.

    A request in a burst meets the rest of it as well: dispersion - 1 requests if bursts have a geometric size. Their spread
    over the request's time is not known: half of the latency that they add is in doubt. Arrivals more even than Poisson's
    count as Poisson arrivals. The dispersion is the variance over the mean of the counts of arrivals in spans as long as a request.
    """
    more = min(dispersion, _MOST_DISPERSED) - 1.0
    if not more > 0.0:
        return curve
    knots = _later(curve.open_ends, more)
    met = knots[:, 0] + more
    loadings = curve.loadings_among(met)
    added = 1.0 - curve.met_latencies(knots[:, 0]) / knots[:, 1]
    low, high = (max(others - more, 0.0) for others in curve.others_range)
    return replace(
        curve,
        knots=knots,
        loadings=np.hstack([loadings, _DOUBTED * added[:, None]]),
        own_sds=np.interp(met, curve.knots[:, 0], curve.own_sds),
        others_range=(low, high),
        beside=(),
        ttft=None if curve.ttft is None else replace(curve.ttft, c1_s=curve.ttft.among(more)),
        tpot=None if curve.tpot is None else replace(curve.tpot, c1_s=curve.tpot.among(more)),
    )


def _later(ends: FloatArray, more: float) -> FloatArray:
    """The knots for requests that meet `more` others in addition."""
    inner = ends[:-1]
    met = np.unique(np.concatenate([[more], inner[inner[:, 0] > more, 0], [more + 1.0, more + 2.0]]))
    return np.stack([met - more, np.interp(met, *ends.T)], axis=-1)

"""Compare two arms at one load: speedup, break-even and verdict, each with bounds."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cached_property, lru_cache
from typing import Literal, NamedTuple

import numpy as np

from breakeven.estimate import Estimate
from breakeven.laws.arrays import FloatArray, Span
from breakeven.phrases import pays_text, ranges_text
from breakeven.profile.curves import Curve, bounds_around, doubted, ends_around
from breakeven.profile.fits import Bounds
from breakeven.profile.predictions import LoadPoint
from breakeven.profile.student_t import band_quantile, t_quantile
from breakeven.reasons import PAYS, SIDES

_WITHIN, _BEYOND = 1.1, 1.5
"""A break-even up to half beyond the highest measured rate is a figure with bounds, if there is none up to a tenth beyond: sweeps
end near 70 % of capacity, and laws of engines of other makes were right to 7 % there. Farther it is said to lie beyond the range."""

_GRID = 128
_FINER, _ROUNDS = 64, 5
"""Places and rounds of a search by grids within grids, after which a crossing is known to 1e-9 of a grid's step."""
_NEAR = math.log(1.25)
"""Requests in flight that differ by less than a quarter are one load: between them a ratio hardly changes."""
_SAME = 0.005
"""Ratios of coefficients this close to 1 are 1: no engine is known so well."""


class PaysWhere(StrEnum):
    """At which loads an arm pays."""

    BELOW = "below"
    """Pays below the break-even."""
    ABOVE = "above"
    """Pays above the break-even."""
    ALWAYS = "always"
    NEVER = "never"
    TIE = "tie"
    UNCERTAIN = "uncertain"
    """At no load of interest do the bounds separate a gain from a loss."""


def pays_where(c1_ratio: float, c2_ratio: float) -> PaysWhere:
    """At which loads an arm pays by its two ratios to another one, C1R and C2R."""
    first, second = (0.0 if abs(one - 1.0) <= _SAME else one - 1.0 for one in (c1_ratio, c2_ratio))
    if first < 0.0 < second:
        return PaysWhere.BELOW
    if second < 0.0 < first:
        return PaysWhere.ABOVE
    if first == second == 0.0:
        return PaysWhere.TIE
    return PaysWhere.ALWAYS if max(first, second) <= 0.0 else PaysWhere.NEVER


@dataclass(frozen=True)
class Comparison:
    """An arm against another one, usually no speculation.

    Attributes:
        speedup: latency of the other arm over latency of this one at the load; 0 where only this one is saturated, infinite
            where only the other is, None where both are.
        speedup_ci: bounds; an open end is None.
        c1_ratio, c2_ratio: C1R and C2R; if C2R is above 1, the gain shrinks with load.
        verdict: at which loads the arm pays.
        break_even_rps: rate at which both are equally fast; None without one, or far beyond the measured range.
        break_even_concurrency: the break-even as imposed closed-loop concurrency.
        break_even_beyond_range: a break-even exists in the law but lies far beyond the measured range.
        pays_rps: if curves significantly cross more than once, the ranges of rates in which the arm is faster, within the
            measured ones; empty otherwise: then verdict and break-even are enough.
        side_by_side: whether both were measured beside each other near the load; else the law expects the speedup from windows of
            other minutes, or of other loads.
        saturated: whether the arm has no steady state at the load.
        against_saturated: whether the other one has none.
    """

    speedup: float | None
    speedup_ci: Bounds | None
    c1_ratio: float
    c1_ratio_ci: Bounds | None
    c2_ratio: float
    c2_ratio_ci: Bounds | None
    verdict: PaysWhere
    saturated: bool
    against_saturated: bool
    break_even_rps: float | None = None
    break_even_ci_rps: Bounds | None = None
    break_even_concurrency: float | None = None
    break_even_beyond_range: bool = False
    pays_rps: tuple[Span, ...] = ()
    side_by_side: bool = False

    @cached_property
    def known(self) -> Estimate:
        """The speedup with its bounds."""
        return Estimate.of(self.speedup, self.speedup_ci)

    @property
    def break_even(self) -> str:
        """`pays until 8.9 rps (8.4 to 9.3)`, from where, or `pays from 0.4 to 3.8 and from 8.5 to 45.8 rps`; empty without a break-even."""
        if self.pays_rps:
            return f"pays {ranges_text(self.pays_rps)} rps"
        if self.break_even_rps is None:
            return ""
        # Of points that bend the ratio of the laws may say the opposite.
        side = SIDES.get(self.verdict, "from" if self.c2_ratio < 1 else "until")
        return pays_text(side, self.break_even_rps, self.break_even_ci_rps)

    @property
    def pays(self) -> str:
        """For which loads the arm pays, as a verb phrase: its break-even, or why it has none."""
        beyond = f"pays {SIDES.get(self.verdict)} a load beyond the measured range"
        return self.break_even or PAYS.get(self.verdict, beyond)

    @property
    def how_known(self) -> str:
        """How the speedup is known, after its figure."""
        return "measured side by side" if self.side_by_side else "expected"


class Speedups(NamedTuple):
    """Speedups at many rates, and their bounds, NaN where there is none.

    A speedup is 0 where only the first arm is saturated, infinite where only the second is, NaN where both are.
    """

    speedup: FloatArray
    lower: FloatArray
    upper: FloatArray


def compare_curves(
    judged: Curve, other: Curve, load: LoadPoint, confidence: float, rps_range: Span | None = None
) -> Comparison:
    """Compare two curves at a load: a rate compares at equal rate, a concurrency at equal concurrency.

    `rps_range` is the load range of interest for the verdict; None takes the measured range of both. A break-even has a
    figure only within the measured range, whatever is of interest.
    """
    speedup, speedup_ci = _speedup(judged, other, load, _t(judged, other, confidence))
    return replace(
        _at_every_load(judged, other, confidence, rps_range),
        speedup=speedup,
        speedup_ci=speedup_ci,
        # Whether each was measured beside another one among about as many others.
        side_by_side=all(
            any(abs(math.log((1.0 + load.on(curve)[1]) / (1.0 + one))) < _NEAR for one in curve.beside)
            for curve in (judged, other)
        ),
        saturated=load.rps is not None and load.rps >= judged.saturation_rps,
        against_saturated=load.rps is not None and load.rps >= other.saturation_rps,
    )


def speedups_at_rps(judged: Curve, other: Curve, rps: FloatArray, confidence: float) -> Speedups:
    """Speedups of one curve over another at many rates (1/s), as in `compare_curves`."""
    speedup = _ratios(judged, other, rps)
    lower, upper = _band(judged, other, rps, _t(judged, other, confidence))
    regular = np.isfinite(speedup)
    bounded = regular & np.isfinite(upper)
    return Speedups(speedup, np.where(regular, lower, np.nan), np.where(bounded, upper, np.nan))


# The search takes as long as a curve, and an idle service repeats it in every cycle: as many pairs as `document` keeps curves.
@lru_cache(maxsize=256)
def _at_every_load(judged: Curve, other: Curve, confidence: float, rps_range: Span | None) -> Comparison:
    """The part of a comparison that holds at every load, as if both were saturated."""
    t = _t(judged, other, confidence)
    measured = _common_range(judged, other)
    c1_ratio, c2_ratio = judged.line.c1_s / other.line.c1_s, judged.line.c2_s / other.line.c2_s
    found = Comparison(
        speedup=None,
        speedup_ci=None,
        c1_ratio=c1_ratio,
        c1_ratio_ci=_line_ratio_ci(judged, other, 0, t),
        c2_ratio=c2_ratio,
        c2_ratio_ci=_line_ratio_ci(judged, other, 1, t),
        verdict=pays_where(c1_ratio, c2_ratio),
        saturated=True,
        against_saturated=True,
    )
    found = _with_break_even(found, judged, other, t, measured)
    # A verdict is about a range: the band must hold at all its loads at once, whereas bounds of a speedup hold at one.
    over_range = band_quantile(confidence, min(judged.dof, other.dof))
    grid = np.linspace(*(rps_range or measured), _GRID)
    lower, upper = _band(judged, other, grid, over_range)
    sure = np.any((lower > 1.0) | (upper < 1.0))
    return found if sure or found.verdict is PaysWhere.TIE else replace(found, verdict=PaysWhere.UNCERTAIN)


def _t(judged: Curve, other: Curve, confidence: float) -> float:
    return t_quantile(confidence, min(judged.dof, other.dof))


def _common_range(judged: Curve, other: Curve) -> Span:
    """Range of rates in which both arms were measured, and both have a steady state."""
    ends = [
        [others / curve.loop_latency_s(others, closed=False) for others in curve.others_range]
        for curve in (judged, other)
    ]
    high = min(ends[0][1], ends[1][1])
    low = min(max(ends[0][0], ends[1][0]), 0.999 * high)
    return low, max(high, 1e-9)


def _ratios(judged: Curve, other: Curve, rps: FloatArray) -> FloatArray:
    fast, slow = judged.latencies_at_rps(rps), other.latencies_at_rps(rps)
    full = np.where(np.isnan(slow), np.nan, 0.0)
    return np.where(np.isnan(fast), full, np.where(np.isnan(slow), np.inf, slow / fast))


def _band(judged: Curve, other: Curve, rps: FloatArray, t: float) -> tuple[FloatArray, FloatArray]:
    """Bounds of the speedup at each rate; an open end is NaN below, infinite above.

    All doubt is put into the latency that moves more, of the arm nearer to saturation. Near saturation the
    ratio of two latencies is known far better than each of them.
    """
    fast_s, slow_s = judged.latencies_at_rps(rps), other.latencies_at_rps(rps)
    fast_n, slow_n = judged.met_at_rps(rps, fast_s), other.met_at_rps(rps, slow_s)
    mine, theirs = judged.slowed_at_rps(rps, fast_n), other.slowed_at_rps(rps, slow_n)
    lower, upper = np.empty(rps.shape), np.empty(rps.shape)

    if (here := mine >= theirs).any():
        factors = _factors(judged, other, slow_n[here], (theirs / mine)[here], t)
        slowest, fastest = (
            np.nan_to_num(judged.raised_at_rps(rps[here], by), nan=np.inf) for by in (factors, 1.0 / factors)
        )
        lower[here], upper[here] = slow_s[here] / slowest, slow_s[here] / fastest
    if not here.all():
        here = ~here
        factors = _factors(other, judged, fast_n[here], (mine / theirs)[here], t)
        fastest, slowest = (other.raised_at_rps(rps[here], by) for by in (1.0 / factors, factors))
        lower[here], upper[here] = fastest / fast_s[here], slowest / fast_s[here]
    # If the other arm may be saturated, the speedup has no upper bound.
    return lower, np.nan_to_num(upper, nan=np.inf)


def _factors(moved: Curve, still: Curve, others: FloatArray, part: FloatArray, t: float) -> FloatArray:
    """Factors on a curve at each of its ends that hold the doubt of two, shape (rates, ends).

    The other one is among `others`; `part` is the share of the other one's doubts that counts among as many others as the curve is at.
    """
    ends = moved.open_ends[:, 0]
    mine, theirs = moved.loadings_among(ends), part[..., None] * still.loadings_among(others)
    # The squares of their distances, without an array of (rates, ends, sources).
    apart = np.square(mine).sum(axis=-1) - 2.0 * theirs @ mine.T + np.square(theirs).sum(axis=-1)[..., None]
    own = np.square(moved.own_sd(ends)) + np.square(part * still.own_sd(others))[..., None]
    return doubted(t * np.sqrt(np.maximum(apart, 0.0) + own))


def _band_among(judged: Curve, other: Curve, others: float, t: float) -> tuple[FloatArray, FloatArray]:
    """Bounds of the speedup at equal concurrency, as `_band`."""
    load = np.asarray(others)
    speedup = other.latencies_among(load) / judged.latencies_among(load)
    mine, theirs = (curve.loadings_among(load, closed=True) for curve in (judged, other))
    apart = np.linalg.norm(mine - theirs, axis=-1)
    return ends_around(speedup, t * np.hypot(apart, np.hypot(judged.own_sd(load), other.own_sd(load))))


def _speedup(judged: Curve, other: Curve, load: LoadPoint, t: float) -> tuple[float | None, Bounds | None]:
    if load.rps is not None:
        speedup = float(_ratios(judged, other, np.asarray(load.rps)))
    else:
        speedup = load.on(other)[0] / load.on(judged)[0]
    if not 0.0 < speedup < np.inf:
        return (None if np.isnan(speedup) else speedup), None
    if load.rps is not None:
        lower, upper = (float(end[0]) for end in _band(judged, other, np.array([load.rps]), t))
    else:
        lower, upper = map(float, _band_among(judged, other, load.on(judged)[1], t))
    return speedup, (None if np.isnan(lower) else lower, upper if np.isfinite(upper) else None)


def _line_ratio_ci(judged: Curve, other: Curve, part: Literal[0, 1], t: float) -> Bounds:
    """Bounds of C1R (0) or C2R (1)."""
    mine, theirs = (
        (line.shared[part], line.own[part], (line.c1_s, line.c2_s)[part])
        for line in (judged.line, other.line)
    )
    shared = np.linalg.norm(mine[0] / mine[2] - theirs[0] / theirs[2])
    own = math.hypot(
        float(np.linalg.norm(mine[1] / mine[2])),
        float(np.linalg.norm(theirs[1] / theirs[2])),
        judged.start_sd,
        other.start_sd,
    )
    return bounds_around(mine[2] / theirs[2], t * float(np.hypot(shared, own)))


def _with_break_even(found: Comparison, judged: Curve, other: Curve, t: float, measured: Span) -> Comparison:
    """The comparison with the crossing of its curves, with bounds at which the band of the speedup touches 1."""
    # Somewhat below the lowest measured rate the laws still hold, because C1 is an intercept.
    slack = 0.25 * (measured[1] - measured[0])
    last = 0.999 * min(judged.saturation_rps, other.saturation_rps)
    for most in (_WITHIN, _BEYOND):
        grid = np.linspace(max(measured[0] - slack, 0.0), most * measured[1], _GRID)
        grid = grid[grid < last]
        if grid.size < 2:
            return found
        gain = _ratios(judged, other, grid)
        changes = np.nonzero(np.diff(np.sign(gain - 1.0)) != 0)[0]
        if changes.size:
            break
    else:
        if found.verdict in (PaysWhere.BELOW, PaysWhere.ABOVE):
            return replace(found, break_even_beyond_range=True)
        return replace(found, verdict=PaysWhere.ALWAYS if gain[0] > 1.0 else PaysWhere.NEVER)
    # Noise can make two curves cross more than once; the last crossing limits the load.
    at = int(changes[-1])
    falling = bool(gain[at] > 1.0)
    rps = _crossed(judged, other, (float(grid[at]), float(grid[at + 1])), falling=falling)
    band = _band(judged, other, grid, t)
    return replace(
        found,
        verdict=PaysWhere.BELOW if falling else PaysWhere.ABOVE,
        break_even_rps=rps,
        break_even_ci_rps=_touching(grid, *band),
        break_even_concurrency=rps * judged.at_rps(rps) + 1.0,
        pays_rps=_paying(judged, other, grid, *band),
    )


def _crossed(judged: Curve, other: Curve, between: Span, *, falling: bool) -> float:
    """The rate between two others at which the speedup passes 1."""
    low, high = between
    for _ in range(_ROUNDS):
        finer = np.linspace(low, high, _FINER)
        beyond = (_ratios(judged, other, finer[1:]) > 1.0) != falling
        first = int(np.argmax(beyond)) if beyond.any() else beyond.size - 1
        low, high = float(finer[first]), float(finer[first + 1])
    return 0.5 * (low + high)


def _paying(
    judged: Curve, other: Curve, grid: FloatArray, lower: FloatArray, upper: FloatArray
) -> tuple[Span, ...]:
    """Ranges of rates in which an arm is faster; empty unless curves significantly cross more than once.

    A gain or a loss counts if the bounds exclude a speedup of 1; rates between two that count on the same side are
    taken for noise.
    """
    sure = np.nonzero((lower > 1.0) | (upper < 1.0))[0]
    pays = lower[sure] > 1.0
    turns = np.nonzero(pays[1:] != pays[:-1])[0]
    if turns.size < 2:
        return ()
    crossings = [
        _crossed(judged, other, (float(grid[sure[at]]), float(grid[sure[at + 1]])), falling=bool(pays[at]))
        for at in turns
    ]
    ends = [float(grid[0]), *crossings, float(grid[-1])]
    return tuple(span for i, span in enumerate(itertools.pairwise(ends)) if bool(pays[0]) == (i % 2 == 0))


def _touching(grid: FloatArray, lower: FloatArray, upper: FloatArray) -> Bounds | None:
    """Range of rates at which a speedup of 1 lies within the bounds; open where that reaches the grid's end."""
    inside = np.nonzero(~(lower > 1.0) & ~(upper < 1.0))[0]
    if not inside.size:
        return None
    first, final = int(inside[0]), int(inside[-1])
    # Above 0 if a gain or a loss is significant; 0 is found on a straight line between two rates.
    known = np.maximum(np.nan_to_num(lower, nan=-np.inf) - 1.0, 1.0 - upper)

    def passed(outside: int, within: int) -> float:
        share = known[outside] / (known[outside] - max(known[within], -1.0))
        return float(grid[outside] + share * (grid[within] - grid[outside]))

    return (
        None if first == 0 else passed(first - 1, first),
        None if final == grid.size - 1 else passed(final + 1, final),
    )

"""Compare two arms at one load: speedup, break-even and verdict, each with bounds."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np

from breakeven.arm import Arm
from breakeven.laws import speedup as formulas
from breakeven.laws.arrays import FloatArray, Span
from breakeven.laws.fieller import Interval
from breakeven.laws.latency import rps_at
from breakeven.laws.speedup import PaysWhere
from breakeven.profile.curves import Curve
from breakeven.profile.fits import Bounds
from breakeven.profile.predictions import LoadPoint
from breakeven.profile.student_t import band_quantile, t_quantile

RANGE_TOLERANCE = 1.1
"""A break-even up to a tenth beyond the highest measured rate is still reported as a figure."""

_GRID = 128
_ROUNDS = 9
"""Of a search by grids within grids, after which a crossing is known to rounding."""
_SAME = 1e-9
"""Ratios of fitted coefficients this close to 1 are 1: the same points give the same law up to rounding."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """An arm against another one, usually no speculation.

    Attributes:
        arm: the arm judged.
        against: what it is compared with.
        compared_at: equal rate (open loop) or equal concurrency (closed loop); the figures differ.
        speedup: latency of `against` over that of `arm` at the load; 0 where only the arm is saturated, infinite
            where only `against` is, None where both are.
        speedup_ci: bounds; an open end is None.
        c1_ratio, c2_ratio: C1R and C2R; above 1 the second erodes the gain with load.
        c1_ratio_ci, c2_ratio_ci: their bounds.
        verdict: at which loads the arm pays.
        break_even_rps: rate at which both are equally fast; None without one, or beyond the measured range.
        break_even_ci_rps: its bounds.
        break_even_concurrency: the break-even as imposed closed-loop concurrency.
        break_even_beyond_range: a break-even exists in the law but lies beyond the measured range.
        pays_rps: where curves surely cross more than once, the ranges of rates in which the arm is faster, within the
            measured ones; empty otherwise: then verdict and break-even say all.
        saturated: whether the arm has no steady state at the load.
        against_saturated: whether `against` has none.
    """

    arm: Arm
    against: Arm
    compared_at: Literal["equal_rps", "equal_concurrency"]
    speedup: float | None
    speedup_ci: Bounds | None
    c1_ratio: float
    c1_ratio_ci: Bounds | None
    c2_ratio: float
    c2_ratio_ci: Bounds | None
    verdict: PaysWhere
    break_even_rps: float | None
    break_even_ci_rps: Bounds | None
    break_even_concurrency: float | None
    break_even_beyond_range: bool
    saturated: bool
    against_saturated: bool
    pays_rps: tuple[Span, ...] = ()


class JudgedCurve(NamedTuple):
    """An arm, and its latency against load."""

    arm: Arm
    curve: Curve


class Speedups(NamedTuple):
    """Speedups at many rates, and their bounds, NaN where there is none.

    A speedup is 0 where only the first arm is saturated, infinite where only the second is, NaN where both are.
    """

    speedup: FloatArray
    lower: FloatArray
    upper: FloatArray


def compare_curves(
    arm: JudgedCurve,
    against: JudgedCurve,
    load: LoadPoint,
    confidence: float,
    rps_range: Span | None = None,
) -> Comparison:
    """Compare two curves at a load.

    Args:
        arm: the arm judged.
        against: what it is compared with.
        load: the load; a rate compares at equal rate, a concurrency at equal concurrency.
        confidence: two-sided level of all bounds.
        rps_range: load range of interest for the verdict; None takes the measured range of both. A break-even has a
            figure only within the measured range, whatever is of interest.
    """
    judged, other = arm.curve, against.curve
    t = _t(judged, other, confidence)
    known = bool(np.isfinite(t))
    measured = _common_range(judged, other)
    grid = np.linspace(*(rps_range or measured), _GRID)
    c1_ratio, c2_ratio = (
        float(ratio(other.law, judged.law)) for ratio in (formulas.c1_ratio, formulas.c2_ratio)
    )
    verdict = PaysWhere(str(formulas.verdict(c1_ratio, c2_ratio, _SAME)))
    crossing = _break_even(judged, other, verdict, t, measured)
    verdict = crossing.verdict
    # A verdict speaks of a range: the band must hold at all its loads at once, where a speedup's bounds hold at one.
    over_range = band_quantile(confidence, judged.dof + other.dof)
    if known and bool(formulas.tells_nothing(*_band(judged, other, grid, over_range))):
        verdict = PaysWhere.TIE if verdict is PaysWhere.TIE else PaysWhere.UNCERTAIN
    speedup, speedup_ci = _speedup(judged, other, load, t)
    return Comparison(
        arm=arm.arm,
        against=against.arm,
        compared_at="equal_rps" if load.rps is not None else "equal_concurrency",
        speedup=speedup,
        speedup_ci=speedup_ci,
        c1_ratio=c1_ratio,
        c1_ratio_ci=_bounds(formulas.c1_ratio_interval(other.law, judged.law, t)) if known else None,
        c2_ratio=c2_ratio,
        c2_ratio_ci=_bounds(formulas.c2_ratio_interval(other.law, judged.law, t)) if known else None,
        verdict=verdict,
        break_even_rps=crossing.rps,
        break_even_ci_rps=crossing.ci_rps,
        break_even_concurrency=crossing.concurrency,
        break_even_beyond_range=crossing.beyond,
        saturated=load.rps is not None and load.rps >= judged.saturation_rps,
        against_saturated=load.rps is not None and load.rps >= other.saturation_rps,
        pays_rps=crossing.pays_rps,
    )


def speedups_at_rps(judged: Curve, other: Curve, rps: FloatArray, confidence: float) -> Speedups:
    """Speedups of one curve over another at many rates (1/s), as in `compare_curves`."""
    speedup = _ratios(judged, other, rps)
    lower, upper = _band(judged, other, rps, _t(judged, other, confidence))
    regular = np.isfinite(speedup) & (speedup > 0.0)
    bounded = regular & np.isfinite(upper)
    return Speedups(speedup, np.where(regular, lower, np.nan), np.where(bounded, upper, np.nan))


def _t(judged: Curve, other: Curve, confidence: float) -> float:
    """Student t at the degrees of freedom of both; infinite where one has none."""
    if judged.dof <= 0 or other.dof <= 0:
        return float("inf")
    return t_quantile(confidence, judged.dof + other.dof)


def _common_range(judged: Curve, other: Curve) -> Span:
    """Range of rates in which both arms were measured, and both have a steady state."""
    ends = [
        [float(rps_at(curve.law.c1, curve.law.c2, others)) for others in curve.others_range]
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
    """Bounds of the speedup at each rate; an open end is NaN below, infinite above."""
    if not np.isfinite(t):
        return np.full(np.shape(rps), np.nan), np.full(np.shape(rps), np.inf)
    if judged.knots is None and other.knots is None:
        interval = formulas.speedup_interval_at_rps(other.law, judged.law, rps, t)
        return interval.lower, interval.upper
    if judged.loadings is not None and other.loadings is not None:
        apart = np.linalg.norm(judged.loadings_at_rps(rps) - other.loadings_at_rps(rps), axis=-1)
        own = np.hypot(judged.own_sd_at_rps(rps), other.own_sd_at_rps(rps))
        return _of_parts(_ratios(judged, other, rps), t * apart, t * own)
    return _of_parts(
        _ratios(judged, other, rps),
        *(
            _relative(curve.all_bounds_at_rps(rps, t), curve.latencies_at_rps(rps))
            for curve in (judged, other)
        ),
    )


def _relative(bounds: Interval, latency_s: FloatArray) -> FloatArray:
    """Half-width of a latency's bounds over the latency; infinite where they are open."""
    return np.nan_to_num((bounds.upper - bounds.lower) / (2.0 * latency_s), nan=np.inf, posinf=np.inf)


def _of_parts(speedup: FloatArray, first: FloatArray, second: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Bounds of a ratio of two independent latencies from their relative half-widths."""
    spread = np.hypot(first, second)
    known = np.isfinite(spread)
    # Beyond all numbers the end is open, as where nothing is known.
    with np.errstate(over="ignore"):
        factor = np.exp(np.where(known, spread, 0.0))
    return np.where(known, speedup / factor, np.nan), np.where(known, speedup * factor, np.inf)


def _band_among(judged: Curve, other: Curve, others: float, t: float) -> tuple[FloatArray, FloatArray]:
    """Bounds of the speedup at equal concurrency, as `_band`."""
    if judged.knots is None and other.knots is None:
        interval = formulas.speedup_interval_among(other.law, judged.law, others, t)
        return interval.lower, interval.upper
    latencies = [np.asarray(curve.among(others).latency_s) for curve in (judged, other)]
    bounds = [np.asarray(curve.bounds_among(others, t), dtype=float) for curve in (judged, other)]
    relative = (_relative(Interval(*ends), at) for ends, at in zip(bounds, latencies, strict=True))
    return _of_parts(latencies[1] / latencies[0], *relative)


def _speedup(judged: Curve, other: Curve, load: LoadPoint, t: float) -> tuple[float | None, Bounds | None]:
    if load.rps is not None:
        speedup = float(_ratios(judged, other, np.asarray(load.rps)))
    else:
        speedup = load.on(other).latency_s / load.on(judged).latency_s
    if not (0.0 < speedup < np.inf and np.isfinite(t)):
        return (None if np.isnan(speedup) else speedup), None
    if load.rps is not None:
        lower, upper = map(float, _band(judged, other, np.asarray(load.rps), t))
    else:
        lower, upper = map(float, _band_among(judged, other, load.on(judged).others, t))
    if np.isnan(upper):
        return speedup, None
    return speedup, (None if np.isnan(lower) else lower, upper if np.isfinite(upper) else None)


def _bounds(interval: Interval) -> Bounds | None:
    lower, upper = float(interval.lower), float(interval.upper)
    if np.isnan(lower) or np.isnan(upper):
        return None
    return lower, (upper if np.isfinite(upper) else None)


@dataclass(frozen=True, slots=True)
class _Crossing:
    verdict: PaysWhere
    rps: float | None = None
    ci_rps: Bounds | None = None
    concurrency: float | None = None
    beyond: bool = False
    pays_rps: tuple[Span, ...] = ()


def _break_even(judged: Curve, other: Curve, verdict: PaysWhere, t: float, measured: Span) -> _Crossing:
    if judged.knots is not None or other.knots is not None:
        return _break_even_of_points(judged, other, verdict, t, measured)
    rps = float(formulas.break_even_rps(other.law, judged.law))
    if np.isnan(rps) or verdict not in (PaysWhere.BELOW, PaysWhere.ABOVE):
        return _Crossing(verdict)
    others = float(formulas.break_even_others(other.law, judged.law))
    if not measured[0] / RANGE_TOLERANCE - _slack(measured) <= rps <= RANGE_TOLERANCE * measured[1]:
        return _Crossing(verdict, beyond=True)
    interval = formulas.break_even_interval_rps(other.law, judged.law, t) if np.isfinite(t) else None
    return _Crossing(verdict, rps, None if interval is None else _bounds(interval), others + 1.0)


def _slack(measured: Span) -> float:
    """Just below the lowest measured load the laws still hold: C1 is an intercept."""
    return 0.25 * (measured[1] - measured[0])


def _break_even_of_points(
    judged: Curve, other: Curve, verdict: PaysWhere, t: float, measured: Span
) -> _Crossing:
    """Where curves that follow their points cross: by bisection, bounds where the moved band touches 1."""
    grid = np.linspace(max(measured[0] - _slack(measured), 0.0), RANGE_TOLERANCE * measured[1], _GRID)
    last = 0.999 * min(judged.saturation_rps, other.saturation_rps)
    grid = grid[grid < last]
    if grid.size < 2:
        return _Crossing(verdict)
    gain = _ratios(judged, other, grid)
    changes = np.nonzero(np.diff(np.sign(gain - 1.0)) != 0)[0]
    if not changes.size:
        within = PaysWhere.ALWAYS if gain[0] > 1.0 else PaysWhere.NEVER
        beyond = verdict in (PaysWhere.BELOW, PaysWhere.ABOVE)
        return _Crossing(verdict if beyond else within, beyond=beyond)
    # Noise can make two curves touch more than once; the last crossing is the one that load runs into.
    at = int(changes[-1])
    falling = bool(gain[at] > 1.0)
    rps = _crossed(judged, other, (float(grid[at]), float(grid[at + 1])), falling=falling)
    return _Crossing(
        PaysWhere.BELOW if falling else PaysWhere.ABOVE,
        rps,
        _touching(judged, other, grid, t) if np.isfinite(t) else None,
        rps * judged.at_rps(rps).latency_s + 1.0,
        pays_rps=_paying(judged, other, grid, t),
    )


def _crossed(judged: Curve, other: Curve, between: Span, *, falling: bool) -> float:
    """The rate between two others at which the speedup passes 1."""
    low, high = between
    for _ in range(_ROUNDS):
        finer = np.linspace(low, high, _GRID)
        beyond = (_ratios(judged, other, finer[1:]) > 1.0) != falling
        first = int(np.argmax(beyond)) if beyond.any() else beyond.size - 1
        low, high = float(finer[first]), float(finer[first + 1])
    return 0.5 * (low + high)


def _paying(judged: Curve, other: Curve, grid: FloatArray, t: float) -> tuple[Span, ...]:
    """Ranges of rates in which an arm is faster; empty unless curves surely cross more than once.

    A gain or a loss counts where the bounds exclude a speedup of 1; what lies between two that count on the same side is
    taken for noise.
    """
    if not np.isfinite(t):
        return ()
    lower, upper = _band(judged, other, grid, t)
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


def _touching(judged: Curve, other: Curve, grid: FloatArray, t: float) -> Bounds | None:
    """Range of rates at which a speedup of 1 lies within the bounds; open where that reaches the grid's end."""
    lower, upper = _band(judged, other, grid, t)
    inside = np.nonzero(~(lower > 1.0) & ~(upper < 1.0))[0]
    if not inside.size:
        return None
    first, final = int(inside[0]), int(inside[-1])
    return (
        None if first == 0 else float(grid[first]),
        None if final == grid.size - 1 else float(grid[final]),
    )

"""Compare two arms at one load: speedup, break-even and verdict, each with bounds."""

from __future__ import annotations

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


class JudgedCurve(NamedTuple):
    """An arm, and its latency against load."""

    arm: Arm
    curve: Curve


class BoundedSpeedup(NamedTuple):
    """A speedup and its bounds; None where there is none."""

    speedup: float | None
    bounds: Bounds | None


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
    )


def speedup_on(judged: Curve, other: Curve, load: LoadPoint, confidence: float) -> BoundedSpeedup:
    """Speedup of one curve over another at a load and its bounds, as in `compare_curves` but without a verdict.

    Returns:
        0 where only the first is saturated, infinite where only the second is, None where both are; no bounds then, nor
        where a fit has no degrees of freedom left.
    """
    return _speedup(judged, other, load, _t(judged, other, confidence))


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


def _speedup(judged: Curve, other: Curve, load: LoadPoint, t: float) -> BoundedSpeedup:
    met, slow = load.on(judged), load.on(other).latency_s
    fast, others = met.latency_s, met.others
    if np.isnan(fast) or np.isnan(slow):
        both = np.isnan(fast) and np.isnan(slow)
        return BoundedSpeedup(None if both else 0.0 if np.isnan(fast) else float("inf"), None)
    speedup = slow / fast
    if not np.isfinite(t):
        return BoundedSpeedup(speedup, None)
    if judged.knots is not None or other.knots is not None:
        parts = _of_parts(speedup, _relative(judged, load, t), _relative(other, load, t))
        return BoundedSpeedup(speedup, parts)
    if load.rps is not None:
        interval = formulas.speedup_interval_at_rps(other.law, judged.law, load.rps, t)
    else:
        interval = formulas.speedup_interval_among(other.law, judged.law, others, t)
    return BoundedSpeedup(speedup, _bounds(interval))


def _relative(curve: Curve, load: LoadPoint, t: float) -> float:
    """Half-width of a latency's bounds over the latency; infinite where they are open."""
    met = load.on(curve)
    latency_s, others = met.latency_s, met.others
    bounds = curve.bounds_among(others, t) if load.rps is None else curve.bounds_at_rps(load.rps, t)
    if bounds is None or bounds[0] is None or bounds[1] is None or np.isnan(latency_s):
        return float("inf")
    return (bounds[1] - bounds[0]) / (2.0 * latency_s)


def _of_parts(speedup: float, first: float, second: float) -> Bounds:
    """Bounds of a ratio of two independent latencies from their relative half-widths."""
    spread = float(np.hypot(first, second))
    if not np.isfinite(spread):
        return None, None
    return speedup * float(np.exp(-spread)), speedup * float(np.exp(spread))


def _bounds(interval: Interval) -> Bounds | None:
    lower, upper = float(interval.lower), float(interval.upper)
    if np.isnan(lower) or np.isnan(upper):
        return None
    return lower, (upper if np.isfinite(upper) else None)


def _band(judged: Curve, other: Curve, grid: FloatArray, t: float) -> tuple[FloatArray, FloatArray]:
    """Bounds of the speedup at each rate of a grid; an open end is infinite (or 0)."""
    if judged.knots is None and other.knots is None:
        interval = formulas.speedup_interval_at_rps(other.law, judged.law, grid, t)
        return interval.lower, interval.upper
    pairs = []
    for rps in grid:
        _, bounds = _speedup(judged, other, LoadPoint(rps=float(rps)), t)
        low, high = bounds or (None, None)
        pairs.append((0.0 if low is None else low, float("inf") if high is None else high))
    lower, upper = np.array(pairs).T
    return lower, upper


def _ratio(judged: Curve, other: Curve, rps: float) -> float:
    return other.at_rps(rps).latency_s / judged.at_rps(rps).latency_s


@dataclass(frozen=True, slots=True)
class _Crossing:
    verdict: PaysWhere
    rps: float | None = None
    ci_rps: Bounds | None = None
    concurrency: float | None = None
    beyond: bool = False


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
    gain = np.array([_ratio(judged, other, rps) for rps in grid])
    changes = np.nonzero(np.diff(np.sign(gain - 1.0)) != 0)[0]
    if not changes.size:
        within = PaysWhere.ALWAYS if gain[0] > 1.0 else PaysWhere.NEVER
        beyond = verdict in (PaysWhere.BELOW, PaysWhere.ABOVE)
        return _Crossing(verdict if beyond else within, beyond=beyond)
    # Noise can make two curves touch more than once; the last crossing is the one that load runs into.
    at = int(changes[-1])
    low, high = float(grid[at]), float(grid[at + 1])
    falling = gain[at] > 1.0
    for _ in range(60):
        middle = 0.5 * (low + high)
        if (_ratio(judged, other, middle) > 1.0) == falling:
            low = middle
        else:
            high = middle
    rps = 0.5 * (low + high)
    return _Crossing(
        PaysWhere.BELOW if falling else PaysWhere.ABOVE,
        rps,
        _touching(judged, other, grid, t) if np.isfinite(t) else None,
        rps * judged.at_rps(rps).latency_s + 1.0,
    )


def _touching(judged: Curve, other: Curve, grid: FloatArray, t: float) -> Bounds | None:
    """Range of rates at which a speedup of 1 lies within the bounds; open where that reaches the grid's end."""
    lower, upper = _band(judged, other, grid, t)
    inside = np.nonzero((lower <= 1.0) & (upper >= 1.0))[0]
    if not inside.size:
        return None
    first, final = int(inside[0]), int(inside[-1])
    return (
        None if first == 0 else float(grid[first]),
        None if final == grid.size - 1 else float(grid[final]),
    )

"""Compare two arms at one load: speedup, break-even and verdict, each with bounds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from breakeven import speedup as formulas
from breakeven.arm import Arm
from breakeven.arrays import FloatArray
from breakeven.fieller import Interval
from breakeven.latency import rps_at
from breakeven.law import Law
from breakeven.profile.curves import Curve
from breakeven.profile.fits import Bounds
from breakeven.profile.predictions import LoadPoint
from breakeven.profile.student import t_quantile
from breakeven.speedup import Verdict

RANGE_TOLERANCE = 1.1
"""A break-even up to a tenth beyond the highest measured rate is still reported as a figure."""

_GRID = 200
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
        break_even_concurrency: the same as imposed closed-loop concurrency.
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
    verdict: Verdict
    break_even_rps: float | None
    break_even_ci_rps: Bounds | None
    break_even_concurrency: float | None
    break_even_beyond_range: bool
    saturated: bool
    against_saturated: bool


def compare_curves(
    arm: tuple[Arm, Curve],
    against: tuple[Arm, Curve],
    load: LoadPoint,
    confidence: float,
    rps_range: tuple[float, float] | None = None,
) -> Comparison:
    """Compare two curves at a load.

    Args:
        arm: the arm judged and its curve.
        against: what it is compared with, and its curve.
        load: the load; a rate compares at equal rate, a concurrency at equal concurrency.
        confidence: two-sided level of all bounds.
        rps_range: load range of interest for the verdict; None takes the measured range of both.
    """
    judged, other = arm[1], against[1]
    known = judged.dof > 0 and other.dof > 0
    t = t_quantile(confidence, judged.dof + other.dof) if known else float("inf")
    low, high = rps_range or _common_range(judged, other)
    grid = np.linspace(low, high, _GRID)
    c1_ratio, c2_ratio = (
        float(ratio(other.law, judged.law)) for ratio in (formulas.c1_ratio, formulas.c2_ratio)
    )
    verdict = Verdict(str(formulas.verdict(c1_ratio, c2_ratio, _SAME)))
    crossing = _break_even(judged, other, verdict, t, (low, high))
    verdict = crossing.verdict
    if known and _tells_nothing(judged, other, grid, t):
        verdict = Verdict.TIE if verdict is Verdict.TIE else Verdict.UNCERTAIN
    speedup, speedup_ci = _speedup(judged, other, load, t)
    return Comparison(
        arm=arm[0],
        against=against[0],
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


def _common_range(judged: Curve, other: Curve) -> tuple[float, float]:
    """Range of rates in which both arms were measured, and both have a steady state."""
    ends = [
        [float(rps_at(curve.law.c1, curve.law.c2, others)) for others in curve.others_range]
        for curve in (judged, other)
    ]
    high = min(ends[0][1], ends[1][1])
    low = min(max(ends[0][0], ends[1][0]), 0.999 * high)
    return low, max(high, 1e-9)


def _speedup(judged: Curve, other: Curve, load: LoadPoint, t: float) -> tuple[float | None, Bounds | None]:
    fast, _, fast_basis = load.on(judged)
    slow, _, slow_basis = load.on(other)
    if np.isnan(fast) and np.isnan(slow):
        return None, None
    if np.isnan(fast):
        return 0.0, None
    if np.isnan(slow):
        return float("inf"), None
    speedup = slow / fast
    if not np.isfinite(t):
        return speedup, None
    if load.rps is not None:
        on_law = float(formulas.speedup_at_rps(other.law, judged.law, load.rps))
        interval = formulas.speedup_interval_at_rps(other.law, judged.law, load.rps, t)
    else:
        others = float(load.concurrency or 1.0) - 1.0
        on_law = float(formulas.speedup_among(other.law, judged.law, others))
        interval = formulas.speedup_interval_among(other.law, judged.law, others, t)
    moved = speedup / on_law if "points" in (fast_basis, slow_basis) and 0 < on_law < float("inf") else 1.0
    return speedup, _bounds(interval, moved)


def _bounds(interval: Interval, factor: float = 1.0) -> Bounds | None:
    lower, upper = float(interval.lower), float(interval.upper)
    if np.isnan(lower) or np.isnan(upper):
        return None
    return lower * factor, (upper * factor if np.isfinite(upper) else None)


def _tells_nothing(judged: Curve, other: Curve, grid: FloatArray, t: float) -> bool:
    interval = formulas.speedup_interval_at_rps(other.law, judged.law, grid, t)
    moved = _moved(judged, other, grid)
    return bool(formulas.tells_nothing(interval.lower * moved, interval.upper * moved))


def _moved(judged: Curve, other: Curve, grid: FloatArray) -> FloatArray:
    """Speedup from the measured points over that of the laws, where points are used; else 1."""
    if judged.knots is None and other.knots is None:
        return np.ones(grid.shape)
    on_law = formulas.speedup_at_rps(other.law, judged.law, grid)
    return np.array([_ratio(judged, other, rps) for rps in grid]) / on_law


def _ratio(judged: Curve, other: Curve, rps: float) -> float:
    return other.at_rps(rps)[0] / judged.at_rps(rps)[0]


@dataclass(frozen=True, slots=True)
class _Crossing:
    verdict: Verdict
    rps: float | None = None
    ci_rps: Bounds | None = None
    concurrency: float | None = None
    beyond: bool = False


def _break_even(
    judged: Curve, other: Curve, verdict: Verdict, t: float, measured: tuple[float, float]
) -> _Crossing:
    if judged.knots is not None or other.knots is not None:
        return _break_even_of_points(judged, other, verdict, t, measured)
    rps = float(formulas.break_even_rps(other.law, judged.law))
    if np.isnan(rps) or verdict not in (Verdict.BELOW, Verdict.ABOVE):
        return _Crossing(verdict)
    others = float(formulas.break_even_others(other.law, judged.law))
    if not measured[0] / RANGE_TOLERANCE - _slack(measured) <= rps <= RANGE_TOLERANCE * measured[1]:
        return _Crossing(verdict, beyond=True)
    interval = formulas.break_even_interval_rps(other.law, judged.law, t) if np.isfinite(t) else None
    return _Crossing(verdict, rps, None if interval is None else _bounds(interval), others + 1.0)


def _slack(measured: tuple[float, float]) -> float:
    """Just below the lowest measured load the laws still hold: C1 is an intercept."""
    return 0.25 * (measured[1] - measured[0])


def _break_even_of_points(
    judged: Curve, other: Curve, verdict: Verdict, t: float, measured: tuple[float, float]
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
        within = Verdict.ALWAYS if gain[0] > 1.0 else Verdict.NEVER
        beyond = verdict in (Verdict.BELOW, Verdict.ABOVE)
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
        Verdict.BELOW if falling else Verdict.ABOVE,
        rps,
        _touching(judged.law, other.law, grid, gain, t) if np.isfinite(t) else None,
        rps * judged.at_rps(rps)[0] + 1.0,
    )


def _touching(judged: Law, other: Law, grid: FloatArray, gain: FloatArray, t: float) -> Bounds | None:
    interval = formulas.speedup_interval_at_rps(other, judged, grid, t)
    moved = gain / formulas.speedup_at_rps(other, judged, grid)
    inside = np.nonzero((interval.lower * moved <= 1.0) & (interval.upper * moved >= 1.0))[0]
    if not inside.size:
        return None
    first, final = int(inside[0]), int(inside[-1])
    return (
        None if first == 0 else float(grid[first]),
        None if final == grid.size - 1 else float(grid[final]),
    )

"""Comparing an arm with another one, usually no speculation ("dense").

    C1R = C1_arm/C1_dense,  C2R = C2_arm/C2_dense,  r = RPS*C2_dense
    at equal rate (open loop):           speedup = (1/C1R) * (1 - r*C2R) / (1 - r)
    at equal concurrency (closed loop):  speedup = (C1_d + (C-1)*C2_d) / (C1_a + (C-1)*C2_a)

The two differ everywhere but at the break-even (0.77 at concurrency 128 in one published sweep where equal rate had
saturated): always say which one a number is. C2R > 1 means that the gain erodes with load, C2R < 1 that it grows;
both occur on one model.

`against` and `arm` are `Law`s, whose arrays broadcast with each other and with the load. Intervals of break-evens are
Fieller's: the set of values that a t test at this confidence does not reject. Speedups and ratios have none here: the
bounds of a profile's comparison come from the law of steps (`breakeven.profile.comparisons`).
"""

from __future__ import annotations

from enum import StrEnum

import numpy as np
from numpy.typing import ArrayLike, NDArray

from breakeven.laws.arrays import FloatArray, nonnegative, positive
from breakeven.laws.fieller import Interval, ratio_interval
from breakeven.laws.law import Law


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
    """At no load of interest do the bounds tell a gain from a loss."""


def c1_ratio(against: Law, arm: Law) -> FloatArray:
    """C1R (1): the arm's lone-request latency relative to the other's; its inverse is the speedup as load -> 0."""
    return np.asarray(arm.c1 / against.c1)


def c2_ratio(against: Law, arm: Law) -> FloatArray:
    """C2R (1): above 1 the speedup erodes with load, below 1 it grows."""
    return np.asarray(arm.c2 / against.c2)


def speedup_at_rps(against: Law, arm: Law, rps: ArrayLike) -> FloatArray:
    """Speedup at equal rate `rps` (1/s): mean latency of `against` over that of `arm`.

    Returns:
        0 where only the arm is saturated, infinity where only the other is (an unbounded gain), NaN where both are:
        no latency exists there, compare saturation rates (`saturation_ratio`).

    Raises:
        ValueError: the rate is negative.
    """
    rate = nonnegative("rps", rps)
    arm_left, against_left = 1.0 - rate * arm.c2, 1.0 - rate * against.c2
    with np.errstate(divide="ignore", invalid="ignore"):
        regular = np.asarray(against.c1 * arm_left / (arm.c1 * against_left))
    return _by_saturation(arm_left, against_left, regular, 0.0, np.inf)


def speedup_among(against: Law, arm: Law, others: ArrayLike) -> FloatArray:
    """Speedup at equal concurrency (1), with `others` = C - 1 other requests in flight for both.

    Raises:
        ValueError: others is negative.
    """
    n = nonnegative("others", others)
    return np.asarray((against.c1 + n * against.c2) / (arm.c1 + n * arm.c2))


def saturation_ratio(against: Law, arm: Law) -> FloatArray:
    """Saturation rate of the arm over that of the other one (1): C2_against / C2_arm."""
    return np.asarray(against.c2 / arm.c2)


def verdict(c1_ratio: ArrayLike, c2_ratio: ArrayLike, tolerance: float = 1e-12) -> NDArray[np.str_]:
    """Say at which loads an arm pays, from its two ratios; ratios within `tolerance` of 1 count as 1.

    | C1R | C2R | |
    |---|---|---|
    | < 1 | > 1 | below |
    | > 1 | < 1 | above |
    | <= 1 | <= 1, not both 1 | always (C1R = 1: at every load above 0) |
    | >= 1 | >= 1, not both 1 | never (C1R = 1: ties at 0) |
    | 1 | 1 | tie |

    Returns:
        An array of `PaysWhere` words; NaN ratios give `uncertain`.

    Raises:
        ValueError: a ratio is zero or negative.
    """
    first = positive("c1_ratio", c1_ratio) - 1.0
    second = positive("c2_ratio", c2_ratio) - 1.0
    first, second = np.broadcast_arrays(
        np.where(np.abs(first) <= tolerance, 0.0, first), np.where(np.abs(second) <= tolerance, 0.0, second)
    )
    return np.select(
        [
            np.isnan(first) | np.isnan(second),
            (first == 0) & (second == 0),
            (first < 0) & (second > 0),
            (first > 0) & (second < 0),
            (first <= 0) & (second <= 0),
        ],
        [
            PaysWhere.UNCERTAIN.value,
            PaysWhere.TIE.value,
            PaysWhere.BELOW.value,
            PaysWhere.ABOVE.value,
            PaysWhere.ALWAYS.value,
        ],
        default=PaysWhere.NEVER.value,
    )


def tells_nothing(speedup_lower: ArrayLike, speedup_upper: ArrayLike) -> np.bool_:
    """Whether the verdict is `uncertain`: at no load of interest (last axis) does the interval exclude 1."""
    lower, upper = np.asarray(speedup_lower, dtype=float), np.asarray(speedup_upper, dtype=float)
    return np.bool_(np.all(~((lower > 1.0) | (upper < 1.0)), axis=-1))


def break_even_others(against: Law, arm: Law) -> FloatArray:
    """Others in flight at which both are equally fast, n* = (C1_d - C1_a)/(C2_a - C2_d); NaN without one above 0.

    The imposed closed-loop concurrency is n* + 1.
    """
    return _positive_ratio(against.c1 - arm.c1, arm.c2 - against.c2)


def break_even_rps(against: Law, arm: Law) -> FloatArray:
    """Rate (1/s) at which both are equally fast; NaN without one above 0.

    RPS* = (C1_d - C1_a) / (C1_d*C2_a - C1_a*C2_d), the same as r*/C2_d with r* = (C1R - 1)/(C1R - C2R). It lies below
    both saturation rates. (Another formula in circulation, (C2R-1)/(C2R/C1R + C2R - 1), is wrong.)
    """
    # Whether a break-even exists is decided by the differences: the sign of the determinant alone would also accept
    # the crossing of the two branches beyond saturation.
    exists = ~np.isnan(break_even_others(against, arm))
    crossing = _positive_ratio(against.c1 - arm.c1, against.c1 * arm.c2 - arm.c1 * against.c2)
    return np.where(exists, crossing, np.nan)


def break_even_interval_others(against: Law, arm: Law, t: ArrayLike) -> Interval:
    """Interval of the break-even in others in flight: the n at which equal latency is not rejected."""
    d1, d2, d12 = against.variances()
    a1, a2, a12 = arm.variances()
    return ratio_interval(against.c1 - arm.c1, arm.c2 - against.c2, d1 + a1, d2 + a2, cov=-(d12 + a12), t=t)


def break_even_interval_rps(against: Law, arm: Law, t: ArrayLike) -> Interval:
    """Interval of the break-even (1/s): the rates at which a speedup of 1 is not rejected.

    Open above (infinite) where it may lie at any rate up to saturation; 0 at the lower end where there may be none.
    """
    d1, d2, d12 = against.variances()
    a1, a2, a12 = arm.variances()
    # d(RPS) = p - RPS*q with p = C1_d - C1_a and q = C1_d*C2_a - C1_a*C2_d; q's variance to first order.
    q_var = arm.c2**2 * d1 + against.c1**2 * a2 + against.c2**2 * a1 + arm.c1**2 * d2
    q_var = q_var - 2.0 * (arm.c2 * arm.c1 * d12 + against.c1 * against.c2 * a12)
    pq_cov = arm.c2 * d1 - arm.c1 * d12 - against.c1 * a12 + against.c2 * a1
    q = against.c1 * arm.c2 - arm.c1 * against.c2
    found = ratio_interval(against.c1 - arm.c1, q, d1 + a1, np.maximum(q_var, 0.0), cov=pq_cov, t=t)
    # Beyond the first saturation the speedup is 0 or infinite and crosses 1 nowhere.
    first_saturation = 1.0 / np.maximum(against.c2, arm.c2)
    outside = found.lower >= first_saturation
    upper = np.where(found.upper >= first_saturation, np.inf, found.upper)
    return Interval(np.where(outside, np.nan, found.lower), np.where(outside, np.nan, upper))


def _by_saturation(
    arm_left: FloatArray,
    against_left: FloatArray,
    regular: FloatArray,
    arm_saturated: ArrayLike,
    unbounded: ArrayLike,
) -> FloatArray:
    """Choose by what is left below saturation (1 - RPS*C2): NaN where both arms are saturated."""
    return np.select(
        [(arm_left <= 0) & (against_left <= 0), arm_left <= 0, against_left <= 0],
        [np.full(np.shape(regular), np.nan), arm_saturated, unbounded],
        default=regular,
    )


def _positive_ratio(top: FloatArray, bottom: FloatArray) -> FloatArray:
    """Return top/bottom where that is above 0, else NaN."""
    same_sign = np.sign(top) * np.sign(bottom) > 0
    return np.where(same_sign, top / np.where(same_sign, bottom, 1.0), np.nan)

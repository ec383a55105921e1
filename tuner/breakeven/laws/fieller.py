"""Fieller's interval of a ratio: the values that a t test does not reject.

A symmetric interval around a ratio of two estimates is wrong if the denominator may be zero. The break-even of two
nearly parallel laws is such a ratio. In simulation with 6 to 9 points and 1 to 6 % noise this interval covers
93-96 % at 95 % nominal, the delta method 66-97 %, the bootstrap 86-92 %.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from breakeven.laws.arrays import FloatArray, nonnegative


@dataclass(frozen=True, slots=True, eq=False)
class Interval:
    """Lower and upper bounds, elementwise; an open end is infinite, an empty set is NaN on both sides."""

    lower: FloatArray
    upper: FloatArray


def ratio_interval(
    top: ArrayLike,
    bottom: ArrayLike,
    top_var: ArrayLike,
    bottom_var: ArrayLike,
    *,
    cov: ArrayLike,
    t: ArrayLike,
) -> Interval:
    """Fieller interval of top/bottom, restricted to values of at least 0.

    {z >= 0: (top - z*bottom)^2 <= t^2 Var(top - z*bottom)}; two separate pieces (a denominator that may be zero) are
    reported as the interval that covers both.

    Args:
        top: estimate of the numerator.
        bottom: estimate of the denominator.
        top_var: variance of the numerator.
        bottom_var: variance of the denominator.
        cov: their covariance.
        t: two-sided Student t quantile at the pooled degrees of freedom (n_dense + n_arm - 4 for two laws).

    Raises:
        ValueError: t or a variance is negative.
    """
    n, d, together = (np.asarray(x, dtype=float) for x in (top, bottom, cov))
    n_var, d_var = nonnegative("top_var", top_var), nonnegative("bottom_var", bottom_var)
    square = nonnegative("t", t) ** 2
    # Written out, n^2*d^2 cancels: the difference of the squares would lose an interval that is narrow.
    spread = d * d * n_var + n * n * d_var - 2.0 * n * d * together - square * (n_var * d_var - together**2)
    return _where_at_most_zero(
        d * d - square * d_var, n * d - square * together, n * n - square * n_var, square * spread
    )


def _where_at_most_zero(a: ArrayLike, h: ArrayLike, c: ArrayLike, discriminant: ArrayLike) -> Interval:
    """Cover {z >= 0: a*z^2 - 2*h*z + c <= 0} by one interval, NaN where it is empty; discriminant = h^2 - a*c."""
    a, h, c, inside = np.broadcast_arrays(*(np.asarray(x, dtype=float) for x in (a, h, c, discriminant)))
    # The textbook formula loses all digits of the small root when h dominates.
    q = h + np.where(h >= 0, 1.0, -1.0) * np.sqrt(np.maximum(inside, 0.0))
    # A root beyond the largest number is at infinity.
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        roots = np.stack([np.where(a != 0, q / a, np.nan), np.where(q != 0, c / q, 0.0)])
    small, large = np.fmin.reduce(roots), np.fmax.reduce(roots)
    # An open parabola, or a line that falls: every z beyond the last root belongs to the set.
    open_above = (a < 0) | ((a == 0) & (h > 0)) | ((a == 0) & (h == 0) & (c <= 0))
    lower = np.where(c <= 0, 0.0, np.where(open_above, large, small))
    upper = np.where(open_above, np.inf, large)
    empty = ((inside < 0) & (a > 0)) | (upper < 0) | ((a == 0) & (h == 0) & (c > 0))
    none = empty | np.isnan(a + h + c + inside)
    return Interval(np.where(none, np.nan, lower), np.where(none, np.nan, upper))

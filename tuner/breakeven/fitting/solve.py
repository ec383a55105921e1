"""The solver: nonnegative least squares of relative residuals for a law that is linear in its coefficients.

    minimise  sum_i ((y_i - o_i - x_i.b) / (o_i + x_i.b))^2   with b >= 0

Relative, because a benchmark's error is a share of the latency: absolute residuals let the highest load decide and
put C1 off by up to 27 %. Weights are 1/fitted, not 1/measured: dividing by the measured value prefers laws that lie
below it. They are found by reweighting, which for a law linear in b converges in a few rounds.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from breakeven.laws.arrays import FloatArray

_ROUNDS = 50
_SETTLED = 1e-12
_NOTHING = 1e-10


@dataclass(frozen=True, slots=True, eq=False)
class Solution:
    """Coefficients and what their uncertainty is made of.

    Attributes:
        coefficients: b, shape (p,), at least 0.
        fitted: o + x.b, shape (n,).
        residuals: y/fitted - 1, shape (n,).
        unscaled_covariance: (X'WX)^-1, shape (p, p): the covariance at a relative noise of 1; rows and columns of
            coefficients at the bound are 0.
        free: which coefficients are above 0, shape (p,).
    """

    coefficients: FloatArray
    fitted: FloatArray
    residuals: FloatArray
    unscaled_covariance: FloatArray
    free: np.ndarray[tuple[int, ...], np.dtype[np.bool_]]

    def noise(self) -> float:
        """Relative standard deviation of a residual; 0 without degrees of freedom."""
        dof = self.residuals.size - int(self.free.sum())
        return float(np.sqrt(self.residuals @ self.residuals / dof)) if dof > 0 else 0.0


def solve(design: ArrayLike, measured: ArrayLike, offset: ArrayLike = 0.0) -> Solution:
    """Fit `measured` by nonnegative combinations of the design's columns beside a known part, with relative residuals.

    Args:
        design: X, shape (n, p), at least 0, with full column rank.
        measured: y, shape (n,), above 0.
        offset: o, what is known of y already, shape (n,). Errors stay relative to the whole.

    Raises:
        ValueError: shapes disagree or a measured value is not above 0.
    """
    x, y = np.asarray(design, dtype=float), np.asarray(measured, dtype=float)
    if x.ndim != 2 or x.shape[0] != y.size or not np.all(y > 0):
        raise ValueError(
            f"design {x.shape} and measured {y.shape} do not belong together, or a value is not above 0"
        )
    # Columns of one size: loads run from 0 to hundreds and NNLS stops at absolute tolerances.
    size = np.linalg.norm(x / y[:, None], axis=0)
    size[size == 0] = 1.0
    scaled = x / size
    weights = 1.0 / y
    known = np.broadcast_to(np.asarray(offset, dtype=float), y.shape)
    coefficients = np.zeros(x.shape[1])
    for _ in range(_ROUNDS):
        before, coefficients = coefficients, _nonnegative(scaled * weights[:, None], (y - known) * weights)
        fitted = known + scaled @ coefficients
        if np.max(np.abs(coefficients - before)) <= _SETTLED * np.max(coefficients):
            break
        # A row that the law cannot reach must not get all the weight there is.
        weights = 1.0 / np.maximum(fitted, 0.1 * y)
    # A coefficient below rounding is at its bound of 0: a lone request's latency of 1e-16 s counts as none.
    coefficients[coefficients < _NOTHING * np.max(coefficients)] = 0.0
    fitted = np.maximum(known + scaled @ coefficients, 1e-3 * y)
    free = coefficients > 0
    covariance = np.zeros((x.shape[1], x.shape[1]))
    if free.any():
        weighted = scaled[:, free] / fitted[:, None]
        inverse = np.linalg.pinv(weighted.T @ weighted)
        covariance[np.ix_(free, free)] = 0.5 * (inverse + inverse.T)
    return Solution(coefficients / size, fitted, y / fitted - 1.0, covariance / np.outer(size, size), free)


def _nonnegative(design: FloatArray, target: FloatArray) -> FloatArray:
    """Least squares with coefficients of at least 0: the plain solution where that is inside, else scipy's NNLS."""
    plain = np.linalg.lstsq(design, target, rcond=None)[0]
    if np.all(plain > 0):
        return np.asarray(plain)
    from scipy.optimize import nnls  # noqa: PLC0415  scipy takes a quarter of a second to import

    return np.asarray(nnls(design, target)[0])

"""An arm's two coefficients with their uncertainty, and how much load they allow within a limit."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from breakeven.laws.arrays import FloatArray, positive
from breakeven.laws.fieller import Interval, ratio_interval


@dataclass(frozen=True, slots=True, eq=False)
class Law:
    """C1 and C2 of an arm, with their uncertainty.

    Attributes:
        c1_s: latency of a lone request (s), above 0.
        c2_s: cost of one other request in flight (s), above 0.
        covariance: of (c1_s, c2_s), shape (..., 2, 2) in s^2; zero (the default) where they are taken as known.
    """

    c1_s: ArrayLike
    c2_s: ArrayLike
    covariance: ArrayLike = ((0.0, 0.0), (0.0, 0.0))

    def __post_init__(self) -> None:
        positive("c1_s", self.c1_s)
        positive("c2_s", self.c2_s)
        if np.shape(self.covariance)[-2:] != (2, 2):
            raise ValueError(f"covariance: shape {np.shape(self.covariance)} does not end in (2, 2)")

    @property
    def c1(self) -> FloatArray:
        """C1 as an array (s)."""
        return np.asarray(self.c1_s, dtype=float)

    @property
    def c2(self) -> FloatArray:
        """C2 as an array (s per other request)."""
        return np.asarray(self.c2_s, dtype=float)

    def variances(self) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Variance of C1, variance of C2 and their covariance (s^2)."""
        covariance = np.asarray(self.covariance, dtype=float)
        return covariance[..., 0, 0], covariance[..., 1, 1], covariance[..., 0, 1]


def capacity_rps(law: Law, limit_s: ArrayLike) -> FloatArray:
    """Largest rate (1/s) whose mean latency keeps `limit_s` (s): (1 - C1/SLO)/C2; 0 where a lone request misses it.

    Raises:
        ValueError: the limit is not above 0.
    """
    return np.maximum(1.0 - law.c1 / positive("limit_s", limit_s), 0.0) / law.c2


def capacity_interval_rps(law: Law, limit_s: ArrayLike, t: ArrayLike) -> Interval:
    """Fieller interval of `capacity_rps`: (SLO - C1) / (SLO*C2) is a ratio of two linear forms."""
    limit = positive("limit_s", limit_s)
    v1, v2, v12 = law.variances()
    found = ratio_interval(limit - law.c1, limit * law.c2, v1, limit**2 * v2, cov=-limit * v12, t=t)
    # No rate at all is left if even the lone request significantly misses the limit.
    return Interval(np.nan_to_num(found.lower, nan=0.0), np.where(np.isnan(found.upper), 0.0, found.upper))

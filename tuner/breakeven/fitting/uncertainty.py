"""From a solution to bounds: noise from residuals and replicates, covariance, Student intervals."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from breakeven.fitting.observations import Observation
from breakeven.fitting.solve import Solution
from breakeven.laws.arrays import FloatArray
from breakeven.points.point import ImposedLoad
from breakeven.profile.fits import Bounds, LawFit
from breakeven.profile.student_t import t_quantile


def replicate_noise(observations: Sequence[Observation]) -> float:
    """Pooled relative scatter of rows with the same imposed load; 0 where no load was repeated.

    The law's residuals can be small by luck; what repetition shows is then the honest noise.
    """
    groups: dict[ImposedLoad, list[float]] = {}
    for one in observations:
        groups.setdefault(one.load, []).append(one.latency_s)
    square, dof = 0.0, 0
    for latencies in groups.values():
        relative = np.asarray(latencies) / np.mean(latencies) - 1.0
        square += float(relative @ relative)
        dof += len(latencies) - 1
    return float(np.sqrt(square / dof)) if dof else 0.0


def law_fit(solution: Solution, replicates: float = 0.0) -> LawFit:
    """Give a two-coefficient solution its covariance: noise squared times (X'WX)^-1."""
    noise = max(solution.noise(), replicates)
    return _law_fit(solution, noise, noise**2 * solution.unscaled_covariance)


def law_fit_of_loads(
    solution: Solution, design: FloatArray, imposed_rate: Sequence[bool], replicates: float
) -> LawFit:
    """Covariance of a law of latencies against the number of others, some of them at imposed rates.

    Two kinds of noise cannot be distinguished in a sweep, and each coefficient gets the larger standard error of both. An
    engine that is slower for a while changes C1 and C2, and the number in flight follows: the residual is the noise. A
    latency that was not averaged for long enough moves along the law at an imposed rate, because the number in flight is
    rate times latency: only C1/L of the noise is left as residual. Taken for the first, bounds of 90 % held C1 in 79 to 87 % of open-loop
    sweeps of the second kind; the larger error holds it in 88 to 98 % of both.

    Args:
        solution: of the law.
        design: its rows (1, n), shape (rows, 2).
        imposed_rate: per row, whether the rate was imposed and not the number in flight.
        replicates: scatter between repetitions (1).
    """
    noise = max(solution.noise(), replicates)
    covariance = noise**2 * solution.unscaled_covariance
    rows, columns = design.shape
    if rows <= columns or not any(imposed_rate) or not solution.free.all():
        return _law_fit(solution, noise, covariance)
    left = np.where(imposed_rate, np.minimum(solution.coefficients[0] / solution.fitted, 1.0), 1.0) ** 2
    weighted = design / solution.fitted[:, None]
    to_residuals = np.eye(rows) - weighted @ solution.unscaled_covariance @ weighted.T
    square = float(solution.residuals @ solution.residuals / (to_residuals**2 @ left).sum())
    to_coefficients = solution.unscaled_covariance @ weighted.T
    other = max(square, replicates**2) * (to_coefficients * left) @ to_coefficients.T
    with np.errstate(invalid="ignore"):
        more = np.sqrt(np.fmax(np.diag(other) / np.diag(covariance), 1.0))
    return _law_fit(solution, noise, covariance * np.outer(more, more))


def _law_fit(solution: Solution, noise: float, covariance: FloatArray) -> LawFit:
    c1, c2 = (float(x) for x in solution.coefficients)
    return LawFit(
        c1,
        c2,
        (
            (float(covariance[0, 0]), float(covariance[0, 1])),
            (float(covariance[1, 0]), float(covariance[1, 1])),
        ),
        max(solution.residuals.size - 2, 0),
        noise,
        float(np.max(np.abs(solution.residuals))),
    )


def bounds(value: float, variance: float, dof: int, confidence: float) -> Bounds | None:
    """Student interval of a positive quantity; None without degrees of freedom."""
    if dof < 1:
        return None
    half = t_quantile(confidence, dof) * variance**0.5
    return max(value - half, 0.0), value + half


def inverse_bounds(of: Bounds | None) -> Bounds | None:
    """Bounds of 1/x from those of x > 0; open above where x may be 0."""
    if of is None or of[0] is None or of[1] is None:
        return None
    return 1.0 / of[1], (1.0 / of[0] if of[0] > 0 else None)

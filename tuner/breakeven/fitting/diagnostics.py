"""Reasons not to believe a fit: one bad point, a law that bends, large errors at loads that were left out.

Out-of-sample errors decide, not R^2: over the range of a sweep every rising curve has an R^2 near 1.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from breakeven.fitting.observations import Observation
from breakeven.fitting.solve import Solution, solve
from breakeven.laws.arrays import FloatArray
from breakeven.points.point import ImposedLoad
from breakeven.profile.fits import Bend, LawFit
from breakeven.profile.student_t import t_quantile
from breakeven.reasons import Reason

FEWEST_LOADS = 3
"""Fewest loads that leave a residual to check a law of two coefficients by."""

FEWEST_LOADS_TO_INTERPOLATE = 5

SHAPE_LIMIT = 0.15
"""Relative distance of a point, or mean error at a left-out load, from which the shape of residuals is checked. Real cells
within the law lie up to 0.11 away."""

_SHAPE_LEVEL = 0.01
"""Chance that residuals without a shape are taken to have one."""

_BEND_MARGIN = 0.6
"""Interpolation replaces the law where its error out of sample is below this share of the law's. On pure noise
interpolation is about a fifth worse than the law; the margin keeps chance from choosing it in more than one of fifty
straight data sets (simulated with 5 to 9 loads)."""

_BEND_LEAST = 0.015
"""A law that misses left-out loads by less than this is good enough whatever interpolation does."""

_LEAST_RISE = 0.05
"""Least rise of latency over a sweep, as a share of C1, that determines C2."""

_DECIDES_NOTHING = 0.5
"""Half-width of the bounds of a mean latency (ln) beyond which arms cannot be distinguished."""

_OUTLIER_LEAST = 0.10
_OUTLIER_LEAST_AT_AN_END = 0.20
"""Nothing lies beyond the first and the last load to tell a bend from a bad point: arms of published sweeps bend by up
to 14 % between a lone request and 32."""

_OUTLIER_LEVEL = 0.01


def design(observations: Sequence[Observation]) -> FloatArray:
    """Rows (1, n) of the base law, shape (rows, 2)."""
    return np.array([[1.0, one.others] for one in observations])


def latencies(observations: Sequence[Observation]) -> FloatArray:
    """Mean latency (s) of each, shape (rows,)."""
    return np.array([one.latency_s for one in observations])


def by_load(observations: Sequence[Observation]) -> list[list[Observation]]:
    """Group replicates of one imposed load, ascending in the mean number of others."""
    groups: dict[ImposedLoad, list[Observation]] = {}
    for one in observations:
        groups.setdefault(one.load, []).append(one)
    return sorted(groups.values(), key=lambda group: float(np.mean([one.others for one in group])))


def fit_law(observations: Sequence[Observation]) -> Solution | None:
    """Solve the base law; None where the loads do not separate two coefficients."""
    others = {round(one.others, 9) for one in observations}
    if len(others) < 2:
        return None
    return solve(design(observations), latencies(observations))


def outliers(observations: Sequence[Observation]) -> list[int]:
    """Indices in `observations` of rows that contradict all others; at most one row in five.

    The law of the others must miss the row by more than 10 %, and by more than a t test at 1 % over the number of rows
    explains. The straight line through its two neighbours must miss it by more than 10 % too (20 % at an end of the sweep):
    the end of a curve that bends is far from the law of the others without being wrong. A replicate that confirms
    a row is among the others, whose scatter then explains both.
    """
    kept = list(range(len(observations)))
    found: list[int] = []
    while len(found) < len(observations) // FEWEST_LOADS_TO_INTERPOLATE:
        worst = _worst([observations[i] for i in kept])
        if worst is None:
            break
        found.append(kept.pop(worst))
    return found


def _worst(observations: Sequence[Observation]) -> int | None:
    if len(by_load(observations)) < FEWEST_LOADS_TO_INTERPOLATE:
        return None
    limit = t_quantile(1.0 - _OUTLIER_LEVEL / len(observations), len(observations) - 3)
    worst, most = None, 0.0
    for index, one in enumerate(observations):
        rest = [*observations[:index], *observations[index + 1 :]]
        solution = fit_law(rest)
        if solution is None:
            continue
        row = np.array([1.0, one.others])
        expected = float(row @ solution.coefficients)
        miss = one.latency_s / max(expected, 1e-12) - 1.0
        spread = solution.noise() * float(
            np.sqrt(1.0 + row @ solution.unscaled_covariance @ row / max(expected, 1e-12) ** 2)
        )
        strength = abs(miss) / max(spread, 1e-12)
        if abs(miss) > _OUTLIER_LEAST and strength > max(limit, most) and _off_its_neighbours(one, rest):
            worst, most = index, strength
    return worst


def _off_its_neighbours(one: Observation, rest: Sequence[Observation]) -> bool:
    centers = [_center(group) for group in by_load(rest)]
    below = sorted((center for center in centers if center[0] <= one.others), reverse=True)
    above = sorted(center for center in centers if center[0] > one.others)
    first, second = (below[0], above[0]) if below and above else (below or above)[:2]
    slope = (second[1] - first[1]) / (second[0] - first[0])
    expected = first[1] + slope * (one.others - first[0])
    least = _OUTLIER_LEAST if below and above else _OUTLIER_LEAST_AT_AN_END
    return abs(one.latency_s / max(expected, 1e-12) - 1.0) > least


def left_out_errors(observations: Sequence[Observation]) -> list[float]:
    """Relative errors of the law at each load, fitted without that load; empty where too few loads are left."""
    groups = by_load(observations)
    errors = []
    for index, group in enumerate(groups):
        solution = fit_law([one for i, other in enumerate(groups) if i != index for one in other])
        if solution is None:
            continue
        errors.append(_error(design(group) @ solution.coefficients, group))
    return errors


def bend(observations: Sequence[Observation], solution: Solution) -> Bend | None:
    """Say where the law bends, if linear interpolation between neighbours predicts left-out inner loads better.

    Only inner loads are compared, which both can predict; None with fewer than five loads.
    """
    if len(by_load(observations)) < FEWEST_LOADS_TO_INTERPOLATE:
        return None
    found = interpolated(observations, solution)
    if found is None or found.law_error < _BEND_LEAST or found.points_error > _BEND_MARGIN * found.law_error:
        return None
    return found


def interpolated(observations: Sequence[Observation], solution: Solution) -> Bend | None:
    """Errors of the law and of interpolation between neighbours at left-out inner loads; None with fewer than three loads."""
    groups = by_load(observations)
    law_errors, points_errors = [], []
    for before, group, after in zip(groups, groups[1:], groups[2:], strict=False):
        rest = fit_law([one for other in groups if other is not group for one in other])
        if rest is None:
            return None
        law_errors.append(_error(design(group) @ rest.coefficients, group))
        (low_n, low_s), (high_n, high_s) = _center(before), _center(after)
        share = (design(group)[:, 1] - low_n) / max(high_n - low_n, 1e-12)
        points_errors.append(_error(low_s + share * (high_s - low_s), group))
    if not law_errors:
        return None
    worst = int(np.argmax(np.abs(solution.residuals)))
    return Bend(
        observations[worst].others,
        float(solution.residuals[worst]),
        float(np.mean(law_errors)),
        float(np.mean(points_errors)),
    )


def _center(group: Sequence[Observation]) -> tuple[float, float]:
    return float(np.mean([one.others for one in group])), float(np.mean([one.latency_s for one in group]))


def _error(predicted: FloatArray, group: Sequence[Observation]) -> float:
    return float(np.mean(np.abs(predicted / latencies(group) - 1.0)))


def verdict(
    observations: Sequence[Observation],
    law: LawFit | None,
    left_out: float | None,
    bends: Bend | None,
) -> tuple[bool, Reason]:
    """Whether decisions may rest on the fit, and the word that says why.

    Args:
        observations: rows used.
        law: the fitted law.
        left_out: mean relative error at left-out loads.
        bends: where the law bends, if it does.
    """
    if law is None or len(by_load(observations)) < FEWEST_LOADS:
        return False, Reason.TOO_FEW_POINTS
    if not (law.c1_s > 0 and law.c2_s > 0):
        # Such a law may say 0 at a row: residuals there are no numbers.
        return False, Reason.COEFFICIENT_AT_BOUND
    others = [one.others for one in observations]
    rise = (max(others) - min(others)) * law.c2_s
    missed = max(law.max_relative_error, left_out or 0.0)
    # Straight lines between points of a bend miss those that are left out by twice what scatter alone would.
    scatter = law.noise / len(observations) ** 0.5 if bends is None else 0.5 * bends.points_error
    blind = 2.0 * scatter > _DECIDES_NOTHING
    against = (
        (bends is None and rise < _LEAST_RISE * law.c1_s, Reason.LOAD_RANGE_TOO_NARROW),
        (
            bends is None and missed > SHAPE_LIMIT and _has_a_shape(observations, law),
            Reason.RESIDUAL_TOO_LARGE,
        ),
        (blind, Reason.TOO_NOISY),
    )
    for speaks_against, reason in against:
        if speaks_against:
            return False, reason
    return True, Reason.LAW_BENDS if bends is not None else Reason.FIT_ACCEPTED


def _has_a_shape(observations: Sequence[Observation], law: LawFit) -> bool:
    """Whether residuals follow the load, so that more points would not mend them.

    Where loads were repeated, the scatter within them says what noise is and the means are held against it. Else a curvature
    is looked for. Both by an F test, which with few rows finds nothing: they are then as good as their bounds.
    """
    from scipy.special import fdtri  # noqa: PLC0415  the operator imports this module for its limits alone

    groups = by_load(observations)
    residuals = [latencies(group) / (design(group) @ (law.c1_s, law.c2_s)) - 1.0 for group in groups]
    repeated = sum(group.size - 1 for group in residuals)
    if repeated:
        within = sum(float(np.sum((group - group.mean()) ** 2)) for group in residuals)
        between = sum(group.size * float(group.mean()) ** 2 for group in residuals)
        free = len(groups) - 2
        return between / free > float(fdtri(free, repeated, 1.0 - _SHAPE_LEVEL)) * within / repeated
    left = len(groups) - 3
    if left < 1:
        return False
    flat = np.concatenate(residuals)
    others = np.array([one.others for group in groups for one in group])
    line = np.stack([np.ones_like(others), others], axis=-1) / (law.c1_s + others * law.c2_s)[:, None]
    curve = np.column_stack([line, line[:, 1] * others])
    rest = [
        float(np.sum((flat - rows @ np.linalg.lstsq(rows, flat, rcond=None)[0]) ** 2))
        for rows in (line, curve)
    ]
    return rest[0] - rest[1] > float(fdtri(1, left, 1.0 - _SHAPE_LEVEL)) * rest[1] / left


def r_squared(measured: FloatArray, fitted: FloatArray) -> float | None:
    """Share of the variance explained; None where there is no variance. Reported because people ask for it."""
    spread = float(np.sum((measured - measured.mean()) ** 2))
    return 1.0 - float(np.sum((measured - fitted) ** 2)) / spread if spread > 0 else None

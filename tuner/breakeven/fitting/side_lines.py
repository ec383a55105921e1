"""Straight lines against the others in flight, of figures that the law of steps does not give, and bad rows.

    minimise  sum_i (y_i / (a + b*n_i) - 1)^2   with a, b >= 0

Errors are relative, because a benchmark's error is a share of the latency: absolute residuals let the highest load decide.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from breakeven.fitting.observations import Observation
from breakeven.laws.arrays import FloatArray
from breakeven.points.point import LEAST_S, ImposedLoad
from breakeven.profile.fits import LineFit
from breakeven.profile.student_t import t_quantile

_ROUNDS, _SETTLED = 50, 1e-12

FEWEST_LOADS_TO_INTERPOLATE = 5
"""Loads from which one bad row differs from a bend: it and its neighbours, with a load beyond each."""

_OUTLIER_LEAST = 0.10
_OUTLIER_LEAST_AT_AN_END = 0.20
"""Nothing lies beyond the first and the last load to tell a bend from a bad point: arms of published sweeps bend by up
to 14 % between a lone request and 32."""

_OUTLIER_LEVEL = 0.01


@dataclass(frozen=True, slots=True, eq=False)
class _Fitted:
    """A line through rows.

    Attributes:
        ends: a and b (s).
        covariance: of them at the noise of the residuals.
        noise: relative standard deviation of a residual; 0 without degrees of freedom.
    """

    ends: FloatArray
    covariance: FloatArray
    noise: float


def line_fit(others: FloatArray, values_s: FloatArray) -> LineFit | None:
    """The line through a figure of several loads with its covariance; None if the loads do not separate two coefficients."""
    found = _line(others, values_s)
    if found is None or found.ends[0] < LEAST_S:
        return None
    (v1, v12), (v21, v2) = found.covariance.tolist()
    a, b = found.ends.tolist()
    return LineFit(a, b, ((v1, v12), (v21, v2)), max(others.size - 2, 0))


def _line(others: FloatArray, values_s: FloatArray) -> _Fitted | None:
    if np.ptp(others.round(9)) == 0:
        return None
    design = np.stack([np.ones_like(others), others], axis=-1)
    fitted, ends = values_s, np.zeros(2)
    for _ in range(_ROUNDS):
        # Weights of 1/measured would prefer lines that lie below it. A row that the line cannot reach must not get all weight.
        weights = 1.0 / np.maximum(fitted, 0.1 * values_s)
        before, ends = ends, _nonnegative(design * weights[:, None], values_s * weights)
        fitted = design @ ends
        if np.max(np.abs(ends - before)) <= _SETTLED * np.max(ends):
            break
    fitted = np.maximum(fitted, 1e-3 * values_s)
    residuals, free = values_s / fitted - 1.0, ends > 0
    dof = others.size - int(free.sum())
    noise = float(np.sqrt(residuals @ residuals / dof)) if dof > 0 else 0.0
    weighted = design[:, free] / fitted[:, None]
    covariance = np.zeros((2, 2))
    covariance[np.ix_(free, free)] = noise**2 * np.linalg.pinv(weighted.T @ weighted)
    return _Fitted(ends, 0.5 * (covariance + covariance.T), noise)


def _nonnegative(design: FloatArray, target: FloatArray) -> FloatArray:
    """Least squares of two coefficients of at least 0: if one would be negative, it is 0."""
    size = np.linalg.norm(design, axis=0)
    ends = np.linalg.lstsq(design / size, target, rcond=None)[0] / size
    if np.all(ends > 0):
        return np.asarray(ends)
    alone = np.maximum(design.T @ target / size**2, 0.0)
    lefts = [float(np.sum((target - design[:, at] * alone[at]) ** 2)) for at in range(2)]
    return np.asarray(np.where(np.arange(2) == int(np.argmin(lefts)), alone, 0.0))


def by_load(observations: Sequence[Observation]) -> list[list[Observation]]:
    """Group replicates of one imposed load, ascending in the mean number of others."""
    groups: dict[ImposedLoad, list[Observation]] = {}
    for one in observations:
        groups.setdefault(one.load, []).append(one)
    return sorted(groups.values(), key=lambda group: float(np.mean([one.others for one in group])))


def outliers(observations: Sequence[Observation]) -> list[int]:
    """Indices in `observations` of rows that contradict all others; at most one row in five.

    The line through the others must miss the row by more than 10 %, and by more than a t test at 1 % over the number of
    rows explains. The straight line through its two neighbours must miss it by more than 10 % too (20 % at an end of the
    sweep): the end of a curve that bends is far from the line of the others without being wrong. A replicate that confirms
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
    others = np.array([one.others for one in observations])
    latency_s = np.array([one.latency_s for one in observations])
    worst, most = None, 0.0
    for index, one in enumerate(observations):
        rest = np.arange(others.size) != index
        line = _line(others[rest], latency_s[rest])
        if line is None:
            continue
        row = np.array([1.0, one.others])
        expected_s = max(float(row @ line.ends), 1e-12)
        miss = one.latency_s / expected_s - 1.0
        spread = float(np.sqrt(line.noise**2 + row @ line.covariance @ row / expected_s**2))
        strength = abs(miss) / max(spread, 1e-12)
        beyond = abs(miss) > _OUTLIER_LEAST and strength > max(limit, most)
        if beyond and _off_its_neighbours(one, [*observations[:index], *observations[index + 1 :]]):
            worst, most = index, strength
    return worst


def _off_its_neighbours(one: Observation, rest: Sequence[Observation]) -> bool:
    centers = [
        (float(np.mean([row.others for row in group])), float(np.mean([row.latency_s for row in group])))
        for group in by_load(rest)
    ]
    below = sorted((center for center in centers if center[0] <= one.others), reverse=True)
    above = sorted(center for center in centers if center[0] > one.others)
    first, second = (below[0], above[0]) if below and above else (below or above)[:2]
    slope = (second[1] - first[1]) / (second[0] - first[0])
    expected_s = first[1] + slope * (one.others - first[0])
    least = _OUTLIER_LEAST if below and above else _OUTLIER_LEAST_AT_AN_END
    return abs(one.latency_s / max(expected_s, 1e-12) - 1.0) > least

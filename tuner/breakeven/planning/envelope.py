"""The fastest arm at each load: the lower envelope of the latency curves of any number of arms.

The order of the break-evens against no speculation does not give it: with D (1.20 s, 0.070), A (0.78, 0.085) and B
(0.92, 0.072), A is best below 6.35 requests per second, B up to 12.73, D above; A breaks even with D at 8.86.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from breakeven.arm import Arm
from breakeven.laws.arrays import FloatArray, positive
from breakeven.profile import Curve

_GRID = 400


@dataclass(frozen=True, slots=True, eq=False)
class Segments:
    """Consecutive ranges of load, each with the arm that is fastest in it.

    Attributes:
        arm: index of the arm, shape (S,).
        start: lower end of each range; the first is the range asked for, shape (S,).
        stop: upper end, equal to the next start, shape (S,).
    """

    arm: NDArray[np.intp]
    start: FloatArray
    stop: FloatArray


@dataclass(frozen=True, slots=True)
class Stretch:
    """A range of rates in which one arm is fastest."""

    from_rps: float
    to_rps: float
    arm: Arm


def envelope(curves: Sequence[tuple[Arm, Curve]], rps_range: tuple[float, float]) -> tuple[Stretch, ...]:
    """The fastest arm over a range of rates.

    Crossings are found by bisection.

    Raises:
        ValueError: the range is empty or negative.
    """
    return tuple(_scan(curves, *rps_range))


def fastest_by_rps(c1_s: ArrayLike, c2_s: ArrayLike, from_rps: float, to_rps: float) -> Segments:
    """Lower envelope of the open-loop curves of any number of arms, over a range of rates (1/s).

    This, not the order of the break-evens against no speculation, gives the best arm at a load. If every arm
    is saturated, the arm with the highest saturation rate is taken. Equally fast arms: the one listed first.

    Args:
        c1_s: shape (A,), above 0.
        c2_s: shape (A,), above 0.
        from_rps: lower end of the range, at least 0.
        to_rps: upper end, above the lower.

    Raises:
        ValueError: the range is empty or negative, or a coefficient is not above 0.
    """
    c1, c2 = positive("c1_s", c1_s), positive("c2_s", c2_s)
    # 1/L = 1/C1 - RPS*(C2/C1) is a line, so the envelope of hyperbolas is one of lines, exact to rounding.
    last_saturation = float(np.max(1.0 / c2))
    if from_rps >= last_saturation:
        _check_range(from_rps, to_rps)
        return Segments(np.array([np.argmin(c2)]), np.array([from_rps]), np.array([to_rps]))
    within = _highest_lines(1.0 / c1, -c2 / c1, from_rps, min(to_rps, last_saturation))
    if to_rps > last_saturation:
        within.stop[-1] = to_rps
    return within


def fastest_among(c1_s: ArrayLike, c2_s: ArrayLike, from_others: float, to_others: float) -> Segments:
    """Lower envelope at equal concurrency, over a range of others in flight (imposed concurrency - 1).

    Arguments and errors as `fastest_by_rps`.
    """
    return _highest_lines(-positive("c1_s", c1_s), -positive("c2_s", c2_s), from_others, to_others)


def _check_range(start: float, stop: float) -> None:
    if not 0 <= start < stop:
        raise ValueError(f"load range {start!r} to {stop!r} is empty or negative")


def _highest_lines(intercept: FloatArray, slope: FloatArray, start: float, stop: float) -> Segments:
    """Upper envelope of lines over [start, stop]; of equal lines the first."""
    _check_range(start, stop)
    at, current = start, _leader(intercept + slope * start, slope)
    arms, starts = [current], [start]
    while True:
        rises = slope - slope[current]
        gap = intercept[current] - intercept + (slope[current] - slope) * at
        crossing = np.where(rises > 0, at + np.maximum(gap, 0.0) / np.where(rises > 0, rises, 1.0), np.inf)
        at = float(np.min(crossing))
        if not at < stop:
            break
        # If several cross at one load, the steepest is the highest afterwards.
        current = _leader(np.where(crossing == at, 0.0, -np.inf), slope)
        arms.append(current)
        starts.append(at)
    found = Segments(np.array(arms), np.array(starts), np.array([*starts[1:], stop]))
    # Three lines through one point differ by rounding, which makes ranges without length.
    real = found.start < found.stop
    return Segments(found.arm[real], found.start[real], found.stop[real])


def _leader(value: FloatArray, slope: FloatArray) -> int:
    """Index of the highest value; among equals the one that rises fastest, then the first."""
    return int(np.argmax(np.where(value == np.max(value), slope, -np.inf)))


def _scan(curves: Sequence[tuple[Arm, Curve]], low: float, high: float) -> list[Stretch]:
    _check_range(low, high)
    last = int(np.argmax([curve.saturation_rps for _, curve in curves]))

    def fastest(rps: FloatArray) -> NDArray[np.intp]:
        latencies = np.array([curve.latencies_at_rps(rps) for _, curve in curves])
        # If every arm is saturated, the one that saturates last is taken.
        latencies[last] = np.where(np.all(np.isnan(latencies), axis=0), 0.0, latencies[last])
        return np.asarray(np.nanargmin(latencies, axis=0))

    grid = np.linspace(low, high, _GRID)
    leaders = fastest(grid)
    stretches: list[Stretch] = []
    start = low
    for index in range(1, _GRID):
        if leaders[index] == leaders[index - 1]:
            continue
        left, right = float(grid[index - 1]), float(grid[index])
        for _ in range(50):
            middle = 0.5 * (left + right)
            stays = fastest(np.asarray(middle)) == leaders[index - 1]
            left, right = (middle, right) if stays else (left, middle)
        stretches.append(Stretch(start, right, curves[leaders[index - 1]][0]))
        start = right
    stretches.append(Stretch(start, high, curves[leaders[-1]][0]))
    return stretches

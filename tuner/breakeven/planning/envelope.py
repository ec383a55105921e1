"""The fastest arm at each load: the lower envelope of the latency curves of any number of arms.

The order of the break-evens against no speculation does not give it: with D (1.20 s, 0.070), A (0.78, 0.085) and B
(0.92, 0.072), A is best below 6.35 requests per second, B up to 12.73, D above; A breaks even with D at 8.86.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from breakeven.arm import Arm
from breakeven.laws.arrays import FloatArray
from breakeven.profile import Curve

_GRID = 400


@dataclass(frozen=True, slots=True)
class Stretch:
    """A range of rates in which one arm is fastest."""

    from_rps: float
    to_rps: float
    arm: Arm


def envelope(curves: Sequence[tuple[Arm, Curve]], rps_range: tuple[float, float]) -> tuple[Stretch, ...]:
    """The fastest arm over a range of rates; crossings are found by bisection."""
    low, high = rps_range
    if not 0 <= low < high:
        raise ValueError(f"load range {low!r} to {high!r} is empty or negative")
    last = int(np.argmax([curve.saturation_rps for _, curve in curves]))

    def fastest(rps: FloatArray) -> NDArray[np.intp]:
        latencies = np.array([curve.latencies_at_rps(rps) for _, curve in curves])
        # If every arm is saturated, the arm that saturates last is taken.
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
    return (*stretches, Stretch(start, high, curves[leaders[-1]][0]))

"""Which arm is fastest over a range of rates, whatever the curves rest on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from breakeven.arm import Arm
from breakeven.laws.arrays import FloatArray
from breakeven.planning.envelope import fastest_by_rps
from breakeven.profile import Curve

_GRID = 400


@dataclass(frozen=True, slots=True)
class Stretch:
    """A range of rates in which one arm is fastest."""

    from_rps: float
    to_rps: float
    arm: Arm


def envelope(curves: Sequence[tuple[Arm, Curve]], rps_range: tuple[float, float]) -> tuple[Stretch, ...]:
    """Which arm is fastest over a range of rates.

    Exact for laws; where points or a measured ceiling take part, crossings are found by bisection.

    Raises:
        ValueError: the range is empty or negative.
    """
    low, high = rps_range
    if all(curve.knots is None and curve.ceiling_rps is None for _, curve in curves):
        found = fastest_by_rps(
            np.array([float(curve.law.c1) for _, curve in curves]),
            np.array([float(curve.law.c2) for _, curve in curves]),
            low,
            high,
        )
        return tuple(
            Stretch(float(start), float(stop), curves[index][0])
            for index, start, stop in zip(found.arm, found.start, found.stop, strict=True)
        )
    return tuple(_scan(curves, low, high))


def _scan(curves: Sequence[tuple[Arm, Curve]], low: float, high: float) -> list[Stretch]:
    if not 0 <= low < high:
        raise ValueError(f"load range {low!r} to {high!r} is empty or negative")

    last = int(np.argmax([curve.saturation_rps for _, curve in curves]))

    def fastest(rps: FloatArray) -> NDArray[np.intp]:
        latencies = np.array([curve.latencies_at_rps(rps) for _, curve in curves])
        # Where every arm is saturated, the one that saturates last holds.
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

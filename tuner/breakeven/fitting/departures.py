"""What the pooled form misses alike in all arms: a departure from it over load, carried to arms that were not measured.

A straight line in load is an idealisation. Arms of one engine leave it together (a launch-bound lone request, a knee
where the batch fills the GPU), by 3 to 8 % on published sweeps, and an arm that was not measured leaves it as its
neighbours in draft length do. But a departure seen in one row may be its noise: how far the arms agree says how much
of it to believe.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from breakeven.laws.arrays import FloatArray
from breakeven.points.point import ImposedLoad

_LEAST = 0.002
"""A departure of less than this (root mean square) is not worth bending a law for."""

Departure = tuple[tuple[float, float], ...]
"""Others in flight, ascending, and ln(measured / form) at each."""


class Miss(NamedTuple):
    """By how much the form misses one row: its load, the others in flight, ln(measured / form)."""

    load: ImposedLoad
    others: float
    miss: float


def departures(rows: Mapping[int, list[Miss]]) -> dict[int, Departure]:
    """Departures of the measured draft lengths from the form, shrunk to the part that the arms agree on.

    Args:
        rows: by draft length (0: no speculation).

    Returns:
        By draft length above 0. Empty where fewer than two arms were measured or where they do not agree.
    """
    by_arm = {k: _by_load(found) for k, found in rows.items()}
    believed, size = _agreement(list(by_arm.values()))
    if believed * size < _LEAST:
        return {}
    return {
        k: tuple((float(others), float(believed * miss)) for others, miss in curve)
        for k, curve in by_arm.items()
        if k > 0
    }


def _by_load(rows: list[Miss]) -> FloatArray:
    """Means of replicates, ascending in the others in flight; shape (loads, 2)."""
    groups: dict[ImposedLoad, list[tuple[float, float]]] = {}
    for load, others, miss in rows:
        groups.setdefault(load, []).append((others, miss))
    means = np.array([np.mean(group, axis=0) for group in groups.values()])
    return np.asarray(means[np.argsort(means[:, 0])])


def _agreement(curves: list[FloatArray]) -> tuple[float, float]:
    """Share of the mean departure that is no noise (James and Stein's, from the scatter between arms), and its size."""
    low = max(float(curve[0, 0]) for curve in curves)
    high = min(float(curve[-1, 0]) for curve in curves)
    loads = np.unique(np.concatenate([curve[:, 0] for curve in curves]))
    loads = loads[(loads >= low) & (loads <= high)]
    if len(curves) < 2 or loads.size == 0:
        return 0.0, 0.0
    misses = np.array([np.interp(loads, curve[:, 0], curve[:, 1]) for curve in curves])
    common = misses.mean(axis=0)
    noise = float(((misses - common) ** 2).sum()) / (loads.size * (len(curves) - 1)) / len(curves)
    square = float((common**2).mean())
    return max(0.0, 1.0 - noise / square) if square > 0 else 0.0, square**0.5

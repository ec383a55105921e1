"""Arguments of formulas: anything numpy can broadcast, checked once, never silently repaired.

Each check returns the value as floats, or raises a ValueError that names it. NaN means "unknown" and passes through.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

Span: TypeAlias = tuple[float, float]
"""The low and the high end of a range."""

FloatArray: TypeAlias = NDArray[np.float64]
"""Result of every formula; a scalar argument gives a zero-dimensional result that `float()` accepts."""

BoolArray: TypeAlias = NDArray[np.bool_]


def nonnegative(name: str, value: ArrayLike) -> FloatArray:
    """Every element is finite and at least 0."""
    return at_least(name, value, 0.0)


def positive(name: str, value: ArrayLike) -> FloatArray:
    """Every element is finite and above 0."""
    array = np.asarray(value, dtype=float)
    if ((array <= 0) | (array == np.inf)).any():
        raise ValueError(f"{name}: {value!r} is not a finite number above 0")
    return array


def at_least(name: str, value: ArrayLike, least: float) -> FloatArray:
    """Every element is finite and at least `least`."""
    array = np.asarray(value, dtype=float)
    if ((array < least) | (array == np.inf)).any():
        raise ValueError(f"{name}: {value!r} is not a finite number of at least {least:g}")
    return array


def probability(name: str, value: ArrayLike) -> FloatArray:
    """Every element is within [0, 1]."""
    array = np.asarray(value, dtype=float)
    if ((array < 0) | (array > 1)).any():
        raise ValueError(f"{name}: {value!r} is not a probability between 0 and 1")
    return array

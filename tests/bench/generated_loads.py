"""Loads that a decision rule has not been chosen on: one kind of day and one seed each, at a given peak.

Published traces are few, and a rule that is tuned on them fits them too well. These are drawn from a seed.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from breakeven_sim.replay.traces import RateTrace

_Floats = NDArray[np.float64]

WINDOW_S = 300.0
DAYS = 3.0
_DAY_S = 86400.0


class Kind(StrEnum):
    """The shape of a load over three days."""

    WEEK = "week and weekend"
    GROWTH = "growth"
    SHIFT = "level shift"
    BURSTS = "hourly bursts"
    NOISE = "noise"
    SPIKE = "one spike"
    BATCH = "on/off batch"
    FIRST_DAY = "first day"
    CONSTANT = "constant"
    JUMP = "jump to 1.5 times the largest load"
    TO_CAPACITY = "jump far beyond the largest load"
    NEWCOMER = "without a past"


def generated(kind: Kind, seed: int, peak_rps: float) -> RateTrace:
    """A load of one kind.

    Args:
        kind: what it does.
        seed: equal seeds give equal loads.
        peak_rps: its highest rate (1/s), that of a jump included.
    """
    random = np.random.default_rng((seed, zlib.crc32(kind.encode())))
    days = 1.0 if kind is Kind.FIRST_DAY else DAYS
    start_s = np.arange(0.0, days * _DAY_S, WINDOW_S)
    shape = _SHAPES[kind](random, start_s)
    return RateTrace(start_s, np.full(len(start_s), WINDOW_S), shape / shape.max() * peak_rps)


def _day(random: np.random.Generator, start_s: _Floats) -> _Floats:
    """A swing per day from a low at night to 1, with noise on it."""
    hour = (start_s - random.uniform(0.0, _DAY_S)) / _DAY_S
    low, sharpness = random.uniform(0.1, 0.35), random.uniform(0.7, 2.0)
    swing = (0.5 + 0.5 * np.cos(2.0 * np.pi * hour)) ** sharpness
    return (low + (1.0 - low) * swing) * _noise(
        random, len(start_s), random.uniform(0.03, 0.12), random.uniform(600.0, 7200.0)
    )


def _noise(random: np.random.Generator, count: int, deviation: float, lasts_s: float) -> _Floats:
    """Factors around 1 that remember themselves for `lasts_s`: the exponential of an Ornstein-Uhlenbeck process."""
    kept = np.exp(-WINDOW_S / lasts_s)
    pushes = random.normal(0.0, deviation * np.sqrt(1.0 - kept**2), count)
    values = np.empty(count)
    value = 0.0
    for place, push in enumerate(pushes.tolist()):
        value = kept * value + push
        values[place] = value
    return np.exp(values)


def _week(random: np.random.Generator, start_s: _Floats) -> _Floats:
    weekend = (start_s // _DAY_S) % 7 >= 5
    return _day(random, start_s) * np.where(weekend, random.uniform(0.3, 0.7), 1.0)


def _growth(random: np.random.Generator, start_s: _Floats) -> _Floats:
    return _day(random, start_s) * np.linspace(random.uniform(0.3, 0.6), 1.0, len(start_s))


def _shift(random: np.random.Generator, start_s: _Floats) -> _Floats:
    before = start_s < random.uniform(0.3, 0.7) * start_s[-1]
    low = before if random.random() < 0.5 else ~before
    return _day(random, start_s) * np.where(low, random.uniform(0.3, 0.6), 1.0)


def _bursts(random: np.random.Generator, start_s: _Floats) -> _Floats:
    period_s, length_s = 3600.0 * random.integers(1, 3), random.uniform(300.0, 1500.0)
    bursting = start_s % period_s < length_s
    return _day(random, start_s) * np.where(bursting, random.uniform(1.6, 2.1), 1.0)


def _noisy(random: np.random.Generator, start_s: _Floats) -> _Floats:
    return _noise(random, len(start_s), random.uniform(0.15, 0.3), random.uniform(1200.0, 10800.0))


def _lifted(random: np.random.Generator, shape: _Floats, factor: float, lasts_s: float) -> _Floats:
    """The same load, lifted once to `factor` times its highest rate, after it has been seen for a while."""
    first = int(random.uniform(0.3, 0.9) * len(shape))
    lifted = shape.copy()
    lifted[first : first + int(lasts_s / WINDOW_S)] = factor * shape.max()
    return lifted


def _spike(random: np.random.Generator, start_s: _Floats) -> _Floats:
    return _lifted(random, _day(random, start_s), random.uniform(1.2, 1.67), random.uniform(900.0, 5400.0))


def _jump(random: np.random.Generator, start_s: _Floats) -> _Floats:
    return _lifted(random, _day(random, start_s), 1.5, random.uniform(1800.0, 14400.0))


def _to_capacity(random: np.random.Generator, start_s: _Floats) -> _Floats:
    return _lifted(random, _day(random, start_s), random.uniform(1.6, 2.2), random.uniform(1800.0, 7200.0))


def _newcomer(random: np.random.Generator, start_s: _Floats) -> _Floats:
    """Few requests in the hours of the first tests, then, from one window to the next, everybody's."""
    tested = start_s < 3600.0 * random.uniform(1.0, 12.0)
    return _day(random, start_s) * np.where(tested, random.uniform(0.05, 0.3), 1.0)


def _batch(random: np.random.Generator, start_s: _Floats) -> _Floats:
    on_s, off_s = 3600.0 * random.uniform(2.0, 8.0, 2)
    running = (start_s + random.uniform(0.0, on_s + off_s)) % (on_s + off_s) < on_s
    return np.where(running, 1.0, random.uniform(0.02, 0.2)) * _noise(random, len(start_s), 0.05, 1800.0)


def _constant(random: np.random.Generator, start_s: _Floats) -> _Floats:
    return _noise(random, len(start_s), 0.02, 600.0)


_SHAPES: dict[Kind, Callable[[np.random.Generator, _Floats], _Floats]] = {
    Kind.WEEK: _week,
    Kind.GROWTH: _growth,
    Kind.SHIFT: _shift,
    Kind.BURSTS: _bursts,
    Kind.NOISE: _noisy,
    Kind.SPIKE: _spike,
    Kind.BATCH: _batch,
    Kind.FIRST_DAY: _day,
    Kind.CONSTANT: _constant,
    Kind.JUMP: _jump,
    Kind.TO_CAPACITY: _to_capacity,
    Kind.NEWCOMER: _newcomer,
}

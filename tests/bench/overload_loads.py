"""Loads near a fleet's capacity, and beyond it: five days each, at given shares of capacity without speculation.

`generated_loads.py` has a peak that is 60 to 95 % of capacity. These meet capacity itself: for an hour, after an outage,
at the end of a ramp.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from breakeven_sim.replay.traces import RateTrace

_Floats = NDArray[np.float64]

WINDOW_S = 300.0
DAYS = 5
_DAY_S = 86400.0
_HOUR_S = 3600.0


def overloaded(title: str, seed: int, capacity_rps: float) -> RateTrace:
    """A load of `CHOSEN` or `OTHERS`.

    Args:
        title: which.
        seed: equal seeds give equal loads.
        capacity_rps: the fleet's capacity without speculation (1/s).
    """
    random = np.random.default_rng((seed, zlib.crc32(title.encode())))
    start_s = np.arange(0.0, DAYS * _DAY_S, WINDOW_S)
    shares = (CHOSEN | OTHERS)[title](random, start_s)
    return RateTrace(start_s, np.full(len(start_s), WINDOW_S), shares * capacity_rps)


def _day(random: np.random.Generator, start_s: _Floats, low: float, high: float) -> _Floats:
    """A swing per day between two shares of capacity, with 2 % of noise; its peak lies at noon."""
    swing = 0.5 - 0.5 * np.cos(2.0 * np.pi * start_s / _DAY_S)
    return (low + (high - low) * swing) * np.exp(random.normal(0.0, 0.02, len(start_s)))


def _every(start_s: _Floats, days: int, from_hour: float, hours: float) -> NDArray[np.bool_]:
    """Whether it is a time of day on every so many days, the third day (or the last of so many) the first of them."""
    hour = start_s % _DAY_S / _HOUR_S
    return np.asarray(
        (start_s // _DAY_S % days == days - 1) & (hour >= from_hour) & (hour < from_hour + hours)
    )


def _hour(share: float) -> Callable[[np.random.Generator, _Floats], _Floats]:
    def shape(random: np.random.Generator, start_s: _Floats) -> _Floats:
        begins = random.uniform(8.0, 18.0)
        return np.where(_every(start_s, 3, begins, 1.0), share, _day(random, start_s, 0.15, 0.5))

    return shape


def _herd(share: float) -> Callable[[np.random.Generator, _Floats], _Floats]:
    """Nothing for half an hour, then everybody for an hour."""

    def shape(random: np.random.Generator, start_s: _Floats) -> _Floats:
        begins = random.uniform(8.0, 18.0)
        usual = _day(random, start_s, 0.2, 0.6)
        herd = np.where(_every(start_s, 4, begins + 0.5, 1.0), share, usual)
        return np.where(_every(start_s, 4, begins, 0.5), 0.0, herd)

    return shape


def _ramp(share: float) -> Callable[[np.random.Generator, _Floats], _Floats]:
    """Up from a quarter within ten hours of each day, then back to it at once."""

    def shape(random: np.random.Generator, start_s: _Floats) -> _Floats:
        hour = (start_s / _HOUR_S - random.uniform(4.0, 10.0)) % 24.0
        risen = np.where(hour < 10.0, 0.25 + (share - 0.25) * hour / 10.0, 0.25)
        return risen * np.exp(random.normal(0.0, 0.01, len(start_s)))

    return shape


def _walk(random: np.random.Generator, start_s: _Floats) -> _Floats:
    """A walk in the logarithm whose steps have heavy tails, held between 5 and 105 % of capacity."""
    values, value = np.empty(len(start_s)), np.log(0.4)
    for place, push in enumerate((0.02 * random.standard_t(2.0, len(start_s))).tolist()):
        value = float(np.clip(value + push + 0.002 * (np.log(0.4) - value), np.log(0.05), np.log(1.05)))
        values[place] = value
    return np.exp(values)


def _dead_nights(random: np.random.Generator, start_s: _Floats) -> _Floats:
    """Nobody for ten hours of each night."""
    hour = (start_s / _HOUR_S - random.uniform(0.0, 4.0)) % 24.0
    return np.where(hour < 10.0, 0.0, _day(random, start_s, 0.4, 0.75))


def _hovering(random: np.random.Generator, start_s: _Floats) -> _Floats:
    """Always near 62 %, where speculation still gains: what caution costs."""
    return 0.62 * np.exp(random.normal(0.0, 0.03, len(start_s)))


def _crowd(random: np.random.Generator, start_s: _Floats) -> _Floats:
    """A crowd that comes at once and leaves by halves every 40 minutes, on every fifth day to 1.2 times capacity."""
    begins = random.uniform(7.0, 20.0)
    since = np.where(_every(start_s, 5, begins, 4.0), start_s % _DAY_S - begins * _HOUR_S, np.inf)
    return _day(random, start_s, 0.1, 0.55) + 0.75 * 0.5 ** (since / 2400.0)


def _plateau(random: np.random.Generator, start_s: _Floats) -> _Floats:
    """Two plateaus a day, the second close to capacity on every second day."""
    hour = (start_s / _HOUR_S + random.uniform(0.0, 3.0)) % 24.0
    second = np.where(start_s // _DAY_S % 2 == 1, 0.96, 0.7)
    shape = np.where((hour > 8) & (hour < 12), 0.55, np.where((hour > 15) & (hour < 19), second, 0.2))
    return shape * np.exp(random.normal(0.0, 0.03, len(start_s)))


def _outgrown(random: np.random.Generator, start_s: _Floats) -> _Floats:
    """Growth from a third of capacity to all of it within the five days."""
    return _day(random, start_s, 0.4, 1.0) * np.linspace(0.35, 1.0, len(start_s))


def _storms(random: np.random.Generator, start_s: _Floats) -> _Floats:
    """Twenty minutes far beyond capacity, three times in the five days, without any warning."""
    shape = _day(random, start_s, 0.1, 0.4)
    for begins in random.choice(len(start_s) - 4, 3, replace=False).tolist():
        shape[begins : begins + 4] = 1.6
    return shape


def _weekend(random: np.random.Generator, start_s: _Floats) -> _Floats:
    """Nobody at weekends and few at night, more than nine tenths of capacity on working days."""
    working = start_s // _DAY_S % 7 < 5
    return np.where(working, _day(random, start_s, 0.05, 0.93), 0.0)


CHOSEN: dict[str, Callable[[np.random.Generator, _Floats], _Floats]] = {
    "an hour at capacity every third day": _hour(1.0),
    "an hour at 1.12 of capacity every third day": _hour(1.12),
    "outage, then .95 of capacity": _herd(0.95),
    "outage, then capacity": _herd(1.0),
    "outage, then 1.15 of capacity": _herd(1.15),
    "a ramp to .93 of capacity": _ramp(0.93),
    "a ramp to capacity": _ramp(1.0),
    "a heavy-tailed walk": _walk,
    "dead nights": _dead_nights,
    "hovering at 62 %": _hovering,
}
"""Shapes that may be looked at while a rule is being chosen."""
OTHERS: dict[str, Callable[[np.random.Generator, _Floats], _Floats]] = {
    "a crowd that comes at once": _crowd,
    "two plateaus": _plateau,
    "growth to capacity": _outgrown,
    "storms without a warning": _storms,
    "idle weekends": _weekend,
}
"""Shapes that judge it."""

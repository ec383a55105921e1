"""Loads that are expected from the past, and the largest load that it has shown.

The expectation has equal parts: the present load, the last hours, and the loads that followed this time of day on each of
the days before. A decision by the present load alone enters an arm in every valley and leaves it, saturated, at every
peak; one by the mean of all days does not see that today is another day.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from breakeven.laws.arrays import FloatArray
from breakeven.planning.decision_memory import DAY_S
from breakeven.planning.surprise import LASTS_S

_PARTS = 7


Loads: TypeAlias = tuple[tuple[float, float], ...]
"""Shares of the time, which sum to 1, each with the request rate per replica (1/s) that is expected for it."""


@dataclass(frozen=True, slots=True)
class PastRates:
    """Rates per replica (1/s) that were seen, as means over intervals whose ends (s, any clock) ascend.

    `replicas` has how many there were then; empty if as many as now.
    """

    end_s: Sequence[float] = ()
    rps: Sequence[float] = ()
    replicas: Sequence[float] = ()

    def on(self, replicas: float) -> PastRates:
        """The loads of the whole fleet on another number of replicas: a load belongs to the fleet, not to its pods."""
        if not self.replicas or replicas <= 0:
            return self
        rps = [rps * there / replicas for rps, there in zip(self.rps, self.replicas, strict=True)]
        return PastRates(self.end_s, rps)


def expected_loads(rates_rps: Iterable[float]) -> Loads:
    """Condense past rates (1/s per replica, at equal distances in time) to a few, ascending.

    The lower half becomes its mean, then the next quarter, the next eighth: latency bends most at the highest loads,
    where the mean of a tenth of the time would hide the minutes that saturate.

    Raises:
        ValueError: a rate that is not a finite number of at least 0; missing data is not a load.
    """
    rates = sorted(rates_rps)
    # Whatever is not finite shows in the sum, without a look at each of a day's rates.
    if rates and not (math.isfinite(math.fsum(rates)) and rates[0] >= 0):
        raise ValueError("rates_rps: a rate is not a finite number of at least 0; missing data is not a load")
    loads: list[tuple[float, float]] = []
    start = 0
    while start < len(rates):
        left = len(rates) - start
        count = left if len(loads) == _PARTS - 1 else max(left // 2, 1)
        loads.append((count / len(rates), math.fsum(rates[start : start + count]) / count))
        start += count
    return tuple(loads)


_TIMES = 48
"""Rates of a path: one for every five minutes of four hours."""


@dataclass(frozen=True, slots=True)
class Forecast:
    """Loads to come, as expected from the past.

    Attributes:
        expected: over the horizon.
        seen: over all of the known past.
        largest_rps: highest rate in it (1/s per replica).
        known_s: length of the known past (s); gaps do not count.
        paths: the same expectation as equally likely courses of the rate (1/s per replica) at equal distances over the
            horizon. Empty: the mean all the time.
        rates: number of past rates behind it.
    """

    expected: Loads
    seen: Loads
    largest_rps: float
    known_s: float
    paths: tuple[tuple[float, ...], ...] = ()
    rates: int = 0

    @property
    def peak_rps(self) -> float:
        """Highest expected rate (1/s per replica)."""
        return max(rps for _, rps in self.expected)

    @property
    def mean_rps(self) -> float:
        """Mean expected rate (1/s per replica)."""
        return math.fsum(share * rps for share, rps in self.expected)


def forecast(past: PastRates, now_s: float, now_rps: float, horizon_s: float) -> Forecast:
    """Look ahead over a horizon from rates (1/s per replica) at equal distances in time; the present one may be the last of them."""
    first_s = past.end_s[0] if past.end_s else now_s
    days = max(math.floor((now_s - first_s) / DAY_S), 0)
    starts = [now_s - horizon_s, *(now_s - day * DAY_S for day in range(1, days + 1))]
    places = [(bisect_right(past.end_s, at_s), bisect_right(past.end_s, at_s + horizon_s)) for at_s in starts]
    # A gap of hours is no load: a span of which less than half is known is left out.
    # The shortest distance of the rates in time, because gaps make others longer.
    step_s = float(np.diff(past.end_s).min()) if len(past.end_s) > 1 else DAY_S
    half = 0.5 * horizon_s / step_s
    places = [
        (first, last)
        for day, (first, last) in enumerate(places)
        if first < last and (day == 0 or last - first >= half)
    ]
    parts = [expected_loads(way) for way in ([now_rps], *(past.rps[first:last] for first, last in places))]
    # Means of equal parts of each span, from cumulated rates.
    come = np.cumsum([0.0, *past.rps])
    edges = np.array([np.linspace(first, last, _TIMES + 1) for first, last in places]).reshape(-1, _TIMES + 1)
    means = np.diff(np.interp(edges, np.arange(len(come)), come)) / np.diff(edges)
    return Forecast(
        tuple((share / len(parts), rps) for part in parts for share, rps in part),
        expected_loads(past.rps) or ((1.0, now_rps),),
        max((now_rps, *past.rps)),
        min(now_s - first_s, len(past.end_s) * step_s),
        (_lasting(now_rps, means, horizon_s), *map(tuple, means.tolist())),
        len(past.rps),
    )


def _lasting(now_rps: float, means: FloatArray, horizon_s: float) -> tuple[float, ...]:
    """The present rate for as long as a jump is taken to last, then the mean of the last hours.

    A rate that has lasted is in these hours. One that came this minute and is taken to last for all of the horizon makes
    rolls in the middle of an overload look cheap.
    """
    soon = min(math.ceil(_TIMES * LASTS_S / horizon_s), _TIMES)
    after_rps = float(means[0].mean()) if len(means) else now_rps
    return (now_rps,) * soon + (after_rps,) * (_TIMES - soon)

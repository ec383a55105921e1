"""Loads that the past lets expect, and the mean latency of an arm over them.

A decision that looks at the present load alone enters an arm in every valley and leaves it, saturated, at every peak.
Replayed on irregular weeks it rolled up to 40 times and was slower than no speculation (docs/decisions/0008-expected-loads.md).
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from breakeven.profile import Prediction

_DAY_S = 86400.0
_PARTS = 7
_PEAK_LASTS_S = 900.0
"""How long a load beyond saturation is taken to last (s): its queue grows for that time."""
_LASTING = 0.95
"""Utilisation up to which the law's latency is reached within such a time."""


class ExpectedLoad(NamedTuple):
    """A load and the share of the time for which it is expected.

    Attributes:
        share: of the time (1); those of all expected loads sum to 1.
        rps: request rate per replica (1/s).
    """

    share: float
    rps: float


@dataclass(frozen=True, slots=True)
class PastRates:
    """Request rates that were seen.

    Attributes:
        end_s: ends of the intervals they are means over (s, any clock), ascending.
        rps: rates per replica (1/s), as many.
    """

    end_s: Sequence[float] = ()
    rps: Sequence[float] = ()

    def again(self, now_s: float, horizon_s: float) -> list[float]:
        """Rates that are expected within `horizon_s`: those of the last such time, and what followed this time of day on the days before."""
        first_s = self.end_s[0] if self.end_s else now_s
        days = max(math.floor((now_s + horizon_s - first_s) / _DAY_S), 0)
        spans = [(now_s - day * _DAY_S, now_s - day * _DAY_S + horizon_s) for day in range(days, 0, -1)]
        rates: list[float] = []
        read = 0
        for after_s, until_s in (*spans, (now_s - horizon_s, now_s)):
            first = max(bisect_right(self.end_s, after_s), read)
            read = max(bisect_right(self.end_s, min(until_s, now_s)), first)
            rates += self.rps[first:read]
        return rates


def expected_loads(rates_rps: Iterable[float]) -> tuple[ExpectedLoad, ...]:
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
    loads: list[ExpectedLoad] = []
    start = 0
    while start < len(rates):
        left = len(rates) - start
        count = left if len(loads) == _PARTS - 1 else max(left // 2, 1)
        loads.append(ExpectedLoad(count / len(rates), math.fsum(rates[start : start + count]) / count))
        start += count
    return tuple(loads)


def peak_rps(expected: Sequence[ExpectedLoad]) -> float | None:
    """The highest expected rate (1/s per replica); `None` where nothing is expected."""
    return max((load.rps for load in expected), default=None)


def mean_latency_s(
    expected: Sequence[ExpectedLoad], predict: Callable[[float], Prediction], alone_s: float
) -> float:
    """Mean latency (s) of the requests of all expected loads; `alone_s` where no request is expected.

    Args:
        expected: the loads.
        predict: an arm's prediction at a rate per replica (1/s).
        alone_s: its latency of a lone request.
    """
    requests = math.fsum(share * rps for share, rps in expected)
    if requests == 0.0:
        return alone_s
    spent = (share * rps * bearable_s(predict(rps), alone_s) for share, rps in expected if rps > 0.0)
    return math.fsum(spent) / requests


def bearable_s(prediction: Prediction, alone_s: float, lasts_s: float = _PEAK_LASTS_S) -> float:
    """What requests take (s) at a load that lasts for `lasts_s`: the law's latency, or what the queue grows to by then."""
    used = prediction.utilisation
    grown_s = alone_s + max(used - 1.0, (1.0 - _LASTING) * used) * lasts_s
    most_s = max(grown_s, alone_s / (1.0 - _LASTING))
    return most_s if prediction.latency_s is None else min(prediction.latency_s, most_s)

"""Rates that were seen, condensed to a few loads with their shares of the time."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

_PARTS = 7


class ExpectedLoad(NamedTuple):
    """A request rate per replica (1/s), and the share of the time for which it is expected; all shares sum to 1."""

    share: float
    rps: float


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

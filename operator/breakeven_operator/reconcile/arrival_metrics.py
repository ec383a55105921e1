"""How bursty the arrivals of one service are, from counters at every scrape of the last windows; or why that is unknown.

Everything is read again each time: nothing is added up in memory, so a restart loses nothing. A dispersion that is unknown is
no reason to hold. It is not 1 either: the law then takes arrivals for Poisson's, and the status says so.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import NamedTuple

import numpy as np

from breakeven.laws.arrays import FloatArray
from breakeven.laws.latency import FEWEST_SPANS, dispersion_of_spans
from breakeven.serving.counted_window import Arrivals
from breakeven_operator.reconcile.fleet_query import ARRIVAL_WINDOWS, ASKED, SAMPLED
from breakeven_operator.reconcile.roll_metrics import RollReading

_GAP = 3.0
"""A span so many times as long as usual holds scrapes that failed; what came in it is not known to belong together."""
_SIGMAS, _ANOTHER_RATE = 3.0, 1.25
"""Standard deviations, and a factor, by which the rate of an earlier window must differ to be another one than that of now."""


def arrivals_of(
    reading: RollReading | None,
    namespace: str,
    pods: Collection[str],
    model_name: str,
    request_s: float | None,
    since_s: float | None = None,
) -> Arrivals:
    """The dispersion of the arrivals at the pods that count, at the rate of now.

    An overload, or a roll, that is over has bursts and steps that the load of now does not have.

    Args:
        reading: of the service's Prometheus; None: not asked.
        namespace: of the service.
        pods: names.
        model_name: vLLM's `model_name` of this service.
        request_s: what a request takes; None: unknown, and spans are as short as scrapes let them be.
        since_s: end of the last roll (Unix time, s): what came before it came to other pods; None: there was no roll.
    """
    if reading is None or reading.error is not None:
        return Arrivals(problem=f"no counts ({reading.error if reading is not None else 'not asked'})")
    streams = [
        spans
        for owner, stats in sorted(reading.pods.items())
        if (owner.namespace, owner.model_name) == (namespace, model_name)
        and owner.pod in pods
        and ASKED in stats
        and SAMPLED in stats
        and (spans := _spans(stats[ASKED], stats[SAMPLED], request_s or 0.0, since_s or 0.0)) is not None
    ]
    if not streams:
        return Arrivals(problem="no counts of these pods")
    lengths_s = np.concatenate([lengths_s for _, lengths_s in streams])
    span_s = float(np.nanmedian(lengths_s))
    if sum(float(np.nansum(counts)) for counts, _ in streams) < FEWEST_SPANS:
        return Arrivals(problem=f"fewer than {FEWEST_SPANS} requests came")
    found = dispersion_of_spans(streams)
    if found is None:
        return Arrivals(
            problem=f"fewer than {FEWEST_SPANS} spans of {span_s:.3g} s follow each other without a gap"
        )
    return Arrivals(found, span_s)


def _spans(
    asked: FloatArray, sampled_s: FloatArray, request_s: float, since_s: float
) -> tuple[FloatArray, FloatArray] | None:
    """Counts and lengths (s) of the spans between scrapes; NaN if a counter fell or scrapes failed; None without any."""
    known = np.isfinite(asked) & np.isfinite(sampled_s) & (sampled_s >= since_s)
    asked, sampled_s = asked[known], sampled_s[known]
    # A step without a new scrape ends no span.
    new = np.diff(sampled_s, prepend=-np.inf) > 0.0
    asked, sampled_s = asked[new], sampled_s[new]
    if asked.size < 2:
        return None
    scrape_s = float(np.median(np.diff(sampled_s)))
    each = max(1, min(int(request_s // scrape_s), asked.size // (FEWEST_SPANS + 1)))
    counts, lengths_s = np.diff(asked[::each]), np.diff(sampled_s[::each])
    whole = (counts >= 0.0) & (lengths_s < _GAP * each * scrape_s)
    return _at_one_rate(np.where(whole, counts, np.nan), np.where(whole, lengths_s, np.nan))


def _at_one_rate(counts: FloatArray, lengths_s: FloatArray) -> tuple[FloatArray, FloatArray]:
    """The newest spans, as far back as halves of windows have the rate of the newest window."""
    dispersion = dispersion_of_spans([(counts, lengths_s)])
    if dispersion is None:
        return counts, lengths_s
    # The span that the window before ends in holds arrivals of both.
    size = max(counts.size // ARRIVAL_WINDOWS - 1, 2)
    half, window = size // 2, counts.size - size
    came, lasted_s = (np.concatenate([[0.0], np.nancumsum(one)]) for one in (counts, lengths_s))
    first, rate = window, _Rate(came[-1] - came[window], lasted_s[-1] - lasted_s[window])
    while first > 0:
        begin = max(first - half, 0)
        before = _Rate(came[first] - came[begin], lasted_s[first] - lasted_s[begin])
        if before.differs(rate, max(dispersion, 1.0)):
            # The rate may have changed within the half window behind it.
            first = min(first + half, window)
            break
        first = begin
    return counts[first:], lengths_s[first:]


class _Rate(NamedTuple):
    """Arrivals, and the time (s) in which they came."""

    came: float
    time_s: float

    def differs(self, other: _Rate, dispersion: float) -> bool:
        """Whether the rate is another one, by more than arrivals of such a dispersion explain."""
        if not (self.time_s > 0.0 and other.time_s > 0.0):
            return False
        rates = self.came / self.time_s, other.came / other.time_s
        variance = dispersion * sum(max(one.came, 1.0) / one.time_s**2 for one in (self, other))
        apart = abs(rates[0] - rates[1])
        return apart > _SIGMAS * math.sqrt(variance) and max(rates) > _ANOTHER_RATE * min(rates)

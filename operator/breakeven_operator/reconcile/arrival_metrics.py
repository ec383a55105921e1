"""How bursty the arrivals of one service are, from counters at every scrape of the last windows; or why that is unknown.

Everything is read again each time: nothing is added up in memory, so a restart loses nothing. A dispersion that is unknown is
no reason to hold. It is not 1 either: the law then takes arrivals for Poisson's, and the status says so.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from breakeven.laws.arrays import FloatArray
from breakeven.laws.latency import FEWEST_SPANS, dispersion_of_spans, scatter_of_spans
from breakeven.phrases import figure
from breakeven.serving.counted_window import Arrivals, Window
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
    figures: Window,
    since_s: float | None = None,
) -> Arrivals:
    """The dispersion of the arrivals at the pods that count, at the rate of now.

    An overload, or a roll, that is over has bursts and steps that the load of now does not have.

    Args:
        reading: of the service's Prometheus; None: not asked.
        namespace: of the service.
        pods: names.
        model_name: vLLM's `model_name` of this service.
        figures: of now: the rate, and what a request takes; if that is unknown, spans are as short as scrapes let them be.
        since_s: end of the last roll (Unix time, s): what came before it came to other pods; None: there was no roll.
    """
    if reading is None or reading.error is not None:
        return Arrivals(problem=f"no counts ({reading.error if reading is not None else 'not asked'})")
    counted = [
        _Counted.of(stats[ASKED], stats[SAMPLED])
        for owner, stats in sorted(reading.pods.items())
        if (owner.namespace, owner.model_name) == (namespace, model_name)
        and owner.pod in pods
        and ASKED in stats
        and SAMPLED in stats
    ]
    counted = [one.since(since_s or 0.0) for one in counted]
    begins_s = _rate_begins_s(counted, figures)
    if begins_s is None:
        return Arrivals(problem="the rate is another one than that of the last counts")
    found = [one.since(begins_s).spans(figures.latency_s or 0.0) for one in counted]
    streams = [one for one in found if one is not None]
    if not streams:
        return Arrivals(problem="no counts of these pods")
    lengths_s = np.concatenate([lengths_s for _, lengths_s in streams])
    span_s = float(np.nanmedian(lengths_s))
    if sum(float(np.nansum(counts)) for counts, _ in streams) < FEWEST_SPANS:
        return Arrivals(problem=f"fewer than {FEWEST_SPANS} requests came")
    dispersion = dispersion_of_spans(streams)
    if dispersion is None:
        return Arrivals(
            problem=f"fewer than {FEWEST_SPANS} spans of {figure(span_s)} s follow each other without a gap"
        )
    return Arrivals(dispersion, span_s)


class _Counted(NamedTuple):
    """Requests that had come to a pod by each scrape, and when that was (Unix time, s)."""

    asked: FloatArray
    sampled_s: FloatArray

    @classmethod
    def of(cls, asked: FloatArray, sampled_s: FloatArray) -> _Counted:
        known = np.isfinite(asked) & np.isfinite(sampled_s)
        asked, sampled_s = asked[known], sampled_s[known]
        # A step without a new scrape ends no span.
        new = np.diff(sampled_s, prepend=-np.inf) > 0.0
        return cls(asked[new], sampled_s[new])

    def since(self, begins_s: float, ends_s: float = math.inf) -> _Counted:
        """Counts from a time on, until another."""
        later = (self.sampled_s >= begins_s) & (self.sampled_s <= ends_s)
        return _Counted(self.asked[later], self.sampled_s[later])

    def spans(self, request_s: float) -> tuple[FloatArray, FloatArray] | None:
        """Counts and lengths (s) of the spans between scrapes; NaN if a counter fell or scrapes failed; None without any."""
        if self.asked.size < 2:
            return None
        scrape_s = float(np.median(np.diff(self.sampled_s)))
        each = max(1, min(int(request_s // scrape_s), self.asked.size // (FEWEST_SPANS + 1)))
        counts, lengths_s = np.diff(self.asked[::each]), np.diff(self.sampled_s[::each])
        whole = (counts >= 0.0) & (lengths_s < _GAP * each * scrape_s)
        return np.where(whole, counts, np.nan), np.where(whole, lengths_s, np.nan)

    def grown(self, ends_s: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Requests and counted time (s) between successive times; NaN if a counter fell, and before its first sample."""
        if self.asked.size < 2:
            return np.full(ends_s.size - 1, np.nan), np.full(ends_s.size - 1, np.nan)
        # The oldest part is compared although only some of it was counted: a spike in it would pass for bursts of the present load.
        counted_s = np.maximum(ends_s, self.sampled_s[0])
        grown, lengths_s = np.diff(np.interp(counted_s, self.sampled_s, self.asked)), np.diff(counted_s)
        known = (grown >= 0.0) & (lengths_s > 0.0)
        return np.where(known, grown, np.nan), np.where(known, lengths_s, np.nan)


def _rate_begins_s(counted: Sequence[_Counted], figures: Window) -> float | None:
    """Since when (Unix time, s) requests come at the rate of now, by halves of windows; None: they did not come at it last."""
    half_s = figures.window_s / 2.0
    spans = [found for one in counted if (found := one.spans(0.0)) is not None]
    if dispersion_of_spans(spans) is None or not half_s > 0.0:
        # Too few counts to tell rates apart, and too few for a dispersion.
        return 0.0
    newest_s = max(float(one.sampled_s[-1]) for one in counted if one.sampled_s.size)
    ends_s = np.asarray(newest_s - half_s * np.arange(2 * ARRIVAL_WINDOWS, -1, -1), dtype=np.float64)
    grown, lengths_s = np.array([one.grown(ends_s) for one in counted]).transpose(1, 2, 0)[:, ::-1]
    dispersion = max(_usual_dispersion(counted, ends_s), 1.0)
    for back, (requests, time_s) in enumerate(zip(np.nansum(grown, 1), np.nansum(lengths_s, 1), strict=True)):
        if time_s > 0.0 and _differs(requests / time_s, figures.rps, time_s / dispersion):
            # The rate may have changed within the half window behind it.
            return newest_s - half_s * (back - 1) if back > 1 else None
    return 0.0


def _usual_dispersion(counted: Sequence[_Counted], ends_s: FloatArray) -> float:
    """The median of the dispersions between successive times; the dispersion of all spans would hide the spikes that raise it."""
    found = []
    for begins_s, until_s in pairwise(ends_s):
        within = [one.since(begins_s, until_s).spans(0.0) for one in counted]
        scatter, expected, _ = scatter_of_spans(one for one in within if one is not None)
        if expected > 0.0:
            found.append(scatter / expected)
    return float(np.median(found)) if found else 0.0


def _differs(before_rps: float, now_rps: float, time_s: float) -> bool:
    """Whether two rates differ by more than Poisson arrivals explain that are counted for so long (s)."""
    apart = abs(before_rps - now_rps)
    chance = _SIGMAS * math.sqrt(1.5 * max(before_rps, now_rps, 1.0 / time_s) / time_s)
    return apart > chance and max(before_rps, now_rps) > _ANOTHER_RATE * min(before_rps, now_rps)

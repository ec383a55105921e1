"""How bursty the arrivals of one service are, from counters at every scrape of the last windows; or why that is unknown.

Everything is read again each time: nothing is added up in memory, so a restart loses nothing. A dispersion that is unknown is
no reason to hold. It is not 1 either: the law then takes arrivals for Poisson's, and the status says so.
"""

from __future__ import annotations

from collections.abc import Collection

import numpy as np

from breakeven.laws.arrays import FloatArray
from breakeven.laws.latency import FEWEST_SPANS, dispersion_of_spans
from breakeven.phrases import figure
from breakeven.serving.counted_window import Arrivals
from breakeven_operator.reconcile.fleet_query import ASKED, SAMPLED
from breakeven_operator.reconcile.roll_metrics import RollReading

_GAP = 3.0
"""A span so many times as long as usual holds scrapes that failed; what came in it is not known to belong together."""


def arrivals_of(
    reading: RollReading | None,
    namespace: str,
    pods: Collection[str],
    model_name: str,
    request_s: float | None,
) -> Arrivals:
    """The dispersion of the arrivals at the pods that count.

    Args:
        reading: of the service's Prometheus; None: not asked.
        namespace: of the service.
        pods: names.
        model_name: vLLM's `model_name` of this service.
        request_s: what a request takes; None: unknown, and spans are as short as scrapes let them be.
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
        and (spans := _spans(stats[ASKED], stats[SAMPLED], request_s or 0.0)) is not None
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
            problem=f"fewer than {FEWEST_SPANS} spans of {figure(span_s)} s follow each other without a gap"
        )
    return Arrivals(found, span_s)


def _spans(
    asked: FloatArray, sampled_s: FloatArray, request_s: float
) -> tuple[FloatArray, FloatArray] | None:
    """Counts and lengths (s) of the spans between scrapes; NaN if a counter fell or scrapes failed; None without any."""
    known = np.isfinite(asked) & np.isfinite(sampled_s)
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
    return np.where(whole, counts, np.nan), np.where(whole, lengths_s, np.nan)

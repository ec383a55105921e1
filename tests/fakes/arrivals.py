"""Requests that come in bursts, and what scrapes of the counters that they move leave in a Prometheus."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from breakeven.laws.arrays import FloatArray
from breakeven.serving.promql import COUNTED, RUNNING, WAITING
from fakes.held_series import SeriesStore


def gamma_arrivals(cv: float, rps: float, seconds: float, seed: int) -> FloatArray:
    """Moments (s) of requests whose gaps have a coefficient of variation."""
    shape = cv**-2.0
    gaps = np.random.default_rng(seed).gamma(shape, 1.0 / (shape * rps), int(3 * rps * seconds) + 200)
    moments = np.cumsum(gaps)
    return np.asarray(moments[moments < seconds])


def begun(came_at_s: FloatArray, most_rps: float) -> FloatArray:
    """Moments (s) at which requests begin if no more than so many do in a second."""
    found = came_at_s.copy()
    for index in range(1, found.size):
        found[index] = max(found[index], found[index - 1] + 1.0 / most_rps)
    return found


def scraped_arrivals(
    store: SeriesStore,
    pod: str,
    came_at_s: FloatArray,
    first_s: float,
    last_s: float,
    scrape_s: float,
    *,
    began_at_s: FloatArray | None = None,
    restarts_s: Sequence[float] = (),
    silent_s: tuple[float, float] | None = None,
    copies: int = 1,
) -> None:
    """Put the scrapes of a pod into a store.

    Args:
        store: for the series.
        pod: its name.
        came_at_s: moments of arrival (s), ascending.
        first_s, last_s: of the scrapes. scrape_s: time between two.
        began_at_s: moments (s) at which they begin, ascending; until then they wait. None: at once.
        restarts_s: when the engine's counters begin again.
        silent_s: scrapes between these times fail.
        copies: scrape jobs, each at moments of its own.
    """
    began_at_s = came_at_s if began_at_s is None else began_at_s
    for copy in range(copies):
        labels = {"namespace": "llm", "pod": pod, "model_name": "chat", "engine": "0", "job": str(copy)}
        for at_s in np.arange(first_s + 3.0 * copy, last_s, scrape_s).tolist():
            if silent_s is not None and silent_s[0] < at_s < silent_s[1]:
                continue
            life_s = max((one for one in restarts_s if one <= at_s), default=-np.inf)
            lost, started, came = (
                float(np.searchsorted(*pair))
                for pair in ((began_at_s, life_s), (began_at_s, at_s), (came_at_s, at_s))
            )
            store.add(f"vllm:{COUNTED['started'].name}", labels, at_s, started - lost)
            store.add(f"vllm:{WAITING}", labels, at_s, came - started)
            store.add(f"vllm:{RUNNING}", labels, at_s, 1.0)

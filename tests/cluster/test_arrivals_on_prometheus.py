"""How bursty arrivals are, by a real Prometheus: it stores scrapes of counters, and is asked as the operator asks it."""

from __future__ import annotations

import re
import time

import pytest

from breakeven.serving.counted_window import Load
from breakeven.serving.promql import EngineSeries
from breakeven_operator.observing.fleet_query import arrivals_query
from breakeven_operator.observing.roll_metrics import read_roll, with_arrivals
from fakes.arrivals import gamma_arrivals, scraped_arrivals
from fakes.held_series import SeriesStore
from operatorcluster.made_up_prometheus import past_asked, prometheus_of_store

pytestmark = pytest.mark.always

WINDOW_S, SECONDS, RPS = 300, 1900.0, 8.0
PODS = ("chat-7d9f8b6c5d-bbbbb", "chat-7d9f8b6c5d-ccccc")


@pytest.mark.parametrize(("cv", "dispersion"), [(1.0, 1.0), (4.0, 16.0)])
def test_the_dispersion_of_arrivals_is_that_of_the_counters_that_prometheus_holds(tmp_path, cv, dispersion):
    end_s = int(time.time()) - 30
    store = SeriesStore()
    for number, pod in enumerate(PODS):
        came = end_s - SECONDS + gamma_arrivals(cv, RPS, SECONDS, number)
        # Each pod is scraped at moments of its own.
        scraped_arrivals(store, pod, came, end_s - SECONDS + 4.0 * number, end_s, 15.0)
    query = arrivals_query([("llm", "chat")], EngineSeries(), WINDOW_S)
    with prometheus_of_store(tmp_path, store) as address:
        found = past_asked(address, re.sub(r"(\[\d+s:\d+s\])$", rf"\1 @ {end_s}", query))
    assert sum(len(one.values) for one in found) <= 240 * len(PODS), "an answer grows by 240 values per pod"
    now = Load(window_s=float(WINDOW_S), rps=RPS, latency_s=2.0)
    seen = with_arrivals(now, read_roll(found), "llm", PODS, "chat")
    assert seen.dispersion_span_s == pytest.approx(15.0)
    # Two pods of 120 spans: a standard error of a tenth; seeds as in memory.
    assert seen.dispersion == pytest.approx(dispersion, rel=0.3)

"""Bands that a histogram of latencies allows, compared with the latencies that are in it."""

from __future__ import annotations

import math
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from breakeven.planning.objective import Histogram
from fakes.vllm_buckets import edges, vllm_buckets

ROOT = Path(__file__).parents[3]
latencies = st.lists(st.floats(1e-4, 1e4), min_size=1, max_size=60)
figures = st.sampled_from(["e2e", "ttft", "tpot"])


def histogram(figure: str, took_s: list[float]) -> Histogram:
    found = Histogram.of({float(edge): count for edge, count in vllm_buckets(figure, took_s).items()})
    assert found is not None
    return found


def test_vllms_own_edges_are_those_that_the_runbook_names():
    page = (ROOT / "docs" / "runbooks" / "BreakevenObjectiveBurningFast.md").read_text()
    for figure in ("ttft", "tpot", "e2e"):
        (listed,) = re.findall(rf"for `{figure}` ([0-9,\s]+)[;.]", page)
        told = tuple(int(edge) / 1000.0 for edge in listed.split(","))
        assert told == edges(figure)[: len(told)]


@given(figures, latencies, st.floats(1e-4, 1e4))
def test_the_share_that_kept_a_limit_lies_within_the_band(figure, took_s, limit_s):
    kept = sum(one <= limit_s for one in took_s) / len(took_s)
    counted = histogram(figure, took_s)
    within = counted.within(limit_s)
    assert within.lower - 1e-9 <= kept <= within.upper + 1e-9
    assert within.lower - 1e-9 <= within.value <= within.upper + 1e-9
    assert counted.missed(limit_s) <= sum(one > limit_s for one in took_s)


@given(figures, latencies, st.sampled_from([0.5, 0.95, 0.99]))
def test_the_quantile_lies_within_the_band(figure, took_s, share):
    true_s = sorted(took_s)[math.ceil(share * len(took_s)) - 1]
    found = histogram(figure, took_s).quantile(share)
    assert found.lower <= true_s
    assert found.upper is None or true_s <= found.upper
    assert (found.value is None) == (true_s > edges(figure)[-1])
    if found.value is not None:
        assert found.lower <= found.value <= (found.upper or math.inf)


def test_a_limit_on_an_edge_is_a_point_but_for_sampling_and_one_between_edges_is_a_band():
    # A thousand requests: 900 below 0.5 s, 60 between 0.5 and 0.75 s, 40 above.
    took_s = [0.3] * 900 + [0.6] * 60 + [2.0] * 40
    counted = histogram("ttft", took_s)
    on_edge = counted.within(0.5)
    assert on_edge.value == pytest.approx(0.9)
    assert on_edge.upper - on_edge.lower < 0.04
    between = counted.within(0.7)
    assert between.lower < 0.9 < between.value < 0.96 < between.upper
    assert counted.missed(0.5) == 100
    assert counted.missed(0.7) == 40


def test_more_requests_narrow_a_band_down_to_the_bucket_and_no_further():
    few, many = (histogram("ttft", [0.3, 0.3, 0.3, 0.6] * n) for n in (1, 300))
    assert (few.quantile(0.5).lower, few.quantile(0.5).upper) == (0.25, 0.75)
    assert (many.quantile(0.5).lower, many.quantile(0.5).upper) == (0.25, 0.5)


def test_beyond_the_last_edge_the_quantile_is_open_and_has_no_value():
    found = histogram("tpot", [100.0] * 50).quantile(0.95)
    assert (found.value, found.lower, found.upper) == (None, 80.0, None)


def test_without_requests_nothing_is_said():
    counted = histogram("e2e", [])
    assert counted.within(1.0).value is counted.quantile(0.95).value is None
    assert Histogram.of({}) is None
    assert Histogram.of({0.5: 3.0, 1.0: 4.0}) is None


def test_a_bucket_that_comes_out_below_the_one_before_counts_as_that_one():
    counted = Histogram.of({0.5: 10.2, 1.0: 10.0, math.inf: 10.4})
    assert counted is not None
    assert counted.counts == (10.2, 10.2, 10.4)

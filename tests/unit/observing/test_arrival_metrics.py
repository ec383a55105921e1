"""How bursty arrivals are, from what scrapes of pods' pages leave in a Prometheus: nobody here says how bursty they were made."""

from __future__ import annotations

import numpy as np
import pytest

from breakeven.readers.prometheus import Samples, TimedValue
from breakeven.serving.counted_window import Load
from breakeven.serving.promql import EngineSeries
from breakeven_operator.case import RollReading
from breakeven_operator.observing.fleet_query import ARRIVAL_WINDOWS, arrivals_query
from breakeven_operator.observing.roll_metrics import read_roll, with_arrivals
from fakes.arrivals import begun, gamma_arrivals, scraped_arrivals
from fakes.held_series import SeriesStore
from fakes.promql_evaluation import evaluate_range

END_S = 1_700_000_000
WINDOW_S = 300
SPAN_S = ARRIVAL_WINDOWS * WINDOW_S
PODS = ("chat-7d9f8b6c5d-bbbbb", "chat-7d9f8b6c5d-ccccc")


def came(cv, rps, seed):
    return END_S - SPAN_S - 60.0 + gamma_arrivals(cv, rps, SPAN_S + 120.0, seed)


def seen(store, *, request_s=2.0, pods=PODS, model="chat", window_s=WINDOW_S, rps=8.0, since_s=None):
    query = arrivals_query([("llm", "chat")], EngineSeries(), window_s)
    found = [
        Samples(
            one.labels,
            tuple(
                TimedValue(at_ms / 1000, value) for at_ms, value in zip(one.times_ms, one.values, strict=True)
            ),
        )
        for one in evaluate_range(store, query, END_S)
    ]
    reading = read_roll(found)
    now = Load(window_s=window_s, rps=rps, latency_s=request_s)
    return with_arrivals(now, reading, "llm", pods, model, since_s)


def scraped(cv, rps=8.0, *, scrape_s=15.0, pods=PODS, seed=0, most_rps=None, **more):
    store = SeriesStore()
    for number, pod in enumerate(pods):
        moments = came(cv, rps, 10 * seed + number)
        if most_rps is not None:
            more["began_at_s"] = begun(moments, most_rps)
        scraped_arrivals(store, pod, moments, END_S - SPAN_S - 60.0, END_S, scrape_s + 0.37 * number, **more)
    return store


@pytest.mark.parametrize("scrape_s", [5.0, 15.0, 30.0, 60.0])
@pytest.mark.parametrize(("cv", "dispersion"), [(0.2, 0.04), (1.0, 1.0), (4.0, 16.0)])
def test_scrapes_show_the_dispersion_of_arrivals_whatever_their_interval(cv, dispersion, scrape_s):
    # Of two pods: the standard error of 54 spans is a fifth. Seeds 0 to 7 were between .7 and 1.4 of it.
    found = [seen(scraped(cv, scrape_s=scrape_s, seed=seed)) for seed in (0, 1, 2)]
    assert np.mean([one.dispersion for one in found]) == pytest.approx(dispersion, rel=0.3, abs=0.05)
    assert all(one.dispersion_span_s == pytest.approx(max(scrape_s, 15.0), rel=0.1) for one in found)
    assert all(not one.dispersion_problem for one in found)


def test_spans_are_as_long_as_a_request():
    store = scraped(4.0)
    assert [
        seen(store, request_s=each).dispersion_span_s for each in (None, 14.0, 35.0, 70.0)
    ] == pytest.approx([15.2, 15.2, 30.4, 60.7], rel=0.02)
    # Twenty spans are the fewest.
    assert seen(store, request_s=900.0).dispersion_span_s == pytest.approx(76.0, rel=0.05)


def test_requests_that_wait_have_come():
    """A queue hides bursts from the counter of those that begin."""
    bursts = scraped(4.0, most_rps=9.0)
    assert seen(bursts).dispersion == pytest.approx(seen(scraped(4.0)).dispersion, rel=0.05)


def test_a_counter_that_falls_and_scrapes_that_fail_are_no_bursts():
    plain = seen(scraped(1.0)).dispersion
    assert plain == pytest.approx(1.0, abs=0.4)
    assert seen(scraped(1.0, restarts_s=(END_S - 900.0,))).dispersion == pytest.approx(plain, abs=0.3)
    assert seen(scraped(1.0, silent_s=(END_S - 900.0, END_S - 700.0))).dispersion == pytest.approx(
        plain, abs=0.3
    )


def test_copies_of_a_page_count_once():
    assert seen(scraped(4.0, copies=2)).dispersion == pytest.approx(seen(scraped(4.0)).dispersion, rel=0.1)


@pytest.mark.parametrize(
    ("store", "asked", "problem"),
    [
        (SeriesStore(), {}, "no counts of these pods"),
        (scraped(1.0), {"pods": ("chat-64bd5fcf9-zzzzz",)}, "no counts of these pods"),
        (scraped(1.0), {"model": "code"}, "no counts of these pods"),
        (scraped(1.0, 0.002), {"rps": 0.002}, "fewer than 20 requests came"),
        (scraped(1.0, scrape_s=120.0, pods=PODS[:1]), {}, "fewer than 20 spans of 120 s follow each other without a gap"),
    ],
)  # fmt: skip
def test_too_few_counts_are_unknown_and_not_1(store, asked, problem):
    found = seen(store, **asked)
    assert (found.dispersion, found.dispersion_problem) == (None, problem)


def test_a_prometheus_that_does_not_answer_leaves_it_unknown():
    assert with_arrivals(Load(), None, "llm", PODS, "chat").dispersion_problem == "no counts (not asked)"
    broken = RollReading(error="Prometheus at x is not reached")
    assert (
        with_arrivals(Load(), broken, "llm", PODS, "chat").dispersion_problem
        == "no counts (Prometheus at x is not reached)"
    )


def stepping(rates_rps, *, cv=1.0, seed=0):
    """Moments at which requests come, with another rate in each window."""
    rng = np.random.default_rng(seed)
    begins_s = END_S - SPAN_S + WINDOW_S * np.arange(len(rates_rps))
    parts = [
        begin_s + gamma_arrivals(cv, rps, WINDOW_S, int(rng.integers(1 << 30)))
        for begin_s, rps in zip(begins_s, rates_rps, strict=True)
    ]
    return np.concatenate(parts)


def held(moments, pod=PODS[0]):
    store = SeriesStore()
    scraped_arrivals(store, pod, moments, END_S - SPAN_S - 60.0, END_S, 5.0)
    return store


@pytest.mark.parametrize(
    "rates_rps",
    [
        (8.0, 30.0, 30.0, 8.0, 8.0, 8.0),
        (8.0, 8.0, 8.0, 8.0, 60.0, 8.0),
        (2.0, 2.0, 2.0, 2.0, 2.0, 20.0),
        (40.0, 40.0, 40.0, 5.0, 5.0, 5.0),
        (100.0, 4.0, 100.0, 4.0, 4.0, 4.0),
    ],
)
@pytest.mark.parametrize("bursts", [1.0, 6.0])
def test_spans_at_another_rate_do_not_count(rates_rps, bursts):
    """The bursts of an overload that is over are none of the load of now."""
    now_rps = rates_rps[-1]
    moments = stepping(rates_rps)
    lasted = next(back for back, rps in enumerate(reversed((0.0, *rates_rps))) if rps != now_rps)
    # In the other windows requests come in bursts.
    moments_of_bursts = np.floor(moments / bursts) * bursts
    rounded = np.where(moments < END_S - lasted * WINDOW_S, moments_of_bursts, moments)
    found = [seen(held(one), pods=PODS[:1], request_s=None, rps=now_rps) for one in (rounded, moments)]
    # Of one window fewer than 20 spans are left: too few, and no other figure.
    for one in found:
        assert one.dispersion == (pytest.approx(1.0, abs=0.55) if lasted > 1 else None)


@pytest.mark.parametrize("ago_s", [(700.0,), (700.0, 1100.0), (690.0, 1000.0, 1300.0), (SPAN_S - 20.0,)])
def test_spikes_of_seconds_are_no_bursts_of_the_load_of_now(ago_s):
    """In the dispersion of all spans spikes hide themselves: of 200 requests in five seconds it is 40."""
    usual = stepping((4.0,) * 6)
    spikes = [END_S - before_s + np.linspace(0.0, 5.0, 200) for before_s in ago_s]
    found = seen(held(np.sort(np.concatenate([usual, *spikes]))), pods=PODS[:1], request_s=None, rps=4.0)
    assert found.dispersion == pytest.approx(1.0, abs=0.55)


def test_counts_that_are_older_than_the_rate_of_now_say_nothing_of_it():
    """Arrivals are asked for once a window: the last answer may be about the overload."""
    turned_s = END_S - WINDOW_S / 2.0
    usual, more = stepping((8.0,) * 6), stepping((30.0,) * 6)
    half = held(np.concatenate([usual[usual < turned_s], more[more >= turned_s]]))
    for found in (seen(scraped(1.0, 30.0), rps=8.0), seen(half, pods=PODS[:1], request_s=None, rps=30.0)):
        assert (found.dispersion, found.dispersion_problem) == (
            None,
            "the rate is another one than that of the last counts",
        )


@pytest.mark.parametrize("seed", range(5))
def test_a_rate_that_bursts_or_a_day_that_rises_is_one_rate(seed):
    rising = stepping((8.0, 8.4, 8.8, 9.2, 9.6, 10.0), seed=seed)
    bursting = stepping((8.0,) * 6, cv=3.0, seed=seed)
    for moments, dispersion in ((rising, 1.0), (bursting, 9.0)):
        rps = np.count_nonzero(moments > END_S - WINDOW_S) / WINDOW_S
        found = seen(held(moments), pods=PODS[:1], request_s=None, rps=rps)
        # Of six windows the standard error is a twelfth, of one it would be a fifth.
        assert found.dispersion == pytest.approx(dispersion, rel=0.35)


def test_what_came_before_the_last_roll_was_done_does_not_count():
    moments = stepping((8.0,) * 6)
    rolled_s = END_S - 2.0 * WINDOW_S
    bursts = np.where(moments < rolled_s, np.floor(moments / 30.0) * 30.0, moments)
    found = [
        seen(held(one), pods=PODS[:1], request_s=None, since_s=since_s).dispersion
        for one, since_s in ((bursts, None), (bursts, rolled_s), (moments, rolled_s))
    ]
    assert found[0] > 5.0
    assert found[1] == found[2] == pytest.approx(1.0, abs=0.4)

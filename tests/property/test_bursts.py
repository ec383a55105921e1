"""Arrivals in bursts: how they are counted, and what a curve makes of them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from breakeven.laws.latency import BURSTY, FEWEST_SPANS, dispersion, dispersion_of_spans
from breakeven.profile.curves import in_bursts
from fakes.straight_curve import Law, bent_curve, straight_curve


def dispersion_of_counts(counts):
    return dispersion_of_spans([(counts, np.ones(counts.shape))])


KNOTS = np.array([[0.0, 1.0], [4.0, 1.3], [16.0, 2.8], [40.0, 7.0]])


def curve(knots=None):
    if knots is None:
        return straight_curve(Law(1.0, 0.08, np.diag([1e-4, 1e-6])), 8, 0.02, others_range=(0.0, 40.0))
    return bent_curve(knots, 0.03, 8, 0.02)


def gamma_arrivals(cv, seed, count=60_000):
    shape = 1.0 / cv**2
    return np.random.default_rng(seed).gamma(shape, 1.0 / shape, count).cumsum()


@pytest.mark.parametrize(("cv", "expected"), [(0.3, 0.09), (1.0, 1.0), (2.0, 4.0), (4.0, 16.0)])
def test_long_spans_show_the_square_of_the_gaps_coefficient_of_variation(cv, expected):
    # Neighbouring spans of 200 gaps: the standard error over 300 of them is a tenth; seeds 1 to 4 were within .2.
    found = np.mean([dispersion(gamma_arrivals(cv, seed), 200.0) for seed in (1, 2, 3, 4)])
    assert found == pytest.approx(expected, rel=0.2)


def test_the_course_of_a_day_is_no_burst():
    random = np.random.default_rng(5)
    # Ten thousand Poisson arrivals whose rate rises and falls by a factor of five.
    uniform = np.sort(random.random(10_000))
    course = np.interp(
        uniform, np.linspace(0, 1, 501), np.cumsum(1.5 + np.sin(np.linspace(0, 6.28, 501))) / 752.0
    )
    counts = np.histogram(course, np.linspace(0.0, 1.0, 201))[0].astype(float)
    assert counts.var() / counts.mean() > 5.0
    assert dispersion_of_counts(counts) == pytest.approx(1.0, abs=0.4)


def test_a_burst_of_a_geometric_size_counts_what_a_request_meets_of_it():
    random = np.random.default_rng(6)
    sizes = random.geometric(0.25, 20_000)
    arrivals = np.repeat(random.exponential(1.0, 20_000).cumsum(), sizes)
    # A request of a burst of mean size m meets 2*(m - 1) others of it.
    assert dispersion(arrivals, 5.0) - 1.0 == pytest.approx(2.0 * (4.0 - 1.0), rel=0.1)


def test_too_few_spans_tell_nothing():
    assert dispersion_of_counts(np.ones(FEWEST_SPANS - 1)) is None
    assert dispersion_of_counts(np.zeros(50)) is None
    assert dispersion(np.array([1.0]), 1.0) is None
    assert dispersion(np.arange(10.0), 1.0) is None


@pytest.mark.parametrize(("spans", "share"), [(FEWEST_SPANS, 0.03), (6 * FEWEST_SPANS, 0.0)])
@pytest.mark.parametrize("mean", [1.0, 10.0, 60.0])
def test_poisson_arrivals_hardly_ever_look_bursty(spans, share, mean):
    # Of 2,000 draws each: 1.8 % of twenty spans, and none of 120.
    random = np.random.default_rng(3)
    found = [dispersion_of_counts(random.poisson(mean, spans).astype(float)) or 0.0 for _ in range(2000)]
    assert np.mean(found) == pytest.approx(1.0, abs=0.05)
    assert np.mean(np.array(found) >= BURSTY) <= share


@pytest.mark.parametrize(("cv", "expected"), [(1.0, 1.0), (4.0, 16.0)])
def test_spans_of_several_lengths_and_streams_tell_the_same(cv, expected):
    # Spans of 100 to 300 gaps; what lies between two streams is in neither. Seeds 1 to 6 were within .2 on average.
    random, found, with_gaps = np.random.default_rng(8), [], []
    for seed in range(1, 7):
        arrivals, ends = gamma_arrivals(cv, seed), random.uniform(100.0, 300.0, 280).cumsum()
        counts, lengths = np.diff(np.searchsorted(arrivals, ends)).astype(float), np.diff(ends)
        found.append(
            dispersion_of_spans([(counts[:120], lengths[:120]), (counts[125:], lengths[125:])]) or 0.0
        )
        hidden = np.where(np.arange(counts.size) % 9 == 4, np.nan, counts)
        with_gaps.append(dispersion_of_spans([(hidden, lengths)]) or 0.0)
    assert (np.mean(found), np.mean(with_gaps)) == pytest.approx((expected, expected), rel=0.2)


def test_a_span_that_is_not_known_has_no_neighbours():
    counts = np.full(2 * FEWEST_SPANS, 5.0)
    counts[1::2] = np.nan
    assert dispersion_of_spans([(counts, np.ones(counts.size))]) is None


@given(st.floats(0.0, 1.0))
def test_arrivals_that_are_more_even_than_poissons_are_taken_for_these(even):
    one = curve()
    assert in_bursts(one, even) is one


@given(st.floats(1.01, 30.0), st.floats(0.01, 8.0), st.booleans())
def test_bursts_make_requests_slower_and_bounds_wider(bursts, rps, bent):
    one = curve(KNOTS if bent else None)
    moved = in_bursts(one, bursts)
    assume(rps < 0.95 * min(one.saturation_rps, moved.saturation_rps))
    latency_s = moved.at_rps(rps)
    # Who comes meets the mean in flight and the rest of its burst.
    assert latency_s == pytest.approx(
        one.loop_latency_s(rps * latency_s + bursts - 1.0, closed=False), rel=1e-6
    )
    assert latency_s > one.at_rps(rps)
    before, after = (each.all_bounds_at_rps(np.asarray(rps), 1.7) for each in (one, moved))
    assert not after[1] - after[0] < before[1] - before[0]


def test_a_law_without_knots_moves_by_the_rest_of_the_burst():
    moved = in_bursts(curve(), 9.0)
    assert moved.line.c1_s == pytest.approx(1.0 + 8.0 * 0.08)
    assert moved.line.c2_s == pytest.approx(0.08)
    # Half of .64 s is in doubt, beside what the fit left open.
    assert moved.line.covariance[0, 0] ** 0.5 == pytest.approx(
        np.hypot(0.32, (1e-4 + 64e-6) ** 0.5), rel=1e-6
    )


def test_bursts_larger_than_any_measured_load_follow_the_law_beyond_the_points():
    moved = in_bursts(curve(KNOTS), 61.0)
    assert moved.at_rps(0.01) > 7.0

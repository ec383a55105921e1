"""Laws of the base law: conventions agree, inverses invert, and a queue simulated by events obeys it."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from breakeven.laws.latency import (
    InflightDistribution,
    littles_law_gap,
    mean_inflight_closed,
    mean_latency_error,
    open_loop_latency,
    others_met_at_constant_rate,
)
from draws import draws
from fakes.processor_sharing import simulate

few = draws(30)
seconds = st.floats(1e-4, 1e3)
shares = st.floats(0.0, 0.99)
ratios = st.floats(1e-3, 10.0)


def inflight_distribution(c1_s, c2_s, rps):
    return InflightDistribution(rps * float(open_loop_latency(c1_s, c2_s, rps)), rps * c2_s)


def chances(found, top):
    """P(0) to P(top - 1)."""
    return -np.diff([1.0, *(found.exceedance(j) for j in range(top))])


@few
@given(seconds, ratios, st.floats(1e-6, 0.99))
def test_both_load_conventions_give_one_latency(c1, ratio, share):
    c2 = c1 * ratio
    rps = share / c2
    latency = open_loop_latency(c1, c2, rps)
    others = rps * latency
    assert latency == pytest.approx(c1 + others * c2, rel=1e-9)
    assert littles_law_gap(others, rps, latency) < 1e-9


@few
@given(seconds, seconds)
def test_a_lone_request_takes_c1(c1, c2):
    assert open_loop_latency(c1, c2, 0.0) == pytest.approx(c1)


@few
@given(seconds, seconds, shares, shares, st.floats(1.0, 3.0))
def test_latency_rises_with_load_and_with_either_coefficient(c1, c2, low, high, factor):
    low, high = sorted((low, high))
    at_low, at_high = open_loop_latency(c1, c2, np.array([low, high]) / c2)
    assert at_low <= at_high
    assert open_loop_latency(c1 * factor, c2, low / c2) >= at_low
    assert open_loop_latency(c1, c2, low / c2) >= open_loop_latency(c1, c2 / factor, low / c2)


@few
@given(seconds, seconds, shares, st.floats(1e-3, 1e3))
def test_the_unit_of_time_does_not_matter(c1, c2, share, unit):
    rps = share / c2
    assert open_loop_latency(c1 * unit, c2 * unit, rps / unit) == pytest.approx(
        unit * open_loop_latency(c1, c2, rps), rel=1e-6
    )


@few
@given(seconds, seconds, shares)
def test_every_arm_falls_on_one_curve_when_normalised(c1, c2, share):
    assert open_loop_latency(c1, c2, share / c2) / c1 == pytest.approx(1.0 / (1.0 - share), rel=1e-9)


@few
@given(seconds, seconds, st.floats(1.0, 10.0))
def test_there_is_no_latency_at_saturation(c1, c2, beyond):
    assert np.isnan(open_loop_latency(c1, c2, beyond / c2 * (1 + 1e-12)))


@few
@given(st.floats(1.0, 1e3), st.floats(1.0, 1e6), st.floats(0.0, 1.0))
def test_ramp_and_drain_only_lower_the_mean_in_flight(clients, requests, rho):
    mean = mean_inflight_closed(clients, requests, rho)
    assert 0 < mean <= clients
    assert mean_inflight_closed(clients, 1e12, rho) == pytest.approx(clients, rel=1e-6)


@few
@given(st.floats(0.05, 30.0), st.floats(0.0, 0.9))
def test_the_in_flight_distribution_has_the_moments_of_the_law(shape, rho):
    c2 = 0.05
    found = inflight_distribution(shape * c2, c2, rho / c2)
    variance = found.mean / (1.0 - rho)
    beyond = np.array(
        [found.exceedance(j) for j in range(int(60 + 20 * (found.mean + 10 * np.sqrt(variance))))]
    )
    # E[N] is the sum of P(N > j), and E[N^2] that of (2j + 1) P(N > j).
    assert beyond.sum() == pytest.approx(found.mean, rel=1e-4, abs=1e-9)
    square = (beyond * (2 * np.arange(beyond.size) + 1)).sum()
    assert square - found.mean**2 == pytest.approx(variance, rel=1e-3, abs=1e-9)


def test_without_interference_the_in_flight_number_is_poisson():
    free = inflight_distribution(2.0, 0.0, 1.5)
    nearly = inflight_distribution(2.0, 1e-9, 1.5)
    assert free.exceedance(4) == pytest.approx(float(nearly.exceedance(4)), rel=1e-6)
    assert free.exceedance(0) == pytest.approx(1.0 - np.exp(-3.0))


def test_an_idle_service_has_nobody_in_flight():
    idle = inflight_distribution(1.0, 0.1, 0.0)
    assert idle.exceedance(0) == 0.0


@pytest.mark.parametrize("lengths", ["constant", "exponential", "heavy"])
def test_a_processor_sharing_queue_obeys_the_law_whatever_the_lengths(lengths):
    c1, c2, rps = 1.0, 0.08, 6.25
    observed = simulate(c1, c2, rps, lengths, requests=30_000, seed=7)
    law = float(open_loop_latency(c1, c2, rps))
    assert observed.mean_latency_s == pytest.approx(law, rel=0.03)
    assert observed.mean_inflight == pytest.approx(rps * law, rel=0.03)
    expected = inflight_distribution(c1, c2, rps)
    # Arrivals see time averages (PASTA), so both histograms follow one distribution.
    for share in (observed.time_share, observed.arrival_share):
        top = len(share)
        assert np.abs(np.cumsum(share) - np.cumsum(chances(expected, top))).max() < 0.03
    assert observed.time_share[20:].sum() == pytest.approx(float(expected.exceedance(19)), rel=0.25)


@pytest.mark.parametrize(("lengths", "cv"), [("constant", 0.0), ("exponential", 1.0), ("heavy", 2.0)])
@pytest.mark.parametrize(("c2", "rps"), [(0.2, 2.0), (0.08, 7.5)])
def test_arrivals_at_a_constant_rate_meet_less_than_the_time_average(lengths, cv, c2, rps):
    observed = simulate(1.0, c2, rps, lengths, requests=8_000, seed=3, evenly=True)
    met = float(others_met_at_constant_rate(observed.mean_inflight, cv))
    law, poisson = (1.0 + n * c2 for n in (met, observed.mean_inflight))
    assert law == pytest.approx(observed.mean_latency_s, rel=0.03)
    assert abs(law / observed.mean_latency_s - 1.0) < abs(poisson / observed.mean_latency_s - 1.0)


def test_equally_long_requests_at_a_constant_rate_meet_all_but_themselves():
    assert others_met_at_constant_rate([0.4, 1.0, 5.0], 0.0).tolist() == [0.0, 0.0, 4.0]
    # Of two exponential lengths the shorter is half as long on average; the lognormal of that spread is near.
    assert float(others_met_at_constant_rate(5.0, 1.0)) == pytest.approx(4.5, abs=0.07)
    assert float(others_met_at_constant_rate(5.0, 1e6)) == pytest.approx(5.0, abs=1e-3)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: open_loop_latency(-1.0, 0.1, 1.0), "c1_s"),
        (lambda: open_loop_latency(1.0, 0.1, [1.0, -2.0]), "rps"),
        (lambda: littles_law_gap(0.0, 1.0, 1.0), "mean_inflight"),
        (lambda: open_loop_latency(1.0, np.inf, 1.0), "c2_s"),
    ],
)
def test_impossible_input_is_refused_by_name(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_unknown_stays_unknown_and_shapes_broadcast():
    assert np.isnan(open_loop_latency(np.nan, 0.1, 1.0))
    assert open_loop_latency([[1.0], [2.0]], 0.1, [1.0, 2.0, 3.0]).shape == (2, 3)


@pytest.mark.parametrize("lengths", ["constant", "exponential"])
@pytest.mark.parametrize(("utilised", "requests"), [(0.3, 200), (0.7, 2000)])
def test_means_of_windows_scatter_no_more_than_the_error_of_the_mean(lengths, utilised, requests):
    c1, c2 = 1.0, 0.1
    rps = utilised / c2
    true_s = float(open_loop_latency(c1, c2, rps))
    means = [simulate(c1, c2, rps, lengths, requests, seed).mean_latency_s for seed in range(60)]
    scatter = float(np.std(means)) / true_s
    error = float(mean_latency_error(c1, true_s, requests))
    assert 0.2 * error < scatter < 1.1 * error
    assert np.mean(np.array(means) > true_s * (1.0 + 1.645 * error)) <= 0.1


def test_no_request_tells_nothing_and_more_requests_tell_more():
    assert mean_latency_error(1.0, 2.0, [0.0, 100.0, 400.0]).tolist() == pytest.approx(
        [np.inf, 2 * 0.02**0.5, 0.02**0.5]
    )

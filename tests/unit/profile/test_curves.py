"""A curve read at many rates at once says what it says at each."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from breakeven.profile import Curve
from fakes.straight_curve import Law, bent_curve, straight_curve

# Steeper at first than later.
KNOTS = np.array([(0.0, 1.0), (2.0, 1.5), (6.0, 1.7), (20.0, 3.2)])
LINE = straight_curve(Law(1.0, 0.1, ((4e-4, -1e-5), (-1e-5, 4e-5))), 4, others_range=(0.0, 20.0))
CURVES = [LINE, bent_curve(KNOTS, 0.02), bent_curve(KNOTS[1:], 0.02)]
SHAPES = ["line", "bent", "from two others on"]


@pytest.mark.parametrize("curve", CURVES, ids=SHAPES)
def test_many_rates_give_what_each_gives(curve: Curve) -> None:
    limited = replace(curve, saturation_rps=8.0, ceiling_rps=8.0)
    rates = np.linspace(0.0, 10.0, 101)
    one_by_one = [limited.at_rps(float(rps)) for rps in rates]
    np.testing.assert_array_equal(limited.latencies_at_rps(rates), one_by_one)
    assert np.isnan(one_by_one[-1])
    assert not np.isnan(one_by_one[79])


@pytest.mark.parametrize("curve", CURVES, ids=SHAPES)
def test_many_loads_give_what_each_gives(curve: Curve) -> None:
    loads = np.linspace(0.0, 40.0, 81)
    np.testing.assert_array_equal(
        curve.latencies_among(loads), [curve.loop_latency_s(float(n), closed=True) for n in loads]
    )


@pytest.mark.parametrize("curve", CURVES, ids=SHAPES)
def test_bounds_at_many_rates_are_those_at_each(curve: Curve) -> None:
    rates = np.linspace(0.0, 11.0, 56)
    for rps, lower, upper in zip(rates, *curve.all_bounds_at_rps(rates, 2.1), strict=True):
        one = curve.bounds_at_rps(float(rps), 2.1)
        if one is None:
            assert rps >= curve.saturation_rps
            assert np.isnan([lower, upper]).all()
        else:
            assert one == (lower, upper if np.isfinite(upper) else None)
            assert one[0] < curve.at_rps(float(rps))


def test_bounds_of_a_line_are_its_covariance_and_open_near_saturation() -> None:
    others = 8.0
    variance = 4e-4 - 2e-5 * others + 4e-5 * others**2
    low, high = LINE.bounds_of(LINE.loop_latency_s(others, closed=True), others, 1.0)
    assert np.log(1.8 / low) == pytest.approx(variance**0.5 / 1.8, rel=5e-3)
    assert np.log(high / 1.8) == pytest.approx(variance**0.5 / 1.8, rel=5e-3)
    assert LINE.bounds_at_rps(9.7, 2.1)[1] is None
    (v1, v12), (_, v2) = LINE.line.covariance
    assert (v1, v12, v2) == pytest.approx((4e-4, -1e-5, 4e-5), rel=5e-3)


def test_a_rate_is_served_at_the_smallest_load_that_carries_it() -> None:
    curve = bent_curve(KNOTS)
    for rps in (0.5, 1.2, 2.0, 3.5, 6.0):
        latency_s = curve.at_rps(rps)
        assert latency_s == pytest.approx(np.interp(rps * latency_s, *KNOTS.T))
    # If latency falls with load, three numbers in flight have one rate; a fleet that starts empty settles at the first.
    folded = bent_curve([(0.0, 1.0), (2.0, 2.0), (3.0, 4.0), (6.0, 5.0)])
    assert folded.at_rps(0.9) * 0.9 < 2.0


@pytest.mark.parametrize("knots", [KNOTS, KNOTS[1:] * [1.0, 1.1]])
def test_latency_does_not_jump_where_the_knots_end(knots: np.ndarray) -> None:
    curve = bent_curve(knots)
    for others, latency_s in (knots[0], knots[-1]):
        for near in (others * (1 - 1e-9), others * (1 + 1e-9)):
            assert curve.loop_latency_s(near, closed=True) == pytest.approx(latency_s)
            assert curve.at_rps(near / latency_s) == pytest.approx(latency_s)
    beyond_s = curve.loop_latency_s(40.0, closed=True)
    assert curve.at_rps(40.0 / beyond_s) == pytest.approx(beyond_s)
    assert np.isfinite(curve.at_rps(0.999 * curve.saturation_rps))


@pytest.mark.parametrize("curve", CURVES, ids=SHAPES)
def test_a_curve_that_is_raised_differently_at_each_rate_is_entered_at_its_first_load(curve: Curve) -> None:
    """The engine reaches the smallest number in flight that fits, on a curve that may fall behind a peak."""
    rates = np.linspace(0.1, 6.0, 60)
    n, latency_s = curve.open_ends.T
    factors = np.ones((rates.size, n.size)) + np.linspace(0.0, 0.3, rates.size)[:, None]
    factors[:, 2] *= 6.0
    raised = curve.raised_at_rps(rates, factors)
    loads = np.linspace(0.0, 200.0, 200_001)
    for rps, factor, found_s in zip(rates, factors, raised, strict=True):
        fits = loads >= rps * np.interp(loads, n, latency_s * factor)
        if np.isnan(found_s):
            assert rps * factor[-1] >= curve.saturation_rps or not fits.any()
        else:
            assert rps * found_s == pytest.approx(loads[np.argmax(fits)], abs=1.1e-3)

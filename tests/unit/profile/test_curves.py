"""A curve read at many rates at once says what it says at each."""

from __future__ import annotations

import numpy as np
import pytest

from breakeven.laws.law import Law
from breakeven.profile import Curve

LAW = Law(1.0, 0.1)
# Steeper at first and flatter later than the law.
KNOTS = np.array([(0.0, 1.0), (2.0, 1.5), (6.0, 1.7), (20.0, 2.9)])


@pytest.mark.parametrize("knots", [None, KNOTS])
def test_many_rates_give_what_each_gives(knots: np.ndarray | None) -> None:
    curve = Curve(LAW, 4, 0.01, "arm", (0.0, 20.0), knots=knots, ceiling_rps=9.0)
    rates = np.linspace(0.0, 10.0, 101)
    one_by_one = [curve.at_rps(float(rps))[0] for rps in rates]
    np.testing.assert_array_equal(curve.latencies_at_rps(rates), one_by_one)
    assert np.isnan(one_by_one[-1])
    assert not np.isnan(one_by_one[85])


@pytest.mark.parametrize("knots", [None, KNOTS, KNOTS[1:]])
def test_many_loads_give_what_each_gives(knots: np.ndarray | None) -> None:
    curve = Curve(LAW, 4, 0.01, "arm", (0.0, 20.0), knots=knots)
    loads = np.linspace(0.0, 40.0, 81)
    np.testing.assert_array_equal(
        curve.latencies_among(loads), [curve.among(float(n)).latency_s for n in loads]
    )


@pytest.mark.parametrize("basis", ["arm", "pooled"])
@pytest.mark.parametrize("knots", [None, KNOTS, KNOTS[1:]])
def test_bounds_at_many_rates_are_those_at_each(knots: np.ndarray | None, basis: str) -> None:
    law = Law(1.0, 0.1, ((4e-4, -1e-5), (-1e-5, 4e-5)))
    curve = Curve(law, 4, 0.01, basis, (0.0, 20.0), knots=knots, knot_error=0.02)
    rates = np.linspace(0.0, 11.0, 56)
    found = curve.all_bounds_at_rps(rates, 2.1)
    for rps, lower, upper in zip(rates, found.lower, found.upper, strict=True):
        one = curve.bounds_at_rps(float(rps), 2.1)
        if one is None:
            assert rps >= curve.saturation_rps
            assert np.isnan([lower, upper]).all()
        else:
            assert one == (None if np.isnan(lower) else lower, upper if np.isfinite(upper) else None)


def test_a_rate_is_served_at_the_smallest_load_that_carries_it() -> None:
    curve = Curve(LAW, 4, 0.01, "arm", (0.0, 20.0), knots=KNOTS)
    for rps in (0.5, 1.2, 2.0, 3.5, 6.0):
        latency_s, basis = curve.at_rps(rps)
        assert basis == "points"
        assert latency_s == pytest.approx(np.interp(rps * latency_s, *KNOTS.T))
    # Latency that falls with load lets three loads carry one rate; a fleet that starts empty settles at the first.
    folded = Curve(
        LAW, 4, 0.01, "arm", (0.0, 6.0), knots=np.array([(0.0, 1.0), (2.0, 2.0), (3.0, 4.0), (6.0, 5.0)])
    )
    assert folded.at_rps(0.9)[0] * 0.9 < 2.0


@pytest.mark.parametrize("knots", [KNOTS, KNOTS[1:] * [1.0, 1.1]])
def test_latency_does_not_jump_where_the_points_end(knots: np.ndarray) -> None:
    curve = Curve(LAW, 4, 0.01, "arm", (0.0, 20.0), knots=knots)
    for others, latency_s in (knots[0], knots[-1]):
        for near in (others * (1 - 1e-9), others * (1 + 1e-9)):
            assert curve.among(near)[0] == pytest.approx(latency_s)
            assert curve.at_rps(near / latency_s)[0] == pytest.approx(latency_s)
    beyond_s = curve.among(40.0)[0]
    assert curve.at_rps(40.0 / beyond_s)[0] == pytest.approx(beyond_s)
    assert curve.among(40.0)[0] / curve.among(30.0)[0] == pytest.approx((1.0 + 40 * 0.1) / (1.0 + 30 * 0.1))


@pytest.mark.parametrize(("last_s", "saturation_rps"), [(2.9, 10.0), (3.3, 10.0 / 1.1)])
def test_saturation_is_the_law_s_or_earlier(last_s: float, saturation_rps: float) -> None:
    knots = np.array([*KNOTS[:-1], (20.0, last_s)])
    curve = Curve(LAW, 4, 0.01, "arm", (0.0, 20.0), knots=knots)
    assert curve.saturation_rps == pytest.approx(saturation_rps)
    assert np.isfinite(curve.at_rps(0.999 * saturation_rps)[0])

"""Laws of comparing: limits, symmetry, units, every row of the verdict table, bounds that agree with each other."""

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from breakeven.laws.fieller import ratio_interval
from breakeven.laws.latency import closed_loop_latency, open_loop_latency, others_in_flight
from breakeven.laws.law import Law, capacity_interval_rps, capacity_rps
from breakeven.laws.speedup import (
    PaysWhere,
    break_even_interval_others,
    break_even_interval_rps,
    break_even_others,
    break_even_rps,
    c1_ratio,
    c2_ratio,
    saturation_ratio,
    speedup_among,
    speedup_at_rps,
    tells_nothing,
    verdict,
)
from breakeven.planning.envelope import fastest_among, fastest_by_rps
from draws import draws

few = draws(30)
c1s = st.floats(0.05, 20.0)
c2s = st.floats(0.001, 1.0)
shares = st.floats(0.0, 0.95)
noises = st.floats(0.0, 0.2)


@st.composite
def laws(draw, noise=noises):
    c1, c2, share, correlation = draw(c1s), draw(c2s), draw(noise), draw(st.floats(-0.9, 0.3))
    s1, s2 = share * c1, share * c2
    return Law(c1, c2, ((s1**2, correlation * s1 * s2), (correlation * s1 * s2, s2**2)))


@few
@given(laws(), laws(), shares)
def test_the_speedup_is_the_ratio_of_latencies_at_equal_rate(against, arm, share):
    rps = share / max(against.c2, arm.c2)
    ratio = open_loop_latency(against.c1, against.c2, rps) / open_loop_latency(arm.c1, arm.c2, rps)
    assert speedup_at_rps(against, arm, rps) == pytest.approx(float(ratio), rel=1e-9)


@few
@given(laws(), laws(), st.floats(1.0, 500.0))
def test_and_at_equal_concurrency(against, arm, clients):
    ratio = closed_loop_latency(against.c1, against.c2, clients) / closed_loop_latency(
        arm.c1, arm.c2, clients
    )
    assert speedup_among(against, arm, clients - 1.0) == pytest.approx(float(ratio), rel=1e-9)


@few
@given(laws(), laws())
def test_its_limits_are_the_ratios(against, arm):
    assert speedup_at_rps(against, arm, 0.0) == pytest.approx(float(1.0 / c1_ratio(against, arm)))
    assert speedup_among(against, arm, 1e12) == pytest.approx(float(1.0 / c2_ratio(against, arm)), rel=1e-5)
    assert saturation_ratio(against, arm) == pytest.approx(float(1.0 / c2_ratio(against, arm)))


@few
@given(laws(), laws(), shares, shares)
def test_its_slope_has_the_sign_of_one_minus_c2_ratio(against, arm, first, second):
    first, second = sorted((first, second))
    low, high = speedup_at_rps(against, arm, np.array([first, second]) / max(against.c2, arm.c2))
    ratio = c2_ratio(against, arm)
    if ratio > 1:
        assert high <= low * (1 + 1e-9)
    if ratio < 1:
        assert high >= low * (1 - 1e-9)


@few
@given(laws(), laws(), shares)
def test_swapping_arms_inverts_everything(first, second, share):
    rps = share / max(first.c2, second.c2)
    assert speedup_at_rps(first, second, rps) * speedup_at_rps(second, first, rps) == pytest.approx(1.0)
    np.testing.assert_allclose(break_even_rps(first, second), break_even_rps(second, first), rtol=1e-7)
    np.testing.assert_allclose(break_even_others(first, second), break_even_others(second, first), rtol=1e-7)
    opposite = {"below": "above", "above": "below", "always": "never", "never": "always", "tie": "tie"}
    there = str(verdict(c1_ratio(first, second), c2_ratio(first, second)))
    assert str(verdict(c1_ratio(second, first), c2_ratio(second, first))) == opposite[there]


@few
@given(laws(), laws(), shares, st.floats(1e-3, 1e3), st.floats(0.0, 3.0))
def test_the_unit_of_time_does_not_matter(against, arm, share, unit, t):
    def scaled(law):
        return Law(law.c1 * unit, law.c2 * unit, np.asarray(law.covariance) * unit**2)

    rps = share / max(against.c2, arm.c2)
    assert speedup_at_rps(scaled(against), scaled(arm), rps / unit) == pytest.approx(
        float(speedup_at_rps(against, arm, rps)), rel=1e-6
    )
    np.testing.assert_allclose(
        unit * break_even_rps(scaled(against), scaled(arm)), break_even_rps(against, arm), rtol=1e-6
    )


@few
@given(laws(), laws())
def test_at_the_break_even_both_are_equally_fast_in_every_convention(against, arm):
    rps, others = float(break_even_rps(against, arm)), float(break_even_others(against, arm))
    assert np.isnan(rps) == np.isnan(others)
    assume(np.isfinite(rps) and others < 1e6)
    assert rps < 1.0 / max(against.c2, arm.c2)
    assert speedup_among(against, arm, others) == pytest.approx(1.0, rel=1e-6)
    gap = 1.0 - rps * max(against.c2, arm.c2)
    assert speedup_at_rps(against, arm, rps) == pytest.approx(1.0, rel=1e-9 / gap)
    assert others_in_flight(arm.c1, arm.c2, rps) == pytest.approx(others, rel=1e-9 / gap**2 + 1e-6)


@few
@given(laws(), laws())
def test_the_verdict_says_where_the_speedup_exceeds_one(against, arm):
    said = str(verdict(c1_ratio(against, arm), c2_ratio(against, arm)))
    first_saturation = 1.0 / max(against.c2, arm.c2)
    loads = np.linspace(1e-6, 0.999, 50) * first_saturation
    gains = speedup_at_rps(against, arm, loads) > 1.0
    crossing = break_even_rps(against, arm)
    match said:
        case PaysWhere.BELOW:
            assert np.array_equal(gains, loads < crossing)
        case PaysWhere.ABOVE:
            assert np.array_equal(gains, loads > crossing)
        case PaysWhere.ALWAYS:
            assert gains.all()
            assert np.isnan(crossing)
        case PaysWhere.NEVER:
            assert not gains.any()
            assert np.isnan(crossing)


@pytest.mark.parametrize(
    ("c1r", "c2r", "expected"),
    [
        (0.5, 1.5, "below"),
        (1.5, 0.5, "above"),
        (0.5, 0.5, "always"),
        (1.0, 0.5, "always"),
        (0.5, 1.0, "always"),
        (1.5, 1.5, "never"),
        (1.0, 1.5, "never"),
        (1.5, 1.0, "never"),
        (1.0, 1.0, "tie"),
        (np.nan, 1.0, "uncertain"),
    ],
)
def test_every_row_of_the_verdict_table(c1r, c2r, expected):
    assert str(verdict(c1r, c2r)) == expected
    assert verdict([c1r, 0.5], [c2r, 1.5]).tolist() == [expected, "below"]


def test_saturation_on_either_side():
    dense, fast = Law(1.2, 0.07), Law(0.78, 0.085)
    assert speedup_at_rps(dense, fast, 13.0) == 0.0
    assert speedup_at_rps(fast, dense, 13.0) == np.inf
    assert np.isnan(speedup_at_rps(dense, fast, 15.0))
    assert saturation_ratio(dense, fast) == pytest.approx(0.07 / 0.085)


@few
@given(laws(), laws(), st.floats(0.1, 3.0))
def test_the_intervals_of_a_break_even_hold_it_and_grow_with_confidence(against, arm, t):
    for interval, point in (
        (break_even_interval_rps, break_even_rps(against, arm)),
        (break_even_interval_others, break_even_others(against, arm)),
    ):
        narrow, wide = interval(against, arm, t), interval(against, arm, t + 1.0)
        if np.isfinite(point) and not np.isnan(narrow.lower):
            assert narrow.lower <= point * (1 + 1e-6)
            assert point <= narrow.upper * (1 + 1e-6)
            assert wide.lower <= narrow.lower * (1 + 1e-6) + 1e-12
            assert narrow.upper <= wide.upper * (1 + 1e-6)


@few
@given(laws(), st.floats(0.01, 100.0), st.floats(0.1, 3.0))
def test_capacity_is_where_the_law_meets_the_limit(law, limit, t):
    rps = float(capacity_rps(law, limit))
    bounds = capacity_interval_rps(law, limit, t)
    if limit < law.c1:
        assert rps == 0.0
    else:
        assert bounds.lower <= rps * (1 + 1e-9)
        assert rps <= bounds.upper * (1 + 1e-9)
        if 1 - rps * law.c2 > 1e-6:
            assert open_loop_latency(law.c1, law.c2, rps) == pytest.approx(limit, rel=1e-6)
            assert others_in_flight(law.c1, law.c2, rps) == pytest.approx(
                float((limit - law.c1) / law.c2), rel=1e-6, abs=1e-6
            )


@few
@given(st.lists(st.tuples(c1s, c2s), min_size=1, max_size=8), st.floats(0.0, 50.0), st.floats(0.1, 200.0))
def test_the_envelope_is_the_pointwise_minimum(arms, start, width):
    c1, c2 = (np.array(column) for column in zip(*arms, strict=True))
    found = fastest_by_rps(c1, c2, start, start + width)
    assert found.start[0] == start
    assert found.stop[-1] == start + width
    assert np.array_equal(found.start[1:], found.stop[:-1])
    assert np.all(found.arm[1:] != found.arm[:-1])
    for arm, low, high in zip(found.arm, found.start, found.stop, strict=True):
        rps = 0.5 * (low + high)
        curves = np.nan_to_num(open_loop_latency(c1, c2, rps), nan=np.inf)
        if np.isinf(curves).all():
            assert c2[arm] == c2.min()
        else:
            assert curves[arm] <= curves.min() * (1 + 1e-6)
    closed = fastest_among(c1, c2, start, start + width)
    for arm, low, high in zip(closed.arm, closed.start, closed.stop, strict=True):
        lines = c1 + 0.5 * (low + high) * c2
        assert lines[arm] <= lines.min() * (1 + 1e-9)


@few
@given(st.lists(st.tuples(c1s, c2s), min_size=2, max_size=6), st.randoms(use_true_random=False))
def test_the_envelope_does_not_depend_on_the_order_of_arms(arms, random):
    shuffled = arms[:]
    random.shuffle(shuffled)
    columns = ([*zip(*listed, strict=True)] for listed in (arms, shuffled))
    first, second = (fastest_by_rps(c1, c2, 0.0, 50.0) for c1, c2 in columns)
    np.testing.assert_allclose(first.start, second.start, rtol=1e-9)
    assert [arms[i] for i in first.arm] == [shuffled[i] for i in second.arm]


def test_equally_fast_arms_are_resolved_in_favour_of_the_first():
    found = fastest_by_rps([1.0, 1.0], [0.1, 0.1], 0.0, 5.0)
    assert found.arm.tolist() == [0]


def test_the_crossing_of_the_branches_beyond_saturation_is_no_break_even():
    dense, better = Law(1.0, 0.05, ((1e-6, 0), (0, 1e-10))), Law(0.5, 0.04, ((1e-6, 0), (0, 1e-10)))
    assert np.isnan(break_even_rps(dense, better))
    assert np.isnan(break_even_interval_rps(dense, better, 2.0).lower)


def test_uncertain_means_that_no_load_tells():
    assert tells_nothing([0.9, 0.8], [1.2, 1.0])
    assert not tells_nothing([1.01, 0.8], [1.2, 1.1])
    assert not tells_nothing([0.7, 0.8], [1.2, 0.99])


def test_an_interval_is_open_where_the_denominator_may_vanish():
    open_above = ratio_interval(1.0, 0.1, 0.01, 0.01, cov=0.0, t=2.0)
    assert open_above.upper == np.inf
    assert 0 < open_above.lower < 10
    everything = ratio_interval(0.1, 0.1, 1.0, 1.0, cov=0.0, t=2.0)
    assert (everything.lower, everything.upper) == (0.0, np.inf)
    impossible = ratio_interval(-1.0, 1.0, 0.01, 0.01, cov=0.0, t=2.0)
    assert np.isnan(impossible.lower)
    assert np.isnan(impossible.upper)


@draws(8)
@given(st.integers(0, 10_000))
def test_the_break_even_is_covered_as_often_as_promised(seed):
    """90 % intervals from 8 points per arm with 2 % noise; 400 fits cover 90 +- 4.5 % (three standard errors)."""
    rng = np.random.default_rng(seed)
    others = np.geomspace(1.0, 40.0, 8) - 1.0
    truth = {"dense": (1.2, 0.07), "arm": (0.78, 0.085)}
    fits, squares = {}, np.zeros(400)
    for name, (c1, c2) in truth.items():
        measured = (c1 + others * c2) * (1.0 + 0.02 * rng.standard_normal((400, 8)))
        design = np.stack([np.ones(8), others], axis=-1) / measured[..., None]
        covariance = np.linalg.inv(np.swapaxes(design, -1, -2) @ design)
        coefficients = (covariance @ design.sum(axis=-2)[..., None])[..., 0]
        squares += ((1.0 - (design @ coefficients[..., None])[..., 0]) ** 2).sum(axis=-1)
        fits[name] = coefficients, covariance
    scale = (squares / 12.0)[:, None, None]
    dense, arm = (Law(c[:, 0], c[:, 1], v * scale) for c, v in fits.values())
    student = 1.7822875556493196  # two-sided 90 % at 12 degrees of freedom
    expected = 0.42 / (1.2 * 0.085 - 0.78 * 0.07)
    rps = break_even_interval_rps(dense, arm, student)
    assert abs(np.mean((rps.lower <= expected) & (expected <= rps.upper)) - 0.9) < 0.045
    n = break_even_interval_others(dense, arm, student)
    assert abs(np.mean((n.lower <= 28.0) & (n.upper >= 28.0)) - 0.9) < 0.045


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: Law(0.0, 0.1), "c1_s"),
        (lambda: Law(1.0, -0.1), "c2_s"),
        (lambda: Law(1.0, 0.1, (1.0, 1.0)), "covariance"),
        (lambda: verdict(0.0, 1.0), "c1_ratio"),
        (lambda: fastest_by_rps([1.0], [0.1], 2.0, 2.0), "load range"),
        (lambda: ratio_interval(1.0, 1.0, -1.0, 0.0, cov=0.0, t=1.0), "top_var"),
        (lambda: capacity_rps(Law(1.0, 0.1), 0.0), "limit_s"),
    ],
)
def test_impossible_input_is_refused_by_name(call, message):
    with pytest.raises(ValueError, match=message):
        call()

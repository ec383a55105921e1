"""Comparing arms of a profile: figures, bounds, verdicts, saturation and the measured range."""

from dataclasses import replace

import numpy as np
import pytest
from scipy.special import fdtri

from breakeven.arm import NO_SPECULATION, Arm
from breakeven.fitting import fit_points
from breakeven.planning.evaluation import envelope
from breakeven.profile import Comparison, Conditions, LoadPoint
from breakeven.profile.comparisons import PaysWhere, compare_curves, speedups_at_rps
from breakeven.profile.curves import Curve
from breakeven.profile.student_t import band_quantile, t_quantile
from draws import seeds_of_law
from fakes.straight_curve import Law, bent_curve, straight_curve
from sweeps import closed

EAGLE = Arm("eagle3", 3)
CLIENTS = (1, 2, 4, 8, 16, 32, 64)


def profile(c1_s, c2_s, noise=0.0, clients=CLIENTS, confidence=0.9, seed=1):
    rows = closed("none", 0, 1.2, 0.07, noise=noise, clients=clients, seed=seed)
    return fit_points(
        rows + closed("eagle3", 3, c1_s, c2_s, noise=noise, clients=clients, seed=seed), confidence
    )


def test_equal_rate_and_equal_concurrency_are_different_figures() -> None:
    both = profile(0.78, 0.085)
    at_rate, at_clients = both.compare(EAGLE, rps=8), both.compare(EAGLE, concurrency=20)
    assert at_rate.speedup == pytest.approx(1.2 / (1 - 0.56) / (0.78 / (1 - 0.68)), rel=0.01)
    assert at_clients.speedup == pytest.approx((1.2 + 19 * 0.07) / (0.78 + 19 * 0.085), rel=0.01)


def test_an_error_that_two_curves_share_leaves_their_ratio_alone() -> None:
    curve = profile(0.78, 0.085, noise=0.03).curve(EAGLE)
    alike = replace(curve, own_sds=np.zeros_like(curve.own_sds), start_sd=0.0)
    rates = np.linspace(0.5, 0.6 * curve.saturation_rps, 20)
    found = speedups_at_rps(alike, alike, rates, 0.9)
    # Each curve alone is known to 5 % at best.
    assert np.linalg.norm(alike.loadings, axis=-1).min() > 0.028
    np.testing.assert_allclose(found.lower, 1.0, atol=0.015)
    np.testing.assert_allclose(found.upper, 1.0, atol=0.015)


def test_ratios_and_break_even_of_the_worked_example() -> None:
    found = profile(0.78, 0.085).compare(EAGLE, rps=8)
    assert (found.c1_ratio, found.c2_ratio) == (
        pytest.approx(0.65, rel=0.005),
        pytest.approx(0.085 / 0.07, rel=0.01),
    )
    assert found.verdict is PaysWhere.BELOW
    assert found.break_even_rps == pytest.approx(8.86, abs=0.05)
    assert found.break_even_concurrency == pytest.approx((1.2 - 0.78) / (0.085 - 0.07) + 1, rel=0.03)


def verdict_for(of, rps_range):
    judged, other = (of.curve(arm) for arm in (EAGLE, NO_SPECULATION))
    return compare_curves(judged, other, LoadPoint(rps=1), of.confidence, rps_range)


def test_a_range_of_interest_lends_no_figure_to_a_break_even_that_was_not_measured() -> None:
    low = profile(0.78, 0.085, clients=(1, 2, 3))
    found = verdict_for(low, (0.5, 12.0))
    assert (found.break_even_rps, found.break_even_beyond_range) == (None, True)
    assert found.verdict is PaysWhere.BELOW
    assert verdict_for(profile(0.78, 0.085), (0.5, 2.0)).break_even_rps == pytest.approx(8.86, abs=0.05)


@pytest.mark.parametrize(
    ("c1_s", "c2_s", "verdict"),
    [
        (0.78, 0.085, PaysWhere.BELOW),
        (1.4, 0.06, PaysWhere.ABOVE),
        (0.78, 0.06, PaysWhere.ALWAYS),
        (1.4, 0.085, PaysWhere.NEVER),
    ],
)
def test_every_verdict(c1_s: float, c2_s: float, verdict: PaysWhere) -> None:
    assert profile(c1_s, c2_s).compare(EAGLE, rps=2).verdict is verdict


def test_two_arms_that_noise_cannot_tell_apart_are_uncertain() -> None:
    assert profile(1.19, 0.0702, noise=0.03).compare(EAGLE, rps=2).verdict is PaysWhere.UNCERTAIN


def test_equal_arms_get_a_verdict_no_oftener_than_the_confidence_allows() -> None:
    claims = [
        profile(1.2, 0.07, noise=0.03, seed=seed).compare(EAGLE, rps=2).verdict is not PaysWhere.UNCERTAIN
        for seed in seeds_of_law(40)
    ]
    assert sum(claims) <= 0.1 * len(claims) + 1


def test_a_band_over_a_range_is_wider_than_bounds_at_a_load() -> None:
    for dof in (1, 2, 6, 12, 40):
        assert band_quantile(0.9, dof) == pytest.approx(float(np.sqrt(3.0 * fdtri(3, dof, 0.9))))
        assert band_quantile(0.9, dof) > t_quantile(0.9, dof)
    assert band_quantile(0.9, 0) == float("inf")


def test_a_break_even_far_beyond_the_measured_loads_has_no_figure() -> None:
    found = profile(0.78, 0.0705, clients=(1, 2, 4, 8)).compare(EAGLE, rps=2)
    assert (found.verdict, found.break_even_rps, found.break_even_beyond_range) == (
        PaysWhere.BELOW,
        None,
        True,
    )


def test_saturation_on_either_side_is_named_and_never_negative() -> None:
    both = profile(0.78, 0.085)
    only_arm = both.compare(EAGLE, rps=13)
    assert (only_arm.speedup, only_arm.saturated, only_arm.against_saturated) == (0.0, True, False)
    only_none = both.compare(NO_SPECULATION, EAGLE, rps=13)
    assert (only_none.speedup, only_none.against_saturated) == (float("inf"), True)
    assert both.compare(EAGLE, rps=15).speedup is None


def test_bounds_are_open_or_hold_the_truth_and_touch_one_at_the_break_evens_bounds() -> None:
    noisy = profile(0.78, 0.085, noise=0.015)
    found = noisy.compare(EAGLE, rps=4)
    assert found.speedup_ci[0] < 1.2 / (1 - 0.28) / (0.78 / (1 - 0.34)) < found.speedup_ci[1]
    low, high = found.break_even_ci_rps
    assert low < 8.86 < high
    assert noisy.compare(EAGLE, rps=low).speedup_ci[0] == pytest.approx(1, abs=1e-3)
    assert noisy.compare(EAGLE, rps=high).speedup_ci[1] == pytest.approx(1, abs=1e-3)


def test_beyond_saturation_a_speedup_is_nothing_and_has_a_bound() -> None:
    """However slow the arm may be, its bounds say what it cannot do."""
    both = profile(0.5, 0.1, clients=(1, 2, 4, 8, 16))
    rates = np.array([7.0, 10.0, 10.1, 11.0, 30.0])
    found = speedups_at_rps(both.curve(EAGLE), both.curve(NO_SPECULATION), rates, 0.9)
    assert (found.speedup[3], found.lower[3]) == (0.0, 0.0)
    assert found.upper[3] == 0.0 < found.upper[2] < 1.0 < found.upper[0], (
        "at none of its bounds it carries 11 rps"
    )
    assert np.isnan([found.speedup[-1], found.lower[-1], found.upper[-1]]).all(), "neither arm carries that"


def test_doubt_about_crowds_is_none_about_those_who_meet_few() -> None:
    """A curve of which nothing is known among 45 others and more is well known at a rate that 45 carry."""
    plain, crowded = (
        straight_curve(Law(*line, ((0.0, 0.0), (0.0, 0.0)))) for line in ((1.0, 0.05), (0.5, 0.08))
    )
    crowded = replace(crowded, own_sds=np.where(crowded.knots[:, 0] > 45.0, 0.5, 0.0))
    found = speedups_at_rps(crowded, plain, np.array([11.0]), 0.9)
    assert found.speedup[0] < found.upper[0] < 0.6


def test_two_loads_leave_wider_bounds_than_seven() -> None:
    two, seven = (profile(0.78, 0.085, clients=some).compare(EAGLE, rps=4) for some in ((1, 64), CLIENTS))
    widths = [found.speedup_ci[1] / found.speedup_ci[0] for found in (two, seven)]
    assert widths[0] > 1.3 * widths[1]
    assert two.speedup > 1


def test_swapping_the_arms_inverts_the_speedup_and_its_bounds() -> None:
    noisy = profile(0.78, 0.085, noise=0.015)
    there, back = noisy.compare(EAGLE, rps=4), noisy.compare(NO_SPECULATION, EAGLE, rps=4)
    assert there.speedup * back.speedup == pytest.approx(1)
    assert there.speedup_ci[0] * back.speedup_ci[1] == pytest.approx(1)


def test_arms_that_follow_their_points_cross_where_their_points_do() -> None:
    clients = (1, 4, 8, 16, 24, 32, 48, 64)
    rows = closed("none", 0, 1.2, 0.07, clients=clients, noise=0.003)
    rows += [
        row
        for c in clients
        for row in closed("eagle3", 3, 0.7 + 0.12 * max(c - 20, 0), 0.05, clients=[c], noise=0.003, seed=c)
    ]
    bent = fit_points(rows)
    found = bent.compare(EAGLE, concurrency=8)
    assert found.speedup == pytest.approx((1.2 + 7 * 0.07) / (0.7 + 7 * 0.05), rel=0.02)
    curves = [(arm, bent.curve(arm, Conditions())) for arm in (NO_SPECULATION, EAGLE)]
    stretches = envelope(curves, (0.5, 13.0))
    assert stretches[0].arm == EAGLE
    assert stretches[-1].arm == NO_SPECULATION


NO_SPECULATION_CURVE = straight_curve(
    Law(1.0, 0.05, np.diag([1e-6, 1e-9])), noise=0.005, others_range=(0.0, 40.0)
)


def dipping(factors: tuple[float, ...], own_sd: float) -> Curve:
    """An arm whose points lie at factors of no speculation's latency, as those of a mixture of experts may."""
    others = np.linspace(0.0, 40.0, len(factors))
    knots = np.column_stack([others, NO_SPECULATION_CURVE.latencies_among(others) * factors])
    return bent_curve(knots, own_sd, noise=0.005)


def compared(curve: Curve) -> Comparison:
    return compare_curves(curve, NO_SPECULATION_CURVE, LoadPoint(rps=4.0), 0.9)


def test_curves_that_cross_more_than_once_pay_in_ranges_of_load() -> None:
    found = compared(dipping((0.8, 0.8, 1.2, 1.2, 0.8), own_sd=0.01))
    (_, until), (again, _) = found.pays_rps
    # Straight from (10, 1.2 s) to (20, 2.4 s) and from (30, 3 s) to (40, 2.4 s): 1 + 0.05*n is met at 100/7 and 380/11.
    assert until == pytest.approx((100 / 7) / (1.0 + 5 / 7))
    assert again == pytest.approx((380 / 11) / (1.0 + 19 / 11))
    assert (
        found.break_even
        == f"pays from 0 to {until:.3g} and from {again:.3g} to {found.pays_rps[1][1]:.3g} rps"
    )


@pytest.mark.parametrize(
    ("factors", "own_sd"),
    [((0.8, 0.8, 1.2, 1.2, 1.2), 0.01), ((0.8, 0.8, 1.02, 1.02, 0.8), 0.05), ((0.8,) * 5, 0.01)],
    ids=["one crossing", "touching within the noise", "none"],
)
def test_one_crossing_or_noise_makes_no_ranges(factors: tuple[float, ...], own_sd: float) -> None:
    assert compared(dipping(factors, own_sd)).pays_rps == ()


def test_points_that_say_nothing_leave_the_bounds_open() -> None:
    """An error that no number holds is as good as none: warnings are errors here."""
    low, high = compared(dipping((0.8, 0.8, 1.2, 1.2, 0.8), own_sd=1e4)).speedup_ci or (None, None)
    assert low == pytest.approx(0.0, abs=1e-6)
    assert high is None or high > 1e6


@pytest.mark.parametrize(
    ("verdict", "rps", "words"),
    [
        ("below", 8.912, "pays until 8.91 rps (8.4 to 9.3)"),
        ("uncertain", 8.912, "pays until 8.91 rps (8.4 to 9.3)"),
        ("above", 8.912, "pays from 8.91 rps (8.4 to 9.3)"),
        ("below", None, "pays until a load beyond the measured range"),
        ("above", None, "pays from a load beyond the measured range"),
        ("always", None, "pays at every load"),
        ("uncertain", None, "may gain or lose: the bounds contain both"),
    ],
)
def test_where_an_arm_pays_is_its_break_even_or_why_it_has_none(
    verdict: str, rps: float | None, words: str
) -> None:
    ends = (8.4, 9.3) if rps is not None else None
    found = Comparison(1.2, None, 0.8, None, 1.2, None, PaysWhere(verdict), False, False, rps, ends)
    assert found.pays == words

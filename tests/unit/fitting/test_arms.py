"""One arm's fit, and the messy reality of its rows."""

from dataclasses import replace

import pytest

from breakeven.fitting import fit_points
from breakeven.points.point import Origin
from breakeven.points.row import point
from breakeven.reasons import Reason
from draws import seeds_of_law
from sweeps import CLIENTS, closed, poisson


def fit(points, confidence=0.9):
    return fit_points(points, confidence).arms[0]


def words(fit):
    return [row.reason for row in fit.excluded]


def with_latency(rows, index, latency_s):
    old = rows[index]
    fields = {"method": old.arm.method, "k": float(old.arm.k), "concurrency": old.concurrency}
    return [*rows[:index], point(fields | {"mean_latency_s": latency_s}, old.origin), *rows[index + 1 :]]


def test_closed_and_open_loop_rows_give_one_law() -> None:
    both = closed("none", 0, 1.2, 0.07) + poisson("none", 0, 1.2, 0.07, [1, 4, 8], first_row=20)
    found = fit(both)
    assert (found.c1_s, found.c2_s) == (pytest.approx(1.2, rel=0.03), pytest.approx(0.07, rel=0.03))
    assert found.saturation_rps == pytest.approx(1 / 0.07, rel=0.05)
    assert found.points == 10


def test_imposed_concurrency_taken_for_the_load_of_an_open_loop_would_be_an_error_of_one_c2() -> None:
    found = fit(
        closed("none", 0, 1.2, 0.07, clients=[1]) + poisson("none", 0, 1.2, 0.07, [2, 9], first_row=9)
    )
    # Two hundredths would be the error of one C2 at the lower rate.
    assert found.max_relative_error < 0.01


def test_constant_arrivals_are_taken_for_poisson_and_said_to_be() -> None:
    rows = poisson("none", 0, 1.2, 0.07, [1, 4, 8], load_mode="constant")
    profile = fit_points(rows)
    assert profile.arms[0].c1_s == pytest.approx(1.2, rel=0.03)
    assert any("3 without output_tokens_sq are taken for Poisson" in warning for warning in profile.warnings)


def test_constant_arrivals_meet_one_other_less_where_lengths_are_known_to_be_equal() -> None:
    # Equal lengths: L = C1 + (rate*L - 1)*C2.
    rows = []
    for rps in (2, 5, 9):
        latency_s = (1.2 - 0.07) / (1 - rps * 0.07)
        columns = {"mean_latency_s": latency_s, "output_tokens": 64.0, "output_tokens_sq": 64.0**2}
        rows += poisson("none", 0, 1.2, 0.07, [rps], first_row=rps, load_mode="constant", **columns)
    profile = fit_points(rows)
    assert (profile.arms[0].c1_s, profile.arms[0].c2_s) == (
        pytest.approx(1.2, rel=0.04),
        pytest.approx(0.07, rel=0.06),
    )
    assert any("taken into account" in warning for warning in profile.warnings)


def test_bounds_hold_the_truth_and_shrink_with_confidence() -> None:
    rows = closed("none", 0, 1.2, 0.07, noise=0.02)
    wide, narrow = fit(rows, 0.95), fit(rows, 0.5)
    assert wide.c1_ci_s[0] < 1.2 < wide.c1_ci_s[1]
    assert wide.c1_ci_s[1] - wide.c1_ci_s[0] > 2 * (narrow.c1_ci_s[1] - narrow.c1_ci_s[0])


@pytest.mark.parametrize(("index", "slower"), [(1, 1.0), (3, 1.0), (3, 30.0)])
def test_one_bad_point_is_named_and_does_not_move_the_law(index, slower) -> None:
    rows = closed("none", 0, 1.2 * slower, 0.07 * slower, noise=0.01)
    clean = fit(rows)
    spoiled = fit(with_latency(rows, index, 2.5 * rows[index].mean_latency_s))
    assert [(row.row, row.reason) for row in spoiled.excluded] == [(index + 2, "Outlier")]
    assert spoiled.c1_s == pytest.approx(clean.c1_s, rel=0.02)
    assert spoiled.c2_s == pytest.approx(clean.c2_s, rel=0.02)


@pytest.mark.parametrize(("off", "named"), [(1.08, []), (1.13, ["Outlier"])])
def test_a_point_between_others_is_bad_from_a_tenth_on(off, named) -> None:
    rows = closed("none", 0, 1.2, 0.07)
    spoiled = fit(with_latency(rows, 3, off * rows[3].mean_latency_s))
    assert [row.reason for row in spoiled.excluded] == named


def test_a_bad_point_that_its_replicate_confirms_is_no_bad_point() -> None:
    rows = closed("none", 0, 1.2, 0.07, noise=0.01)
    slow = 2.5 * rows[3].mean_latency_s
    spoiled = with_latency(rows, 3, slow)
    again = point(
        {"method": "none", "k": 0.0, "concurrency": rows[3].concurrency or 0.0, "mean_latency_s": slow},
        Origin("s", 40),
    )
    assert words(fit([*spoiled, again])) == []


def test_noise_alone_excludes_nothing() -> None:
    fits = [fit(closed("none", 0, 1.2, 0.07, noise=0.03, seed=seed)) for seed in seeds_of_law(40)]
    assert sum(bool(one.excluded) for one in fits) <= 1


def test_a_knee_before_saturation_is_followed() -> None:
    rows = [
        row
        for c in (1, 4, 8, 16, 24, 32, 48, 64)
        for row in closed("none", 0, 1.2 + 0.1 * max(c - 20, 0), 0.05, clients=[c], noise=0.005)
    ]
    found = fit(rows)
    assert found.max_relative_error < 0.05


def knee(clients, noise=0.0, seed=1):
    return [
        row
        for index, c in enumerate(clients)
        for row in closed(
            "none", 0, 1.2 + 0.1 * max(c - 20, 0), 0.05, clients=[c], noise=noise, seed=seed + index
        )
    ]


@pytest.mark.parametrize("clients", [[8], [8, 8, 8], [1, 8], [1, 4, 8, 16]])
def test_bounds_hold_the_law_however_few_loads_tell_of_it(clients) -> None:
    """What one load cannot tell is in the bounds: C2 is as wide as its prior."""
    found = fit(closed("none", 0, 1.2, 0.07, clients=clients, noise=0.01))
    for low, value, high in (
        (found.c1_ci_s[0], 1.2, found.c1_ci_s[1]),
        (found.c2_ci_s[0], 0.07, found.c2_ci_s[1]),
    ):
        assert low < value < high
    assert (found.c2_ci_s[1] > 4 * found.c2_ci_s[0]) is (len(set(clients)) == 1)


def test_scatter_widens_the_bounds() -> None:
    calm, wild = (fit(closed("none", 0, 1.2, 0.07, noise=noise)) for noise in (0.01, 0.3))
    # Both hold the doubt of one start and its minutes.
    assert wild.c1_ci_s[1] / wild.c1_ci_s[0] - 1.0 > 1.1 * (calm.c1_ci_s[1] / calm.c1_ci_s[0] - 1.0)


def test_a_measured_ceiling_below_the_law_is_the_saturation() -> None:
    saturated = poisson("none", 0, 1.2, 0.07, [14.0], first_row=30, achieved_rps=11.5)
    found = fit(closed("none", 0, 1.2, 0.07) + saturated)
    assert found.measured_saturation_rps == pytest.approx(11.5)
    assert found.saturation_rps == pytest.approx(11.5)
    assert words(found) == ["SaturatedPoint"]


def with_ceiling(requests: float = 640.0, clients: int = 64, **columns):
    """A law of 28.7 rps, and a row that queued: 64 clients, answers of 2.58 s, of which a window counted 17.5 rps."""
    seen = {"mean_inflight": float(clients), "achieved_rps": 17.5, "requests": requests} | columns
    row = closed("none", 0, 2.58, 0.0, clients=[clients], first_row=30, flag="SaturatedPoint", **seen)
    return closed("none", 0, 0.35, 1 / 28.7, clients=[1, 2, 4, 8, 16, 32], noise=0.01) + row


def test_the_ceiling_of_a_closed_loop_is_in_flight_over_latency_and_no_count_of_batches() -> None:
    found = fit(with_ceiling())
    assert words(found) == ["SaturatedPoint"]
    assert found.measured_saturation_rps == pytest.approx(64 / 2.58)
    assert found.saturation_rps == pytest.approx(64 / 2.58)


def test_a_row_of_two_generations_sets_no_ceiling() -> None:
    found = fit(with_ceiling(requests=128.0))
    assert (words(found), found.measured_saturation_rps) == (["SaturatedPoint"], None)
    assert found.saturation_rps == pytest.approx(28.7, rel=0.05)


def test_a_ceiling_is_never_below_what_a_used_row_carried() -> None:
    # One row says that 8 clients queue at 3.1 rps; 32 clients were served at 22 rps.
    found = fit(with_ceiling(clients=8, requests=80.0))
    carried = max(row.inflight / row.latency_s for row in found.measurements)
    assert found.measured_saturation_rps == pytest.approx(carried)
    assert found.saturation_rps >= carried


def test_an_open_loop_that_was_answered_sets_no_ceiling() -> None:
    # Flagged at half of the engine's saturation, as requests that wait for the next step once were.
    flagged = poisson("none", 0, 1.2, 0.07, [7.0], first_row=30, achieved_rps=7.0, flag="SaturatedPoint")
    found = fit(closed("none", 0, 1.2, 0.07) + flagged)
    assert (words(found), found.measured_saturation_rps) == (["SaturatedPoint"], None)
    assert found.saturation_rps == pytest.approx(1 / 0.07, rel=0.05)


def test_a_measured_ceiling_has_an_error_on_both_sides() -> None:
    found = fit(with_ceiling())
    low, high = found.saturation_ci_rps
    assert low < found.saturation_rps < high
    assert high / found.saturation_rps == pytest.approx(found.saturation_rps / low)


def test_saturation_is_never_below_a_used_row_whatever_the_law_says() -> None:
    # With 1000 in flight C1 is nothing, and a row 3 % faster than the law is carried beyond 1/C2.
    rows = closed("none", 0, 0.5, 0.07, clients=[1, 8, 64, 300, 1000])
    fast = closed("none", 0, 0.5 * 0.97, 0.07 * 0.97, clients=[1000], first_row=30)
    found = fit(rows + fast)
    assert found.saturation_rps >= max(row.inflight / row.latency_s for row in found.measurements)


def test_an_unsteady_row_is_no_ceiling() -> None:
    unsteady = closed("none", 0, 1.2, 0.07, clients=[8], first_row=30, mean_inflight=7.0, achieved_rps=2.0)
    found = fit(closed("none", 0, 1.2, 0.07) + unsteady)
    assert words(found) == ["NotSteady"]
    assert found.measured_saturation_rps is None


def test_rows_of_another_output_length_follow_another_law() -> None:
    rows = closed("none", 0, 1.2, 0.07, output_tokens=200.0) + closed(
        "none", 0, 2.4, 0.14, clients=[1, 8], output_tokens=400.0, first_row=30
    )
    found = fit(rows)
    assert (found.c1_s, words(found)) == (pytest.approx(1.2, rel=0.01), ["OtherLengths", "OtherLengths"])


def test_probes_of_length_of_a_sweep_are_in_the_law_and_no_rows_that_somebody_must_look_for() -> None:
    rows = closed("none", 0, 1.2, 0.07, output_tokens=200.0, sweep="a")
    probes = closed("none", 0, 2.4, 0.14, clients=[1, 8], output_tokens=400.0, first_row=30)
    for sweep, named in (("a", 0), ("b", 2), (None, 2)):
        profile = fit_points([*rows, *(replace(one, sweep=sweep) for one in probes)])
        assert (words(profile.arms[0]), len(profile.arms[0].other_lengths)) == (["OtherLengths"] * named, 2)
        assert any("OtherLengths" in one for one in profile.warnings) is bool(named)


def test_ttft_tpot_and_quantile_laws_are_fitted_with_the_means_load() -> None:
    rows = []
    for c in CLIENTS:
        rows += closed(
            "none", 0, 1.2, 0.07, clients=[c], ttft_mean_s=0.1 + 0.01 * (c - 1), tpot_mean_s=0.005 + 0.0002 * (c - 1),
            p95_latency_s=2.0 + 0.1 * (c - 1), p50_latency_s=1.1 + 0.06 * (c - 1), output_tokens=201.0,
            ttft_p50_s=0.08 + 0.008 * (c - 1), tpot_p95_s=0.006 + 0.0003 * (c - 1), tpot_p99_s=0.007 + 0.0005 * (c - 1),
        )  # fmt: skip
    found = fit(rows)
    assert (found.ttft.c1_s, found.ttft.c2_s) == (pytest.approx(0.1), pytest.approx(0.01))
    assert (found.tpot.c1_s, found.tpot.c2_s) == (pytest.approx(0.005), pytest.approx(0.0002))
    assert sorted(found.quantiles) == ["0.5", "0.95"]
    assert sorted(found.tpot_quantiles) == ["0.95", "0.99"]
    assert found.tpot_quantiles["0.99"].c2_s == pytest.approx(0.0005)
    assert found.ttft_quantiles["0.5"].c1_s == pytest.approx(0.08)


def test_acceptance_is_weighted_by_requests_and_its_scatter_bounds_it() -> None:
    rows = [
        row
        for c, e, requests in ((1, 2.4, 1000), (8, 2.6, 3000), (64, 2.5, 1000))
        for row in closed("eagle3", 3, 0.8, 0.08, clients=[c], tokens_per_step=e, requests=requests)
    ]
    found = fit(rows)
    assert found.tokens_per_step == pytest.approx(2.54)
    # At 90 %, of three rows: 2.92 standard errors.
    assert found.acceptance.tokens_per_step_ci == pytest.approx((2.54 - 0.1652, 2.54 + 0.1652), abs=1e-3)
    alike = fit([replace(row, requests=None) for row in rows])
    assert alike.acceptance.tokens_per_step_ci == pytest.approx((2.5 - 0.1686, 2.5 + 0.1686), abs=1e-3)


@pytest.mark.parametrize("last", [2.5, None])
def test_a_lone_row_of_few_accepted_drafts_is_no_residual_even_if_another_row_has_no_acceptance(last) -> None:
    lone, *others = closed("eagle3", 3, 0.6, 0.05, tokens_per_step=2.5, requests=400)
    lone = replace(lone, tokens_per_step=2.2, mean_latency_s=lone.mean_latency_s * 2.5 / 2.2, requests=20)
    others[-1] = replace(others[-1], tokens_per_step=last)
    _, found = fit_points([*closed("none", 0, 1.2, 0.07), lone, *others]).arms
    assert found.max_relative_error < 0.05


def test_survival_stands_for_tokens_per_step_where_a_drafter_always_drafts() -> None:
    profile = {"accept_1": 0.7, "accept_2": 0.4, "accept_3": 0.2}
    assert fit(closed("eagle3", 3, 0.8, 0.08, **profile)).tokens_per_step == pytest.approx(2.3)
    assert fit(closed("ngram", 3, 0.8, 0.08, **profile)).tokens_per_step is None


@pytest.mark.parametrize(("count", "said"), [(7, "7 rows repeat"), (1, "1 row repeats")])
def test_rows_given_twice_are_named(count: int, said: str) -> None:
    rows = closed("none", 0, 1.2, 0.07, noise=0.01)
    again = [replace(row, origin=Origin("copy.csv", row.origin.row)) for row in rows[:count]]
    warning = f"{said} another one in every figure"
    assert any(warning in line for line in fit_points(rows + again).warnings)
    assert not any("repeat" in line for line in fit_points(rows).warnings)


def test_a_sweep_without_a_second_arm_or_without_no_speculation_is_named() -> None:
    none, eagle = closed("none", 0, 1.2, 0.07), closed("eagle3", 3, 0.8, 0.085)
    lacking = {"only method none was measured": none, "no row of method none": eagle}
    for said, rows in lacking.items():
        assert any(said in line for line in fit_points(rows).warnings)
        assert not any(said in line for line in fit_points(none + eagle).warnings)


def test_the_end_of_a_curve_that_bends_is_no_bad_point() -> None:
    rows = closed("none", 0, 1.2, 0.07, clients=(1, 32, 64, 128, 256))
    lone = replace(rows[0], mean_latency_s=1.2 * 0.87)
    assert fit_points([lone, *rows[1:]]).arms[0].excluded == ()
    wrong = replace(rows[0], mean_latency_s=1.2 * 1.5)
    assert [one.reason for one in fit_points([wrong, *rows[1:]]).arms[0].excluded] == [Reason.OUTLIER]


def test_an_arm_that_obeys_no_law_widens_the_bounds_and_is_said() -> None:
    good = closed("none", 0, 1.2, 0.07, noise=0.01) + closed("eagle3", 2, 0.9, 0.075, noise=0.01)
    # Twice as long, half as long, and so on: no step has such durations.
    wild = [
        row
        for at, c in enumerate(CLIENTS)
        for row in closed("ngram", 3, 1.0 * 3 ** (-1) ** at, 0.06 * 3 ** (-1) ** at, clients=[c])
    ]
    alone, with_it = fit_points(good), fit_points(good + wild)
    assert any("ngram/3: a row lies" in one for one in with_it.warnings)
    for fit, same in zip(with_it.arms, alone.arms, strict=False):
        assert fit.c1_ci_s[0] < same.c1_s < fit.c1_ci_s[1]
    low, high = with_it.compare(with_it.arms[2].arm, rps=4.0).speedup_ci
    assert low < 1.0 < (high or 9.9)


def test_every_command_has_one_figure() -> None:
    """`fit`, `predict` and `plan` read C1, C2 and saturation off one law."""
    rows = closed("none", 0, 1.2, 0.07, noise=0.02) + closed("eagle3", 3, 0.8, 0.085, noise=0.02)
    profile = fit_points(rows)
    none, eagle = profile.arms
    for arm in profile.arms:
        curve = profile.curve(arm.arm)
        assert arm.c1_s == pytest.approx(profile.predict(arm.arm, rps=1e-6).latency_s, rel=1e-4)
        assert arm.saturation_rps == curve.saturation_rps
    compared = profile.compare(eagle.arm, rps=4.0)
    assert compared.c1_ratio == pytest.approx(eagle.c1_s / none.c1_s)
    assert compared.c2_ratio == pytest.approx(eagle.c2_s / none.c2_s)

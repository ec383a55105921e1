"""Predictions from a profile: loads, bounds, conditions and whether they lie outside what was measured."""

from dataclasses import replace

import numpy as np
import pytest

from breakeven.arm import NO_SPECULATION, Arm
from breakeven.errors import InputError, NotIdentifiedError
from breakeven.fitting import fit_points
from breakeven.profile import Bounds, LoadPoint
from breakeven.profile.operating_conditions import Conditions
from breakeven.profile.predictions import quantile_law
from breakeven.profile.step_curves import step_curve
from sweeps import CLIENTS, closed, poisson, without_starts

EAGLE = Arm("eagle3", 3)


def sweep(noise=0.0):
    rows = closed("none", 0, 1.2, 0.07, noise=noise, output_tokens=201.0, prompt_tokens=500.0)
    for c in CLIENTS:
        rows += closed(
            "eagle3", 3, 0.8, 0.085, clients=[c], noise=noise, seed=c, tokens_per_step=2.5, output_tokens=201.0,
            prompt_tokens=500.0, ttft_mean_s=0.1 + 0.005 * (c - 1), tpot_mean_s=(0.7 + 0.08 * (c - 1)) / 200,
            p50_latency_s=0.8 + 0.08 * (c - 1), p95_latency_s=1.1 + 0.1 * (c - 1), first_row=100 + c,
            ttft_p50_s=0.09 + 0.006 * (c - 1), ttft_p95_s=0.2 + 0.01 * (c - 1),
            tpot_p95_s=(0.9 + 0.1 * (c - 1)) / 200,
        )  # fmt: skip
    return rows


@pytest.fixture(scope="module")
def profile():
    return fit_points(sweep())


def test_open_and_closed_loop_follow_the_two_forms_of_the_law(profile) -> None:
    at_rate = profile.predict(NO_SPECULATION, rps=8)
    assert at_rate.latency_s == pytest.approx(1.2 / (1 - 0.56), rel=0.03)
    assert at_rate.inflight == pytest.approx(8 * at_rate.latency_s)
    assert at_rate.utilisation == pytest.approx(0.56, rel=0.05)
    at_clients = profile.predict(NO_SPECULATION, concurrency=9)
    assert (at_clients.latency_s, at_clients.inflight) == (pytest.approx(1.2 + 8 * 0.07, rel=0.01), 9)
    assert at_clients.basis == "arm"


def test_saturation_is_a_fact_not_a_number(profile) -> None:
    found = profile.predict(EAGLE, rps=11.8)
    assert (found.saturated, found.latency_s, found.latency_ci_s, found.ttft_s) == (True, None, None, None)
    assert found.outside_measured


def test_a_load_far_below_the_lowest_measured_one_is_outside() -> None:
    narrow = fit_points(closed("none", 0, 1.2, 0.07, clients=[32, 40, 48]))
    assert narrow.predict(NO_SPECULATION, concurrency=1).outside_measured


def test_a_load_just_below_the_lowest_measured_one_is_not() -> None:
    from_four = fit_points(closed("none", 0, 1.2, 0.07, clients=[4, 8, 16, 32, 64]))
    assert not from_four.predict(NO_SPECULATION, concurrency=1).outside_measured


def test_ttft_and_tpot_follow_their_own_laws_and_add_up(profile) -> None:
    found = profile.predict(EAGLE, concurrency=9)
    assert found.ttft_s == pytest.approx(0.14)
    assert found.ttft_s + 200 * found.tpot_s == pytest.approx(found.latency_s, rel=0.01)
    assert profile.predict(NO_SPECULATION, rps=1).ttft_s is None


def test_lower_acceptance_slows_decoding_and_leaves_the_first_token(profile) -> None:
    usual, poor = (
        profile.predict(EAGLE, concurrency=1, conditions=Conditions(tokens_per_step=e)) for e in (2.5, 1.25)
    )
    assert usual.latency_s == pytest.approx(profile.predict(EAGLE, concurrency=1).latency_s)
    assert poor.ttft_s == pytest.approx(usual.ttft_s, rel=0.01)
    assert poor.tpot_s == pytest.approx(2 * usual.tpot_s, rel=0.01)
    assert poor.latency_s == pytest.approx(poor.ttft_s + 200 * poor.tpot_s, rel=0.03)


def test_others_prompts_cost_alike_whatever_is_accepted(profile) -> None:
    """TTFT rises by 5 ms with each other request: that part of C2 is prompts, and the rest doubles if E is half."""
    certain = without_starts(profile)
    poor = certain.predict(EAGLE, concurrency=9, conditions=Conditions(tokens_per_step=1.25))
    low, high = poor.latency_ci_s
    assert 0.98 * low < 0.1 + 2 * 0.7 + 8 * (0.005 + 2 * 0.08) < 1.08 * high
    assert (high - low) / poor.latency_s > 2 * _width(certain.predict(EAGLE, concurrency=9))


def _width(found) -> float:
    low, high = found.latency_ci_s
    return (high - low) / found.latency_s


def test_other_lengths_change_their_parts_and_far_ones_are_outside(profile) -> None:
    longer = profile.predict(EAGLE, concurrency=1, conditions=Conditions(output_tokens=401))
    assert longer.latency_s == pytest.approx(0.1 + 400 * 0.7 / 200, rel=0.05)
    assert not longer.outside_measured
    assert profile.predict(EAGLE, concurrency=1, conditions=Conditions(output_tokens=2001)).outside_measured
    wordy = profile.predict(EAGLE, concurrency=1, conditions=Conditions(prompt_tokens=600))
    assert 0.1 + 0.7 < wordy.latency_s <= 0.1 * 1.2 + 0.7


def test_quantiles_use_the_means_load_and_never_cross(profile) -> None:
    p95 = profile.predict(EAGLE, concurrency=9, quantile=0.95)
    assert p95.latency_s == pytest.approx(1.1 + 8 * 0.1, rel=0.01)
    assert profile.predict(EAGLE, concurrency=9, quantile=0.5).latency_s <= p95.latency_s
    with pytest.raises(NotIdentifiedError, match=r"0\.5, 0\.95"):
        profile.predict(EAGLE, rps=1, quantile=0.9)
    with pytest.raises(NotIdentifiedError, match="no quantile was measured"):
        profile.predict(NO_SPECULATION, rps=1, quantile=0.5)


def test_quantiles_of_ttft_and_tpot_have_laws_of_their_own_at_the_means_load(profile) -> None:
    p95 = profile.predict(EAGLE, rps=8, quantile=0.95)
    others = 8 * profile.predict(EAGLE, rps=8).latency_s
    assert p95.ttft_s == pytest.approx(0.2 + 0.01 * others)
    assert p95.tpot_s == pytest.approx((0.9 + 0.1 * others) / 200)
    assert (p95.means, p95.inflight) == ((), pytest.approx(others))


def test_a_quantile_moves_with_the_conditions_as_its_mean_does(profile) -> None:
    usual, usual_mean = (profile.predict(EAGLE, concurrency=9, quantile=q) for q in (0.95, None))
    for asked in (Conditions(tokens_per_step=1.25), Conditions(prompt_tokens=600)):
        moved, moved_mean = (
            profile.predict(EAGLE, concurrency=9, conditions=asked, quantile=q) for q in (0.95, None)
        )
        assert moved.tpot_s / usual.tpot_s == pytest.approx(moved_mean.tpot_s / usual_mean.tpot_s)
        assert moved.ttft_s / usual.ttft_s == pytest.approx(moved_mean.ttft_s / usual_mean.ttft_s)


def test_a_mean_in_the_place_of_a_quantile_is_named(profile) -> None:
    mean = profile.predict(EAGLE, concurrency=9)
    p50 = profile.predict(EAGLE, concurrency=9, quantile=0.5)
    assert (p50.means, p50.tpot_s, p50.ttft_s) == (("tpot_s",), mean.tpot_s, pytest.approx(0.138))
    p99 = profile.predict_along(EAGLE, profile.curve(EAGLE), LoadPoint(concurrency=9), quantile=0.99)
    assert p99.means == ("latency_s", "ttft_s", "tpot_s")
    assert (p99.latency_s, p99.latency_ci_s) == (mean.latency_s, mean.latency_ci_s)
    # Nothing was measured of it, so nothing stands in for it.
    curve = profile.curve(NO_SPECULATION)
    none = profile.predict_along(NO_SPECULATION, curve, LoadPoint(rps=1), quantile=0.95)
    assert (none.means, none.ttft_s) == (("latency_s",), None)


def test_quantiles_that_cross_by_noise_are_put_in_order() -> None:
    rows = []
    for c in CLIENTS:
        rows += closed(
            "none", 0, 1.2, 0.07, clients=[c], first_row=c, ttft_p50_s=0.02 * c, ttft_p95_s=0.1 + 0.02 * c
        )
    fit = fit_points(rows).arm(NO_SPECULATION)
    crossing = fit.ttft_quantiles | {"0.95": replace(fit.ttft_quantiles["0.95"], c2_s=0.001)}
    assert quantile_law(crossing, 0.95, 0.0).among(0.0) == pytest.approx(0.12)
    assert quantile_law(crossing, 0.95, 60.0) is crossing["0.5"]
    assert quantile_law(crossing, 0.99, 0.0) is None


def test_bounds_hold_the_truth_and_grow_towards_saturation() -> None:
    # With an open loop: closed ones alone say less of a rate.
    beside = poisson(
        "eagle3",
        3,
        0.8,
        0.085,
        [2.0, 5.0, 8.0],
        tokens_per_step=2.5,
        output_tokens=201.0,
        prompt_tokens=500.0,
    )
    noisy = without_starts(fit_points(sweep(noise=0.02) + beside))
    widths = []
    for rps in (1, 8, 9.5):
        found = noisy.predict(EAGLE, rps=rps)
        low, high = found.latency_ci_s
        assert low < 0.8 / (1 - rps * 0.085) < high
        widths.append((high - low) / found.latency_s)
    assert widths == sorted(widths)
    assert noisy.predict(EAGLE, rps=0.99 * noisy.curve(EAGLE).saturation_rps).latency_ci_s[1] is None
    tight = noisy.predict(EAGLE, rps=8, confidence=0.5).latency_ci_s
    assert tight[1] - tight[0] < widths[1] * noisy.predict(EAGLE, rps=8).latency_s


def test_an_arm_that_bends_is_followed_where_it_was_measured() -> None:
    clients = (1, 4, 8, 16, 24, 32, 48, 64)
    rows = [
        r
        for c in clients
        for r in closed("none", 0, 1.2 + 0.1 * max(c - 20, 0), 0.05, clients=[c], noise=0.003)
    ]
    bent = fit_points(rows)
    inside = bent.predict(NO_SPECULATION, concurrency=28)
    assert inside.latency_s == pytest.approx(1.2 + 0.1 * 8 + 27 * 0.05, rel=0.01)
    at_rate = bent.predict(NO_SPECULATION, rps=5)
    assert at_rate.latency_s == pytest.approx(1.2 + 5 * at_rate.latency_s * 0.05, rel=0.03)


def test_quantile_laws_that_would_cross_do_not() -> None:
    rows = [
        row
        for c, p50, p95 in ((1, 1.0, 3.0), (16, 1.5, 3.0), (64, 2.9, 3.0))
        for row in closed("none", 0, 1.2, 0.02, clients=[c], p50_latency_s=p50, p95_latency_s=p95)
    ]
    flat = fit_points(rows)
    median, high = (flat.predict(NO_SPECULATION, concurrency=200, quantile=q).latency_s for q in (0.5, 0.95))
    assert median > 3.5
    assert high == median


@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"rps": 1, "concurrency": 1},
        {"rps": -1},
        {"concurrency": 0.5},
        {"rps": 1, "conditions": Conditions(tokens_per_step=9)},
        {"rps": 1, "conditions": Conditions(tokens_per_step=0.5)},
        {"rps": 1, "conditions": Conditions(output_tokens=0)},
        {"rps": 1, "conditions": Conditions(prompt_tokens=0)},
    ],
)
def test_impossible_questions_are_refused(profile, arguments) -> None:
    with pytest.raises(InputError):
        profile.predict(EAGLE, **arguments)


def test_what_was_not_measured_is_not_invented(profile) -> None:
    with pytest.raises(NotIdentifiedError, match="measured arms: none, eagle3/3"):
        profile.predict(Arm("ngram", 3), rps=1)
    bare = fit_points(closed("eagle3", 3, 0.8, 0.085))
    with pytest.raises(NotIdentifiedError, match="acceptance was not measured"):
        bare.predict(EAGLE, rps=1, conditions=Conditions(tokens_per_step=2))
    with pytest.raises(NotIdentifiedError, match="output length was not measured"):
        bare.predict(EAGLE, rps=1, conditions=Conditions(output_tokens=10))
    saturated = closed("none", 0, 1.2, 0.07) + poisson("eagle3", 3, 0.8, 0.08, [1], flag="SaturatedPoint")
    with pytest.raises(NotIdentifiedError, match="no usable point"):
        fit_points(saturated).predict(EAGLE, rps=1)


def test_the_first_token_remains_where_it_was_not_told_from_the_others() -> None:
    whole = fit_points(closed("eagle3", 3, 0.8, 0.085, output_tokens=200.0))
    # Between one step and one step with all the prefill that C2 could have been.
    assert (
        0.8 / 201
        < whole.predict(EAGLE, concurrency=1, conditions=Conditions(output_tokens=1)).latency_s
        < 0.8 / 200 + 0.085
    )
    assert whole.predict(
        EAGLE, concurrency=1, conditions=Conditions(output_tokens=400)
    ).latency_s == pytest.approx(1.6, rel=0.06)


@pytest.mark.parametrize("load", [{"concurrency": 20}, {"rps": 8.0}])
def test_bounds_of_a_quantile_and_of_tpot_are_those_of_their_own_laws(load: dict[str, float]) -> None:
    """A p95 scatters more than the mean of the same rows: the mean's bounds scaled would promise too much."""
    rng = np.random.default_rng(5)
    rows = []
    for c in CLIENTS:
        rows += closed(
            "none", 0, 1.2, 0.07, clients=[c], noise=0.005, seed=c, first_row=c, output_tokens=201.0,
            p95_latency_s=(1.8 + 0.1 * (c - 1)) * (1 + 0.05 * rng.standard_normal()),
            tpot_mean_s=(1.1 + 0.06 * (c - 1)) / 200 * (1 + 0.05 * rng.standard_normal()),
        )  # fmt: skip
    profile = fit_points(rows)

    def width(value: float | None, bounds: Bounds | None) -> float:
        assert value is not None and bounds is not None and None not in bounds  # noqa: PT018
        low, high = bounds
        assert low < value < high
        return (high - low) / value

    mean = profile.predict(NO_SPECULATION, **load)
    p95 = profile.predict(NO_SPECULATION, quantile=0.95, **load)
    # One point scatters by 5 %, and so do lines through seven of them by 2 % on either side.
    assert width(p95.latency_s, p95.latency_ci_s) > 0.06
    assert width(mean.tpot_s, mean.tpot_ci_s) > 0.06
    assert (mean.ttft_s, mean.ttft_ci_s) == (None, None)


def test_a_curve_is_made_once_for_the_same_profile_arm_and_conditions(monkeypatch):
    one = fit_points(closed("none", 0, 1.2, 0.07))
    read: list[Conditions] = []
    monkeypatch.setattr(
        "breakeven.profile.document.step_curve", lambda *asked: read.append(asked[-1]) or step_curve(*asked)
    )
    assert one.curve(NO_SPECULATION) is one.curve(NO_SPECULATION, Conditions())
    assert one.curve(NO_SPECULATION, Conditions(dispersion=4.0)) is not one.curve(NO_SPECULATION)
    assert read == [Conditions()], "bursts are added to the curve that is known"
    with pytest.raises(InputError, match="dispersion"):
        one.curve(NO_SPECULATION, Conditions(dispersion=-1.0))
    assert replace(one).curve(NO_SPECULATION) is not one.curve(NO_SPECULATION)

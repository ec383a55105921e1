"""Requests that engines of several classes share have one curve: the mean of the classes', with the doubts of each."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from breakeven.arm import NO_SPECULATION, Arm
from breakeven.errors import NotIdentifiedError
from breakeven.laws.law import Law
from breakeven.profile import Conditions, LawFit, LoadPoint, Profile
from breakeven.profile.comparisons import JudgedCurve, compare_curves
from breakeven.profile.composition import CurvePart, ProfilePart, composed, composed_curve
from breakeven.profile.curves import Curve
from fakes.lawful_profile import lawful_profile_json
from fakes.straight_curve import bent_curve, straight_curve

EAGLE = Arm("eagle3", 3, "eagle")
RATES = np.linspace(0.0, 15.0, 61)


def slow(**fields) -> Curve:
    return straight_curve(
        Law(1.0, 0.05, ((4e-4, 0.0), (0.0, 1e-6))), 6, 0.02, others_range=(0.0, 30.0), **fields
    )


def fast(**fields) -> Curve:
    return straight_curve(
        Law(0.4, 0.02, ((1e-4, 0.0), (0.0, 4e-7))), 9, 0.01, others_range=(0.0, 25.0), **fields
    )


def mean_latencies(parts, rates, first_token_s=None):
    """Brute force: each class at its own rate, by its share of the requests."""
    found = np.zeros_like(rates)
    for one in parts:
        latency_s = one.curve.latencies_at_rps(one.pace * rates)
        line = one.curve.ttft if first_token_s is not None else None
        before_s = line.c1_s + line.c2_s * one.pace * rates * latency_s if line is not None else 0.0
        found += one.requests * (latency_s - before_s)
    return found + (first_token_s or 0.0)


def line(c1_s, c2_s=0.01):
    return LawFit(c1_s, c2_s, ((1e-6, 0.0), (0.0, 1e-8)), 5, 0.01, 0.02)


@pytest.mark.parametrize(
    "curve", [slow(), bent_curve([(0.0, 1.0), (2.0, 1.5), (6.0, 1.7), (20.0, 3.2)], 0.02)]
)
def test_one_class_alone_is_its_own_curve(curve):
    found = composed_curve([CurvePart(curve, 1.0, 1.0)])
    rates = np.linspace(0.0, 0.99 * curve.saturation_rps, 70)
    np.testing.assert_allclose(found.latencies_at_rps(rates), curve.latencies_at_rps(rates), rtol=1e-3)
    mine, its = found.doubts_at_rps(rates), curve.doubts_at_rps(rates)
    np.testing.assert_allclose(mine.shared, its.shared, atol=1e-4)
    np.testing.assert_allclose(mine.own, its.own, rtol=1e-3)
    assert (found.saturation_rps, found.dof, found.noise) == (curve.saturation_rps, curve.dof, curve.noise)
    assert found.others_range == pytest.approx(curve.others_range)
    assert found.line[:2] == pytest.approx(curve.line[:2], rel=1e-3)


@pytest.mark.parametrize(
    ("pods", "paces", "first_token_s"), [((0.5, 0.5), (1.0, 1.0), None), ((0.25, 0.75), (0.4, 1.2), 0.3)]
)
def test_a_mixture_answers_as_its_classes_do_at_their_own_rates(pods, paces, first_token_s):
    parts = [
        CurvePart(curve, share * pace, pace)
        for curve, share, pace in zip(
            (slow(ttft=line(0.2)), fast(ttft=line(0.1, 0.005))), pods, paces, strict=True
        )
    ]
    found = composed_curve(parts, first_token_s)
    np.testing.assert_allclose(
        found.latencies_at_rps(RATES), mean_latencies(parts, RATES, first_token_s), rtol=2e-3
    )


def test_the_whole_saturates_with_the_class_that_saturates_first():
    parts = [CurvePart(slow(ceiling_rps=16.0), 0.25, 0.5), CurvePart(fast(), 0.75, 1.5)]
    assert composed_curve(parts).saturation_rps == pytest.approx(32.0)
    assert composed_curve(parts).ceiling_rps == pytest.approx(32.0)
    even = [CurvePart(slow(ceiling_rps=16.0), 0.5, 1.0), CurvePart(fast(), 0.5, 1.0)]
    assert composed_curve(even).saturation_rps == pytest.approx(16.0)


@pytest.mark.parametrize("first_token_s", [None, 0.4])
def test_an_error_of_one_class_moves_the_mean_by_its_part(first_token_s):
    """The doubt of each source is the change of the mean latency if that class's law errs by one deviation."""
    parts = [CurvePart(slow(ttft=line(0.2)), 0.5, 1.0), CurvePart(fast(ttft=line(0.1, 0.005)), 0.5, 1.0)]
    found = composed_curve(parts, first_token_s)
    doubts = found.doubts_at_rps(RATES)
    assert doubts.shared.shape == (RATES.size, 4)
    for place, (at, source) in enumerate(((0, 0), (0, 1), (1, 0), (1, 1))):
        curve = parts[at].curve
        size = 1e-3
        moved = curve.knots * np.column_stack(
            [np.ones(len(curve.knots)), np.exp(size * curve.loadings[:, source])]
        )
        others = list(parts)
        others[at] = CurvePart(replace(curve, knots=moved), parts[at].requests, parts[at].pace)
        moved_s, now_s = (mean_latencies(one, RATES, first_token_s) for one in (others, parts))
        change = np.log(moved_s / now_s) / size
        np.testing.assert_allclose(doubts.shared[:, place] * doubts.slowed, change, atol=2e-4, rtol=0.02)


def test_errors_that_no_curve_shares_add_up_as_squares():
    one = bent_curve([(0.0, 1.0), (10.0, 2.0), (40.0, 5.0)], 0.04)
    both = composed_curve([CurvePart(one, 0.5, 1.0), CurvePart(one, 0.5, 1.0)])
    np.testing.assert_allclose(both.own_sds[:20], 0.04 / np.sqrt(2.0), rtol=1e-6)


def test_the_scatter_over_starts_of_classes_is_in_bounds_and_not_in_the_line_that_decisions_learn_from():
    one = bent_curve([(0.0, 1.0), (10.0, 2.0), (40.0, 5.0)], 0.04)
    started = replace(one, start_sd=0.03)
    both = composed_curve([CurvePart(started, 0.5, 1.0), CurvePart(started, 0.5, 1.0)])
    assert both.start_sd == pytest.approx(0.03 / np.sqrt(2.0), rel=1e-3)
    even = composed_curve([CurvePart(one, 0.5, 1.0), CurvePart(one, 0.5, 1.0)])
    np.testing.assert_allclose(both.line.own, even.line.own, rtol=1e-6)
    np.testing.assert_allclose(both.own_sd(np.arange(5.0)), 0.05 / np.sqrt(2.0), rtol=1e-3)


def test_a_prompt_that_another_engine_reads_dilutes_a_gain():
    """With 40 % of the time before the first token a speedup of 2 becomes 1/(0.4 + 0.6/2)."""
    alone = line(0.1, 1e-9)
    none, arm = (straight_curve(Law(0.1 + c1_s, 1e-9, np.zeros((2, 2))), ttft=alone) for c1_s in (0.6, 0.3))
    pair = [composed_curve([CurvePart(one, 1.0, 1.0)], 0.4) for one in (arm, none)]
    found = compare_curves(
        JudgedCurve(EAGLE, pair[0]), JudgedCurve(NO_SPECULATION, pair[1]), LoadPoint(rps=1.0), 0.9
    )
    assert found.speedup == pytest.approx(1.0 / (0.4 + 0.6 / 2.0), rel=1e-6)
    assert pair[0].ttft.among(3.0) == pytest.approx(0.4)


def test_decoding_alone_is_unknown_without_a_measured_time_to_the_first_token():
    one = profile_of({NO_SPECULATION: (1.0, 0.05)})
    with pytest.raises(NotIdentifiedError, match="first token was not measured"):
        composed([ProfilePart(one, 1.0, 1.0)], 0.4).curve(NO_SPECULATION)


def test_figures_of_both_classes_have_one_line_and_none_if_one_lacks_it():
    parts = [CurvePart(slow(ttft=line(0.2)), 0.5, 1.0), CurvePart(fast(ttft=line(0.1)), 0.5, 1.0)]
    found = composed_curve(parts)
    assert found.ttft.c1_s == pytest.approx(0.15)
    top = found.others_range[1]
    rps = top / float(found.met_latencies(np.asarray(top)))
    met = [rps * one.curve.at_rps(rps).latency_s for one in parts]
    expected = 0.5 * (0.2 + 0.01 * met[0]) + 0.5 * (0.1 + 0.01 * met[1])
    assert found.ttft.among(top) == pytest.approx(expected, rel=1e-3)
    assert found.tpot is None
    assert composed_curve([parts[0], CurvePart(fast(), 0.5, 1.0)]).ttft is None


def profile_of(laws) -> Profile:
    text = lawful_profile_json(
        laws,
        {arm: 2.5 if arm.k else 1.0 for arm in laws},
        prompt_tokens=200.0,
        output_tokens=100.0,
        gpu="A",
    )
    return Profile.from_json(text)


def test_a_profile_of_two_classes_holds_the_arms_that_both_have_measured():
    both = profile_of({NO_SPECULATION: (1.0, 0.05), EAGLE: (0.5, 0.08)})
    alone = profile_of({NO_SPECULATION: (0.2, 0.01), Arm("ngram", 4): (0.2, 0.01)})
    found = composed([ProfilePart(both, 0.5, 1.0), ProfilePart(alone, 0.5, 1.0)])
    assert [fit.arm for fit in found.arms] == [NO_SPECULATION]
    curve = found.curve(NO_SPECULATION, Conditions(output_tokens=100.0))
    expected = [one.curve(NO_SPECULATION).at_rps(4.0).latency_s for one in (both, alone)]
    assert curve.at_rps(4.0).latency_s == pytest.approx(sum(expected) / 2.0, rel=3e-3)


@pytest.mark.parametrize(
    ("words", "found"),
    [
        (("AnswersAgree", "AnswersAgree"), "AnswersAgree"),
        (("AnswersAgree", "AnswersDiffer"), "AnswersDiffer"),
        (("AnswersDiffer", "AnswersAgree"), "AnswersDiffer"),
        (("AnswersAgree", None), None),
    ],
)
def test_answers_agree_if_they_do_on_every_class(words, found):
    one = profile_of({NO_SPECULATION: (1.0, 0.05), EAGLE: (0.5, 0.08)})
    parts = [
        ProfilePart(replace(one, arms=tuple(replace(fit, answers=word) for fit in one.arms)), 0.5, 1.0)
        for word in words
    ]
    assert composed(parts).arm(EAGLE).answers == found


def test_an_arm_is_believed_if_it_is_on_every_class():
    one = profile_of({NO_SPECULATION: (1.0, 0.05), EAGLE: (0.5, 0.08)})
    doubtful = replace(
        one, arms=tuple(replace(fit, believable=fit.k == 0, reason="TooFewPoints") for fit in one.arms)
    )
    found = composed([ProfilePart(one, 0.5, 1.0), ProfilePart(doubtful, 0.5, 1.0)])
    assert {fit.arm: fit.believable for fit in found.arms} == {NO_SPECULATION: True, EAGLE: False}
    assert found.arm(EAGLE).reason == "TooFewPoints"
    assert found.arm(EAGLE).quantiles == {}
    assert composed([ProfilePart(one, 1.0, 1.0)]).arm(EAGLE).believable

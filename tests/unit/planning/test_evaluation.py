"""Every arm at one load: under which conditions, and against whom."""

import math
from dataclasses import replace

import pytest

from breakeven.arm import NO_SPECULATION, Arm
from breakeven.fitting import fit_points
from breakeven.planning.decision_memory import LiveAcceptance
from breakeven.planning.evaluation import LoadQuestion, evaluate, evaluate_live
from breakeven.planning.objective import Slo
from breakeven.profile import LoadPoint
from breakeven.profile.fits import Lengths
from breakeven.serving.counted_window import Load
from fakes.lawmodel import EAGLE, EAGLE_2, LOOKUP, ArmLaw, chat
from sweeps import closed


def seen(profile, running=NO_SPECULATION, rps=3.0, live=(), slo=Slo(), **load):  # noqa: B008 - frozen
    arms = [fit.arm for fit in profile.arms]
    return evaluate_live(profile, Load(rps, 300, 1000, **load), running, arms, live, slo)


def test_the_running_arm_and_no_speculation_are_always_evaluated():
    profile = chat(eagle_2=ArmLaw(0.6, 0.036, 2.2))
    found = evaluate_live(profile, Load(3.0, 300, 1000), EAGLE, [EAGLE_2], (), Slo())
    assert [one.arm for one in found.arms] == [NO_SPECULATION, EAGLE, EAGLE_2]
    assert found.none.arm == NO_SPECULATION
    assert found.of(LOOKUP) is None
    assert found.none.against_none is None
    assert found.of(EAGLE).against_running is None
    one, running = found.of(EAGLE_2), found.of(EAGLE)
    assert one.against_running.speedup == pytest.approx(running.latency_s / one.latency_s)


def test_draft_lengths_that_were_not_measured_are_shown_to_people_and_do_not_exist_for_a_decision():
    figures = {"prompt_tokens": 100.0, "output_tokens": 200.0}
    profile = fit_points(
        closed("none", 0, 1.2, 0.07, **figures)
        + closed("eagle3", 2, 0.9, 0.075, tokens_per_step=1.9, **figures)
    )
    arms = [NO_SPECULATION, Arm("eagle3", 1), Arm("eagle3", 4)]
    found = evaluate(profile, arms, LoadQuestion(LoadPoint(rps=3.0)))
    assert ([one.arm for one in found.arms], list(found.left_out)) == ([NO_SPECULATION], arms[1:])
    shown = evaluate(profile, arms, LoadQuestion(LoadPoint(rps=3.0), derived=True))
    # Only one of the two lies between measured draft lengths.
    assert [(one.measured, one.extrapolated) for one in shown.arms] == [
        (True, False),
        (False, False),
        (False, True),
    ]


def test_an_arm_without_a_usable_point_is_named_with_the_reason():
    rows = closed("none", 0, 1.2, 0.07) + closed("eagle3", 2, 0.9, 0.075, flag="NotSteady")
    found = seen(fit_points(rows))
    assert [one.arm for one in found.arms] == [NO_SPECULATION]
    assert found.left_out[Arm("eagle3", 2)].endswith("no usable point (TooFewPoints)")


def test_an_arm_that_was_not_measured_is_named_with_the_reason():
    found = evaluate_live(chat(), Load(3.0, 300, 1000), LOOKUP, [EAGLE], (), Slo())
    assert found.of(LOOKUP) is None
    assert "not in the profile" in found.left_out[LOOKUP]


def test_live_acceptance_of_an_arm_without_a_calibrated_one_leaves_its_law_and_is_known():
    """Such an arm was not evaluated at all, so that one reading of live acceptance held every decision."""
    profile = chat(eagle=ArmLaw(0.53, 0.0434, None, 0.01))
    found = seen(profile, EAGLE, live=[LiveAcceptance(EAGLE, 1.2)])
    eagle = found.of(EAGLE)
    assert (eagle.tokens_per_step, eagle.calibrated_tokens_per_step) == (1.2, None)
    assert eagle.prediction == seen(profile, EAGLE).of(EAGLE).prediction


def test_live_acceptance_is_carried_to_the_other_draft_lengths_of_its_drafter_only():
    profile = chat(eagle_2=ArmLaw(0.6, 0.036, 2.2), lookup=ArmLaw(1.0, 0.028, 1.3))
    found = seen(profile, EAGLE, live=[LiveAcceptance(EAGLE, 2.0)])
    by_arm = {one.arm: one.tokens_per_step for one in found.arms}
    assert (by_arm[NO_SPECULATION], by_arm[EAGLE], by_arm[LOOKUP]) == (None, 2.0, None)
    # In proportion it would be 1.6; what long drafts lose where text is hard, short ones do not.
    assert 1.65 < by_arm[EAGLE_2] < 2.0


def test_objectives_are_held_against_their_quantile_and_capacity_is_where_they_are_just_kept():
    slo = Slo(tpot_s=0.014, quantile=0.95)
    profile = chat(eagle=ArmLaw(0.53, 0.0434, 3.0, p95_over_mean=1.5))
    eagle = seen(profile, slo=slo).of(EAGLE)
    assert (eagle.meets_slo, eagle.missed, eagle.unmeasured) == (True, (), ())
    at_capacity = seen(profile, rps=1.0001 * eagle.capacity_rps, slo=slo).of(EAGLE)
    assert (at_capacity.meets_slo, at_capacity.missed) == (False, ("TPOT p95 14 ms > 14 ms",))
    saturated = seen(profile, rps=24.0, slo=slo).of(EAGLE)
    assert (saturated.meets_slo, saturated.latency_s) == (False, math.inf)


def test_tokens_per_second_are_those_of_the_answers_at_which_arms_are_compared():
    profile = chat()
    profile = replace(
        profile, arms=tuple(replace(fit, lengths=Lengths(200.0, 30.0 + fit.arm.k)) for fit in profile.arms)
    )
    found = seen(profile, rps=3.0)
    assert [one.tokens_per_second for one in found.arms] == [3.0 * 30.0, 3.0 * 30.0]

"""The gate's word: rounding is no fault, a fault is one, and too little evidence is neither."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from breakeven.answering.answer import AnswerSet, Flaw, JudgedSet
from breakeven.answering.answer_gate import (
    ERROR_RATE,
    TOLERATED_SHARE,
    counted_more_often,
    exchanged,
    judge_arm,
)
from breakeven.reasons import Reason
from fakes.gate_worlds import judged_world

FLOOR = judged_world(1, arm="none")


def with_gap(world: JudgedSet, index: int, position: int, nats: float) -> JudgedSet:
    """The same with one token of one answer so far from the first choice."""
    one = world.judged[index]
    gaps = list(one.gaps)
    gaps[position] = nats
    changed = replace(one, gaps=tuple(gaps))
    return replace(world, judged=(*world.judged[:index], changed, *world.judged[index + 1 :]))


def test_near_ties_that_rounding_turns_round_are_no_fault():
    found = judge_arm(judged_world(2, tie_share=0.05), judged_world(1, arm="none", tie_share=0.05))
    assert found.word is Reason.ANSWERS_AGREE
    assert found.near_ties > 500
    assert found.differing == 0
    assert found.places == ()
    assert found.share_upper <= TOLERATED_SHARE


def faulty(world: JudgedSet, count: int) -> JudgedSet:
    """The same with one token that no model would choose in each of the first answers."""
    for index in range(count):
        world = with_gap(world, index, 117, 21.8)
    return world


def test_tokens_that_no_model_would_choose_are_faults_and_their_places_are_said():
    found = judge_arm(faulty(judged_world(2), 6), FLOOR)
    assert found.word is Reason.ANSWERS_DIFFER
    assert found.differing == 6
    assert "prose-1a@117 in the batch" in map(str, found.places)
    assert found.widest_gap == pytest.approx(21.8)
    assert found.p_value < ERROR_RATE
    assert "6 of 109 answers" in str(found)
    assert "prose-1a@117" in str(found)


@pytest.mark.parametrize("count", [1, 3, 5])
def test_a_few_faults_are_neither_significant_nor_agreement(count):
    found = judge_arm(faulty(judged_world(2), count), FLOOR)
    assert found.word is Reason.ANSWERS_UNDECIDED
    assert found.differing == count
    assert "prose-1a@117 in the batch" in str(found)
    assert judge_arm(faulty(judged_world(2), count), faulty(FLOOR, count)).word is Reason.ANSWERS_AGREE


def test_two_counts_are_compared_whatever_their_common_mean_is():
    assert counted_more_often(0, 0) == counted_more_often(2, 3) == 1.0
    assert counted_more_often(5, 0) > 0.75 * ERROR_RATE > counted_more_often(6, 0)
    assert counted_more_often(12, 3) > counted_more_often(12, 2)


def test_counts_of_thousands_are_compared_in_little_memory():
    """Of requests of a load that failed: their pairs had a gigabyte."""
    assert counted_more_often(20_000, 1_000) < 1e-9
    assert 0.3 < counted_more_often(20_010, 20_000) < 0.5
    assert counted_more_often(151, 121) == pytest.approx(counted_more_often(150, 120), rel=0.2)


@pytest.mark.parametrize("nats", [0.25, 0.5, 1.0])
def test_a_tie_that_is_a_few_steps_of_bfloat16_wide_is_none(nats):
    found = judge_arm(with_gap(judged_world(2), 7, 117, nats), FLOOR)
    assert found.word is Reason.ANSWERS_AGREE


def test_many_gaps_each_too_small_for_a_fault_are_one_together():
    found = judge_arm(judged_world(2, tie_share=0.2, tie_nats=0.1), FLOOR)
    assert found.word is Reason.ANSWERS_DIFFER
    assert found.widest_gap < 1.0
    assert found.places


def test_tokens_of_one_answer_are_no_independent_evidence():
    """A hundred small gaps in one answer are one answer: no sum of them is significant."""
    one = judged_world(2, tie_share=0.0)
    for position in range(100):
        one = with_gap(one, 3, position, 0.4)
    found = judge_arm(one, judged_world(1, arm="none", tie_share=0.0))
    assert found.word is Reason.ANSWERS_AGREE
    assert found.p_value > ERROR_RATE


def test_an_arm_with_the_floors_own_faults_is_not_called_different():
    floor = judged_world(1, arm="none", broken_share=0.1)
    words = {judge_arm(judged_world(seed, broken_share=0.1), floor).word for seed in range(2, 8)}
    assert Reason.ANSWERS_DIFFER not in words


def test_few_answers_without_a_fault_are_no_agreement():
    found = judge_arm(judged_world(2, prompts=24), FLOOR)
    assert found.word is Reason.ANSWERS_UNDECIDED
    assert found.share_upper > TOLERATED_SHARE
    assert "tolerated" in str(found)


def test_nothing_judged_is_undecided():
    unjudged = JudgedSet(FLOOR.given)
    assert judge_arm(unjudged, FLOOR).word is Reason.ANSWERS_UNDECIDED
    assert judge_arm(judged_world(2), JudgedSet(AnswerSet("none"))).word is Reason.ANSWERS_UNDECIDED
    assert str(judge_arm(unjudged, FLOOR)) == "no answer was judged"


def test_demanded_json_that_breaks_off_is_broken_if_no_speculation_kept_to_it():
    arm = judged_world(2, flawed={"json-1"})
    found = judge_arm(arm, FLOOR)
    assert found.word is Reason.ANSWERS_BROKEN
    assert found.flawed == 1
    assert "json-1 in the batch" in str(found)
    both = judge_arm(arm, judged_world(1, arm="none", flawed={"json-1"}))
    assert both.word is Reason.ANSWERS_AGREE
    assert both.flawed == 0


def test_a_loop_is_broken_if_a_fault_led_to_it_or_many_have_one():
    """A lone loop may follow from a near-tie: a small model loops by itself."""
    lone = judged_world(2, flawed={"prose-2a"}, flaw=Flaw.LOOPING)
    assert judge_arm(lone, FLOOR).word is Reason.ANSWERS_AGREE
    assert judge_arm(faulty(lone, 8), FLOOR).word is Reason.ANSWERS_BROKEN
    many = judged_world(2, flawed={f"prose-{n}b" for n in range(1, 10)}, flaw=Flaw.LOOPING)
    many_more = {f"code-{n}b" for n in range(1, 9)}
    assert judge_arm(many, FLOOR).word is Reason.ANSWERS_AGREE
    many = judged_world(2, flawed={f"prose-{n}b" for n in range(1, 10)} | many_more, flaw=Flaw.LOOPING)
    assert judge_arm(many, FLOOR).word is Reason.ANSWERS_BROKEN


def test_a_grammar_may_forbid_the_first_choice():
    """Gaps of answers under a grammar are no faults: the judge does not know the grammar."""
    constrained = next(i for i, one in enumerate(FLOOR.judged) if one.answer.form.constrained)
    found = judge_arm(with_gap(judged_world(2), constrained, 3, 15.0), FLOOR)
    assert found.word is Reason.ANSWERS_AGREE


def test_equal_answers_and_the_first_difference_stand_beside_the_word():
    same = replace(FLOOR, given=replace(FLOOR.given, arm="ngram/4"))
    found = judge_arm(same, FLOOR)
    assert (found.equal, found.compared, found.first_difference) == (109, 109, None)
    one = FLOOR.given.answers[0]
    other = replace(one, token_ids=(*one.token_ids[:90], -1, *one.token_ids[91:]))
    parted = replace(same, given=replace(same.given, answers=(other, *FLOOR.given.answers[1:])))
    found = judge_arm(parted, FLOOR)
    assert (found.equal, found.compared, found.first_difference) == (108, 109, 90)


def test_signs_that_can_be_exchanged_have_an_exact_chance():
    assert exchanged(np.array([])) == 1.0
    assert exchanged(np.array([0.0, 0.0])) == 1.0
    assert exchanged(np.array([1.0, 2.0, 0.5])) == pytest.approx(1 / 8)
    assert exchanged(np.array([1.0, -2.0])) == pytest.approx(3 / 4)
    assert exchanged(-np.ones(20)) == pytest.approx(1.0)
    assert exchanged(np.ones(40)) == pytest.approx(1 / 5_001)

"""Predictions beside blocks in alternation, and the machine's own error."""

from __future__ import annotations

import math

import pytest

from breakeven.arm import NO_SPECULATION, Arm
from demo.traffic import RequestShape
from fakes.core_profile import DRAFTER, LOOKUP
from real import alternation
from real.alternation import Probed
from real.greedy_users import Account, Offered, SteadyLoad


def block(arm, latency_s, *, rps=3.0, e=None, what="between", account=None, cycle=1, yardstick_ms=2.0):
    account = account or Account(30, 30, latency_s, latency_s, 1440, 1440.0, 30.0, e)
    load = SteadyLoad(rps, RequestShape(48, 48), 16.0, 4.0)
    return Probed(what, cycle, arm, Offered(load, rps, latency_s, 25, account), yardstick_ms)


def measured(profile, *blocks, calibration_ms=(2.0,)):
    return alternation.predicted(profile, blocks, calibration_ms)


def alternating(none_s, lookup_s, *, calibration_ms=(2.0, 2.1, 1.9), yardstick_ms=2.0):
    """Rounds of four blocks, as latencies of the two blocks of each arm."""
    blocks = []
    for cycle, (pair, other) in enumerate(zip(none_s, lookup_s, strict=True), start=1):
        for arm, latencies in ((NO_SPECULATION, pair), (LOOKUP, other)):
            blocks += [
                block(arm, one, cycle=cycle, e=3.0 if arm.k else None, yardstick_ms=yardstick_ms)
                for one in latencies
            ]
    return blocks


# Of none at 3 rps: 0.8 / (1 - 3 * 0.08).
TRUTH_S = 0.8 / 0.76


@pytest.mark.parametrize(("factor", "word"), [(1.05, "met"), (1.3, "MISSED")])
def test_a_prediction_is_held_against_the_mean_of_its_blocks(profile, factor, word):
    one_s = TRUTH_S * factor
    (one,) = measured(profile, block(NO_SPECULATION, 1.001 * one_s), block(NO_SPECULATION, 0.999 * one_s))
    assert one.error == pytest.approx(1 / factor - 1, abs=0.01)
    assert one.goal.word == word
    (found,) = alternation.judge_predictions([one])
    # Two blocks leave one degree of freedom: 12.7 standard deviations of a mean of two.
    assert found.detail.endswith("machine's own error: 1.3%")


def test_blocks_of_a_steady_machine_tell_and_those_of_an_unsteady_one_do_not(profile):
    steady = alternating([(1.04, 1.06), (1.25, 1.23)], [(0.50, 0.505), (0.60, 0.595)])
    found = measured(profile, *steady, calibration_ms=(2.0,))
    # Other arrivals make rounds differ; only blocks with the same ones say how steady the machine is.
    assert max(one.goal.machine for one in found) < 0.03
    unsteady = alternating([(0.8, 1.3), (0.8, 1.3)], [(0.5, 0.5), (0.5, 0.5)])
    found = measured(profile, *unsteady, calibration_ms=(2.0,))
    assert {one.goal.word for one in found} == {"machine too unsteady to tell"}
    assert {row[-1] for row in alternation.prediction_rows(found)} == {"machine too unsteady to tell"}
    (speedup,) = alternation.speedups(found)
    assert speedup.goal.unsteady
    assert alternation.judge_speedups([speedup])[0].word == "unsure"


def test_a_core_that_is_slower_than_at_the_calibration_is_in_the_error_of_latencies_and_not_of_speedups(
    profile,
):
    blocks = alternating([(1.4, 1.4)] * 2, [(0.7, 0.7)] * 2, yardstick_ms=2.6)
    found = measured(profile, *blocks, calibration_ms=(2.0, 2.0, 9.0))
    assert [one.core for one in found] == [pytest.approx(1.3)] * 2
    assert {one.goal.word for one in found} == {"machine too unsteady to tell"}
    assert {row[9] for row in alternation.prediction_rows(found)} == {"1.30x"}
    (speedup,) = alternation.speedups(found)
    assert (speedup.measured, speedup.goal.word) == (pytest.approx(2.0), "met")


def test_a_single_block_without_a_yardstick_has_an_error_that_is_not_known(profile):
    (one,) = measured(profile, block(NO_SPECULATION, TRUTH_S), calibration_ms=())
    assert (one.goal.machine_words, one.goal.word) == ("not known", "met")
    assert alternation.prediction_rows([one])[0][8:10] == ("not known", "-")


def test_a_load_that_the_profile_calls_saturated_is_a_miss_and_no_speedup(profile):
    found = measured(profile, block(DRAFTER, 2.0, rps=9.0), block(NO_SPECULATION, 2.0, rps=9.0))
    assert found[0].latency_s is None
    assert alternation.judge_predictions(found)[0].ok is False
    assert "saturated" in alternation.prediction_rows(found)[0]
    assert alternation.speedups(found) == []


def test_a_prediction_that_the_profile_refuses_is_a_row_and_a_missed_goal_that_say_so(profile):
    schedule = Arm("ngram", 8, "lookup", scheduled=True)
    plain, one = measured(profile, block(NO_SPECULATION, 1.0), block(schedule, 0.5, e=3.0))
    assert (one.latency_s, "not in the profile" in one.refused) == (None, True)
    (row,) = alternation.prediction_rows([one])
    assert row[4:8] == ("3, not converted", "not predicted", "0.500", "-")
    (judged,) = alternation.judge_predictions([one])
    assert (judged.ok, judged.detail.rpartition("; ")[0]) == (False, f"no prediction: {one.refused}")
    (seen,) = alternation.speedups([plain, one])
    assert alternation.speedup_rows([seen])[0][4:7] == ("-", "2.00", "no prediction")
    assert [found.word for found in alternation.judge_speedups([seen])] == ["MISSED"]


def test_a_speedup_is_that_of_the_same_load(profile):
    blocks = alternating([(1.05, 1.05)], [(0.5, 0.5)])
    other = block(LOOKUP, 0.1, what="elsewhere", e=3.0)
    (seen,) = alternation.speedups(measured(profile, *blocks, other))
    assert seen.measured == pytest.approx(2.1)
    assert seen.predicted == pytest.approx(2.0, rel=0.02)
    assert alternation.judge_speedups([seen])[0].ok


def test_tokens_per_step_that_a_merging_front_end_overstates_is_still_a_prediction(profile):
    assert measured(profile, block(LOOKUP, 0.5, e=4.002))[0].latency_s is not None


@pytest.mark.parametrize(
    ("account", "oks"),
    [
        (Account(30, 30, 1.04, 1.0, 1440, 1440.0, 30.0, None), [True, True]),
        (Account(30, 30, 1.06, 1.0, 1440, 1440.0, 30.0, None), [False, True]),
        (Account(30, 30, 0.94, 1.0, 1440, 1440.0, 30.0, None), [False, True]),
        (Account(30, 30, 1.0, 1.0, 1440, 1439.0, 30.0, None), [True, False]),
        (Account(30, 29, 1.0, 1.0, 1392, 1392.0, 29.0, None), [True, False]),
        (Account(30, 0, math.nan, math.nan, 0, 0.0, 0.0, None), [False, False]),
    ],
)
def test_users_and_engine_must_agree(account, oks, profile):
    found = alternation.judge_accounts(measured(profile, block(NO_SPECULATION, 1.0, account=account)))
    assert [one.ok for one in found] == oks
    assert not any(one.goal for one in found)


def test_users_that_asked_nothing_agree_about_nothing():
    assert [one.ok for one in alternation.judge_accounts([])] == [False, False]

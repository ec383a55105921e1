"""Failures of a run of the real engine, remarks, and the figures by which it is judged."""

from __future__ import annotations

import math
from dataclasses import replace
from types import SimpleNamespace

import pytest

from breakeven.arm import NO_SPECULATION, Arm
from breakeven.profile import Profile
from demo.traffic import RequestShape
from fakes.lawful_profile import lawful_profile_json
from real import findings
from real.findings import BrokenStage, ObservedRoll, Probed, RunFinding
from real.greedy_users import Account, Offered, SteadyLoad
from real.stages import RunError, best_at, unfitted

LOOKUP, DRAFTER = Arm("ngram", 3, "lookup"), Arm("draft_model", 3, "drafter")
LAWS = {NO_SPECULATION: (0.8, 0.08), LOOKUP: (0.4, 0.08), DRAFTER: (1.6, 0.2)}


@pytest.fixture(scope="module")
def profile():
    text = lawful_profile_json(
        LAWS,
        {NO_SPECULATION: 1.0, LOOKUP: 3.0, DRAFTER: 1.01},
        prompt_tokens=48.0,
        output_tokens=48.0,
        gpu="core",
    )
    return Profile.from_json(text)


def probed(arm, latency_s, *, rps=3.0, e=None, what="between", account=None):
    account = account or Account(30, 30, latency_s, latency_s, 1440, 1440.0, 30.0, e)
    load = SteadyLoad(rps, RequestShape(48, 48), 45.0, 5.0)
    return Probed(what, arm, Offered(load, rps, latency_s, 25, account))


def measured(profile, arm, latency_s, **changes):
    return findings.predicted(profile, probed(arm, latency_s, **changes))


def test_what_the_measurement_says_is_printed_whatever_it_is(profile):
    rows = {(row[0], row[1]): row[-1] for row in findings.pays_rows(profile, (2.0,))}
    assert rows[LOOKUP.name, "2.00"] == "yes"
    assert rows[DRAFTER.name, "2.00"] == "no"


def test_an_arm_that_a_load_saturates_does_not_pay_where_none_still_answers(profile):
    rows = {row[0]: row for row in findings.pays_rows(profile, (6.0,))}
    assert rows[DRAFTER.name][2:] == ("0", "- to -", "no")


def test_a_prediction_is_held_against_the_measured_latency(profile):
    (c1_s, c2_s) = LAWS[NO_SPECULATION]
    truth_s = c1_s / (1 - 3.0 * c2_s)
    close, far = (measured(profile, NO_SPECULATION, truth_s * factor) for factor in (1.05, 1.3))
    assert [one.ok for one in findings.judge_predictions([close, far])] == [True, False]
    assert all(one.goal for one in findings.judge_predictions([close, far]))
    assert far.error == pytest.approx(1 / 1.3 - 1, abs=0.01)


def test_a_load_that_the_profile_calls_saturated_is_a_miss_and_no_speedup(profile):
    one = measured(profile, DRAFTER, 2.0, rps=9.0)
    assert one.latency_s is None
    assert findings.judge_predictions([one])[0].ok is False
    assert "saturated" in findings.prediction_rows([one])[0]
    plain = measured(profile, NO_SPECULATION, 2.0, rps=9.0)
    assert findings.speedups([plain, one]) == []


def test_a_prediction_that_the_profile_refuses_is_a_row_and_a_missed_goal_that_say_so(profile):
    schedule = Arm("ngram", 8, "lookup", scheduled=True)
    one = measured(profile, schedule, 0.5, e=3.0)
    assert (one.latency_s, "not in the profile" in one.refused) == (None, True)
    (row,) = findings.prediction_rows([one])
    assert row[4:8] == ("3, not converted", "not predicted", "0.500", "-")
    (judged,) = findings.judge_predictions([one])
    assert (judged.ok, judged.detail) == (False, f"no prediction: {one.refused}")
    (seen,) = findings.speedups([measured(profile, NO_SPECULATION, 1.0), one])
    assert findings.speedup_rows([seen])[0][4:7] == ("-", "2.00", "no prediction")
    assert [(found.ok, found.detail) for found in findings.judge_speedups([seen])] == [
        (False, "no prediction")
    ]


def test_an_arm_without_a_law_has_a_row_that_says_why_nothing_is_known(profile):
    lawless = replace(
        profile,
        arms=tuple(
            replace(fit, fit=None, measurements=(), reason="TooFewPoints") if fit.arm == LOOKUP else fit
            for fit in profile.arms
        ),
    )
    rows = {row[0]: row[-1] for row in findings.pays_rows(lawless, (2.0,))}
    assert rows[LOOKUP.name].startswith("not known: lookup/3: 6 usable points do not determine a latency law")
    assert rows[DRAFTER.name] == "no"


def test_a_stage_that_broke_off_is_a_failed_check():
    (found,) = findings.judge_stages([BrokenStage("back to none", "every pod on one arm: not within 1200 s")])
    assert (found.what, found.ok, found.goal) == ("back to none went to its end", False, False)


def test_a_speedup_is_that_of_the_same_probe(profile):
    plain, fast = measured(profile, NO_SPECULATION, 1.05), measured(profile, LOOKUP, 0.5, e=3.0)
    other = measured(profile, LOOKUP, 0.1, what="elsewhere", e=3.0)
    (seen,) = findings.speedups([plain, fast, other])
    assert seen.measured == pytest.approx(2.1)
    assert seen.predicted == pytest.approx(2.0, rel=0.02)
    assert findings.judge_speedups([seen])[0].ok


def test_tokens_per_step_that_a_merging_front_end_overstates_is_still_a_prediction(profile):
    assert measured(profile, LOOKUP, 0.5, e=4.002).latency_s is not None


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
def test_users_and_engine_must_agree(account, oks):
    found = findings.judge_accounts([probed(NO_SPECULATION, 1.0, account=account)])
    assert [one.ok for one in found] == oks
    assert not any(one.goal for one in found)


def test_users_that_asked_nothing_agree_about_nothing():
    assert [one.ok for one in findings.judge_accounts([])] == [False, False]


@pytest.mark.parametrize(
    ("roll", "ok"),
    [
        (ObservedRoll("lookup/3", "Switch", 80.0, 200, ()), True),
        (ObservedRoll("lookup/3", "Switch", 80.0, 200, ("HTTP 500 (pod)",)), False),
        (ObservedRoll("lookup/3", "Switch", 80.0, 0, ()), False),
    ],
)
def test_a_request_that_a_roll_lost_fails_the_run(roll, ok):
    (found,) = findings.judge_rolls([roll])
    assert (found.ok, found.goal) == (ok, False)


def test_a_schedule_or_second_start_that_there_was_a_reason_against_is_no_failure_and_says_it():
    statuses = [
        {"arm": "none", "phase": "Done"},
        {
            "arm": "lookup/schedule",
            "phase": "Skipped",
            "reason": "ScheduleSingleTier",
            "message": "3 is best",
        },
        {"arm": "drafter/3", "phase": "Failed", "reason": "EngineFailed"},
        {"arm": "winner/again", "phase": "Skipped", "reason": "SecondStartSkipped"},
        {"arm": "winner/again", "phase": "Failed", "reason": "EngineCrashed"},
    ]
    found = findings.judge_arms({"status": {"armStatuses": statuses}}, "lookup")
    assert [one.ok for one in found] == [True, True, False, True, False]
    assert found[1].detail == "Skipped: ScheduleSingleTier: 3 is best"
    assert not findings.judge_arms({}, "lookup")[0].ok


def test_a_difference_to_the_real_engine_fails_the_run():
    found = findings.judge_likeness(
        {"flags": [], "answers": ["POST /v1/x: status 400 from vLLM, 200 simulated"]}
    )
    assert [one.ok for one in found] == [True, False]
    assert "1 differences; first: POST /v1/x" in found[1].detail


@pytest.mark.parametrize(
    ("found", "status", "words"),
    [
        ([RunFinding("a", ok=True, detail=""), RunFinding("g", ok=False, detail="", goal=True)], 0, "all 1 checks hold, 0 of 1 goals met"),
        ([RunFinding("a", ok=False, detail=""), RunFinding("b", ok=True, detail="")], 1, "1 of 2 checks failed: a; 0 of 0 goals met"),
    ],
)  # fmt: skip
def test_a_check_fails_the_run_and_a_missed_goal_is_said(found, status, words):
    assert findings.last_line(found) == (status, words)


def test_probes_lie_between_the_loads_that_were_fitted_and_at_other_lengths(profile):
    fitted = {round(row.rps, 6) for row in profile.arm(NO_SPECULATION).measurements}
    probes = unfitted(profile)
    assert len({what for what, _ in probes}) == len(probes) == 4
    saturation_rps = profile.arm(NO_SPECULATION).saturation_rps
    for _, load in probes:
        assert round(load.rps, 6) not in fitted
        assert 0 < load.rps < 0.75 * saturation_rps
    assert {(load.shape.prompt_tokens, load.shape.output_tokens) for _, load in probes} == {
        (48, 48), (144, 48), (48, 96),
    }  # fmt: skip


def test_asked_for_is_the_fastest_arm_and_who_is_no_slower_than_the_operator_can_tell(profile):
    arms = [fit.arm for fit in profile.arms]
    assert best_at(profile, arms, 2.0) == {LOOKUP.name}
    assert best_at(profile, [NO_SPECULATION, DRAFTER], 2.0) == {"none"}


def test_a_load_that_no_arm_carries_is_one_line(profile):
    with pytest.raises(RunError, match=r"50\.00 rps: every arm with a law is saturated"):
        best_at(profile, [NO_SPECULATION, LOOKUP], 50.0)


def test_no_speculation_may_stay_where_the_fastest_is_not_surely_faster(profile):
    unsure = SimpleNamespace(
        predict=profile.predict, compare=lambda *_, **__: SimpleNamespace(speedup_ci=(0.9, 3.0))
    )
    assert best_at(unsure, [fit.arm for fit in profile.arms], 2.0) == {LOOKUP.name, "none"}

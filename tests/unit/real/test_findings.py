"""Failures of a run of the real engine, remarks, and the figures by which it is judged."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from fakes.core_profile import DRAFTER, LOOKUP
from real import findings
from real.findings import BrokenStage, ErrorGoal, ObservedRoll, RunFinding


def test_what_the_measurement_says_is_printed_whatever_it_is(profile):
    rows = {(row[0], row[1]): row[-1] for row in findings.pays_rows(profile, (2.0,))}
    assert rows[LOOKUP.name, "2.00"] == "yes"
    assert rows[DRAFTER.name, "2.00"] == "no"


def test_an_arm_that_a_load_saturates_does_not_pay_where_none_still_answers(profile):
    rows = {row[0]: row for row in findings.pays_rows(profile, (6.0,))}
    assert rows[DRAFTER.name][2:] == ("0", "- to -", "no")


def test_an_arm_without_a_law_has_a_row_that_says_why_nothing_is_known(profile):
    lawless = replace(
        profile,
        arms=tuple(replace(fit, measurements=()) if fit.arm == LOOKUP else fit for fit in profile.arms),
    )
    rows = {row[0]: row[-1] for row in findings.pays_rows(lawless, (2.0,))}
    assert rows[LOOKUP.name].startswith("not known: lookup/3: no usable point")
    assert rows[DRAFTER.name] == "no"


def test_a_stage_that_broke_off_is_a_failed_check():
    (found,) = findings.judge_stages([BrokenStage("back to none", "every pod on one arm: not within 1200 s")])
    assert (found.what, found.ok, found.goal) == ("back to none went to its end", False, None)


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
    assert (found.ok, found.goal) == (ok, None)


def test_a_schedule_or_second_start_that_there_was_a_reason_against_is_no_failure_and_says_it():
    statuses = [
        {"arm": "none", "phase": "Done"},
        {
            "arm": "lookup/schedule",
            "phase": "Skipped",
            "reason": "ArmSkipped",
            "message": "3 is best",
        },
        {"arm": "drafter/3", "phase": "Failed", "reason": "EngineFailed"},
        {"arm": "drafter/3/again", "phase": "Skipped", "reason": "ArmSkipped"},
        {"arm": "lookup/3/again", "phase": "Failed", "reason": "EngineCrashed"},
    ]
    found = findings.judge_arms({"status": {"armStatuses": statuses}}, "lookup")
    assert [one.ok for one in found] == [True, True, False, True, False]
    assert found[1].detail == "Skipped: ArmSkipped: 3 is best"
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
        ([RunFinding("a", ok=True, detail=""), RunFinding("g", ok=False, detail="", goal=ErrorGoal(0.2, 0.1, 0.0))], 0, "all 1 checks hold, 0 of 1 goals met"),
        ([ErrorGoal(0.12, 0.1, 0.3).finding("g", "+12.0%")], 0, "all 0 checks hold, 0 of 1 goals met, of 1 the machine was too unsteady to tell"),
        ([RunFinding("a", ok=False, detail=""), RunFinding("b", ok=True, detail="")], 1, "1 of 2 checks failed: a; 0 of 0 goals met"),
    ],
)  # fmt: skip
def test_a_check_fails_the_run_and_a_missed_goal_is_said(found, status, words):
    assert findings.last_line(found) == (status, words)


@pytest.mark.parametrize(
    ("error", "machine", "word"),
    [
        (0.08, 0.02, "met"),
        (-0.08, math.nan, "met"),
        (0.12, 0.02, "MISSED"),
        (0.02, 0.15, "machine too unsteady to tell"),
        (-0.24, 0.15, "machine too unsteady to tell"),
        # More than such a machine explains.
        (0.26, 0.15, "MISSED"),
        (math.inf, 0.15, "MISSED"),
        (math.nan, 0.15, "MISSED"),
    ],
)
def test_a_goal_is_judged_only_on_a_machine_that_is_steadier_than_it(error, machine, word):
    goal = ErrorGoal(error, 0.10, machine)
    found = goal.finding("none: latency", "figures")
    assert goal.word == word
    assert found.ok == (word == "met")
    assert found.word == {"met": "met   ", "MISSED": "MISSED"}.get(word, "unsure")
    assert (word in found.detail) == goal.unsteady


def test_a_residual_is_judged_by_how_steady_the_core_was_at_the_points(profile):
    known = lambda ms: findings.residuals(profile, ms)[0].machine  # noqa: E731
    assert known([2.0] * 6) == pytest.approx(0.0)
    assert known([2.0, 2.2] * 6) == pytest.approx(1.96 * 0.05, rel=0.06)
    assert math.isnan(known([2.0]))
    goals = findings.residuals(profile, [2.0, 3.0] * 6)
    assert {one.word for one in findings.judge_fits(profile, goals)} == {"unsure"}
    assert {row[6] for row in findings.fit_rows(profile, goals)} == {"machine too unsteady to tell"}

"""The stages of `make real` after its cluster stands: with each kind of arm as the chosen one, and when a stage breaks off."""

from __future__ import annotations

import io
import json
from dataclasses import replace

import pytest
from rich.console import Console

from breakeven.arm import NO_SPECULATION, Arm
from breakeven.profile import Profile
from fakes.lawful_profile import lawful_profile_json
from fakes.real_run import LastResults, LawfulEngines, RolledService
from fakes.virtual_time import in_virtual_time
from real.served_model import Pace, language_model, random_words
from real.stages import RealRun
from real.tasks import MIXES, TASKS

LOOKUP, LONG = Arm("ngram", 3, "lookup"), Arm("ngram", 8, "lookup")
DRAFTER, SCHEDULE = Arm("draft_model", 3, "drafter"), Arm("ngram", 8, "lookup", scheduled=True)
SLOW = Arm("draft_model", 1, "slow")
FOUR = Arm("ngram", 4, "lookup")
FAST = (LOOKUP, LONG, DRAFTER, SCHEDULE)
LAWS = {NO_SPECULATION: (0.8, 0.08), SLOW: (1.6, 0.2), **dict.fromkeys((*FAST, FOUR), (0.4, 0.08))}
CALIBRATED_E = {arm: 1.0 + 0.25 * arm.k for arm in LAWS}


@pytest.fixture(scope="module")
def measured():
    """Every kind of arm, each of the speculative ones but the slow one twice as fast as none."""
    text = lawful_profile_json(
        LAWS,
        CALIBRATED_E,
        prompt_tokens=48.0,
        output_tokens=48.0,
        gpu="core",
        schedules={SCHEDULE: "1-4:8,5-:3"},
    )
    return Profile.from_json(text)


@pytest.fixture
def play(measured, tmp_path):
    """Play all stages with some arms beside none; the results, with what they wrote and how they ended."""

    def play(*arms, model=random_words, **faults):
        found = tuple(fit for fit in measured.arms if fit.arm in {NO_SPECULATION, SLOW, *arms})
        # Live drafts are accepted more often than the calibrated ones were.
        live = {arm: 1.1 * CALIBRATED_E[arm] for arm in arms}
        service = RolledService(replace(measured, arms=found), live, **faults)
        results = LastResults(tmp_path, Console(file=io.StringIO(), width=160))

        @in_virtual_time
        async def run():
            pace = Pace(look_s=20.0)
            served = replace(model(tmp_path), pace=pace)
            await RealRun(service, service, served, LawfulEngines(service), results).run()

        run()
        status, words = results.conclude([])
        found = json.loads((tmp_path / "findings.json").read_text())["findings"]
        tables = json.loads((tmp_path / "tables.json").read_text())
        return results.record, status, words, {one["what"]: one for one in found}, tables

    return play


@pytest.mark.parametrize("arm", [NO_SPECULATION, *FAST], ids=str)
def test_whichever_arm_the_operator_chooses_is_probed_judged_and_left_again(arm, play):
    record, status, words, found, tables = play(arm)
    chosen = [] if arm == NO_SPECULATION else [arm]
    assert (record.broken, record.decided) == ([], arm.name)
    # Where none is chosen, the most promising arm is measured beside it.
    beside = chosen or [SLOW]
    turn = [NO_SPECULATION, *beside, *beside, NO_SPECULATION]
    assert [probed.arm for probed in record.probes] == turn * 2 * 4
    assert [roll.to for roll in record.rolls] == [name for one in chosen for name in (one.name, "none")]
    assert status == 0, words
    latencies = [row for row in tables["Latency not fitted"] if row[0] == arm.name]
    judged = [one for what, one in found.items() if what.startswith(f"{arm}: latency predicted")]
    assert (len(latencies), len(judged)) == (4, 4)
    # A head and a row for each load.
    assert len(tables["Speedup there"]) == 5
    # A schedule's acceptance is another one at every load: its rows say that the live one counts for nothing.
    unconverted = {one["detail"].partition(", ")[2][:17] for one in judged}
    assert unconverted == ({"at the calibrated"} if arm.scheduled else {""})
    assert {row[4].partition(", ")[2] for row in latencies} == ({"not converted"} if arm.scheduled else {""})


@pytest.mark.parametrize(
    ("faults", "broken", "probes", "back"),
    [
        ({"missing": {"chat-vllm"}}, ["the engine starts"], 0, False),
        ({"missing": {"sim-ngram"}}, ["metrics pages after drafts"], 32, True),
        ({"unreadable": {"answers"}}, ["the simulated engine is compared with vLLM", "metrics pages after drafts"], 32, True),
        ({"missing": {"chat-vllm-beside"}}, ["blocks in alternation"], 0, True),
        ({"refuses": True}, ["decision and roll"], 0, False),
        ({"stuck": True}, ["decision and roll"], 0, False),
        ({"foreign_arm": "eagle/5"}, ["probes of eagle/5"], 0, True),
    ],
    ids=["no engine", "no twin", "no answers", "no second engine", "refused", "stuck roll", "an arm that was not measured"],
)  # fmt: skip
def test_a_stage_that_breaks_off_is_a_failed_check_and_the_others_are_judged(
    faults, broken, probes, back, play
):
    record, status, words, found, _ = play(LOOKUP, **faults)
    assert [one.what for one in record.broken] == broken
    assert len(record.probes) == probes
    assert ("none" in [roll.to for roll in record.rolls]) == back
    assert status == 1
    assert all(f"{what} went to its end" in words for what in broken)
    assert ("none: latency predicted within 10% (answers twice as long)" in found) == bool(probes)


def test_probes_that_break_off_leave_the_decision_to_be_judged(play):
    record, _, _, found, _ = play(LOOKUP, unreadable={"load"})
    assert len(record.broken) == 4
    assert (record.decided, record.probes) == (LOOKUP.name, [])
    assert "the operator runs what the measured laws ask for at 2.82 rps" in found


def test_a_block_without_a_request_that_counts_is_no_latency(play):
    record, status, _, _, _ = play(LOOKUP, too_slow=True)
    assert (status, record.probes) == (1, [])
    assert "too slow for such blocks" in record.broken[0].why


def test_what_a_failed_calibration_measured_is_judged(play, tmp_path):
    failed = {
        "phase": "Failed",
        "reason": "EngineFailed",
        "message": "out of memory",
        "armStatuses": [
            {"arm": "none", "phase": "Done"},
            {"arm": "lookup/3", "phase": "Failed", "reason": "EngineFailed"},
        ],
        "points": [{"arm": "none"}],
    }
    record, _, _, found, _ = play(LOOKUP, failed_runs=[failed])
    assert [(one.what, one.why) for one in record.broken] == [("calibration", "EngineFailed: out of memory")]
    assert json.loads((tmp_path / "points.json").read_text()) == [{"arm": "none"}]
    assert (found["none was measured"]["ok"], found["lookup/3 was measured"]["ok"]) == (True, False)


def test_the_operators_view_of_a_mix_of_tasks_that_drifts_is_kept(play):
    # Lookup runs by a pin, and the operator leaves it once it may.
    record, status, words, _, tables = play(DRAFTER, model=language_model)
    assert (status, record.broken, record.decided) == (0, [], "drafter/3"), words
    assert [(one.mix, one.arm) for one in record.mixes] == [(name, "drafter/3") for name in MIXES]
    assert [(roll.to, roll.reason) for roll in record.rolls] == [
        ("drafter/3", "Switch"),
        ("lookup/4", "Pinned"),
        ("none", "Pinned"),
    ]
    assert len(tables["A mix of tasks that drifts"]) == 1 + len(MIXES)


def test_an_arm_that_runs_before_its_pin_is_not_called_a_roll(play):
    record, status, words, *_ = play(FOUR, model=language_model)
    assert status == 0, words
    assert [roll.to for roll in record.rolls] == ["lookup/4", "lookup/4, which ran before", "none"]


def test_nothing_is_rolled_back_where_the_operator_went_back_by_itself(play):
    # No arm beside none is as fast as it: the operator leaves lookup's pin as soon as it may.
    record, status, words, *_ = play(model=language_model)
    assert (status, record.decided) == (0, "none"), words
    assert [roll.to for roll in record.rolls] == ["lookup/4"]


def test_a_language_model_is_not_compared_with_the_simulated_engine_and_answers_tasks(play):
    record, status, words, _, tables = play(FOUR, model=language_model)
    assert (status, record.broken, record.likeness) == (0, [], {}), words
    assert {one.arm for one in record.mixes} == {"lookup/4"}
    assert [(one.task, one.arm) for one in record.tasks] == [
        (task, arm) for task in TASKS for arm in (NO_SPECULATION, FOUR)
    ]
    rows = tables["Tokens per step by task"]
    assert len(rows) == 1 + len(TASKS)
    assert {(row[1], row[3], row[6]) for row in rows[1:]} == {("lookup/4", "2.2", "equal")}

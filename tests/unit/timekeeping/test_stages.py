"""Stages run one after another, fail the whole when one fails, and are shown with what they took."""

from __future__ import annotations

import pytest

from timekeeping.landings import ALL, Landing, comparison, landing, read, write
from timekeeping.stages import Stage, exit_status, run

BURN = "i=0; while [ $i -lt 30000 ]; do i=$((i+1)); done"


def stage(name, script="true", **fields):
    return Stage(name, ("sh", "-c", script), **fields)


@pytest.mark.parametrize("broken", ["first", "second", "third"])
def test_one_stage_that_fails_fails_the_whole_and_keeps_no_other_from_running(broken, capfd):
    names = ("first", "second", "third")
    outcomes = run([stage(name, f"echo said {name}; exit {2 * (name == broken)}") for name in names])
    assert {outcome.stage.name: outcome.status for outcome in outcomes} == {
        name: 2 * (name == broken) for name in names
    }
    assert exit_status(outcomes) == 1
    assert capfd.readouterr().out == "".join(f"== {name} ==\nsaid {name}\n" for name in names)


def test_all_that_pass_pass():
    assert exit_status(run([stage("a"), stage("b", needed=True), stage("c")])) == 0


def test_what_cannot_be_done_without_a_failed_stage_is_not_begun_and_fails_the_whole():
    outcomes = run([stage("before"), stage("programs", "exit 3", needed=True), stage("tests")])
    assert [outcome.status for outcome in outcomes] == [0, 3, None]
    assert exit_status(outcomes[:1]) == 0
    assert exit_status(outcomes) == 1


def test_a_stage_that_a_signal_ends_has_failed():
    (outcome,) = run([stage("a", "kill -TERM $$")])
    assert outcome.status == -15
    assert exit_status([outcome]) == 1


def test_a_stage_is_charged_for_its_own_children():
    idle, busy = run([stage("idle", "sleep 0.1"), stage("busy", f"sh -c '{BURN}'; exit 0")])
    assert idle.wall_s >= 0.1
    assert busy.cpu_s > idle.cpu_s


def test_a_run_is_written_and_stands_beside_the_next_one(tmp_path):
    before = Landing("2026-01-02, here", {"a": (3.0, None), ALL: (40.0, 50.0)})
    write(tmp_path / "made" / "times.json", before)
    assert read(tmp_path / "made" / "times.json") == before
    assert read(tmp_path / "none.json") == Landing("never")
    outcomes = run([stage("a", "exit 1"), stage("b")])
    now = landing(outcomes, 12.4)
    lines = list(comparison(now, before, ["a"]))
    assert "2026-01-02, here" in lines[0]
    assert lines[1].split() == ["a", "0", "0", "3", "-", "FAILED"]
    assert lines[2].split() == ["b", "0", "0", "-", "-"]
    assert lines[3].split()[-4:] == ["12", "0", "40", "50"]

"""Stages run side by side, fail the whole when one fails, and are shown with what they took."""

from __future__ import annotations

import os

import pytest

from timekeeping.landings import ALL, Landing, comparison, landing, read, write
from timekeeping.stages import Stage, exit_status, run

BURN = "i=0; while [ $i -lt 30000 ]; do i=$((i+1)); done"


def stage(name, script="true", **fields):
    return Stage(name, ("sh", "-c", script), **fields)


@pytest.mark.parametrize("broken", ["00", "01", "10", "11"])
def test_one_stage_that_fails_fails_the_whole_and_keeps_no_other_from_running(broken, capfd):
    lanes = [
        [stage(name, f"echo said {name}; exit {2 * (name == broken)}") for name in lane]
        for lane in (("00", "01"), ("10", "11"))
    ]
    outcomes = run(lanes)
    assert {outcome.stage.name: outcome.status for outcome in outcomes} == {
        name: 2 * (name == broken) for name in ("00", "01", "10", "11")
    }
    assert exit_status(outcomes) == 1
    said = capfd.readouterr().out
    assert all(f"said {name}" in said for name in ("00", "01", "10", "11"))


def test_all_that_pass_pass():
    assert exit_status(run([[stage("a")], [stage("b"), stage("c", needed=True), stage("d")]])) == 0


def test_what_a_lane_cannot_do_without_a_failed_stage_is_not_begun_and_fails_the_whole():
    outcomes = run([[stage("beside")], [stage("programs", "exit 3", needed=True), stage("tests")]])
    assert [outcome.status for outcome in outcomes] == [0, 3, None]
    assert exit_status(outcomes[:1]) == 0
    assert exit_status(outcomes) == 1


def test_a_stage_that_a_signal_ends_has_failed():
    (outcome,) = run([[stage("a", "kill -TERM $$")]])
    assert outcome.status == -15
    assert exit_status([outcome]) == 1


def test_lanes_run_side_by_side(tmp_path):
    met = f"touch {tmp_path}/$0; while [ ! -e {tmp_path}/$1 ]; do sleep 0.01; done"
    lanes = [[Stage(me, ("sh", "-c", met, me, other))] for me, other in (("a", "b"), ("b", "a"))]
    assert exit_status(run(lanes)) == 0


def test_what_runs_beside_the_shown_lane_yields_to_it_and_is_shown_in_one_piece(capfd):
    run([[stage("beside", "nice; echo between; nice")], [stage("shown", "echo shown; nice")]])
    said = capfd.readouterr().out
    here = os.nice(0)
    assert f"== beside ==\n{min(19, here + 10)}\nbetween\n{min(19, here + 10)}\n" in said
    assert f"shown\n{here}\n" in said.replace("== shown ==", "")


def test_a_stage_is_charged_for_its_own_children():
    idle, busy = run([[stage("idle", "sleep 0.1")], [stage("busy", f"sh -c '{BURN}'; exit 0")]])
    assert idle.wall_s >= 0.1
    assert busy.cpu_s > idle.cpu_s


def test_a_run_is_written_and_stands_beside_the_next_one(tmp_path):
    before = Landing("2026-01-02, here", {"a": (3.0, None), ALL: (40.0, 50.0)})
    write(tmp_path / "made" / "times.json", before)
    assert read(tmp_path / "made" / "times.json") == before
    assert read(tmp_path / "none.json") == Landing("never")
    outcomes = run([[stage("a", "exit 1")], [stage("b")]])
    now = landing(outcomes, 12.4)
    lines = list(comparison(now, before, ["a"]))
    assert "2026-01-02, here" in lines[0]
    assert lines[1].split() == ["a", "0", "0", "3", "-", "FAILED"]
    assert lines[2].split() == ["b", "0", "0", "-", "-"]
    assert lines[3].split()[-4:] == ["12", "0", "40", "50"]

"""A run on CPU that is cut off leaves what it has seen."""

from __future__ import annotations

import io
import json

import pytest
from rich.console import Console

import real.__main__ as program
from breakeven.arm import NO_SPECULATION, Arm
from breakeven.profile import Profile
from demo.traffic import RequestShape
from fakes.lawful_profile import lawful_profile_json
from localcluster import LocalClusterError
from real.alternation import Probed
from real.findings import ObservedRoll
from real.greedy_users import Account, Offered, SteadyLoad
from real.run_results import RunResults, tables_of

LOOKUP = Arm("ngram", 3, "lookup")


@pytest.fixture
def screen():
    return io.StringIO()


@pytest.fixture
def results(tmp_path, screen):
    return RunResults(tmp_path, Console(file=screen, width=160))


@pytest.fixture(scope="module")
def profile():
    laws = {NO_SPECULATION: (0.8, 0.08), LOOKUP: (0.4, 0.08)}
    text = lawful_profile_json(
        laws, {NO_SPECULATION: 1.0, LOOKUP: 3.0}, prompt_tokens=48.0, output_tokens=48.0, gpu="core"
    )
    return Profile.from_json(text)


def probed(arm, latency_s):
    load = SteadyLoad(2.0, RequestShape(48, 48), 45.0, 5.0)
    account = Account(30, 30, latency_s, latency_s, 1440, 1440.0, 30.0, None)
    return Probed("between", 1, arm, Offered(load, 2.0, latency_s, 25, account), 2.0)


def test_lines_are_in_a_file_as_soon_as_they_are_said(results, tmp_path, screen):
    results.say("waiting for vLLM")
    assert (tmp_path / "progress.txt").read_text() == screen.getvalue()
    assert screen.getvalue().endswith(" s  waiting for vLLM\n")


def test_what_was_seen_is_in_the_files_after_every_step(results, tmp_path, profile):
    results.record.likeness["flags"] = []
    results.record.run = {"status": {"points": [{"arm": "none"}]}}
    results.keep()
    assert json.loads((tmp_path / "points.json").read_text()) == [{"arm": "none"}]
    assert json.loads((tmp_path / "tables.json").read_text()) == {}
    assert not (tmp_path / "profile.json").exists()
    assert [one["ok"] for one in json.loads((tmp_path / "findings.json").read_text())["findings"]] == [True]

    results.record.profile = profile
    results.record.probes.append(probed(NO_SPECULATION, 0.95))
    results.keep()
    tables = json.loads((tmp_path / "tables.json").read_text())
    assert list(tables) == [
        "What calibration found", "Latency not fitted", "Users and engine on the same requests",
    ]  # fmt: skip
    assert all(title in (tmp_path / "tables.txt").read_text() for title in tables)
    assert Profile.from_json((tmp_path / "profile.json").read_text()).arms == profile.arms


def test_a_decision_against_the_measured_laws_fails_the_run(results, profile):
    record = results.record
    record.profile, record.decision_rps = profile, 2.0
    record.run = {"status": {"armStatuses": [{"arm": "none", "phase": "Done"}]}}
    record.wanted, record.decided, record.reason = frozenset({"lookup/3"}), "lookup/3", "Switch"
    record.probes += [probed(NO_SPECULATION, 0.95), probed(LOOKUP, 0.5)]
    record.rolls.append(ObservedRoll("lookup/3", "Switch", 80.0, 160, ()))
    assert results.conclude([])[0] == 0
    record.decided = "none"
    status, words = results.conclude([])
    assert (status, "the operator runs what the measured laws ask for" in words) == (1, True)


@pytest.mark.parametrize(
    ("word", "status"),
    [("AnswersAgree", 0), ("AnswersUndecided", 0), ("AnswersDiffer", 1), ("AnswersBroken", 1)],
)
def test_the_calibrations_word_about_answers_is_a_row_and_a_check(word, status, results, profile):
    answers = {"arm": "lookup/3", "word": word, "answers": 90, "tokens": 8640, "equal": 89, "compared": 90}
    statuses = [{"arm": "none", "phase": "Done"}]
    results.record.run = {"status": {"armStatuses": statuses, "answers": [{**answers, "message": "of 90"}]}}
    results.record.profile = profile
    results.keep()
    (row,) = tables_of(results.record)[1][2]
    assert row == ("lookup/3", word, "90", "8640", "0", "0", "0", "89 of 90", "-")
    found, words = results.conclude([])
    assert found == status
    assert ("lookup/3 answers as no speculation does" in words) == bool(status)


def test_files_of_an_earlier_run_are_not_taken_for_this_one(results, tmp_path, profile):
    results.record.profile = profile
    results.keep()
    RunResults(tmp_path, Console(file=io.StringIO()))
    assert list(tmp_path.iterdir()) == []


def test_a_run_that_is_cut_off_prints_its_tables_before_its_last_line(tmp_path, capsys, monkeypatch, profile):
    class NoCluster:
        def __init__(self, _state):
            pass

        def __enter__(self):
            raise LocalClusterError("etcd did not start")

        def __exit__(self, *failure):
            pass

    class ProfiledResults(RunResults):
        def __init__(self, folder, console):
            super().__init__(folder, console)
            self.record.profile = profile

    monkeypatch.setattr(program, "RESULTS", tmp_path)
    monkeypatch.setattr(program, "LocalCluster", NoCluster)
    monkeypatch.setattr(program, "RunResults", ProfiledResults)
    monkeypatch.setattr(program, "ensure", lambda _names: None)
    monkeypatch.setattr("real.cores.take", lambda _cores: None)
    monkeypatch.setattr("real.vllm_environment.install", lambda: tmp_path / "bin" / "python")
    monkeypatch.setattr("sys.argv", ["real"])
    assert program.main() == 1
    output = capsys.readouterr().out
    assert "What calibration found" in output
    assert "FAIL    the run went to its end: etcd did not start" in output
    assert any(line.startswith(("met", "MISSED")) for line in output.splitlines())
    assert output.splitlines()[-1] == "real: exit status 1: etcd did not start"

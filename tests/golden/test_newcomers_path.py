"""The ways to begin that need no cluster lead to an answer in seconds of computing, as the README's table says.

CPU time, not the clock: the machine of the tests has other work. The cluster's first row has its minute by the clock in
tests/cluster/test_newcomers_cluster.py, the demo its sixteen in tests/timekeeping/stages.py.
"""

from __future__ import annotations

import re
import resource
import subprocess
import sys
import time
from pathlib import Path

import pytest
from click.testing import CliRunner

from breakeven.cli import root
from fakes.answering_prometheus import answering
from fakes.past_courses import stored
from golden.test_history_command import GRID, SPAN, arms

ROOT = Path(__file__).parents[2]
WAYS = re.search(r"## Four ways to begin\n\n(.*?)\n\n", (ROOT / "README.md").read_text(), re.DOTALL)
SECONDS = 15.0


def computing_s(words: list[str]) -> tuple[float, str]:
    """CPU time of a command in a process of its own, and what it printed."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(
        [sys.executable, "-m", "breakeven.cli", *words], cwd=ROOT, capture_output=True, text=True, check=True
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, done.stdout


def test_there_are_four_ways_of_which_two_need_no_cluster():
    rows = WAYS[1].splitlines()[2:]
    assert len(rows) == 4
    assert ["`make demo`" in rows[0], "breakeven plan" in rows[1], "breakeven history" in rows[2]] == [
        True
    ] * 3


@pytest.mark.claim("README.md", "the best setting and its break-even, in seconds")
def test_files_answer_in_seconds():
    (command,) = re.findall(r"`\.venv/bin/breakeven (plan [^`]*)`", WAYS[1])
    took_s, said = computing_s(command.split())
    assert "is best" in said
    assert "pays until" in said
    assert took_s < SECONDS


def test_a_prometheus_answers_in_seconds(monkeypatch):
    monkeypatch.setattr(time, "time", lambda: float(GRID.last_s))
    begin_s = time.process_time()
    with answering(stored(arms(), GRID)) as address:
        words = ["history", "--prometheus", address, "--deployment", "llm/chat", "--since", SPAN]
        done = CliRunner().invoke(root, words)
    assert done.exit_code == 0, done.output
    assert "break-even rps" in done.stdout
    assert time.process_time() - begin_s < SECONDS

"""docs/before-you-measure.md has every word of `breakeven history`, and no other."""

from __future__ import annotations

import re
import time
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from breakeven.cli import root
from breakeven.past.past_reading import PastWord
from breakeven.past.steady import MEANINGS, WindowWord
from fakes.answering_prometheus import answering
from fakes.past_courses import grid_of, lawful, stored

PAGE = (Path(__file__).parents[3] / "docs/before-you-measure.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("title", "words"),
    [
        ("Windows that do not count", WindowWord),
        ("What the past cannot say", PastWord),
    ],
)
def test_the_page_has_every_word(title, words):
    section = PAGE.partition(f"## {title}\n")[2].partition("\n## ")[0]
    assert re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE) == [str(word) for word in words]


def test_every_word_has_a_meaning():
    assert list(MEANINGS) == [*WindowWord, *PastWord]


def test_the_answer_on_the_page_is_what_a_day_without_speculation_gets(monkeypatch):
    grid = grid_of(144)
    past = stored((lawful(np.linspace(0.3, 6.0, 144), model="meta-llama/Llama-3.1-8B-Instruct"),), grid)
    monkeypatch.setattr(time, "time", lambda: float(grid.last_s))
    facts = ["--deployment", "llm/chat", "--gpu", "H100", "--quantisation", "bf16", "--dense"]
    with answering(past) as address:
        done = CliRunner().invoke(root, ["history", "--prometheus", address, "--since", "24h", *facts])
    begins = "arm (FromPrior)"
    shown = PAGE.partition(f"```\n{begins}")[2].partition("\n```")[0]
    assert done.stdout.partition(begins)[2].rstrip() == shown

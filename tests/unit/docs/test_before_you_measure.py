"""docs/before-you-measure.md has every word of `breakeven history`, and no other."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from breakeven.past.steady import WORDS, WindowWord
from breakeven.past.unknowns import MEANINGS, PastWord
from breakeven.prior.calibration_worth import WorthWord

PAGE = (Path(__file__).parents[3] / "docs/before-you-measure.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("title", "words"),
    [
        ("Windows that do not count", WindowWord),
        ("What the past cannot say", PastWord),
        ("Is a calibration worth it?", WorthWord),
    ],
)
def test_the_page_has_every_word(title, words):
    section = PAGE.partition(f"## {title}\n")[2].partition("\n## ")[0]
    assert re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE) == [str(word) for word in words]


def test_every_word_has_a_meaning():
    assert set(WORDS) == set(WindowWord)
    assert set(MEANINGS) == set(PastWord)

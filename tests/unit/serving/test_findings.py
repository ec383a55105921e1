"""The table of findings: each row is asked for, and each row that is asked for is there."""

from __future__ import annotations

import json
import re
from importlib.resources import files
from pathlib import Path

from breakeven.serving import findings
from breakeven.serving.findings import Cause

TABLE = json.loads(files("breakeven.serving").joinpath("findings.json").read_text(encoding="utf-8"))


def test_each_cause_has_its_words_and_its_remedy_and_no_row_is_of_none():
    assert set(TABLE["causes"]) == set(Cause)
    assert {len(row) for row in TABLE["causes"].values()} == {2}


def test_each_sentence_is_asked_for_and_none_is_missing():
    modules = Path(findings.__file__).parent.glob("*.py")
    asked = {
        name
        for file in modules
        for name in re.findall(r'\bsaid\(\s*"([^"]+)"', file.read_text(encoding="utf-8"))
    }
    assert asked == set(TABLE["sentences"])

"""docs/library.md shows code that runs and answers what stands there."""

from __future__ import annotations

import doctest
from pathlib import Path

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs/library.md"


def test_every_line_of_code_answers_what_stands_there(monkeypatch, capsys):
    monkeypatch.chdir(ROOT)
    failed, tried = doctest.testfile(str(PAGE), module_relative=False, encoding="utf-8")
    assert (failed, tried >= 25) == (0, True), capsys.readouterr().out


def test_all_code_on_the_page_is_tried():
    blocks = PAGE.read_text(encoding="utf-8").split("```python\n")[1:]
    assert all(block.startswith(">>> ") for block in blocks)
    assert len(blocks) >= 7

"""Nouns left out (CONTRIBUTING.md, Prose, rule 4): how often per 1,000 words of docstrings, comments and pages; it may only fall."""

from __future__ import annotations

import io
import re
import tokenize
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
LEFT_OUT = re.compile(r"\b(?:the ones? that|those of|that of)\b|\w's(?=[;,.])", re.IGNORECASE)
MOST = {"tuner": 0.1, "operator": 0.1, "docs": 0.1}


def prose(file: Path) -> str:
    """A page, or the comments and docstrings of a module, those under attributes among them."""
    text = file.read_text(encoding="utf-8")
    if file.suffix == ".md":
        return text
    words, begins = [], True
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT or (token.type == tokenize.STRING and begins):
            words.append(token.string)
        if token.type not in {tokenize.COMMENT, tokenize.NL}:
            begins = token.type in {tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENCODING}
    return "\n".join(words)


def per_thousand_words(text: str) -> float:
    return 1000.0 * len(LEFT_OUT.findall(text)) / max(1, len(text.split()))


@pytest.mark.parametrize("root", MOST)
def test_nouns_are_left_out_no_more_often(root):
    files = [file for file in sorted((ROOT / root).rglob("*")) if file.suffix in {".py", ".md"}]
    rate = per_thousand_words("\n".join(map(prose, files)))
    assert rate <= MOST[root], rate


def test_what_is_counted():
    assert LEFT_OUT.findall(
        "The one that serves. Those of the arm; that of pods, the arm's; an arm's law."
    ) == [
        "The one that",
        "Those of",
        "that of",
        "m's",
    ]

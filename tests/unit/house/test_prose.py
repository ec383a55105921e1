"""Prose that a newcomer reads at once: the counts of the openings and words that CONTRIBUTING.md rules out may only fall."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[3]
ROOTS = ("tuner", "operator", "localcluster", "demo", "real", "shipping", "validation", "tests")
OPENING = re.compile(r"(What|Whoever|As|The ones? that)\b")
PICTURE = re.compile(r"\b(surely|told|anew|alike)\b")
COMMENT = re.compile(r"\s*#")
# A docstring that is looked for begins after a quote, perhaps on the line below; parsing takes far longer than this look.
LIKELY = re.compile(rf"[\"'](\\\n\s*)?{OPENING.pattern}|{PICTURE.pattern}")
MOST_WORDS = 40
# Folders that are not named have 0. The eight under resources/ are descriptions in CRDs, which stay byte for byte. Lower a
# number when the folder's count has fallen.
OPENINGS = {
    "operator/breakeven_operator/resources": 8,
}
PICTURES = {
    "demo": 1,
}
LONG_BULLETS = 0


def comments(text):
    """(line, text) of each comment; lines of comment that follow each other are one. Ruff puts two blanks before a trailing one."""
    block: list[tuple[int, str]] = []
    for number, line in enumerate(text.splitlines(), 1):
        alone = COMMENT.match(line)
        if block and not alone:
            yield block[0][0], " ".join(words for _, words in block)
            block = []
        if alone:
            block.append((number, line.strip().lstrip("# ")))
        elif "  # " in line:
            yield number, line.rpartition("  # ")[2]
    if block:
        yield block[0][0], " ".join(words for _, words in block)


def prose(path):
    """(line, text) of each docstring that may be looked for, those under attributes among them, and of each comment."""
    text = path.read_text(encoding="utf-8")
    for node in ast.walk(ast.parse(text)) if LIKELY.search(text) else ():
        match node:
            case ast.Expr(value=ast.Constant(value=str(words))):
                yield node.lineno, words
    yield from comments(text)


@cache
def all_prose():
    """(path, line, text) of all docstrings and comments but this file's."""
    paths = [path for root in ROOTS for path in sorted((ROOT / root).rglob("*.py")) if path != Path(__file__)]
    return [(path.relative_to(ROOT), line, words) for path in paths for line, words in prose(path)]


def found(looked_for):
    """Places by folder."""
    places: dict[str, list[str]] = {}
    for path, line, words in all_prose():
        if looked_for(words):
            places.setdefault(str(path.parent), []).append(f"{path}:{line}: {words[:60]}")
    return places


def assert_none_new(places, budget):
    grown = {folder: lines for folder, lines in places.items() if len(lines) > budget.get(folder, 0)}
    assert grown == {}, "CONTRIBUTING.md, Prose, has the rules"


def test_docstrings_and_comments_begin_with_a_noun_or_a_verb():
    assert_none_new(found(OPENING.match), OPENINGS)


def test_docstrings_and_comments_use_plain_words():
    assert_none_new(found(PICTURE.search), PICTURES)


def test_a_changelog_bullet_is_one_fact():
    bullets = re.split(r"^- ", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]
    long = [
        bullet[:80]
        for bullet in (re.split(r"\n\s*\n|\n#", one)[0] for one in bullets)
        if len(bullet.split()) > MOST_WORDS
    ]
    assert len(long) <= LONG_BULLETS, long

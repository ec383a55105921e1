"""The map from a sentence of a page to the tests that hold it: `@pytest.mark.claim("docs/install.md", "sentence")` on a test.

python -m claims --write    # tests/claims.md
python -m claims --check    # it is current, and each page still says what its tests hold
"""

from __future__ import annotations

import ast
import itertools
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

TESTS: Final = Path(__file__).parent
ROOT: Final = TESTS.parent
MAP: Final = TESTS / "claims.md"
_HEAD: Final = """# Where is this tested?

Sentences of the pages and the tests that hold them, made by `make generate` of `@pytest.mark.claim`.
"""


class Claim(NamedTuple):
    """A sentence, or a part of it, that a test holds."""

    page: str
    words: str
    test: str


def claims_of(text: str, path: str) -> Iterator[Claim]:
    """Claims of a file of tests."""
    for node in ast.walk(ast.parse(text)) if "mark.claim(" in text else ():
        for mark in getattr(node, "decorator_list", ()):
            match mark:
                case ast.Call(
                    func=ast.Attribute(attr="claim"), args=[ast.Constant(str(page)), ast.Constant(str(words))]
                ):
                    yield Claim(page, words, f"{path}::{node.name}")  # type: ignore[attr-defined]


def all_claims() -> list[Claim]:
    """Claims of all tests, by page and sentence."""
    files = ((file.read_text("utf-8"), str(file.relative_to(TESTS))) for file in TESTS.rglob("test_*.py"))
    return sorted(claim for text, path in files for claim in claims_of(text, path))


def unsaid(claims: list[Claim]) -> Iterator[str]:
    """A line for each claim whose page does not say so, line breaks aside."""
    for page, words, test in claims:
        if words not in re.sub(r"\s+", " ", (ROOT / page).read_text("utf-8")):
            yield f'tests/{test}: {page} does not say "{words}"; change the mark with the page'


def table(claims: list[Claim]) -> str:
    """The page."""
    lines = [_HEAD]
    for page, of_page in itertools.groupby(claims, lambda claim: claim.page):
        lines += [f"## [{page}](../{page})", "", "| it says | tests |", "|---|---|"]
        for words, held in itertools.groupby(of_page, lambda claim: claim.words):
            links = "<br>".join("[{2}]({0})".format(*claim.test.partition("::")) for claim in held)
            lines.append(f"| {words.strip('| ').replace('|', '/')} | {links} |")
        lines.append("")
    return "\n".join(lines)


def main() -> int:
    """Write the map, or check it."""
    claims = all_claims()
    wrong = list(unsaid(claims))
    if sys.argv[1:] == ["--write"]:
        MAP.write_text(table(claims), encoding="utf-8")
    elif MAP.read_text("utf-8") != table(claims):
        wrong.append("tests/claims.md is not current: make generate")
    for line in wrong:
        print(line, file=sys.stderr)  # noqa: T201
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())

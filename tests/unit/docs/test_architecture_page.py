"""docs/architecture.md names files, functions and classes that exist; `house/test_way.py` holds its two ways to a trace."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")
# Where an import path begins, by its first word.
ABOVE = {
    "breakeven": ROOT / "tuner",
    "breakeven_sim": ROOT / "tuner",
    "breakeven_operator": ROOT / "operator",
}
HOP = re.compile(r"^ *(\d+)  (\S+\.py) {2,}(\S+) {2,}.+? {2,}([A-Z]\w+)$", re.MULTILINE)
WAYS = ("A cycle: from a sample to a patch", "A calibration: from a request to a profile")


class Hop(NamedTuple):
    number: int
    file: Path
    function: str
    made: str


def section(title: str) -> str:
    return PAGE.partition(f"\n## {title}\n")[2].partition("\n## ")[0]


def hops(title: str) -> list[Hop]:
    picture = section(title).split("```")[1]
    found = [Hop(int(n), file_of(path), function, made) for n, path, function, made in HOP.findall(picture)]
    # A line that the expression does not match must not pass unread.
    assert len(found) == len(re.findall(r"\.py ", picture))
    return found


def file_of(path: str) -> Path:
    return ABOVE[path.partition("/")[0]] / path


def classes() -> set[str]:
    return {
        name
        for package, above in ABOVE.items()
        for file in (above / package).rglob("*.py")
        for name in re.findall(r"^ *class (\w+)[(:]", file.read_text(encoding="utf-8"), re.MULTILINE)
    }


@pytest.mark.parametrize("title", WAYS)
def test_a_way_is_ten_lines_of_functions_that_exist(title):
    way = hops(title)
    assert [hop.number for hop in way] == list(range(1, 11))
    wrong = [
        f"{hop.number}: {hop.function}"
        for hop in way
        if not re.search(rf"def {hop.function.rpartition('.')[2]}\(", hop.file.read_text(encoding="utf-8"))
    ]
    assert wrong == []


def test_every_class_named_exists():
    named = {hop.made for title in WAYS for hop in hops(title)}
    named |= set(re.findall(r"`([A-Z][a-z]\w*)`", PAGE))
    assert len(named) >= 18
    assert named - classes() == set()


def test_every_file_named_in_the_table_exists():
    """A bare name is in the folder of the path before it."""
    rows = [line for line in PAGE.splitlines() if line.startswith("| ") and "`" in line]
    named = []
    for row in rows:
        folder = ROOT
        for name in re.findall(r"`([^` ]+(?:\.py|/))`", row):
            path = ROOT / name if "/" in name else folder / name
            folder = path if name.endswith("/") else path.parent
            named.append(path)
    assert len(named) >= 40
    assert [str(path.relative_to(ROOT)) for path in named if not path.exists()] == []


def test_files_named_beside_the_pictures_exist():
    prose = "".join(part for title in WAYS for part in section(title).split("```")[::2])
    assert [
        path for path in re.findall(r"`(breakeven\w*/\S+\.py)`", prose) if not file_of(path).exists()
    ] == []


def test_every_folder_of_the_product_is_in_the_table():
    folders = {
        file.parent.relative_to(ROOT).as_posix()
        for package, above in ABOVE.items()
        for file in (above / package).glob("*/__init__.py")
    }
    assert {folder for folder in folders if f"`{folder}/" not in PAGE} == set()


def test_no_word_is_explained_twice():
    glossary = (ROOT / "docs/glossary.md").read_text(encoding="utf-8")
    words = re.findall(r"^\| ([^|`]+) \|", glossary, re.MULTILINE)[1:]
    assert len(words) >= 40
    assert len(words) == len(set(words))

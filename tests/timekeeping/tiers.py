"""Selection of the tests on real parts that run now.

Tests marked `always` carry a claim and run at each landing. The others run at a release (`make test-thorough`), and some of their files at
each landing: a quarter, another one after each commit, and the files whose `COVERS` names a product file that changed since the
times were stored. A quarter goes by files, because the tests of a file share what is dear to start.
"""

from __future__ import annotations

import hashlib
import itertools
import re
import subprocess
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final

import pytest

from timekeeping.landings import STORED, read
from timekeeping.stages import ROOT

TIERS: Final = ("all", "always", "landing")
QUARTERS: Final = 4
PROCESSES: Final = 3
LONGEST_S: Final = 720.0
"""Bound on a landing's share of the second tier, by the stored seconds."""
_COVERS: Final = re.compile(r"^COVERS = \(([^)]*)\)", re.MULTILINE)


def left_out(items: Sequence[pytest.Item], tier: str) -> list[pytest.Item]:
    """Tests on real parts that this run leaves to another.

    Args:
        items: tests on real parts.
        tier: one of `TIERS`.
    """
    if tier == "all" or not items:
        return []
    rest = [item for item in items if item.get_closest_marker("always") is None]
    now = due_files() if tier == "landing" else ()
    return [item for item in rest if item.path not in now]


def due_files() -> Collection[Path]:
    """Files of the second tier that run at this landing."""
    files = [file for folder in ("cluster", "faults") for file in (ROOT / "tests" / folder).glob("test_*.py")]
    commits = int(_git("rev-list", "--count", "HEAD"))
    return chosen(files, commits, changed_files(), read(STORED).files)


def chosen(
    files: Iterable[Path], commits: int, changed: Collection[str], took: Mapping[str, float]
) -> Collection[Path]:
    """The quarter of some files that is due after so many commits, and those whose product files changed, as far as time goes.

    Args:
        files: of tests.
        commits: number of commits.
        changed: files, from the repository's root, that changed since the stored times.
        took: seconds by file, as stored; a new file takes none.
    """
    named = {file.relative_to(ROOT).as_posix(): file for file in files}
    turn = commits % QUARTERS
    due = [name for name in sorted(named) if quarter(name) == turn]
    due += [
        name
        for name in sorted(named)
        if quarter(name) != turn and _touched((name, *covers(named[name])), changed)
    ]
    ends_s = itertools.accumulate(took.get(name, 0.0) / PROCESSES for name in due)
    return {named[name] for name, end_s in zip(due, ends_s, strict=True) if end_s <= LONGEST_S}


def quarter(name: str) -> int:
    """The quarter of a test file, by its name; the same on every machine."""
    return hashlib.sha256(name.encode()).digest()[0] % QUARTERS


def covers(file: Path) -> Sequence[str]:
    """Beginnings of the paths of product files that a test file names in its `COVERS`."""
    found = _COVERS.search(file.read_text(encoding="utf-8"))
    return re.findall(r'"([^"]+)"', found[1]) if found else ()


def _touched(beginnings: Sequence[str], changed: Collection[str]) -> bool:
    return any(name.startswith(tuple(beginnings)) for name in changed)


def changed_files() -> Collection[str]:
    """Files that changed since the stored times were measured."""
    # The line that a whole run writes: seconds of single files are also put in by hand.
    stored = _git("log", "-1", "--format=%H", "-G", '"measured":', "--", str(STORED.relative_to(ROOT)))
    return frozenset(_git("diff", "--name-only", stored, "HEAD").splitlines()) if stored else ()


def _git(*words: str) -> str:
    return subprocess.run(
        ("git", *words), cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.strip()

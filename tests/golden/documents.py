"""How golden tests run a command and compare its document with the stored one."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

DATA = Path(__file__).parent / "data"
PAGES = Path(__file__).parents[2] / "docs" / "cli"


def breakeven(*arguments: str, cwd: Path = DATA) -> subprocess.CompletedProcess[str]:
    """Run the command line as a user does, in a process of its own."""
    return subprocess.run(
        [sys.executable, "-m", "breakeven.cli", *arguments],
        cwd=cwd,
        capture_output=True,
        text=True,
        check=False,
    )


def same(found: object, expected: object, path: str = "$") -> None:
    """Compare two documents: structure exactly, numbers closely."""
    if isinstance(expected, dict):
        assert isinstance(found, dict), path
        assert list(found) == list(expected), path
        for key, value in expected.items():
            same(found[key], value, f"{path}.{key}")
    elif isinstance(expected, list):
        assert isinstance(found, list), path
        assert len(found) == len(expected), path
        for index, value in enumerate(expected):
            same(found[index], value, f"{path}[{index}]")
    elif isinstance(expected, float):
        assert found == pytest.approx(expected, rel=1e-6, abs=1e-12), path
    else:
        assert found == expected, path


def same_as_stored(name: str, found: object) -> None:
    """Compare with data/<name>.json."""
    same(found, json.loads((DATA / f"{name}.json").read_text(encoding="utf-8")))


def refused(done: subprocess.CompletedProcess[str], code: int, says: str) -> None:
    """Wrong input: nothing on stdout, the right status, one line (or the usage) that says what is wrong."""
    assert (done.returncode, done.stdout) == (code, ""), done.stderr
    assert says in done.stderr
    assert "Traceback" not in done.stderr
    if code == 1:
        assert len(done.stderr.splitlines()) == 1
        assert done.stderr.startswith("breakeven: ")


def section(command: str) -> str:
    """The page of a command."""
    return (PAGES / f"{command}.md").read_text(encoding="utf-8")


def explained(command: str) -> set[str]:
    """Keys that the page of a command explains of its document."""
    table = section(command).partition("The document of `--json`:")[2]
    return set(re.findall(r"`([^`]+)`", "".join(re.findall(r"^\| ([^|]+) \|", table, re.MULTILINE))))


def unexplained(command: str, document: object) -> set[str]:
    """Keys of a document that the command's page does not explain where they stand; the rows of `points` have the columns of a points file."""

    def keys(node: object, place: str = "") -> Iterator[str]:
        if isinstance(node, dict):
            for key, value in node.items():
                # Tables by draft length, coefficient or reason word have no fixed keys.
                if not re.fullmatch(r"\d+|c[12][pvds]|[A-Z]\w+", key):
                    yield f"{place}{key}"
                    yield from keys([] if place + key == "points" else value, f"{place}{key}.")
        elif isinstance(node, list):
            for item in node:
                yield from keys(item, f"{place[:-1]}[].")

    return set(keys(document)) - explained(command)

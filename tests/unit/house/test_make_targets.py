"""What `make check` runs can make it fail."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[3]


def recipe(target: str) -> list[str]:
    """The command lines of a target."""
    text = (ROOT / "Makefile").read_text(encoding="utf-8")
    (body,) = re.findall(rf"^{target}:.*\n((?:\t.*\n)+)", text, re.MULTILINE)
    return body.splitlines()


def test_no_pipe_hides_a_failed_check():
    """Make sees the exit status of a pipe's last command only: `lint-imports | tail` passed whatever was broken."""
    checks = re.findall(r"(?<= )[a-z-]+(?= |$)", recipe("check")[0].partition("--keep-going")[2])
    commands = [line for target in ("check", "test", *checks) for line in recipe(target)]
    assert len(commands) >= 8
    assert not [line for line in commands if re.search(r"(?<!\|)\|(?!\|)|\|\| true|^\t-", line)]

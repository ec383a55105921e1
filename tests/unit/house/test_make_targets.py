"""Each step of `make check` and `make test` can make them fail, and neither leaves a check out."""

from __future__ import annotations

import re
from pathlib import Path

from timekeeping.stages import STAGES, STATIC

ROOT = Path(__file__).parents[3]


def recipe(target: str) -> list[str]:
    """The command lines of a target."""
    text = (ROOT / "Makefile").read_text(encoding="utf-8")
    (body,) = re.findall(rf"^{target}:.*\n((?:\t.*\n)+)", text, re.MULTILINE)
    return body.splitlines()


def test_no_pipe_hides_a_failed_check():
    """Make sees the exit status of a pipe's last command only: `lint-imports | tail` passed whatever was broken."""
    checks = re.findall(r"(?<= )[a-z-]+(?= |$)", recipe("check")[0].partition("--keep-going")[2])
    stages = {word for stage in STAGES if stage.command[0] == "make" for word in stage.command[1:]}
    targets = {"check", "test", *checks, *(word for word in stages if not word.startswith("--"))}
    assert targets >= {"types", "lint", "coverage"}
    commands = [line for target in targets for line in recipe(target)]
    assert not [line for line in commands if re.search(r"(?<!\|)\|(?!\|)|\|\| true|^\t-", line)]


def test_both_commands_run_the_same_checks_that_are_no_tests():
    checks = re.findall(r"(?<= )[a-z-]+(?= |$)", recipe("check")[0].partition("--keep-going")[2])
    assert checks == ["quick-tests", *STATIC]

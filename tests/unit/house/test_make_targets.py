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
    assert checks == ["quick-library", "quick-operator", *STATIC]


def test_every_test_in_memory_is_run_once_with_its_lines_counted_or_not():
    text = (ROOT / "Makefile").read_text(encoding="utf-8").replace("\\\n", " ")
    lists = {
        name: re.search(rf"^{name} := (.*)$", text, re.MULTILINE)[1].split()
        for name in ("COUNTED", "UNCOUNTED")
    }
    files = {str(file.relative_to(ROOT)) for file in (ROOT / "tests").rglob("test_*.py")}
    in_memory = {file for file in files if not file.startswith(("tests/cluster/", "tests/faults/"))}

    def listed(name):
        return {file for file in in_memory for one in lists[name] if f"{file}/".startswith(f"{one}/")}

    assert all((ROOT / one).exists() for names in lists.values() for one in names)
    assert listed("COUNTED") | listed("UNCOUNTED") == in_memory
    assert recipe("coverage")[1].count("$(addprefix --ignore=,$(UNCOUNTED))") == 1

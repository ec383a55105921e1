"""Tests on real parts: run once, and what fails once more, alone and in a process of its own.

A test that passes then is printed as FLAKY and kept in a file; more than two of them fail the run. Tests in memory are never
repeated.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Final
from xml.etree.ElementTree import parse

from timekeeping.landings import file_of
from timekeeping.stages import ROOT

FLAKY: Final = ROOT / ".local" / "times" / "flaky.txt"
MOST_FLAKY: Final = 2
_PYTEST: Final = (sys.executable, "-m", "pytest")


def run(command: Sequence[str], report: Path) -> int:
    """Exit status of some tests, those included that are run again.

    Args:
        command: of pytest.
        report: its junit file.
    """
    report.unlink(missing_ok=True)
    status = subprocess.run((*_PYTEST, *command, f"--junitxml={report}"), cwd=ROOT, check=False).returncode
    if status == 0 or not report.exists():
        return status
    failed = list(failures(report))
    if not failed or len(failed) > 2 * MOST_FLAKY:
        return status
    flaky = [name for name in failed if _passes_alone(name)]
    for name in flaky:
        print(f"FLAKY {name}", flush=True)
    FLAKY.parent.mkdir(parents=True, exist_ok=True)
    with FLAKY.open("a", encoding="utf-8") as kept:
        kept.writelines(f"{datetime.now(UTC):%Y-%m-%d} {name}\n" for name in flaky)
    return 0 if len(failed) == len(flaky) <= MOST_FLAKY else status or 1


def failures(report: Path) -> Iterator[str]:
    """Names of the tests that failed, as pytest takes them; a file that could not be collected counts as one."""
    for case in parse(report).iter("testcase"):
        if case.find("failure") is not None or case.find("error") is not None:
            file, name = file_of(case.get("classname", "")), case.get("name", "")
            yield f"{file}::{name}"


def _passes_alone(name: str) -> bool:
    print(f"== once more, alone: {name} ==", flush=True)
    return subprocess.run((*_PYTEST, name), cwd=ROOT, check=False).returncode == 0

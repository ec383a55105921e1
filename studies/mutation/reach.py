"""Which tests run which lines of the core, and how long each takes: collected once per tree, by coverage's contexts.

As a pytest plugin (`-p mutation.reach`) it takes one context per test; lines that run while fixtures are made count for all
tests of the file, because a fixture that several share runs in the first of them alone.
"""

from __future__ import annotations

import json
import os
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import coverage
import pytest

OUTPUT = "BREAKEVEN_REACH"
"""Environment variable: the folder that the plugin writes to, a file per process. Without it the plugin does nothing."""
CORE = (
    "tuner/breakeven/planning", "tuner/breakeven/fitting", "tuner/breakeven/laws", "tuner/breakeven/readers",
    "tuner/breakeven/load_driver", "tuner/breakeven/serving", "operator/breakeven_operator/observing",
    "operator/breakeven_operator/judging", "operator/breakeven_operator/rolls", "operator/breakeven_operator/outcome",
    "operator/breakeven_operator/cluster", "operator/breakeven_operator/calibration",
    "operator/breakeven_operator/workloads", "operator/breakeven_operator/board/board_access.py",
)  # fmt: skip
"""Packages that decide, read or keep tenants apart. Each has the same share of a sample."""
_SETUP = "setup of "


@dataclass(frozen=True, slots=True)
class Reach:
    """Tests by line.

    Attributes:
        contexts: tests, and files of tests while their fixtures are made.
        lines: by path and line, a number whose bit i is set if contexts[i] runs the line; names would take gigabytes.
        seconds: of CPU, by test; a test that fails without any change is none.
    """

    contexts: list[str]
    lines: dict[str, dict[int, int]]
    seconds: dict[str, float]

    @classmethod
    def read(cls, texts: Iterable[str]) -> Reach:
        """From the plugin's files, one per process that ran tests."""
        contexts: list[str] = []
        lines: dict[str, dict[int, int]] = defaultdict(lambda: defaultdict(int))
        seconds: dict[str, float] = {}
        for document in map(json.loads, texts):
            for path, by_line in document["lines"].items():
                for line, bits in by_line.items():
                    lines[path][int(line)] |= int(bits, 16) << len(contexts)
            contexts += document["contexts"]
            seconds |= document["seconds"]
        return cls(contexts, lines, seconds)

    def tests(self, path: str, lines: tuple[int, int]) -> list[str]:
        """The tests that run one of the lines, quickest first.

        Args:
            path: of the source.
            lines: first and last. If no test runs them, they run on import or never, and all tests of the module count.
        """
        by_line = self.lines.get(path, {})
        first, last = lines
        bits = 0
        # The body of a class runs on import, too.
        for line in [one for one in range(first, last + 1) if one in by_line] or by_line:
            bits |= by_line.get(line, 0)
        found = {one for number, one in enumerate(self.contexts) if bits >> number & 1}
        files = {one.removeprefix(_SETUP) for one in found if one.startswith(_SETUP)}
        tests = {one for one in found if not one.startswith(_SETUP)}
        tests |= {test for test in self.seconds if test.partition("::")[0] in files}
        return sorted(tests & self.seconds.keys(), key=lambda test: (self.seconds[test], test))


class _Collector:
    def __init__(self, output: Path) -> None:
        self._output = output
        self._coverage = coverage.Coverage(
            data_file=None,
            include=[one if one.endswith(".py") else f"{one}/*" for one in CORE],
            config_file=False,
        )
        self._seconds: dict[str, float] = {}
        self._failed: set[str] = set()

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection(self) -> None:
        self._coverage.start()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> Iterator[None]:
        self._coverage.switch_context(_SETUP + item.nodeid.partition("::")[0])
        return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Iterator[None]:
        self._coverage.switch_context(item.nodeid)
        begun = time.process_time()
        try:
            return (yield)
        finally:
            self._seconds[item.nodeid] = round(time.process_time() - begun, 4)
            self._coverage.switch_context("")

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self._failed.add(report.nodeid)

    def pytest_sessionfinish(self) -> None:
        self._coverage.stop()
        # Or it would catch every mutant of every line that it runs.
        seconds = {test: value for test, value in self._seconds.items() if test not in self._failed}
        data = self._coverage.get_data()
        numbers: dict[str, int] = {}
        lines: dict[str, dict[int, str]] = defaultdict(dict)
        for file in sorted(data.measured_files()):
            path = os.path.relpath(file)
            for line, contexts in data.contexts_by_lineno(file).items():
                bits = 0
                for one in filter(None, contexts):
                    bits |= 1 << numbers.setdefault(one, len(numbers))
                if bits:
                    lines[path][line] = f"{bits:x}"
        document = {"contexts": list(numbers), "lines": lines, "seconds": seconds}
        self._output.write_text(json.dumps(document))


def pytest_configure(config: Any) -> None:
    """Collect, if it is asked for, in each process that runs tests."""
    if (output := os.environ.get(OUTPUT)) and hasattr(config, "workerinput"):
        config.pluginmanager.register(_Collector(Path(output) / f"{config.workerinput['workerid']}.json"))

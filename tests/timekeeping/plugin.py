"""The pytest plugin: what each test and each fixture took, and a budget for each test.

A test that uses more than `BUDGET_CPU_S` by itself fails unless its docstring says why, in a line that begins with
`Costly: `. CPU seconds are compared, not the wall's: those hardly depend on what else a machine does. They depend on how fast
it is at that moment, so a yardstick is timed at the begin and after each test that is not short: a test may also use
`BUDGET_YARDSTICKS` times the most that the yardstick took so far.

Attached to reports, so that a worker of xdist sends it along:
    times: {"wall_s", "cpu_s", "own_cpu_s"} of the phase.
    fixtures: [name, scope, file, wall_s, cpu_s] of each fixture that was set up in it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Generator
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

import pytest

from timekeeping.readings import Reading, Spent, read, spent, yardstick_cpu_s

BUDGET_CPU_S: Final = 20.0
BUDGET_YARDSTICKS: Final = 600.0
_SHORT_CPU_S: Final = 4.0
_REASON: Final = re.compile(r"^\s*Costly: \S+( \S+){2,}", re.MULTILINE)
_PHASES: Final = pytest.StashKey[dict[str, Spent]]()
_FIXTURES: Final = pytest.StashKey[list[tuple[str, str, str, Spent]]]()


class Timekeeper:
    """Measures in the process that runs the tests; gathers and writes in the one that reports them.

    Args:
        config: of the run.
        started: when this process began with pytest.
    """

    def __init__(self, config: pytest.Config, started: Reading) -> None:
        self._config = config
        self._started = started
        self._inner: list[Spent] = []
        self._tests: dict[str, dict[str, Any]] = {}
        self._workers: list[dict[str, float]] = []
        self._yardstick_s = yardstick_cpu_s()

    # Where tests run.

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> Generator[None]:
        item.stash[_PHASES] = {}
        item.stash[_FIXTURES] = []
        yield from _timed(item, "setup")

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Generator[None]:
        yield from _timed(item, "call")

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_teardown(self, item: pytest.Item) -> Generator[None]:
        yield from _timed(item, "teardown")

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_fixture_setup(
        self, fixturedef: pytest.FixtureDef[Any], request: pytest.FixtureRequest
    ) -> Generator[None, object, object]:
        start = read()
        self._inner.append(Spent())
        try:
            return (yield)
        finally:
            whole = spent(start, read())
            # A fixture that asks for others while it is set up is not charged for them.
            alone = whole - self._inner.pop()
            if self._inner:
                self._inner[-1] += whole
            place = fixturedef.baseid or fixturedef.func.__module__
            # A parameter of a test is a fixture to pytest, and nothing is made for it.
            if place != "_pytest.python":
                made = request.node.session.stash.setdefault(_FIXTURES, [])
                made.append((fixturedef.argname, fixturedef.scope, place, alone))

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        phases = item.stash.get(_PHASES, {})
        fixtures = item.session.stash.get(_FIXTURES, [])
        if report.when in phases:
            made = [[*names, took.wall_s, took.cpu_s] for *names, took in fixtures]
            vars(report).update(times=asdict(phases[report.when]), fixtures=made)
        if report.when == "setup":
            shared = (took for _, scope, _, took in fixtures if scope != "function")
            item.stash[_PHASES]["shared"] = sum(shared, Spent())
        fixtures.clear()
        if report.when == "call" and report.passed:
            own = phases["setup"] + phases["call"] - phases["shared"]
            if own.own_cpu_s > _SHORT_CPU_S:
                self._yardstick_s = max(self._yardstick_s, yardstick_cpu_s())
            problem = over_budget(item, own.own_cpu_s, self._yardstick_s)
            if problem:
                report.outcome = "failed"
                report.longrepr = problem
        return report

    # Where they are reported.

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        times = getattr(report, "times", None)
        if times is None:
            return
        test = self._tests.setdefault(report.nodeid, {"phases": {}, "fixtures": []})
        test["phases"][report.when] = {"wall_s": times["wall_s"], "cpu_s": times["cpu_s"]}
        test["fixtures"] += getattr(report, "fixtures", [])

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any, error: object) -> None:
        if "spent" in getattr(node, "workeroutput", {}):
            self._workers.append(node.workeroutput["spent"])

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self) -> None:
        whole = asdict(spent(self._started, read()))
        output = getattr(self._config, "workeroutput", None)
        target = self._config.getoption("times")
        if output is not None:
            output["spent"] = whole
        elif target:
            Path(target).parent.mkdir(parents=True, exist_ok=True)
            record = {"whole": whole, "workers": len(self._workers), "tests": self._tests}
            Path(target).write_text(json.dumps(record), encoding="utf-8")


def over_budget(item: pytest.Item, cpu_s: float, yardstick_s: float) -> str:
    """One line about a test that uses more than it may; empty if it may use so much.

    Args:
        item: the test.
        cpu_s: of the test with the fixtures that were made for it alone.
        yardstick_s: CPU seconds that the yardstick took at the slowest.
    """
    if item.get_closest_marker("cluster") is not None:
        # The time of a whole cluster counts when its processes have ended, in whichever test that is.
        return ""
    said = getattr(getattr(item, "function", None), "__doc__", None) or ""
    allowed_s = max(BUDGET_CPU_S, BUDGET_YARDSTICKS * yardstick_s)
    if cpu_s <= allowed_s or _REASON.search(said):
        return ""
    return (
        f"{item.nodeid}: {cpu_s:.1f} CPU seconds; expected at most {BUDGET_CPU_S:g} "
        f"({allowed_s:.0f} at this machine's speed), or a line `Costly: why` in its docstring"
    )


def _timed(item: pytest.Item, phase: str) -> Generator[None]:
    start = read()
    try:
        return (yield)
    finally:
        item.stash[_PHASES][phase] = spent(start, read())

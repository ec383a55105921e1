"""The stage whose operator asks Prometheus through an unreliable proxy; a row per test; the table at the end.

Fixtures:

* `stage` (session): cluster and operator, as `operatorcluster` has them, with the proxy between operator and Prometheus.
* `prometheus` (session): that proxy.
* `place` (per test): a namespace of the stage.
* `facing` (per test): opens a row of the table, with streaming users of the target while it is open.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from faults.client import streaming
from faults.table import FaultRow, table
from faults.unreliable import UnreliablePrometheus
from localcluster.binaries import ensure
from operatorcluster import manifests
from operatorcluster.fixtures import place  # noqa: F401 - a fixture of these tests
from operatorcluster.stage import Place, Stage, standing
from operatorcluster.waiting import until

HERE = Path(__file__).parent
# Against hanging only: waits have limits of their own and say what they waited for.
TIMEOUT_S = 1800
RPS = 3.0
FEWEST = 10
_ROW = "fault row"


def repeats(fewest: int) -> int:
    """How often a fault is repeated: a few times in CI, `FAULT_REPEATS` times for the table."""
    return int(os.environ.get("FAULT_REPEATS", fewest))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(HERE):
            item.add_marker(pytest.mark.cluster)
            item.add_marker(pytest.mark.timeout(TIMEOUT_S))


def pytest_collection_finish(session: pytest.Session) -> None:
    # Not in a fixture: a first build takes minutes, and a fixture's time counts as its test's.
    if not session.config.option.collectonly and any(i.path.is_relative_to(HERE) for i in session.items):
        capture = session.config.pluginmanager.getplugin("capturemanager")
        with capture.global_and_fixture_disabled():
            ensure()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    reports = (report for group in terminalreporter.stats.values() for report in group)
    # Properties of a report are what reaches this process from the one that ran the test.
    rows = [
        row
        for report in reports
        if getattr(report, "when", "") == "call"
        for name, row in report.user_properties
        if name == _ROW
    ]
    if rows:
        terminalreporter.section("a hostile world")
        terminalreporter.write_line(table(rows))
        terminalreporter.write_line(f"{sum(row['kept'] for row in rows)} of {len(rows)} promises kept")


@pytest.fixture(scope="session")
def prometheus() -> Iterator[UnreliablePrometheus]:
    with UnreliablePrometheus().running() as proxy:
        yield proxy


@pytest.fixture(scope="session")
def stage(tmp_path_factory: pytest.TempPathFactory, prometheus: UnreliablePrometheus) -> Iterator[Stage]:
    with standing(tmp_path_factory.mktemp("stage"), prometheus.before) as stage:
        yield stage


@pytest.fixture
def facing(request: pytest.FixtureRequest) -> Callable[..., Any]:
    """Open a row: `with facing(place, fault, promised) as row`.

    Streaming users ask the target while the row is open. At its end nothing may be lost, and the target may have been
    changed `row.writes` times.
    """

    @contextlib.contextmanager
    def opened(
        where: Place, fault: str, promised: str, *, times: int = 1, app: str = manifests.TARGET
    ) -> Iterator[FaultRow]:
        row = FaultRow(fault, promised, times)
        before = len(where.writes())
        try:
            with streaming(where, RPS, app, row.users):
                yield row
                # A row of nobody's requests says nothing about those that are lost.
                until("users are answered", lambda: row.users.answered >= FEWEST)
            row.unwanted_writes = max(0, len(where.writes()) - before - row.writes)
        finally:
            request.node.user_properties.append((_ROW, row.cells()))
        assert row.kept, row.cells()

    return opened

"""Settings of all tests."""

from __future__ import annotations

import gc
import os
import signal
import sys

import pytest

from timekeeping.dear import listed, named
from timekeeping.plugin import Timekeeper
from timekeeping.readings import read

_STARTED = read()
_QUICK = os.environ.get("HYPOTHESIS_PROFILE") == "quick"

# A shell ignores SIGINT for what it starts in the background, and children inherit that: tests of Ctrl-C would find
# commands that cannot be interrupted.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collectstart(collector: pytest.Collector) -> None:
    # Before a file's laws are made. Most files hold none, and Hypothesis takes as long to import as pytest itself.
    if isinstance(collector, pytest.Module) and "hypothesis" in collector.path.read_text(encoding="utf-8"):
        from draws import choose_profile

        choose_profile()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--times", metavar="FILE", help="write what each test and fixture took (python -m timekeeping)"
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not _QUICK:
        return
    names = listed()
    dear = [item for item in items if named(item.nodeid) in names]
    config.hook.pytest_deselected(items=dear)
    items[:] = [item for item in items if named(item.nodeid) not in names]


def pytest_collection_finish(session: pytest.Session) -> None:
    # Modules and collected tests live until the end: looked through by every collection, they cost an eighth of the time.
    gc.collect()
    gc.freeze()
    gc.set_threshold(100_000, 50, 50)


def pytest_configure(config: pytest.Config) -> None:
    # `make test` holds every test to its budget; fifty files of /proc a test are a twentieth of `make check`.
    if not _QUICK or config.getoption("times"):
        config.pluginmanager.register(Timekeeper(config, _STARTED), "timekeeper")


def pytest_sessionfinish(session: pytest.Session) -> None:
    # Its plugin imports Hypothesis for the summary, and there is none to give; workers of xdist may have imported it.
    if "hypothesis" not in sys.modules and not session.config.getoption("numprocesses", None):
        session.config.pluginmanager.unregister(name="hypothesispytest")

"""Settings of all tests."""

from __future__ import annotations

import gc
import signal
import sys
from collections.abc import Mapping

import pytest

from timekeeping.landings import STORED, read
from timekeeping.stages import ROOT
from timekeeping.tiers import TIERS, left_out

# A shell ignores SIGINT for what it starts in the background, and children inherit that: tests of Ctrl-C would find
# commands that cannot be interrupted.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collectstart(collector: pytest.Collector) -> None:
    # Before a file's laws are made. Most files hold none, and Hypothesis takes as long to import as pytest itself.
    if isinstance(collector, pytest.Module) and "hypothesis" in collector.path.read_text(encoding="utf-8"):
        from draws import choose_profile

        choose_profile()


# Seconds of a file of tests with all draws above which `make check` leaves it to `make test`; with few draws a law takes some three tenths.
_LONGEST_QUICK_S = 2.0


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--tier",
        choices=TIERS,
        default="all",
        help="tests on real parts that run now (tests/timekeeping/tiers.py)",
    )
    parser.addoption("--quick", action="store_true", help="leave out the files of tests that take longest")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    left = set(left_out([item for item in items if _is_on_real_parts(item)], config.getoption("tier")))
    if config.getoption("quick"):
        took = read(STORED).files
        left |= {item for item in items if _quick_s(item, took) > _LONGEST_QUICK_S}
    if left:
        config.hook.pytest_deselected(items=sorted(left, key=lambda item: item.nodeid))
        items[:] = [item for item in items if item not in left]


def _is_on_real_parts(item: pytest.Item) -> bool:
    return item.path.relative_to(ROOT).parts[1] in {"cluster", "faults"}


def _quick_s(item: pytest.Item, took: Mapping[str, float]) -> float:
    """Seconds of the item's file; rules of the house are in `make check` whatever they take: they answer what one just wrote."""
    name = item.path.relative_to(ROOT).as_posix()
    if name.startswith("tests/unit/house/"):
        return 0.0
    return took.get(name, 0.0) * (0.3 if name.startswith("tests/property/") else 1.0)


def pytest_collection_finish(session: pytest.Session) -> None:
    # Modules and collected tests live until the end: looked through by every collection, they cost an eighth of the time.
    gc.collect()
    gc.freeze()
    gc.set_threshold(100_000, 50, 50)


def pytest_sessionfinish(session: pytest.Session) -> None:
    # Its plugin imports Hypothesis for the summary, and there is none to give; workers of xdist may have imported it.
    if "hypothesis" not in sys.modules and not session.config.getoption("numprocesses", None):
        session.config.pluginmanager.unregister(name="hypothesispytest")

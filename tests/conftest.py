"""Settings of all tests."""

from __future__ import annotations

import signal

import pytest

from draws import choose_profile
from timekeeping.plugin import Timekeeper
from timekeeping.readings import read

_STARTED = read()

choose_profile()

# A shell ignores SIGINT for what it starts in the background, and children inherit that: tests of Ctrl-C would find
# commands that cannot be interrupted.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--times", metavar="FILE", help="write what each test and fixture took (python -m timekeeping)"
    )


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(Timekeeper(config, _STARTED), "timekeeper")

"""A fault of our own is one line for people, and a traceback for those who ask for it."""

from __future__ import annotations

import click
import pytest

import breakeven.cli
from breakeven.cli import main


@pytest.fixture
def broken(monkeypatch):
    @click.command()
    def command() -> None:
        raise ValueError("shapes (244,)\n(0,)")

    monkeypatch.setattr(breakeven.cli, "root", command)
    monkeypatch.setattr("sys.argv", ["breakeven"])


def test_a_fault_is_one_line_and_exit_1(broken, capsys, monkeypatch):
    monkeypatch.delenv("BREAKEVEN_TRACEBACK", raising=False)
    with pytest.raises(SystemExit) as end:
        main()
    shown = capsys.readouterr()
    assert (end.value.code, shown.out) == (1, "")
    (line,) = shown.err.splitlines()
    assert line.startswith("breakeven: a fault of breakeven itself")
    assert "ValueError: shapes (244,) (0,)" in line


def test_whoever_mends_it_sees_where(broken, monkeypatch):
    monkeypatch.setenv("BREAKEVEN_TRACEBACK", "1")
    with pytest.raises(ValueError, match="shapes"):
        main()

"""A fault of our own is one line for people, and a traceback for those who ask for it; what is not installed is named."""

from __future__ import annotations

import sys

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


@pytest.mark.parametrize(
    ("arguments", "package", "extra"),
    [
        (("simulate", "--profile", "{points}", "--trace", "{trace}"), "breakeven_sim", "sim"),
        (("engine-sim", "--help"), "breakeven_sim", "sim"),
        (("report", "{points}", "-o", "{page}"), "jinja2", "report"),
    ],
)
def test_a_command_whose_extra_is_not_installed_names_it(
    arguments, package, extra, tmp_path, capsys, monkeypatch
):
    """The operator's image holds no simulated engine and draws no pictures."""
    monkeypatch.delenv("BREAKEVEN_TRACEBACK", raising=False)
    for name in [name for name in sys.modules if name.partition(".")[0] == package]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, package, None)
    for name in [name for name in sys.modules if name.startswith("breakeven.reporting.")]:
        monkeypatch.delitem(sys.modules, name)
    points = tmp_path / "points.csv"
    rows = "".join(f"none,0,{1.0 + 0.1 * n},{n}\neagle3,3,{0.6 + 0.1 * n},{n}\n" for n in (1, 4, 8))
    points.write_text(f"method,k,mean_latency_s,concurrency\n{rows}", encoding="utf-8")
    trace = tmp_path / "trace.csv"
    trace.write_text("start_s,rps\n0,1\n60,2\n", encoding="utf-8")
    paths = {"points": points, "trace": trace, "page": tmp_path / "page.html"}
    monkeypatch.setattr("sys.argv", ["breakeven", *(text.format(**paths) for text in arguments)])
    with pytest.raises(SystemExit) as end:
        main()
    assert end.value.code == 1
    shown = capsys.readouterr()
    assert (shown.out, shown.err) == (
        "",
        f"breakeven: this command needs {package}, which is not installed; expected pip install 'breakeven[{extra}]'\n",
    )
    assert not paths["page"].exists()


def test_a_module_of_our_own_that_is_missing_is_a_fault(monkeypatch, capsys):
    monkeypatch.delenv("BREAKEVEN_TRACEBACK", raising=False)
    monkeypatch.setitem(sys.modules, "breakeven.cli.fit", None)
    monkeypatch.setattr("sys.argv", ["breakeven", "fit", "--help"])
    with pytest.raises(SystemExit):
        main()
    assert capsys.readouterr().err.startswith("breakeven: a fault of breakeven itself")

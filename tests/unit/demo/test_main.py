"""`make demo` around its play: when it begins, and its last line."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest

import demo.__main__ as program
from demo import performance
from demo.summary import Check
from localcluster import LocalClusterError


def told(capsys, monkeypatch, *arguments: str) -> tuple[int, list[str]]:
    """Exit status and lines of a run."""
    monkeypatch.setattr(sys, "argv", ["demo", *arguments])
    return program.main(), capsys.readouterr().out.splitlines()


@pytest.mark.parametrize("keep", [[], ["--keep"]], ids=["gone", "kept"])
@pytest.mark.parametrize(
    ("ok", "status", "words"),
    [(True, 0, "all 2 checks hold"), (False, 1, "1 of 2 checks failed: no request failed")],
)
def test_the_last_line_is_the_exit_status(capsys, monkeypatch, keep, ok, status, words):
    def play(story, costs, console, *, keep):
        console.print("what to try" if keep else "the cluster is gone")
        return [Check("something", True, ""), Check("no request failed", ok, "")]

    monkeypatch.setattr(program, "play", play)
    found, lines = told(capsys, monkeypatch, *keep)
    assert found == status
    assert lines[-1] == f"demo: exit status {status}: {words}"


@pytest.mark.parametrize(
    ("problem", "status", "words"),
    [
        (LocalClusterError("port 1 is taken"), 1, "port 1 is taken"),
        (LocalClusterError("a long\nstory, " + 60 * "long "), 1, "a long story, " + " ".join(60 * ["long"])),
        (KeyboardInterrupt(), 130, "interrupted; the cluster is gone"),
    ],
)
def test_so_is_it_when_the_demo_does_not_come_to_its_end(capsys, monkeypatch, problem, status, words):
    def play(*_, **__):
        raise problem

    monkeypatch.setattr(program, "play", play)
    found, lines = told(capsys, monkeypatch)
    assert (found, lines[-1]) == (status, f"demo: exit status {status}: {words}")


def test_costs_that_are_not_there_are_one_line(capsys, monkeypatch, tmp_path):
    missing = tmp_path / "none.json"
    found, lines = told(capsys, monkeypatch, f"--costs={missing}")
    assert (found, lines) == (1, [f"demo: exit status 1: {missing}: no such file"])


def test_what_a_first_run_builds_is_no_part_of_the_demo_s_time(capsys, monkeypatch, tmp_path):
    """The picture's time axis counts from there."""
    now = {"s": 0.0}

    def build(names) -> None:
        assert {"kube-apiserver", "prometheus", "alertmanager", "helm"} <= set(names)
        now["s"] += 600.0

    class Cluster:
        kubeconfig = tmp_path / "kubeconfig"

        def __init__(self, state: Path) -> None:
            now["s"] += 9.0

        def __enter__(self):
            return self

        def __exit__(self, *failure):
            return None

        def start_nodes(self, **_):
            raise LocalClusterError("enough seen")

    monkeypatch.setattr(performance, "ensure", build)
    monkeypatch.setattr(performance, "LocalCluster", Cluster)
    monkeypatch.setattr(performance, "RESULTS", tmp_path)
    monkeypatch.setattr(time, "time", lambda: now["s"])
    _, lines = told(capsys, monkeypatch)
    assert lines[0].startswith("    9 s  control plane is up"), lines

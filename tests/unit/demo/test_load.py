"""`make load` without a cluster."""

from __future__ import annotations

import sys

from demo import load


def test_without_a_cluster_one_line_says_how_to_get_one(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["demo.load", "chat", "4", f"--kubeconfig={tmp_path / 'none'}"])
    assert load.main() == 1
    assert capsys.readouterr().err == "demo.load: no cluster is up; start one with `make demo KEEP=1`\n"

"""Tests on real parts that a landing runs, and one of them that fails."""

from __future__ import annotations

import subprocess

import pytest

from timekeeping import real_parts, tiers
from timekeeping.landings import seconds_by_file
from timekeeping.stages import ROOT
from timekeeping.tiers import LONGEST_S, PROCESSES, QUARTERS, chosen, covers

FILES = sorted((ROOT / "tests" / "cluster").glob("test_*.py"))
NAMES = {file.relative_to(ROOT).as_posix() for file in FILES}


def test_four_landings_in_a_row_run_each_file_once():
    turns = [chosen(FILES, commits, (), {}) for commits in range(40, 40 + QUARTERS)]
    assert sorted(file for turn in turns for file in turn) == FILES


def test_a_file_runs_when_it_or_what_it_covers_changed():
    plugin = ROOT / "tests/cluster/test_kubectl_plugin.py"
    others = [commits for commits in range(QUARTERS) if plugin not in chosen(FILES, commits, (), {})]
    for changed in (covers(plugin)[0] + "explanation.py", "tests/cluster/test_kubectl_plugin.py"):
        assert all(plugin in chosen(FILES, commits, {changed}, {}) for commits in others)
    assert all(plugin not in chosen(FILES, commits, {"README.md"}, {}) for commits in others)


def test_seconds_that_are_put_in_by_hand_hide_no_change(tmp_path, monkeypatch):
    def committed(name, text):
        (tmp_path / name).write_text(text)
        for words in (("add", "."), ("-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", name)):
            subprocess.run(("git", *words), cwd=tmp_path, check=True)

    subprocess.run(("git", "init", "-q"), cwd=tmp_path, check=True)
    monkeypatch.setattr(tiers, "ROOT", tmp_path)
    monkeypatch.setattr(tiers, "STORED", tmp_path / "times.json")
    committed("times.json", '{"measured": "today",\n"files": {}}\n')
    committed("product.py", "1\n")
    committed("times.json", '{"measured": "today",\n"files": {"a": 1}}\n')
    assert "product.py" in tiers.changed_files()


def test_the_quarter_comes_before_what_changed_and_both_end_with_the_time():
    took = dict.fromkeys(NAMES, LONGEST_S * PROCESSES / 15)
    found = chosen(FILES, 1, NAMES, took)
    assert len(found) == 15
    assert chosen(FILES, 1, (), took) <= found


def test_what_a_file_covers_is_there():
    named = {(file.name, one) for file in FILES for one in covers(file)}
    assert named
    assert [pair for pair in named if not (ROOT / pair[1]).exists()] == []


@pytest.mark.parametrize(
    ("cases", "status", "flaky"),
    [
        ("def test_a(): pass\n", 0, 0),
        # Fails in company and passes alone.
        ("def test_a(): assert len(sys.argv) < 0 or once('a')\n", 0, 1),
        ("def test_a(): assert once('a')\ndef test_b(): assert once('b')\ndef test_c(): assert once('c')\n", 1, 3),
        ("def test_a(): assert False\ndef test_b(): assert once('b')\n", 1, 1),
        ("def test_a(: pass\n", 2, 0),
    ],
)  # fmt: skip
def test_what_fails_runs_once_more_alone_and_is_named_if_it_passes_then(
    tmp_path, monkeypatch, capfd, cases, status, flaky
):
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test_it.py").write_text(
        f"import sys\nfrom pathlib import Path\nHERE = Path({str(tmp_path)!r})\n"
        "def once(name):\n    was = (HERE / name).exists()\n    (HERE / name).touch()\n    return was\n"
        + cases
    )
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    monkeypatch.setattr(real_parts, "ROOT", tmp_path)
    monkeypatch.setattr(real_parts, "FLAKY", tmp_path / "kept" / "flaky.txt")
    report = tmp_path / "report.xml"
    assert real_parts.run(["-q", "-p", "no:cacheprovider", "tests"], report) == status
    said = [line for line in capfd.readouterr().out.splitlines() if line.startswith("FLAKY ")]
    kept = tmp_path / "kept" / "flaky.txt"
    assert len(said) == flaky == (len(kept.read_text().splitlines()) if kept.exists() else 0)
    if status == 0:
        assert set(seconds_by_file([report])) == {"tests/test_it.py"}

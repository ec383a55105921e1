"""Commands that `--help` and the README print work as they stand there, given the files that they name."""

from __future__ import annotations

import re
import shlex
import shutil
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from breakeven.cli import root

ROOT = Path(__file__).parents[2]
POINTS = ROOT / "examples" / "points.csv"
# An engine, Prometheus or a cluster would have to run; --engine needs a vLLM (tests/engine/test_asked_vllm.py).
_NEEDS_MORE = {"answers", "calibrate", "doctor", "engine-sim", "gate", "history"}


def printed() -> list[str]:
    """Every line of a command's help that is a command."""
    context = click.Context(root)
    helps = [root, *(root.get_command(context, name) for name in root.list_commands(context))]
    lines = [
        line
        for command in helps
        for line in re.findall(r"^ +(breakeven .*)$", command.help or "", re.MULTILINE)
    ]
    readme = re.findall(r"`\.venv/bin/(breakeven [^`\n]*)`", (ROOT / "README.md").read_text())
    assert readme
    # Result files of other tools have tests with real ones.
    wanted = [line for line in (*lines, *readme) if "none.json" not in line and "--engine" not in line]
    return [line.strip() for line in wanted if line.split()[1] not in _NEEDS_MORE]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The files that the examples name: points, a profile, result files, a manifest, traces."""
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    shutil.copy(ROOT / "examples" / "answers.jsonl", tmp_path)
    shutil.copy(ROOT / "examples" / "answers.jsonl", tmp_path / "vllm.log")
    (tmp_path / "runs").mkdir()
    for name in ("points.csv", "all.csv", "runs/points.csv", "before.json", "after.json"):
        shutil.copy(POINTS, tmp_path / name)
    shutil.copy(ROOT / "examples" / "vllm-h100.yaml", tmp_path / "deployment.yaml")
    shutil.copy(ROOT / "examples" / "day.csv", tmp_path / "week.csv")
    requests = [f"{second},64,16\n" for second in range(120)]
    (tmp_path / "requests.csv").write_text("timestamp_s,prompt_tokens,output_tokens\n" + "".join(requests))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(line: str):
    words = shlex.split(line)
    return CliRunner().invoke(root, words[1:], prog_name="breakeven", standalone_mode=True)


@pytest.mark.parametrize("line", printed())
def test_it_works(folder, line):
    if "chat.json" in line and " fit " not in line:
        assert run("breakeven fit points.csv -o chat.json").exit_code == 0
    done = run(line)
    assert done.exit_code == 0, f"$ {line}\n{done.output}"


def test_every_command_has_an_example():
    context = click.Context(root)
    for name in root.list_commands(context):
        if name != "engine-sim":  # argparse, as vLLM's own
            assert f"breakeven {name} " in (root.get_command(context, name).help or ""), name
    assert len(printed()) >= 14

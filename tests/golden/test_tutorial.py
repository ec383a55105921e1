"""Every command of docs/tutorial.md, docs/benchmarks.md, docs/stacks.md, docs/start.md and docs/worked-day.md prints what is shown.

Numbers may differ by one percent, because solvers and processors round differently. A line `...` stands for any
lines, and the sweep against the simulated engine runs on a free port. After a change that is meant to change figures,
`PYTHONPATH=tests python tests/golden/test_tutorial.py` rewrites what the page shows.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import pytest

from breakeven.arm import NO_SPECULATION
from breakeven.load_driver.design import of_the_sweep
from breakeven.points import table
from localcluster.free_ports import free_ports

ROOT = Path(__file__).parents[2]
TUTORIAL, EXAMPLE, BENCHMARKS, STACKS, START = (
    ROOT / "docs" / f"{name}.md" for name in ("tutorial", "worked-day", "benchmarks", "stacks", "start")
)
RESULTS = ROOT / "tests" / "golden" / "data" / "vllm_bench_0.32.0"
_BLOCK = re.compile(r"```console\n(.*?)```", re.DOTALL)
_NUMBER = re.compile(r"(?<![\w.])\d+(?:\.\d+)?(?:e-?\d+)?")


@dataclass(frozen=True)
class Step:
    command: str
    shown: str


def steps(block: str) -> list[Step]:
    parts = re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]
    return [Step(*part.partition("\n")[::2]) for part in parts]


def blocks(page: Path = TUTORIAL) -> list[list[Step]]:
    return [steps(block) for block in _BLOCK.findall(page.read_text(encoding="utf-8"))]


def needs_engine(block: list[Step]) -> bool:
    return any("engine-sim" in step.command for step in block)


def run(script: str, folder: Path) -> str:
    """Run in a shell of its own session, so that a failure leaves no engine behind."""
    bin_folder = Path(sys.executable).parent
    environment = {**os.environ, "PATH": f"{bin_folder}:{os.environ['PATH']}", "COLUMNS": "200"}
    shell = subprocess.Popen(
        ["bash", "-e", "-c", script],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        output, _ = shell.communicate(timeout=170)
    finally:
        for job in children_of_session(shell.pid):
            os.kill(job, signal.SIGKILL)
        shell.wait()
    assert shell.returncode == 0, f"{script}\n{output}"
    return output


def children_of_session(session: int) -> list[int]:
    found = []
    for status in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = status.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[3]) == session:
            found.append(int(status.parent.name))
    return found


def same(found: str, shown: str) -> bool:
    """Words exactly, numbers closely, spaces not at all."""
    numbers = [[float(n) for n in _NUMBER.findall(text)] for text in (found, shown)]
    words = [_NUMBER.sub("#", text).split() for text in (found, shown)]
    return words[0] == words[1] and numbers[0] == pytest.approx(numbers[1], rel=0.01)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    shutil.copytree(RESULTS, tmp_path / "results")
    return tmp_path


@pytest.mark.parametrize(
    ("page", "least"),
    [(TUTORIAL, 12), (EXAMPLE, 5), (BENCHMARKS, 3), (STACKS, 5), (START, 3)],
    ids=["tutorial", "worked-day", "benchmarks", "stacks", "start"],
)
def test_what_is_asked_of_files_answers_as_shown(folder: Path, page: Path, least: int) -> None:
    asked = [step for block in blocks(page) if not needs_engine(block) for step in block]
    assert len(asked) >= least
    for step in asked:
        output = run(step.command, folder)
        assert same(output, step.shown), f"$ {step.command}\n{output}\n-- the page shows --\n{step.shown}"
    assert page != TUTORIAL or (folder / "chat.html").read_text().startswith("<!doctype html>")


@pytest.mark.engine
def test_an_engine_is_swept_as_shown(folder: Path) -> None:
    (block,) = [block for block in blocks() if needs_engine(block)]
    (port,) = free_ports(1)
    run("\n".join(step.command for step in block).replace("8000", str(port)), folder)
    points = table.read((folder / "quick.csv").read_text(), "quick.csv")
    own = of_the_sweep(points)
    # A busy machine disturbs points: they stay with a flag, and all but the ceiling are measured again.
    again = [point for point in own if point.flags and point.load.clients != 8]
    # Three loads, and the first of them once more at the end.
    assert (len(own) - len(again), len(points) - len(own)) == (4, 2)
    assert {point.arm for point in points} == {NO_SPECULATION}


def test_the_completion_line_completes(folder: Path) -> None:
    """Bash asks the function that the line defines; it offers commands and options."""
    line = next(step.command for block in blocks() for step in block if "_BREAKEVEN_COMPLETE" in step.command)
    ask = (
        'COMP_WORDS=(breakeven {0}) COMP_CWORD={1}; _breakeven_completion breakeven; echo "${{COMPREPLY[@]}}"'
    )
    assert run(f"{line}\n{ask.format('sch', 1)}", folder).split() == ["schedule"]
    assert "--draft-lengths" in run(f"{line}\n{ask.format('plan --dra', 2)}", folder)


def write(page: Path) -> None:
    """Show what the commands print now."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "tutorial"
        folder.mkdir()
        shutil.copytree(ROOT / "examples", folder / "examples")
        shutil.copytree(RESULTS, folder / "results")

        def shown(block: re.Match[str]) -> str:
            found = steps(block[1])
            if needs_engine(found):
                return block[0]
            lines = [f"$ {step.command}\n{run(step.command, folder)}" for step in found]
            text = "\n".join(line.rstrip() for line in "".join(lines).splitlines())
            return f"```console\n{text}\n```"

        page.write_text(_BLOCK.sub(shown, page.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    write(TUTORIAL)
    for one in (EXAMPLE, BENCHMARKS, STACKS, START):
        write(one)

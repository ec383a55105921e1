"""The launcher of the real engine: its children may start anywhere and end up on the engine's core; it stays where it is."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from real import engine_process

# A program of its own: the launcher changes `multiprocessing` for good.
_PROGRAM = """
    import json, multiprocessing, os, sys
    sys.path.insert(0, sys.argv[1])
    import engine_process

    def affinity(pipe):
        pipe.send(sorted(os.sched_getaffinity(0)))
        pipe.recv()
        pipe.send(sorted(os.sched_getaffinity(0)))

    def with_a_child(pipe):
        child = multiprocessing.get_context("spawn").Process(target=affinity, args=(pipe,))
        child.start()
        child.join()

    if __name__ == "__main__":
        core = int(sys.argv[2])
        engine_process.start_children_also_on(core)
        found = []
        for target in (affinity, with_a_child):
            for method in ("fork", "spawn"):
                context = multiprocessing.get_context(method)
                ours, theirs = context.Pipe()
                child = context.Process(target=target, args=(theirs,))
                child.start()
                starting = ours.recv()
                engine_process.bind_children(core)
                ours.send("bound")
                found.append([starting, ours.recv()])
                child.join()
        print(json.dumps({"children": found, "parent": sorted(os.sched_getaffinity(0))}))
"""


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two cores that this process may use")
def test_children_start_where_there_is_room_and_end_up_on_the_engines_core(tmp_path):
    first, *_, last = sorted(os.sched_getaffinity(0))
    program = tmp_path / "program.py"
    program.write_text(textwrap.dedent(_PROGRAM))
    done = subprocess.run(
        ["taskset", "--cpu-list", str(first), sys.executable, program, Path(engine_process.__file__).parent, str(last)],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert json.loads(done.stdout) == {"children": [[[first, last], [last]]] * 4, "parent": [first]}


def test_an_engine_is_asked_where_its_arguments_say():
    given = ["serve", "model", "--port=8001", "--host", "127.119.79.3"]
    assert engine_process.health_url(given) == "http://127.119.79.3:8001/health"
    assert engine_process.health_url(["serve", "model"]) == "http://127.0.0.1:8000/health"


def test_it_needs_nothing_but_the_standard_library_before_vllm_begins():
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", "import runpy, sys; runpy.run_path(sys.argv[1])", engine_process.__file__],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")

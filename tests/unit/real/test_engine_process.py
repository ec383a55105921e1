"""The launcher of the real engine: its children begin on the engine's core, and it stays where it is."""

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

    if __name__ == "__main__":
        engine_process.start_children_on(int(sys.argv[2]))
        found = []
        for method in ("fork", "spawn"):
            context = multiprocessing.get_context(method)
            ours, theirs = context.Pipe()
            child = context.Process(target=affinity, args=(theirs,))
            child.start()
            found.append(ours.recv())
            child.join()
        print(json.dumps({"children": found, "parent": sorted(os.sched_getaffinity(0))}))
"""


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two cores that this process may use")
def test_children_begin_on_the_engines_core_and_the_front_end_stays(tmp_path):
    first, *_, last = sorted(os.sched_getaffinity(0))
    program = tmp_path / "program.py"
    program.write_text(textwrap.dedent(_PROGRAM))
    done = subprocess.run(
        ["taskset", "--cpu-list", str(first), sys.executable, program, Path(engine_process.__file__).parent, str(last)],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert json.loads(done.stdout) == {"children": [[last], [last]], "parent": [first]}


def test_it_needs_nothing_but_the_standard_library_before_vllm_begins():
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", "import runpy, sys; runpy.run_path(sys.argv[1])", engine_process.__file__],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")

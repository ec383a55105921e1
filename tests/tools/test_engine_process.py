"""The launcher of the real engine: its children start where it stands, wait by sleeping, and end up on the engine's core."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import textwrap

import pytest

from real import engine_process

# Stands for vLLM: children by either method, one of them a grandchild; it answers once all of them have started.
_VLLM = """
    import http.server, json, multiprocessing, os, sys, threading, time

    def child(pipe, deep):
        if deep:
            below = multiprocessing.get_context("spawn").Process(target=child, args=(pipe, False))
            below.start()
            return below.join()
        started = sorted(os.sched_getaffinity(0))
        pipe.send("started")
        while sorted(os.sched_getaffinity(0)) == started:
            os.sched_yield()
        began_s, waits = time.perf_counter(), 200
        for _ in range(waits):
            os.sched_yield()
        sleeps = time.perf_counter() - began_s > waits * 50e-6
        pipe.send([started, sorted(os.sched_getaffinity(0)), sleeps])

    class Health(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200 if self.path == "/health" else 404)
            self.end_headers()

        def log_message(self, *_):
            pass

    def main():
        pipes = []
        for method in ("fork", "spawn"):
            for deep in (False, True):
                context = multiprocessing.get_context(method)
                ours, theirs = context.Pipe()
                context.Process(target=child, args=(theirs, deep)).start()
                pipes.append(ours)
        for pipe in pipes:
            pipe.recv()
        server = http.server.HTTPServer(("127.0.0.1", int(sys.argv[-1])), Health)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        print(json.dumps({"children": [pipe.recv() for pipe in pipes], "parent": sorted(os.sched_getaffinity(0))}))
"""


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two cores that this process may use")
def test_children_start_beside_it_and_go_to_the_engines_core_once_it_answers(tmp_path):
    first, *_, last = sorted(os.sched_getaffinity(0))
    package = tmp_path / "vllm" / "entrypoints" / "cli"
    package.mkdir(parents=True)
    (package / "main.py").write_text(textwrap.dedent(_VLLM))
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    done = subprocess.run(
        ["taskset", "--cpu-list", str(first), sys.executable, engine_process.__file__, "--port", str(port)],
        env={**os.environ, "PYTHONPATH": str(tmp_path), engine_process.CORE: str(last)},
        capture_output=True, text=True, check=True, timeout=60,
    )  # fmt: skip
    assert json.loads(done.stdout) == {"children": [[[first], [last], True]] * 4, "parent": [first]}


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

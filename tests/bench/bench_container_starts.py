"""CPU of a simulated engine until it answers, as a fork that has its imports and as a start of its own, in turn.

Both as the node agent of the one-machine cluster does it, but for a root of its own. `--pairs 6` is how often.
`PYTHONPATH=tests:. .venv/bin/python tests/bench/bench_container_starts.py`, or `make bench`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import sys
import tempfile
import urllib.error
import urllib.request
from pathlib import Path

from localcluster.free_ports import free_ports
from localcluster.nodeagent import images
from localcluster.nodeagent.preloading import ForkServers
from localcluster.nodeagent.processes import Launch, Process
from operatorcluster.target_engine import COSTS

_LOOK_S = 0.02
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


def used_s(pid: int) -> float:
    """CPU seconds that a process has used."""
    user, system = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13]
    return (int(user) + int(system)) / _TICKS_PER_S


def answers(port: int) -> bool:
    """Whether an engine is there."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=1):
            return True
    except (urllib.error.URLError, OSError):
        return False


async def until_it_answers(program: images.ImageProgram, servers: ForkServers | None, output: int) -> float:
    """CPU seconds of one engine until it answers; it is ended then."""
    (port,) = free_ports(1)
    argv = program.command_line([], ["model", "--port", str(port)], "127.0.0.1")
    env = {"PATH": os.defpath, **program.env, "BREAKEVEN_SIM_COSTS": json.dumps(COSTS)}
    process = await Process.start(Launch(argv, env, "/", preload=program.preload), output, servers)
    while not answers(port):  # noqa: ASYNC110 - nothing says it
        await asyncio.sleep(_LOOK_S)
    spent_s = used_s(process.pid)
    process.kill()
    await process.exited()
    return spent_s


async def compare(pairs: int) -> None:
    """Print the medians of both."""
    program = images.find("vllm/vllm-openai:latest", images.load())
    assert program is not None
    assert program.preload is not None
    servers = ForkServers()
    while servers.ready_for(program.preload) is None:  # noqa: ASYNC110 - it says so on a socket of its own
        await asyncio.sleep(_LOOK_S)
    forked: list[float] = []
    started: list[float] = []
    with tempfile.TemporaryFile() as output:
        for _ in range(pairs):
            forked.append(await until_it_answers(program, servers, output.fileno()))
            started.append(await until_it_answers(program, None, output.fileno()))
    servers.close()
    fork_s, start_s = statistics.median(forked), statistics.median(started)
    said = f"CPU until a simulated engine answers, medians of {pairs} in turn: {fork_s:.2f} s forked, {start_s:.2f} s started"
    print(said)  # noqa: T201


def main() -> int:
    """Parse and compare."""
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--pairs", type=int, default=6, help="how often each (default 6)")
    asyncio.run(compare(options.parse_args().pairs))
    return 0


if __name__ == "__main__":
    sys.exit(main())

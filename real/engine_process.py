"""Program of a pod of the real engine: `vllm serve`, its engine processes on the core that is theirs.

Run by vLLM's own Python, which has nothing of this repository: only the standard library and vLLM. Nothing of vLLM is
changed but how its processes wait for each other.

Its scheduler and its worker are two processes. The waiting one calls `sched_yield` in a loop for a second. If both have
one core, those calls take time from the computing one; how much depends on the kernel, not on the engine. So
`sched_yield` is a sleep of 50 us here, beside steps of many milliseconds.

Until the engine answers, its processes run beside the users, where they were started. During a roll the engine before it
still keeps the engine's core busy. Then all of them are bound to that core.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path

CORE = "BREAKEVEN_ENGINE_CORE"
# vLLM's processes talk to each other by sockets on the address of the machine's first network, unless another one is given.
LOOPBACK = {"VLLM_HOST_IP": "127.0.0.1", "GLOO_SOCKET_IFNAME": "lo"}
_LOOK_S = 0.5
_YIELD_S = 50e-6


def wait_by_sleeping() -> None:
    """Let `os.sched_yield` in this process sleep for a moment instead."""
    os.sched_yield = lambda: time.sleep(_YIELD_S)


def bind_children(core: int) -> None:
    """Bind all threads of all processes below this one to a core."""
    for pid in _below(os.getpid()):
        # A process or a thread may be gone meanwhile.
        with contextlib.suppress(OSError):
            for thread in Path(f"/proc/{pid}/task").iterdir():
                os.sched_setaffinity(int(thread.name), {core})


def _below(pid: int) -> Iterator[int]:
    for children in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in children.read_text().split():
            yield int(child)
            yield from _below(int(child))


def bind_children_once_it_answers(url: str, core: int) -> None:
    """Call `bind_children` as soon as the engine is healthy."""
    while True:
        with contextlib.suppress(OSError), urllib.request.urlopen(url, timeout=5):
            break
        time.sleep(_LOOK_S)
    bind_children(core)


def health_url(arguments: Sequence[str]) -> str:
    """Where the engine with these arguments says whether it is healthy."""
    given = dict(itertools.pairwise(arguments))
    given |= dict(one.split("=", 1) for one in arguments if one.startswith("--") and "=" in one)
    return f"http://{given.get('--host', '127.0.0.1')}:{given.get('--port', '8000')}/health"


def main() -> None:
    """`vllm` with this process's arguments."""
    core = int(os.environ[CORE])
    where = (health_url(sys.argv[1:]), core)
    threading.Thread(target=bind_children_once_it_answers, args=where, daemon=True).start()
    from vllm.entrypoints.cli.main import main as vllm  # noqa: PLC0415  # children import this module too, and not vLLM

    vllm()


# A process that `multiprocessing` spawns imports this file under the second name and never calls `main`.
if __name__ in {"__main__", "__mp_main__"}:
    wait_by_sleeping()

if __name__ == "__main__":
    main()

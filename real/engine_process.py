"""What a pod of the real engine runs: `vllm serve`, its engine processes on the core that is theirs.

Run by vLLM's own Python, which has nothing of this repository: the standard library and vLLM are all there is. vLLM binds
the threads of its worker by VLLM_CPU_OMP_THREADS_BIND and leaves its scheduler where it was started, which is beside the
users. A child inherits the affinity of the thread that starts it; nothing of vLLM is changed.

Until the engine answers, its processes may run on the other cores too. During a roll the engine before it still keeps the
engine's core busy, and some kernels give a newcomer beside two busy processes next to nothing for minutes.
"""

from __future__ import annotations

import contextlib
import itertools
import multiprocessing.process
import os
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

CORE = "BREAKEVEN_ENGINE_CORE"
_LOOK_S = 0.5


def start_children_also_on(core: int) -> None:
    """Let every process that `multiprocessing` starts from here on run on one more core; this process stays where it is."""
    start = multiprocessing.process.BaseProcess.start

    def bound(process: Any) -> None:
        before = os.sched_getaffinity(0)
        os.sched_setaffinity(0, before | {core})
        try:
            start(process)
        finally:
            os.sched_setaffinity(0, before)

    multiprocessing.process.BaseProcess.start = bound  # type: ignore[assignment, method-assign]


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
    """As `bind_children`, as soon as the engine says that it is healthy."""
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
    start_children_also_on(core)
    where = (health_url(sys.argv[1:]), core)
    threading.Thread(target=bind_children_once_it_answers, args=where, daemon=True).start()
    from vllm.entrypoints.cli.main import main as vllm  # noqa: PLC0415  # children import this module too, and not vLLM

    vllm()


if __name__ == "__main__":
    main()

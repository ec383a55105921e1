"""What a pod of the real engine runs: `vllm serve`, its engine processes started on the core that is theirs.

Run by vLLM's own Python, which has nothing of this repository: the standard library and vLLM are all there is. vLLM binds
the threads of its worker by VLLM_CPU_OMP_THREADS_BIND and leaves its scheduler where it was started, which is beside the
users. A child inherits the affinity of the thread that starts it; nothing of vLLM is changed.
"""

from __future__ import annotations

import multiprocessing.process
import os
from typing import Any

CORE = "BREAKEVEN_ENGINE_CORE"


def start_children_on(core: int) -> None:
    """Let every process that `multiprocessing` starts from here on begin on one core; this process stays where it is."""
    start = multiprocessing.process.BaseProcess.start

    def bound(process: Any) -> None:
        before = os.sched_getaffinity(0)
        os.sched_setaffinity(0, {core})
        try:
            start(process)
        finally:
            os.sched_setaffinity(0, before)

    multiprocessing.process.BaseProcess.start = bound  # type: ignore[assignment, method-assign]


def main() -> None:
    """`vllm` with this process's arguments."""
    start_children_on(int(os.environ[CORE]))
    from vllm.entrypoints.cli.main import main as vllm  # noqa: PLC0415  # children import this module too, and not vLLM

    vllm()


if __name__ == "__main__":
    main()

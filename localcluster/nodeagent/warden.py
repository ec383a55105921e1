"""The agent's parent: when the agent ends, however it ends, nothing it started lives on.

Containers die with the agent by a signal of the kernel's (`launcher`), but what they started does not. This process adopts
such orphans (it is a "child subreaper", prctl(2)), buries them, and kills what is left when the agent is gone. It does nothing
else, holds no descriptors and should outlive everything; if it dies first, the agent gets a signal and ends.
"""

# Plain os functions: this process should stay small, it lives as long as the agent.
# ruff: noqa: PTH123, PTH208
from __future__ import annotations

import contextlib
import ctypes
import os
import signal
from collections.abc import Callable
from typing import NoReturn

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36


def guard(agent: Callable[[], int]) -> NoReturn:
    """Runs `agent` in a child process and ends with its exit code once all its descendants are gone.

    SIGTERM and SIGINT are handed on to the agent.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) < 0:
        raise OSError(ctypes.get_errno(), "prctl")
    parent = os.getpid()
    handed_on = {signal.SIGTERM, signal.SIGINT}
    # Blocked until both sides are ready: a signal between fork and the handler would end only one of them.
    signal.pthread_sigmask(signal.SIG_BLOCK, handed_on)
    child = os.fork()
    if child == 0:
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
        if os.getppid() != parent:
            os._exit(1)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, handed_on)
        raise SystemExit(agent())
    for number in handed_on:
        signal.signal(number, lambda got, _: os.kill(child, got))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, handed_on)
    status = _bury_until(child)
    _end_the_rest()
    os._exit(os.waitstatus_to_exitcode(status) & 0xFF)


def _bury_until(child: int) -> int:
    """Reaps orphans until the agent itself has ended; its wait status."""
    while True:
        pid, status = os.wait()
        if pid == child:
            return status


def _end_the_rest() -> None:
    """Kills and reaps descendants generation by generation: each death hands its children to this process."""
    while children := _children():
        for pid in children:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            os.wait()


def _children() -> list[int]:
    me = os.getpid()
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit():
            with (
                contextlib.suppress(OSError),
                open(f"/proc/{name}/stat", encoding="utf-8", errors="replace") as file,
            ):
                # The command's name may hold anything, also spaces and brackets; the fields follow its last bracket.
                if int(file.read().rpartition(")")[2].split()[1]) == me:
                    found.append(int(name))
    return found

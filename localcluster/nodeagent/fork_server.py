"""Does a program's imports once, and becomes that program once per container: a fork in place of a start.

A simulated engine takes half a second of CPU before its first line, all of it imports. Runs as a script
(`python -P fork_server.py SOCKET MODULE ... PADDING`), a child of the agent, with the environment that the image has. At the
other end of SOCKET is `preloading`. Each message there has one answer:

    three descriptors   document (see `launcher`), errors, output: the pid of a fork, which becomes that container
    a pid               the wait status of that fork, awaited

Python's own `multiprocessing.forkserver` collects its children at once, so that a number may be another process's while the
container's group is ended, and it leaves out what an ordinary exit does.
"""

# Before the container's root is entered no file of it may be imported, and the script is no part of a package.
# ruff: noqa: PTH123
from __future__ import annotations

import ctypes
import fcntl
import gc
import importlib
import importlib.util
import os
import runpy
import signal
import socket
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

READY = b"ready"
# Fields of /proc/self/stat after the name: where the command line begins and ends (proc(5): arg_start, arg_end).
_ARGUMENTS = slice(45, 47)


class _Words(NamedTuple):
    """Where in memory a process's command line is, which forks share with the server."""

    start: int
    end: int

    @classmethod
    def own(cls) -> _Words:
        with open("/proc/self/stat", encoding="utf-8", errors="replace") as file:
            return cls(*map(int, file.read().rpartition(")")[2].split()[_ARGUMENTS]))

    def show(self, argv: Sequence[str]) -> None:
        """Puts another command line there, for `ps` and everybody who looks a process up by it."""
        size = self.end - self.start
        text = b"".join(os.fsencode(word) + b"\0" for word in argv)[: size - 1]
        ctypes.memmove(self.start, text.ljust(size, b"\0"), size)


def main() -> None:
    """Serves until the agent closes its end; a fork returns from here with its program's command line in `sys.argv`."""
    descriptor, *modules, _padding = sys.argv[1:]
    launcher, words, parent = _launcher(), _Words.own(), os.getppid()
    for module in modules:
        importlib.import_module(module)
    launcher.die_with(parent)
    gc.collect()
    # Forks share what is here for as long as nobody writes to it.
    gc.freeze()
    with socket.socket(fileno=int(descriptor)) as control:
        control.send(READY)
        while True:
            message, descriptors, _, _ = socket.recv_fds(control, 64, 3)
            if not message:
                sys.exit()
            if not descriptors:
                control.send(str(os.waitpid(int(message), 0)[1]).encode())
            elif (pid := os.fork()) == 0:
                break
            else:
                for each in descriptors:
                    os.close(each)
                control.send(str(pid).encode())
    _become(launcher, words, descriptors)


def _launcher() -> ModuleType:
    """The script beside this one, as a module."""
    spec = importlib.util.spec_from_file_location("launcher", Path(__file__).with_name("launcher.py"))
    if spec is None or spec.loader is None:
        raise ImportError("launcher")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _become(launcher: ModuleType, words: _Words, descriptors: Sequence[int]) -> None:
    """Turns this fork into the container, up to the first line of its program; ends it with a word if that fails."""
    os.setsid()
    # Copies above the numbers that the launcher uses: otherwise moving one into place could overwrite another.
    document, errors, output = (fcntl.fcntl(each, fcntl.F_DUPFD, 64) for each in descriptors)
    for each in descriptors:
        os.close(each)
    places = ((document, launcher.SPEC_FD), (errors, launcher.ERROR_FD), (output, 1), (output, 2))
    for source, target in places:
        os.dup2(source, target)
    for each in (document, errors, output):
        os.close(each)
    container = launcher.enter()
    argv, env = container["argv"], container["env"]
    if not os.access(argv[0], os.X_OK):
        launcher.execute(container)
    # A Python that starts ignores both; the launcher has put the defaults back, for programs that are none.
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    words.show([sys.executable, *argv])
    # The interpreter sets it where nothing names a locale; servers are for containers that name none.
    coerced = {"LC_CTYPE": os.environ["LC_CTYPE"]} if "LC_CTYPE" in os.environ else {}
    os.environ.clear()
    os.environ.update(env | coerced)
    sys.argv = list(argv)
    os.close(launcher.ERROR_FD)


if __name__ == "__main__":
    main()
    runpy.run_path(sys.argv[0], run_name="__main__")

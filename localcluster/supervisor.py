"""The process that holds all others of a cluster, so that none can outlive it: `python -m localcluster.supervisor`.

Guarantees:

* The supervisor ends, and every process with it, if a client of its socket asks for that, or at SIGTERM or SIGINT. It
  may have a lifeline, the reading end of a pipe: then it also ends when the last holder of the other end is gone. Even
  SIGKILL of the starter closes the pipe.
* A process that it started dies with it even if the supervisor is killed: each asked the kernel for that
  (PR_SET_PDEATHSIG) before its first instruction.
* It also ends the processes that its own processes left behind: as child subreaper it inherits every orphan below it.
* Afterwards the state folder is removed.

It serves one JSON object per line on a Unix socket in the state folder; `control.py` is the other end. It knows
nothing of Kubernetes, and it is one thread: the kernel ties PR_SET_PDEATHSIG to the *thread* that forked.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import ctypes
import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from localcluster.control import ProcessSpec, short_path
from localcluster.descendants import kill_all, of
from localcluster.state import StateFolder

_PR_SET_PDEATHSIG: Final = 1
_PR_SET_CHILD_SUBREAPER: Final = 36
_LIBC: Final = ctypes.CDLL(None, use_errno=True)


@dataclass
class _Process:
    spec: ProcessSpec
    popen: subprocess.Popen[bytes]
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    stopped: bool = False

    def send(self, number: signal.Signals) -> None:
        # Popen.send_signal would poll first and might collect the child itself, behind `_reap`'s back.
        if not self.ended.is_set():
            os.kill(self.popen.pid, number)

    def report(self) -> dict[str, Any]:
        return {
            "name": self.spec.name,
            "pid": self.popen.pid,
            "returncode": self.popen.returncode,
            "stopped": self.stopped,
        }


class Supervisor:
    """Starts, signals and ends processes by name."""

    def __init__(self, state: StateFolder) -> None:
        self._state = state
        self._processes: dict[str, _Process] = {}
        self._stopping = asyncio.Event()
        self._lifeline: int | None = None

    async def serve(self, lifeline: int | None) -> None:
        """Runs until a client or a signal stops it; ends every process before it returns."""
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGCHLD, self._reap)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            loop.add_signal_handler(number, self._stopping.set)
        if lifeline is not None:
            self._lifeline = lifeline
            loop.add_reader(lifeline, self._stopping.set)
        with short_path(self._state.socket) as path:
            server = await asyncio.start_unix_server(self._converse, path=path)
        self._state.socket.chmod(0o600)
        os.write(sys.stdout.fileno(), b"ready\n")
        try:
            await self._stopping.wait()
        finally:
            server.close()
            for process in reversed(list(self._processes.values())):
                await self._end(process)
            await self._end_orphans()

    async def _converse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            while line := await reader.readline():
                try:
                    reply = {"result": await self._perform(json.loads(line))}
                except (KeyError, ValueError, TypeError, OSError) as problem:
                    reply = {"error": f"{type(problem).__name__}: {problem}"}
                writer.write(json.dumps(reply).encode() + b"\n")
                await writer.drain()
        writer.close()

    async def _perform(self, request: Mapping[str, Any]) -> Any:  # noqa: PLR0911 - one return per word
        # A process that ended before the request must be ended in the answer, whether or not its SIGCHLD was handled.
        self._reap()
        match request["do"]:
            case "start":
                return self._start(ProcessSpec(**request["spec"]))
            case "restart":
                process = self._processes[request["name"]]
                await self._end(process)
                return self._start(process.spec)
            case "stop":
                await self._end(self._processes[request["name"]])
                return None
            case "signal":
                return self._processes[request["name"]].send(signal.Signals[request["signal"]])
            case "status":
                return [process.report() for process in self._processes.values()]
            case "detach":
                return self._detach()
            case "shutdown":
                return self._stopping.set()
            case unknown:
                raise ValueError(f"unknown request {unknown!r}")

    def _start(self, spec: ProcessSpec) -> dict[str, Any]:
        running = self._processes.get(spec.name)
        if running is not None and not running.ended.is_set():
            raise ValueError(f"{spec.name} is running")
        if self._stopping.is_set():
            raise ValueError("the cluster is stopping")
        supervisor = os.getpid()

        def die_with_supervisor() -> None:
            _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
            # The supervisor may have gone between fork and here: then nobody would send that signal any more.
            if os.getppid() != supervisor:
                os._exit(1)

        with Path(spec.log).open("ab") as log:
            # Never waited for through Popen: `_reap` collects children, adopted ones among them, in one place.
            popen = subprocess.Popen(
                spec.argv,
                cwd=self._state.root,
                env=dict(spec.env),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                preexec_fn=die_with_supervisor,  # noqa: PLW1509 - safe: this process has one thread
            )
        process = self._processes[spec.name] = _Process(spec, popen)
        return process.report()

    def _reap(self) -> None:
        by_pid = {process.popen.pid: process for process in self._processes.values()}
        with contextlib.suppress(ChildProcessError):
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                process = by_pid.get(ended[0])
                if process is not None:
                    process.popen.returncode = os.waitstatus_to_exitcode(ended[1])
                    process.ended.set()

    async def _end(self, process: _Process) -> None:
        """Ends a process and everything below it: politely for as long as its spec grants, then not."""
        if process.ended.is_set():
            return
        process.stopped = True
        below = of(process.popen.pid)
        if process.spec.grace_s > 0:
            process.send(signal.SIGTERM)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(process.ended.wait(), process.spec.grace_s)
        if not process.ended.is_set():
            below = of(process.popen.pid) or below
            process.send(signal.SIGKILL)
            await process.ended.wait()
        kill_all(below)

    async def _end_orphans(self) -> None:
        while below := of(os.getpid()):
            kill_all(below)
            self._reap()
            await asyncio.sleep(0.01)

    def _detach(self) -> None:
        """Lets go of the lifeline: from now on the cluster outlives its starter."""
        if self._lifeline is not None:
            asyncio.get_running_loop().remove_reader(self._lifeline)
            os.close(self._lifeline)
            self._lifeline = None


def main() -> None:
    """Entry point; started by `LocalCluster` only."""
    parser = argparse.ArgumentParser(prog="localcluster.supervisor")
    parser.add_argument("--state-dir", type=Path, required=True)
    parser.add_argument("--lock-fd", type=int, required=True, help="locked descriptor, held until the end")
    parser.add_argument("--lifeline-fd", type=int, help="end everything when this pipe closes")
    parser.add_argument("--keep-state", action="store_true", help="leave the state folder when all has ended")
    arguments = parser.parse_args()
    _LIBC.prctl(_PR_SET_CHILD_SUBREAPER, 1)
    # Children get what they are given and nothing else.
    os.set_inheritable(arguments.lock_fd, False)
    if arguments.lifeline_fd is not None:
        os.set_inheritable(arguments.lifeline_fd, False)
    state = StateFolder.at(arguments.state_dir)
    try:
        asyncio.run(Supervisor(state).serve(arguments.lifeline_fd))
    finally:
        if not arguments.keep_state:
            state.remove()
        os.close(arguments.lock_fd)


if __name__ == "__main__":
    main()

"""Talking to a cluster's supervisor; the words of the conversation are `ProcessSpec` and the methods of `Control`."""

from __future__ import annotations

import contextlib
import json
import os
import select
import socket
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from localcluster.failure import LocalClusterError


@dataclass(frozen=True)
class ProcessSpec:
    """A process to run.

    Attributes:
        name: by which it is known to the supervisor, and under which its log lies.
        argv: command line; the program by its absolute path.
        env: its whole environment.
        log: file that receives its standard output and error.
        grace_s: seconds from SIGTERM to SIGKILL when it is stopped; 0 kills at once.
    """

    name: str
    argv: Sequence[str]
    env: Mapping[str, str]
    log: str
    grace_s: float = 0.0


@dataclass(frozen=True)
class ProcessStatus:
    """A process of the supervisor.

    Attributes:
        name: by which it was started.
        pid: its process id; of no meaning once it has ended.
        returncode: None while it runs, negative for a signal.
        stopped: whether it was asked to end, rather than having ended by itself.
    """

    name: str
    pid: int
    returncode: int | None
    stopped: bool


class Control:
    """A supervisor reached through its socket.

    Raises:
        LocalClusterError: (every method) nobody listens there, or the supervisor refused.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def start(self, spec: ProcessSpec) -> ProcessStatus:
        """Starts a process; a name whose earlier process has ended may be used again."""
        return ProcessStatus(**self._ask(do="start", spec=asdict(spec)))

    def restart(self, name: str) -> ProcessStatus:
        """Ends a process if it still runs and starts it again as it was started."""
        return ProcessStatus(**self._ask(do="restart", name=name))

    def stop(self, name: str) -> None:
        """Ends a process and everything below it; returns when it is gone."""
        self._ask(do="stop", name=name)

    def signal(self, name: str, signal: str) -> None:
        """Sends a signal, by its name (`SIGHUP`), to one process."""
        self._ask(do="signal", name=name, signal=signal)

    def status(self) -> list[ProcessStatus]:
        """All processes that were started, in that order."""
        return [ProcessStatus(**report) for report in self._ask(do="status")]

    def detach(self) -> None:
        """Makes the cluster outlive its starter."""
        self._ask(do="detach")

    def shutdown(self) -> None:
        """Ends everything; returns when that is done and the state folder is removed."""
        with (
            self._connected() as connection,
            contextlib.suppress(ProcessLookupError),
            _watched(_peer(connection)) as ended,
        ):
            _exchange(connection, {"do": "shutdown"})
            ended()

    def _ask(self, **request: Any) -> Any:
        with self._connected() as connection:
            return _exchange(connection, request)

    @contextlib.contextmanager
    def _connected(self) -> Iterator[socket.socket]:
        with socket.socket(socket.AF_UNIX) as connection:
            try:
                with short_path(self._path) as path:
                    connection.connect(path)
            except OSError:
                raise LocalClusterError(f"no cluster runs in {self._path.parent}") from None
            yield connection


def _exchange(connection: socket.socket, request: Mapping[str, Any]) -> Any:
    with connection.makefile("rwb") as stream:
        stream.write(json.dumps(request).encode() + b"\n")
        stream.flush()
        line = stream.readline()
    if not line:
        raise LocalClusterError(f"the cluster stopped while it was asked to {request['do']}")
    reply = json.loads(line)
    if "error" in reply:
        raise LocalClusterError(f"cannot {request['do']} {request.get('name', '')}: {reply['error']}")
    return reply["result"]


def _peer(connection: socket.socket) -> int:
    """Process id of the other end, as the kernel knows it: a file with a number in it could be stale."""
    ucred = struct.Struct("3i")
    pid, _uid, _gid = ucred.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, ucred.size))
    return int(pid)


@contextlib.contextmanager
def _watched(pid: int) -> Iterator[Callable[[], object]]:
    """Yields a function that returns when the process has ended, also when it is not a child of this one."""
    descriptor = os.pidfd_open(pid)
    try:
        yield lambda: select.select([descriptor], [], [])
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def short_path(path: Path) -> Iterator[str]:
    """A path to the same place that fits the 107 bytes of a Unix socket's address, however deep the folder lies."""
    descriptor = os.open(path.parent, os.O_PATH | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{descriptor}/{path.name}"
    finally:
        os.close(descriptor)

"""Containers' processes: started through `launcher`, awaited through pidfds, ended with everything they started."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import os
import signal
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from localcluster.nodeagent import launcher, mounts
from localcluster.nodeagent.images import Preload
from localcluster.nodeagent.mounts import Bind, Make
from localcluster.nodeagent.preloading import ForkServerError, ForkServers

_LAUNCHER = launcher.__file__


class StartError(Exception):
    """The command could not be executed; the text says why."""


@dataclass(frozen=True)
class Root:
    """A container's root file system, user and host name, as `launcher` needs them."""

    folder: Path  # any empty directory; each container mounts its own root there in its own namespace
    make: tuple[Make, ...]
    binds: tuple[Bind, ...]
    tmpfs: tuple[str, ...]
    read_only: bool
    uid: int
    gid: int
    hostname: str
    image: Path | None = None  # folder of an unpacked image; None: the root shows this machine's files


@dataclass(frozen=True)
class Launch:
    """A command to execute: in a root of its own, in the namespaces of a running process, or just here (both None).

    Attributes:
        preload: imports with which a fork is the same as the command's start.
    """

    argv: Sequence[str]
    env: Mapping[str, str]
    cwd: str
    root: Root | None = None
    join: int | None = None
    preload: Preload | None = None

    def document(self, parent: int) -> bytes:
        """The JSON document that `launcher` reads; `parent` is the process that its own ends with."""
        spec: dict[str, object] = {
            "argv": list(self.argv), "env": dict(self.env), "cwd": self.cwd, "parent": parent
        }  # fmt: skip
        if self.join is not None:
            spec["join"] = self.join
        elif self.root is not None:
            spec["root"] = {
                "folder": str(self.root.folder),
                "make": [(m.what, m.path, mounts.place(m.path, self.root.image)) for m in self.root.make],
                "binds": [(b.source, b.target, b.read_only, b.is_dir) for b in self.root.binds],
                "tmpfs": list(self.root.tmpfs),
                "read_only": self.root.read_only,
                "uid": self.root.uid,
                "gid": self.root.gid,
                "hostname": self.root.hostname,
            }
        return json.dumps(spec).encode()


class Process:
    """One running command, leader of a session of its own; whatever it leaves behind is killed as it ends."""

    def __init__(self, pid: int, collect: Callable[[int], int]) -> None:
        self.pid = pid
        self._collect = collect
        self._pidfd = os.pidfd_open(pid)
        self._exit: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        # Held open: the kernel gives a namespace's number to the next one as soon as nobody has it.
        self._namespace: int | None = None
        asyncio.get_running_loop().add_reader(self._pidfd, self._reap)

    @classmethod
    async def start(cls, launch: Launch, output: int, servers: ForkServers | None = None) -> Process:
        """Executes the command with standard output and error at the descriptor `output`; returns once it runs.

        Args:
            launch: the command.
            output: a descriptor.
            servers: fork a command that has a server among these.

        Raises:
            StartError: the namespaces, the root or the command could not be had.
        """
        errors, errors_end = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        with contextlib.ExitStack() as closing:
            closing.callback(os.close, errors)
            try:
                process = _begun(launch, servers, errors_end, output)
            finally:
                os.close(errors_end)
            try:
                message = await _read_all(errors)
            except asyncio.CancelledError:
                # A probe's time may end before its command has begun; nobody else knows of the process yet.
                process.kill()
                raise
        if message:
            await process.exited()
            raise StartError(message)
        if launch.root is not None and process.running:
            # Not for a command that joined a container: killing its namespace would kill the container.
            process.hold_namespace()
        return process

    def hold_namespace(self) -> None:
        """Lets whatever is in the command's mount namespace end with it."""
        with contextlib.suppress(OSError):
            self._namespace = os.open(f"/proc/{self.pid}/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)

    @property
    def running(self) -> bool:
        """Whether the command itself still runs."""
        return not self._exit.done()

    async def exited(self) -> int:
        """Waits for the end; the exit code, or 128 plus the signal's number."""
        return await asyncio.shield(self._exit)

    def signal(self, number: signal.Signals) -> None:
        """Signals the command alone, as a container runtime signals a container's first process."""
        if self.running:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._pidfd, number)

    def kill(self) -> None:
        """Ends the command and all it started, at once."""
        self.signal(signal.SIGKILL)

    def _reap(self) -> None:
        asyncio.get_running_loop().remove_reader(self._pidfd)
        # Before the command is collected: until then no other process can have its number.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)
        if self._namespace is not None:
            for pid in _members(self._namespace):
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)
            os.close(self._namespace)
        code = os.waitstatus_to_exitcode(self._collect(self.pid))
        os.close(self._pidfd)
        self._exit.set_result(code if code >= 0 else 128 - code)


def _begun(launch: Launch, servers: ForkServers | None, errors_end: int, output: int) -> Process:
    """The launcher's process, by a fork if a server is ready for it."""
    server = servers.ready_for(launch.preload) if servers is not None and launch.preload is not None else None
    if server is not None:
        with contextlib.suppress(ForkServerError), _document(launch.document(server.pid)) as document:
            return Process(server.fork(document, errors_end, output), server.collect)
    with _document(launch.document(os.getpid())) as document:
        return Process(_spawn(document, errors_end, output), lambda pid: os.waitpid(pid, 0)[1])


@contextlib.contextmanager
def _document(content: bytes) -> Iterator[int]:
    """The content as a descriptor at its beginning."""
    with os.fdopen(os.memfd_create("launch"), "w+b") as file:
        file.write(content)
        file.seek(0)
        yield file.fileno()


def _spawn(document: int, errors_end: int, output: int) -> int:
    """Starts the launcher with its descriptors in place."""
    # Copies above the numbers the launcher uses: otherwise moving one into place could overwrite another.
    sources = [fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 64) for fd in (document, errors_end, output)]
    actions = [
        (os.POSIX_SPAWN_OPEN, 0, "/dev/null", os.O_RDONLY, 0),
        (os.POSIX_SPAWN_DUP2, sources[2], 1),
        (os.POSIX_SPAWN_DUP2, sources[2], 2),
        (os.POSIX_SPAWN_DUP2, sources[0], launcher.SPEC_FD),
        (os.POSIX_SPAWN_DUP2, sources[1], launcher.ERROR_FD),
    ]
    try:
        return os.posix_spawn(
            sys.executable, [sys.executable, "-I", "-S", _LAUNCHER], {}, file_actions=actions, setsid=True
        )
    finally:
        for fd in sources:
            os.close(fd)


async def _read_all(descriptor: int) -> str:
    """Everything written to a pipe until its last writer is gone."""
    loop = asyncio.get_running_loop()
    parts: list[bytes] = []
    while True:
        ready = asyncio.Event()
        loop.add_reader(descriptor, ready.set)
        try:
            await ready.wait()
        finally:
            loop.remove_reader(descriptor)
        part = os.read(descriptor, 4096)
        if not part:
            return b"".join(parts).decode(errors="replace")
        parts.append(part)


def _members(namespace: int) -> Iterator[int]:
    """Processes in an open mount namespace, also those that have moved to a session of their own."""
    wanted = os.fstat(namespace)
    for entry in os.scandir("/proc"):
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                if os.path.samestat(Path(entry.path, "ns/mnt").stat(), wanted):
                    yield int(entry.name)

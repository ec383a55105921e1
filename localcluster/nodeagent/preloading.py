"""Programs whose containers are forks of one process that has done their imports (`fork_server`)."""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import socket
import sys
from pathlib import Path

from localcluster.nodeagent.images import Preload, bin_folder

_SCRIPT = str(Path(__file__).with_name("fork_server.py"))
_CONTROL_FD = 3
# Forks take some ms; a server that is silent for so long is broken.
_PATIENCE_S = 20.0
# Bytes of the longest command line that a fork can show.
_WORDS = 8192


class ForkServerError(Exception):
    """The server did not fork, and never will."""


class ForkServers:
    """The servers, one of each preload. A server begins when its program is first run.

    Until it has imported, and when it broke, the program is started in the ordinary way. Nothing is imported again while the
    agent lives: who edits a program starts the agent again.
    """

    def __init__(self) -> None:
        self._servers: dict[Preload, ForkServer] = {}

    def ready_for(self, preload: Preload) -> ForkServer | None:
        """The server of this preload; None while it is not ready."""
        if preload not in self._servers:
            self._servers[preload] = ForkServer(preload)
        server = self._servers[preload]
        return server if server.ready else None

    def close(self) -> None:
        """Ends all servers, and their forks with them."""
        for server in self._servers.values():
            server.close()


class ForkServer:
    """One process that forks, and what became of its forks."""

    def __init__(self, preload: Preload) -> None:
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._control.setblocking(False)
        self._is_ready = self._broken = False
        with theirs:
            source = fcntl.fcntl(theirs.fileno(), fcntl.F_DUPFD_CLOEXEC, 64)
        words = [sys.executable, "-P", _SCRIPT, str(_CONTROL_FD), *preload.modules, " " * _WORDS]
        # A container's libraries count the machine's cores when they are imported; a fork takes over no threads.
        env = {"PATH": f"{bin_folder()}:{os.defpath}", "OPENBLAS_NUM_THREADS": "1", **dict(preload.env)}
        actions = [
            (os.POSIX_SPAWN_OPEN, 0, "/dev/null", os.O_RDONLY, 0),
            (os.POSIX_SPAWN_DUP2, source, _CONTROL_FD),
        ]
        try:
            self.pid = os.posix_spawn(sys.executable, words, env, file_actions=actions, setsid=True)
        finally:
            os.close(source)

    @property
    def ready(self) -> bool:
        """Whether it has imported, and can fork."""
        if not self._is_ready and not self._broken:
            with contextlib.suppress(BlockingIOError):
                # It says this once; nothing: it has ended.
                self._is_ready = bool(self._control.recv(64))
                self._control.settimeout(_PATIENCE_S)
                if not self._is_ready:
                    self.close()
        return self._is_ready and not self._broken

    def fork(self, document: int, errors: int, output: int) -> int:
        """Forks a process that becomes the container of a document; returns its pid. The caller keeps its descriptors.

        Raises:
            ForkServerError: it is broken; it ends, and its forks with it.
        """
        try:
            socket.send_fds(self._control, [b"fork"], [document, errors, output])
            return self._number()
        except (OSError, ValueError) as error:
            self.close()
            raise ForkServerError(str(error)) from error

    def collect(self, pid: int) -> int:
        """The wait status of a fork that has ended; until then its number is nobody else's."""
        try:
            self._control.send(str(pid).encode())
            return self._number()
        except (OSError, ValueError):
            self.close()
            # They died with it.
            return int(signal.SIGKILL)

    def _number(self) -> int:
        return int(self._control.recv(64))

    def close(self) -> None:
        """Ends it and its forks: one that came too late must not live on unknown."""
        if not self._broken:
            self._broken = True
            self._control.close()
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)

"""Starting a supervisor and tying its life to this process."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from localcluster.control import Control
from localcluster.failure import LocalClusterError
from localcluster.nodes import with_this_package
from localcluster.state import StateFolder


@dataclass
class Launched:
    """A supervisor started by this process: when this process ends, however it ends, so does everything below it.

    Closing the lifeline by hand has the same effect.
    """

    control: Control
    _popen: subprocess.Popen[bytes]
    _lifeline: int

    @property
    def pid(self) -> int:
        """The supervisor's process."""
        return self._popen.pid

    def release(self) -> None:
        """Closes the lifeline; of a supervisor that was not detached this is the order to stop."""
        if self._lifeline >= 0:
            os.close(self._lifeline)
            self._lifeline = -1

    def wait(self) -> None:
        """Returns when the supervisor has ended."""
        self.release()
        self._popen.wait()

    def forget(self) -> None:
        """Leaves a detached supervisor to itself; Python would otherwise warn of a child never waited for."""
        self.release()
        self._popen.returncode = 0


def launch(state: StateFolder, lock: int, *, keep_state: bool) -> Launched:
    """Starts a supervisor for a folder whose lock this process holds; it holds the lock from then on.

    Raises:
        LocalClusterError: it did not come up; its own last words say why.
    """
    reading, writing = os.pipe2(os.O_CLOEXEC)
    # -P: a file named like a module of the standard library in the starter's folder is not our business.
    command = [sys.executable, "-P", "-m", "localcluster.supervisor", "--state-dir", str(state.root)]
    command += ["--lock-fd", str(lock), "--lifeline-fd", str(reading)]
    command += ["--keep-state"] if keep_state else []
    with state.log("supervisor").open("wb") as log:
        popen = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=log,
            env=with_this_package(os.environ),
            pass_fds=(lock, reading),
            # Ctrl-C at a terminal goes to every process of the session: what to do about it is the starter's to say.
            start_new_session=True,
        )
    os.close(reading)
    os.close(lock)
    launched = Launched(Control(state.socket), popen, writing)
    assert popen.stdout is not None
    with popen.stdout as said:
        if said.readline() != b"ready\n":
            launched.wait()
            raise LocalClusterError(f"the supervisor did not start: {last_line(state.log('supervisor'))}")
    return launched


def last_line(log: Path) -> str:
    """The last line of a process' log: a message must be one line."""
    with contextlib.suppress(OSError):
        lines = log.read_text(errors="replace").split("\n")
        return next((line.strip() for line in reversed(lines) if line.strip()), "it said nothing")
    return "its log is gone"

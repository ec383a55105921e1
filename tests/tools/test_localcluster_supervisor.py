"""The supervisor with real processes, but none of Kubernetes: nothing may outlive it, whichever process is killed."""

import os
import select
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from localcluster import descendants
from localcluster.control import Control, ProcessSpec
from localcluster.failure import LocalClusterError
from localcluster.launching import last_line, launch
from localcluster.nodes import with_this_package
from localcluster.state import StateFolder

SLEEP = ["/bin/sh", "-c", "exec sleep 600"]


@pytest.fixture
def state(tmp_path):
    folder = StateFolder.at(tmp_path / "state")
    folder.create()
    return folder


@pytest.fixture
def launched(state):
    running = launch(state, state.lock(), keep_state=False)
    yield running
    running.wait()


def spec(state, name, argv, grace_s=0.0):
    return ProcessSpec(name, argv, {"PATH": os.environ["PATH"]}, str(state.log(name)), grace_s)


class Watched:
    """A process that may be nobody's child; `gone` waits for the kernel's word."""

    def __init__(self, pid):
        self.fd = os.pidfd_open(pid)

    def gone(self):
        ended = bool(select.select([self.fd], [], [], 120)[0])
        os.close(self.fd)
        return ended


def test_processes_start_stop_and_start_again(state, launched):
    first = launched.control.start(spec(state, "a", SLEEP))
    assert first.returncode is None
    watched = Watched(first.pid)
    launched.control.stop("a")
    assert watched.gone()
    (stopped,) = launched.control.status()
    assert (stopped.returncode, stopped.stopped) == (-signal.SIGKILL, True)
    again = launched.control.restart("a")
    assert again.pid != first.pid
    assert [p.returncode for p in launched.control.status()] == [None]


@pytest.fixture
def word(tmp_path):
    """A named pipe: opening it waits until the other side has opened it too, so each can wait for the other."""
    pipe = tmp_path / "word"
    os.mkfifo(pipe)
    return pipe


def test_a_process_that_ends_by_itself_is_reported(state, launched, word):
    script = f"read answer < {word}; echo $answer; exit 7"
    watched = Watched(launched.control.start(spec(state, "a", ["/bin/sh", "-c", script])).pid)
    word.write_text("bye\n")
    assert watched.gone()
    (ended,) = launched.control.status()
    assert (ended.returncode, ended.stopped) == (7, False)
    assert last_line(state.log("a")) == "bye"


def test_grace_is_granted_and_then_ends(state, launched, word):
    for name, trap in (("polite", "exit 3"), ("deaf", ":")):
        script = f"trap '{trap}' TERM; echo > {word}; while :; do sleep 600 & wait; done"
        launched.control.start(
            spec(state, name, ["/bin/sh", "-c", script], grace_s=120 if name == "polite" else 0.2)
        )
        assert word.read_text() == "\n"
        launched.control.stop(name)
    assert [p.returncode for p in launched.control.status()] == [3, -signal.SIGKILL]


def test_what_a_process_leaves_behind_goes_with_it(state, launched, word):
    status = launched.control.start(spec(state, "a", ["/bin/sh", "-c", f"sleep 600 & echo > {word}; wait"]))
    assert word.read_text() == "\n"
    watched = [Watched(pid) for pid in descendants.of(status.pid)]
    assert watched
    launched.control.stop("a")
    assert all(w.gone() for w in watched)


def test_a_terminals_interrupt_is_the_starters_to_handle(launched):
    assert os.getsid(launched.pid) == launched.pid


def test_signals_are_delivered(state, launched):
    watched = Watched(launched.control.start(spec(state, "a", SLEEP)).pid)
    launched.control.signal("a", "SIGINT")
    assert watched.gone()


def test_refusals_are_one_line(state, launched):
    launched.control.start(spec(state, "a", SLEEP))
    for refused in (
        lambda: launched.control.start(spec(state, "a", SLEEP)),
        lambda: launched.control.stop("nobody"),
        lambda: launched.control.start(spec(state, "b", ["/no/such/program"])),
        lambda: launched.control.signal("a", "SIGNONSENSE"),
    ):
        with pytest.raises(LocalClusterError, match=r"^cannot .*"):
            refused()
    # And the conversation goes on.
    assert len(launched.control.status()) == 1


def test_shutdown_ends_everything_and_removes_the_state(state, launched, word):
    control = launched.control
    watched = [Watched(control.start(spec(state, "a", SLEEP)).pid)]
    # Starts a process and ends at once: what is left is nobody's but the subreaper's.
    control.start(spec(state, "b", ["/bin/sh", "-c", f"sleep 600 & echo $! > {word}"]))
    watched.append(Watched(int(word.read_text())))
    control.shutdown()
    assert all(w.gone() for w in watched)
    assert not state.root.exists()
    with pytest.raises(LocalClusterError, match="no cluster runs in"):
        control.status()


def test_the_folder_is_locked_while_the_supervisor_lives(state, launched):
    assert state.lock() is None
    launched.control.shutdown()
    free = state.lock()
    assert free is not None
    os.close(free)
    state.remove()


def test_a_killed_supervisor_takes_its_processes_along(state, launched):
    pids = [launched.control.start(spec(state, name, SLEEP)).pid for name in "ab"]
    watched = [Watched(pid) for pid in pids]
    os.kill(launched.pid, signal.SIGKILL)
    assert all(w.gone() for w in watched)


STARTER = """
import sys
from pathlib import Path
from localcluster.control import ProcessSpec
from localcluster.launching import launch
from localcluster.state import StateFolder
state = StateFolder.at(Path(sys.argv[1]))
state.create()
launched = launch(state, state.lock(), keep_state=False)
for name in "ab":
    started = launched.control.start(ProcessSpec(name, ["/bin/sleep", "600"], {}, str(state.log(name))))
    print(started.pid, flush=True)
if sys.argv[2] == "detach":
    launched.control.detach()
    launched.forget()
print(launched.pid, flush=True)
sys.stdin.read()
"""


def start_and_die(folder, how, number):
    """Runs a starter until its cluster is up, kills it, and returns its supervisor and processes as watched."""
    command = [sys.executable, "-c", STARTER, str(folder), how]
    with subprocess.Popen(
        command, env=with_this_package(os.environ), stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as starter:
        watched = [Watched(int(starter.stdout.readline())) for _ in range(3)]
        starter.send_signal(number)
    return watched


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_everything_dies_with_its_starter(tmp_path, number):
    assert all(w.gone() for w in start_and_die(tmp_path / "state", "tied", number))
    assert not (tmp_path / "state").exists()


def test_a_detached_cluster_outlives_its_starter(tmp_path):
    watched = start_and_die(tmp_path / "state", "detach", signal.SIGKILL)
    control = Control(tmp_path / "state/supervisor.sock")
    assert [p.returncode for p in control.status()] == [None, None]
    control.shutdown()
    assert all(w.gone() for w in watched)
    assert not (tmp_path / "state").exists()


def test_a_deep_folder_is_no_trouble(tmp_path):
    # A Unix socket's address has room for 107 bytes.
    deep = StateFolder.at(tmp_path.joinpath(*["a-rather-long-name-of-a-folder"] * 5))
    deep.create()
    launched = launch(deep, deep.lock(), keep_state=True)
    assert launched.control.status() == []
    launched.control.shutdown()
    launched.wait()
    assert deep.root.exists()


def test_last_line_of_a_silent_process():
    assert last_line(Path("/nonexistent")) == "its log is gone"
    assert last_line(Path(os.devnull)) == "it said nothing"

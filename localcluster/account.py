"""Processes, pods and events of a cluster as text. A failure's message holds them, because the cluster is gone by then."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final, Protocol

from localcluster.control import ProcessStatus
from localcluster.failure import LocalClusterError

# Lines of Kubernetes' information level; warnings and errors would be lost among them.
_INFORMATION: Final = re.compile(r"I\d{4} ")
_TAIL_LINES: Final = 12
_LINE_CHARACTERS: Final = 300
_OBJECTS: Final = (
    ("nodes and pods", ("get", "nodes,pods", "--all-namespaces", "--output=wide")),
    ("warnings", ("get", "events", "--all-namespaces", "--field-selector=type=Warning", "--sort-by=.lastTimestamp")),
)  # fmt: skip


class Questioned(Protocol):
    """The part of a `LocalCluster` that an account reads; a cluster writes one if it could not start."""

    @property
    def state_dir(self) -> Path:
        """The folder that holds everything of the cluster."""

    def processes(self) -> list[ProcessStatus]:
        """Every process that was started for it."""

    def kubectl(self, *arguments: str, check: bool) -> subprocess.CompletedProcess[str]:
        """Run kubectl as administrator."""


def account(cluster: Questioned, namespaces: Iterable[str] | None = None) -> str:
    """Its processes with the last words of each, nodes, pods, warnings, and what containers said.

    Whatever cannot be had is left out with its reason: this is asked when things are broken.

    Args:
        cluster: that runs, as far as it does.
        namespaces: whose containers; all of them by default.
    """
    parts = [_processes(cluster)]
    if namespaces is None:
        named = _asked(
            cluster, ("get", "pods", "--all-namespaces", "--output=jsonpath={.items[*].metadata.namespace}")
        )
        namespaces = sorted(set(named.split()))
    parts += [f"== {title} ==\n{_asked(cluster, arguments)}" for title, arguments in _OBJECTS]
    parts += [f"== containers of {name} ==\n{_containers(cluster, name)}" for name in namespaces]
    return "\n".join(parts)


def _processes(cluster: Questioned) -> str:
    try:
        processes = cluster.processes()
    except LocalClusterError as problem:
        return f"== processes ==\n{problem}"
    found = []
    for process in processes:
        state = "runs" if process.returncode is None else f"ended with {process.returncode}"
        log = cluster.state_dir / "logs" / f"{process.name}.log"
        try:
            said = log.read_text(encoding="utf-8", errors="replace")
        except OSError as problem:
            said = str(problem)
        worries = "\n".join(line for line in said.splitlines() if not _INFORMATION.match(line))
        found.append(f"== {process.name} (pid {process.pid}) {state} ==\n{_tail(worries)}")
    return "\n".join(found)


def _containers(cluster: Questioned, namespace: str) -> str:
    named = _asked(cluster, ("get", "pods", f"--namespace={namespace}", "--output=name"), everything=True)
    return "\n".join(
        _asked(
            cluster,
            (
                "logs",
                pod,
                f"--namespace={namespace}",
                "--all-containers",
                "--prefix",
                f"--tail={_TAIL_LINES}",
            ),
            everything=True,
        )
        for pod in named.splitlines()
        if pod.startswith("pod/")
    )


def _asked(cluster: Questioned, arguments: Sequence[str], *, everything: bool = False) -> str:
    done = cluster.kubectl(*arguments, "--request-timeout=10s", check=False)
    text = done.stdout + done.stderr
    return text.rstrip() if everything else _tail(text, 3 * _TAIL_LINES)


def _tail(text: str, lines: int = _TAIL_LINES) -> str:
    return "\n".join(line[:_LINE_CHARACTERS] for line in text.rstrip().splitlines()[-lines:])

"""Binds that a container runtime adds to a pod's volumes: home, working directory, /etc/hosts, the termination message.

This agent adds one more: the programs that images stand for must stay visible whatever a pod mounts.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from localcluster.nodeagent.fieldrefs import Placement
from localcluster.nodeagent.mounts import Bind, place
from localcluster.nodeagent.podspec import ContainerSpec, PodSpec

HOME = "/pod-home"
_HOSTS = "/etc/hosts"


def runtime_binds(
    pod: PodSpec,
    container: ContainerSpec,
    where: Placement,
    room: Path,
    cwd: str,
    volumes: Sequence[Bind],
    image: Path | None = None,
) -> list[Bind]:
    """The binds of one container besides its volumes; a volume at the same place wins.

    Args:
        pod: the pod.
        container: one of its containers.
        where: the pod's placement.
        room: the container's folder on this machine; what is bound is made in it.
        cwd: the container's working directory, made if this machine does not have it.
        volumes: the binds of its volumeMounts.
        image: folder of the image's own root file system, which brings its programs; None: this machine's.
    """
    read_only = has_read_only_root(container)
    message = termination_message(room)
    message.write_bytes(b"")
    hosts = room / "hosts"
    hosts.write_text(hosts_file(pod, where), encoding="utf-8")
    message_path = container.raw.get("terminationMessagePath", "/dev/termination-log")
    found = [
        Bind(str(message), message_path, read_only=False, is_dir=False),
        Bind(str(hosts), _HOSTS, read_only=False, is_dir=False),
        Bind(str(home_folder(room)), HOME, read_only=read_only, is_dir=True),
    ]
    present = [bind.target for bind in (*volumes, *found)]
    if not Path(place(cwd, image)).exists() and not _below_any(cwd, present):
        work = room / "work"
        work.mkdir(exist_ok=True)
        found.append(Bind(str(work), cwd, read_only=read_only, is_dir=True))
    needed = _needed_folders() if image is None else ()
    found += [Bind(path, path, read_only=read_only, is_dir=True) for path in hidden(volumes, needed)]
    taken = {bind.target for bind in volumes}
    return [bind for bind in found if bind.target not in taken]


def hidden(volumes: Iterable[Bind], needed: Iterable[str]) -> list[str]:
    """The needed folders that a volume covers (say, a checkout below /tmp, and an emptyDir at /tmp)."""
    targets = [os.path.realpath(bind.target) for bind in volumes if bind.is_dir]
    return [path for path in needed if _below_any(path, targets)]


def _needed_folders() -> list[str]:
    """Where the running Python, its environment and its packages lie; none inside another."""
    folders = {
        os.path.realpath(p) for p in (sys.prefix, sys.base_prefix, *sys.path) if p and Path(p).is_dir()
    }
    return sorted(p for p in folders if not _below_any(str(Path(p).parent), folders))


def _below_any(path: str, folders: Iterable[str]) -> bool:
    return any(path == folder or path.startswith(f"{folder.rstrip('/')}/") for folder in folders)


def home_folder(room: Path) -> Path:
    """The container's HOME on this machine."""
    home = room / "home"
    home.mkdir(parents=True, exist_ok=True)
    return home


def termination_message(room: Path) -> Path:
    """The file a container finds at its terminationMessagePath."""
    return room / "termination-log"


def has_read_only_root(container: ContainerSpec) -> bool:
    """Whether the container asks for a root file system it cannot write to."""
    return bool((container.raw.get("securityContext") or {}).get("readOnlyRootFilesystem"))


def hostname(pod: PodSpec) -> str:
    """The pod's host name, in Linux' 64 characters."""
    return str(pod.raw["spec"].get("hostname") or pod.name)[:63].rstrip("-.")


def hosts_file(pod: PodSpec, where: Placement) -> str:
    """/etc/hosts as a kubelet manages it, hostAliases included."""
    lines = ["# Kubernetes-managed hosts file.", "127.0.0.1\tlocalhost", f"{where.pod_ip}\t{hostname(pod)}"]
    aliases = pod.raw["spec"].get("hostAliases", [])
    lines += ["\t".join([alias["ip"], *alias.get("hostnames", [])]) for alias in aliases]
    return "\n".join(lines) + "\n"

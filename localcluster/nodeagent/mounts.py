"""Files of a container: volumeMounts as binds, and the plan of its root file system.

A container's root is this machine's own or an unpacked image's, seen through a mount namespace, with volumes bound over it. A
mount point that does not exist there (such as `/models`) cannot be made without touching the disk. Its parent directory is
therefore replaced by one in memory, with the same entries and the mount point. Nothing outside the namespace changes.
"""

from __future__ import annotations

import os
import posixpath
import stat
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple, Protocol, TypeAlias

from localcluster.nodeagent import variables
from localcluster.nodeagent.environment import ConfigError
from localcluster.nodeagent.podspec import ContainerSpec

Kind: TypeAlias = Literal["dir", "file", "link"]

# The devices that a container runtime puts into /dev; the machine's disks and consoles stay out.
_DEVICES = (
    "full",
    "null",
    "ptmx",
    "pts",
    "random",
    "tty",
    "urandom",
    "zero",
    "fd",
    "stdin",
    "stdout",
    "stderr",
)

# In the root of an image, too, these are the machine's.
_OF_THE_MACHINE = ("dev", "proc", "sys")
# The kernel's limit; a circle of links ends there.
_MOST_LINKS = 40


class Host(Protocol):
    """The view of this machine's file system that the planner uses."""

    def kind(self, path: str) -> Kind | None:
        """Kind of the entry at the path (links are not followed); None if there is none."""

    def children(self, path: str) -> Sequence[str]:
        """Names in a directory; empty when it cannot be read."""

    def resolve(self, path: str) -> str:
        """The path with every symbolic link of its existing part followed."""


@dataclass(frozen=True)
class Bind:
    """One file or directory of this machine shown at `target` in the container."""

    source: str
    target: str
    read_only: bool
    is_dir: bool


@dataclass(frozen=True)
class Make:
    """One step in making the root; paths are inside the container. `copy` shows this machine's own entry there."""

    what: Literal["dir", "file", "copy"]
    path: str


class VolumeFolder(NamedTuple):
    """A volume's folder here, and whether its kind is always read-only (configMap, secret, ...)."""

    folder: str
    always_read_only: bool


def binds(
    container: ContainerSpec, sources: Mapping[str, VolumeFolder], env: Mapping[str, str]
) -> tuple[Bind, ...]:
    """The binds of a container's volumeMounts.

    Args:
        container: the container.
        sources: by name of the volume.
        env: the container's environment, which subPathExpr refers to.

    Raises:
        ConfigError: a subPath leaves its volume or does not exist in a read-only one.
    """
    found = []
    for mount in container.raw.get("volumeMounts", []):
        folder, always_read_only = sources[mount["name"]]
        sub_path = mount.get("subPath") or variables.expand(mount.get("subPathExpr", ""), env)
        if sub_path and (posixpath.isabs(sub_path) or ".." in sub_path.split("/")):
            raise ConfigError(f"subPath {sub_path!r} of volume {mount['name']} must stay inside the volume")
        source = Path(folder, sub_path)
        if not source.exists():
            if always_read_only:
                raise ConfigError(f"subPath {sub_path!r} not found in volume {mount['name']}")
            source.mkdir(parents=True)
        read_only = always_read_only or bool(mount.get("readOnly"))
        target = posixpath.normpath(mount["mountPath"])
        found.append(Bind(str(source.resolve() if sub_path else source), target, read_only, source.is_dir()))
    return tuple(found)


def plan(targets: Iterable[Bind], host: Host) -> tuple[tuple[Make, ...], tuple[Bind, ...]]:
    """How to make a root in which every target can be bound.

    Returns:
        Steps that fill an empty directory, parents before children; and the binds with their targets' links followed,
        outer ones before those inside them.
    """
    resolved = [Bind(b.source, host.resolve(b.target), b.read_only, b.is_dir) for b in targets]
    resolved.sort(key=lambda bind: bind.target.count("/"))
    # A mount point inside another volume is made in that volume, after it is bound.
    outer = {b.target: b for b in resolved if not any(_inside(b.target, o.target) for o in resolved)}
    steps: list[Make] = []
    _fill("/", outer, host, steps)
    return tuple(steps), tuple(resolved)


def _fill(folder: str, targets: Mapping[str, Bind], host: Host, steps: list[Make]) -> None:
    """Adds the steps for a directory that is made again in memory: copies of its entries and the missing mount points."""
    names = _DEVICES if folder == "/dev" else host.children(folder)
    missing = {_child(folder, target) for target in targets if _inside(target, folder)}
    for name in names:
        path = posixpath.join(folder, name)
        kind = host.kind(path)
        clash = path in targets and (kind == "dir") is not targets[path].is_dir
        if kind is None or clash:
            continue
        missing.discard(path)
        if kind == "dir" and _must_be_made(path, targets, host):
            steps.append(Make("dir", path))
            _fill(path, targets, host, steps)
        else:
            steps.append(Make("copy", path))
    for path in sorted(missing):
        if path in targets:
            steps.append(Make("dir" if targets[path].is_dir else "file", path))
        else:
            steps.append(Make("dir", path))
            _fill(path, targets, _Nothing(), steps)


def _must_be_made(folder: str, targets: Mapping[str, Bind], host: Host) -> bool:
    """Whether a directory of this machine lacks a mount point somewhere below it. /dev is always made."""
    if folder == "/dev":
        return True
    for target, bind in targets.items():
        if not _inside(target, folder):
            continue
        kind = host.kind(target)
        if kind is None or (kind == "dir") is not bind.is_dir:
            return True
    return False


def _inside(path: str, folder: str) -> bool:
    return path != folder and path.startswith(folder if folder == "/" else f"{folder}/")


def _child(folder: str, path: str) -> str:
    """The entry of `folder` on the way to `path`."""
    start = len(folder) if folder == "/" else len(folder) + 1
    return posixpath.join(folder, path[start:].split("/", 1)[0])


class _Nothing:
    """An empty file system: what lies below a directory that this machine does not have."""

    def kind(self, path: str) -> Kind | None:  # noqa: ARG002 - nothing is there, whatever the path
        return None

    def children(self, path: str) -> Sequence[str]:  # noqa: ARG002 - see above
        return ()

    def resolve(self, path: str) -> str:
        return path


class LocalHost:
    """This machine's file system."""

    def kind(self, path: str) -> Kind | None:
        """See `Host`."""
        try:
            mode = os.lstat(path).st_mode
        except OSError:
            return None
        if stat.S_ISLNK(mode):
            return "link"
        return "dir" if stat.S_ISDIR(mode) else "file"

    def children(self, path: str) -> Sequence[str]:
        """See `Host`."""
        try:
            return sorted(entry.name for entry in os.scandir(path))
        except OSError:
            return ()

    def resolve(self, path: str) -> str:
        """See `Host`."""
        return os.path.realpath(path)


def place(path: str, image: Path | None) -> str:
    """Where on this machine an entry of a container's root lies.

    Args:
        path: in the container, absolute.
        image: folder with the unpacked image; None: the root is this machine's.
    """
    if image is None or path.split("/")[1] in _OF_THE_MACHINE:
        return path
    return f"{image}{path}"


@dataclass(frozen=True)
class UnpackedImage:
    """An image's root file system in a folder of this machine, with this machine's devices and processes."""

    folder: Path

    def kind(self, path: str) -> Kind | None:
        """See `Host`."""
        return LocalHost().kind(place(path, self.folder))

    def children(self, path: str) -> Sequence[str]:
        """See `Host`."""
        found = LocalHost().children(place(path, self.folder))
        return sorted({*found, *_OF_THE_MACHINE}) if path == "/" else found

    def resolve(self, path: str) -> str:
        """See `Host`. Absolute links mean the image's root, not this machine's."""
        found, left, links = "/", [part for part in reversed(path.split("/")) if part], 0
        while left:
            step = posixpath.normpath(posixpath.join(found, left.pop()))
            if self.kind(step) != "link" or links == _MOST_LINKS:
                found = step
                continue
            links += 1
            target = str(Path(place(step, self.folder)).readlink())
            found = "/" if target.startswith("/") else found
            left += [part for part in reversed(target.split("/")) if part]
        return found

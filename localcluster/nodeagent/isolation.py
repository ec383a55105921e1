"""Detects whether this machine allows user and mount namespaces to containers, by making one."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from localcluster.nodeagent import mounts
from localcluster.nodeagent.mounts import Bind, Host, Make
from localcluster.nodeagent.processes import Launch, Process, Root, StartError

_SHARED_MEMORY = "/dev/shm"  # noqa: S108 - the container's own, not a file of ours


@dataclass(frozen=True)
class Isolation:
    """Whether containers get a root of their own, and if not, why."""

    allowed: bool
    reason: str = ""

    @property
    def name(self) -> str:
        """For people: how mount paths come true."""
        return "mount-namespaces" if self.allowed else "path-rewriting"


def container_root(
    folder: Path,
    binds: Iterable[Bind],
    image: Path | None = None,
    *,
    read_only: bool,
    uid: int,
    gid: int,
    hostname: str,
) -> Root:
    """The root of one container: an unpacked image's or this machine's, its volumes, and a /dev like a container runtime's."""
    host: Host = mounts.LocalHost() if image is None else mounts.UnpackedImage(image)
    steps, resolved = mounts.plan(binds, host)
    own_memory = all(bind.target != _SHARED_MEMORY for bind in resolved)
    return Root(
        folder=folder,
        make=(*steps, *((Make("dir", _SHARED_MEMORY),) if own_memory else ())),
        binds=resolved,
        tmpfs=(_SHARED_MEMORY,) if own_memory else (),
        read_only=read_only,
        uid=uid,
        gid=gid,
        hostname=hostname,
        image=image,
    )


async def detect(state_dir: Path) -> Isolation:
    """Makes a container that looks for its own mount; reports instead of raising when the machine forbids it."""
    witness = state_dir / "isolation-check"
    witness.mkdir(exist_ok=True)
    place = "/breakeven-isolation-check/mounted"
    root_folder = state_dir / "root"
    root_folder.mkdir(exist_ok=True)
    root = container_root(
        root_folder,
        [Bind(str(witness), place, read_only=True, is_dir=True)],
        read_only=True,
        uid=65532,
        gid=65532,
        hostname="isolation-check",
    )
    launch = Launch(["test", "-d", place], {"PATH": os.defpath}, "/", root=root)
    null = os.open(os.devnull, os.O_WRONLY)
    try:
        process = await Process.start(launch, null)
        code = await process.exited()
    except StartError as error:
        return Isolation(allowed=False, reason=str(error))
    finally:
        os.close(null)
        witness.rmdir()
    return Isolation(
        allowed=code == 0, reason="" if code == 0 else f"the mount was not visible (exit code {code})"
    )

"""The container engines that can build the image: which one is here, and its command lines.

Each ends in a folder in OCI layout, so that everything after the build is the same for all of them.
"""

from __future__ import annotations

import shutil
import subprocess
import tarfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal, TypeAlias

from shipping.shipping_error import ShippingError

EngineName: TypeAlias = Literal["docker", "podman", "buildah"]
ENGINES: Final[tuple[EngineName, ...]] = ("docker", "podman", "buildah")


@dataclass(frozen=True)
class Build:
    """One build of an image.

    Attributes:
        context: folder whose files the build may copy.
        file: the Dockerfile.
        tag: name of the image, such as `localhost/breakeven:0.1.0`.
        epoch_s: time of the image and of all files that the build makes, seconds since 1970.
        arguments: values of the Dockerfile's ARGs.
        secrets: files that steps may read and no layer keeps, by their id.
        fresh: no step of an earlier build is used again.
    """

    context: Path
    file: Path
    tag: str
    epoch_s: int
    arguments: Mapping[str, str] = field(default_factory=dict)
    secrets: Mapping[str, Path] = field(default_factory=dict)
    fresh: bool = False


def chosen(wanted: str = "") -> EngineName:
    """The engine that was asked for, else the first one that works.

    Raises:
        ShippingError: none works, or not the one that was asked for.
    """
    if wanted and wanted not in ENGINES:
        raise ShippingError(f"ENGINE={wanted}: expected {', '.join(ENGINES)}")
    for engine in ENGINES:
        if wanted in {"", engine} and works(engine):
            return engine
    missing = wanted or "docker, podman or buildah"
    raise ShippingError(
        f"no {missing} works here: `{wanted or 'docker'} info` fails or is not found (Debian, Ubuntu: apt install buildah)"
    )


def works(engine: EngineName) -> bool:
    """Whether the engine is here and, for Docker, its daemon answers."""
    if shutil.which(engine) is None:
        return False
    return subprocess.run([engine, "info"], capture_output=True, check=False, timeout=60).returncode == 0


def build_commands(engine: EngineName, build: Build, layout: Path) -> Sequence[Sequence[str]]:
    """The commands that build the image and write it to `layout`; Docker writes an archive of that name with `.tar`."""
    common = [
        f"--file={build.file}", f"--tag={build.tag}",
        *(f"--build-arg={name}={value}" for name, value in build.arguments.items()),
        *(f"--secret=id={name},src={path}" for name, path in build.secrets.items()),
        *(["--no-cache"] if build.fresh else []),
    ]  # fmt: skip
    if engine == "docker":
        archive = f"--output=type=oci,dest={layout}.tar,rewrite-timestamp=true"
        epoch = f"--build-arg=SOURCE_DATE_EPOCH={build.epoch_s}"
        # Attestations hold the time of the build.
        return [
            ["docker", "buildx", "build", *common, epoch, "--provenance=false", archive, str(build.context)]
        ]
    # A chroot suffices for steps that only run pip, and needs no runtime. The network is the machine's, as its proxies are. Steps of
    # earlier builds are not used: with them the history, and so the digest, is another one.
    options = [
        *common,
        "--layers=false",
        f"--timestamp={build.epoch_s}",
        "--isolation=chroot",
        "--network=host",
        "--format=oci",
    ]
    return [
        [engine, "build", *options, str(build.context)],
        [engine, "push", build.tag, f"oci:{layout}:{build.tag.rpartition(':')[2]}"],
    ]


def built(engine: EngineName, build: Build, layout: Path) -> None:
    """Builds the image into the folder `layout`, which must not be there.

    Raises:
        ShippingError: the engine failed; the message has its last line.
    """
    for command in build_commands(engine, build, layout):
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            said = [line for line in f"{done.stdout}\n{done.stderr}".splitlines() if line.strip()]
            raise ShippingError(f"{' '.join(command[:2])} failed: {' / '.join(said[-6:])}")
    archive = layout.with_name(f"{layout.name}.tar")
    if engine == "docker":
        with tarfile.open(archive) as written:
            written.extractall(layout, filter="data")
        archive.unlink()


def base_dockerfile(archive: str) -> str:
    """The Dockerfile of a base image that is one archive."""
    return f"FROM scratch\nADD {archive} /\n"

"""An image in OCI layout: its digest, its size, its configuration, and its files in a folder."""

from __future__ import annotations

import gzip
import json
import shutil
import tarfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from shipping.shipping_error import ShippingError

_WHITEOUT: Final = ".wh."
_OPAQUE: Final = ".wh..wh..opq"


@dataclass(frozen=True)
class Image:
    """An image that was built.

    Attributes:
        digest: of its manifest, `sha256:...`; what a registry calls it.
        unpacked_bytes: of all layers as archives without compression, which engines call the image's size.
        packed_bytes: of all layers as a registry stores them.
        user, entrypoint, env: of its configuration.
    """

    digest: str
    unpacked_bytes: int
    packed_bytes: int
    user: str
    entrypoint: tuple[str, ...]
    env: tuple[str, ...]


def read_image(layout: Path) -> Image:
    """The image of a layout that holds one."""
    digest = _json(layout / "index.json")["manifests"][0]["digest"]
    manifest = _json(_blob(layout, digest))
    config = _json(_blob(layout, manifest["config"]["digest"]))["config"]
    return Image(
        digest=digest,
        unpacked_bytes=sum(_unpacked(_blob(layout, layer["digest"])) for layer in manifest["layers"]),
        packed_bytes=sum(layer["size"] for layer in manifest["layers"]),
        user=config.get("User", ""),
        entrypoint=tuple(config.get("Entrypoint") or ()),
        env=tuple(config.get("Env") or ()),
    )


def unpack(layout: Path, root: Path) -> None:
    """Lays the image's layers over each other in the folder `root`, whose former content goes.

    Raises:
        ShippingError: a layer has a path outside of the root file system.
    """
    if root.exists():
        shutil.rmtree(root)
    root.mkdir(parents=True)
    manifest = _json(_blob(layout, _json(layout / "index.json")["manifests"][0]["digest"]))
    for layer in manifest["layers"]:
        with tarfile.open(_blob(layout, layer["digest"])) as archive:
            for member in archive:
                _lay(root, archive, member)


def _lay(root: Path, archive: tarfile.TarFile, member: tarfile.TarInfo) -> None:
    target = root / member.name
    if not target.parent.resolve().is_relative_to(root.resolve()):
        raise ShippingError(f"a layer of the image leaves its root file system: {member.name}")
    if target.name == _OPAQUE:
        for child in target.parent.iterdir():
            _remove(child)
    elif target.name.startswith(_WHITEOUT):
        _remove(target.with_name(target.name.removeprefix(_WHITEOUT)))
    elif not (member.isdev() or (member.isdir() and target.is_dir())):
        if target.is_symlink() or target.exists():
            _remove(target)
        # Modes are kept as they are, set-uid too, because they are looked at.
        archive.extract(member, root, filter="fully_trusted")


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _unpacked(blob: Path) -> int:
    with blob.open("rb") as file:
        if file.read(2) != b"\x1f\x8b":
            return blob.stat().st_size
    total = 0
    with gzip.open(blob) as stream:
        while chunk := stream.read(1 << 20):
            total += len(chunk)
    return total


def _blob(layout: Path, digest: str) -> Path:
    algorithm, _, value = digest.partition(":")
    return layout / "blobs" / algorithm / value


def _json(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))

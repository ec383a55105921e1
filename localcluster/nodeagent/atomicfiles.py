"""A volume's folder whose files all change at once, laid out as a kubelet does.

`..data` is a link to a folder with the present files and each file of the volume a link through it; replacing that one link
is atomic, so a reader sees the old set or the new one, never a mixture.
"""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Mapping
from pathlib import Path

from localcluster.nodeagent.payloads import Payload

_DATA = "..data"


def publish(folder: Path, files: Mapping[str, Payload]) -> bool:
    """Makes `folder` hold exactly `files` (path in the volume -> payload).

    Returns:
        Whether anything changed.
    """
    folder.mkdir(parents=True, exist_ok=True)
    link = folder / _DATA
    old = link.resolve() if link.is_symlink() else None
    if old is not None and _holds(old, files):
        return False
    fresh = folder / f"..{secrets.token_hex(8)}"
    for path, payload in files.items():
        file = fresh / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(payload.content)
        file.chmod(payload.mode)
    fresh.mkdir(exist_ok=True)
    pending = folder / f"{_DATA}_pending"
    pending.unlink(missing_ok=True)
    pending.symlink_to(fresh.name)
    pending.replace(link)
    tops = {path.split("/", 1)[0] for path in files}
    for name in tops:
        if not (folder / name).is_symlink():
            (folder / name).symlink_to(f"{_DATA}/{name}")
    for entry in folder.iterdir():
        if not entry.name.startswith("..") and entry.name not in tops:
            entry.unlink()
    if old is not None:
        shutil.rmtree(old, ignore_errors=True)
    return True


def _holds(folder: Path, files: Mapping[str, Payload]) -> bool:
    present = {
        str(Path(root, name).relative_to(folder)) for root, _, names in os.walk(folder) for name in names
    }
    if present != files.keys():
        return False
    return all((folder / path).read_bytes() == payload.content for path, payload in files.items())

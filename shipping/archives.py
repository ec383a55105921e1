"""Archives that are the same in every build: sorted, dated by the commit, owned by nobody."""

from __future__ import annotations

import gzip
import io
import tarfile
from pathlib import Path


def packed(folder: Path, epoch_s: int, only: str = "") -> bytes:
    """A `.tar.gz` of what is in a folder, or of one entry of it.

    Args:
        folder: paths in the archive are relative to it.
        epoch_s: time of every file, seconds since 1970.
        only: name of the one entry; empty: all.
    """
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w", format=tarfile.GNU_FORMAT) as archive:
        for path in sorted((folder / only).rglob("*")):
            if path.is_file():
                entry = tarfile.TarInfo(str(path.relative_to(folder)))
                entry.size, entry.mtime = path.stat().st_size, epoch_s
                entry.mode = 0o755 if path.stat().st_mode & 0o100 else 0o644
                with path.open("rb") as file:
                    archive.addfile(entry, file)
    return gzip.compress(content.getvalue(), mtime=epoch_s)

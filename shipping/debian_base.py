"""A base image of Debian's own packages: Python and what it loads, without a shell, for machines that reach no container registry.

mmdebstrap (of Debian and Ubuntu) unpacks the packages and runs none of their scripts. What those would have made and we need
is made here: dpkg's list, which scanners read, and the file of certificate authorities. The same packages give the same bytes.
"""

from __future__ import annotations

import fnmatch
import io
import os
import shutil
import tarfile
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Final

from shipping.commands import checked
from shipping.shipping_error import ShippingError

SUITE: Final = "bookworm"
PACKAGES: Final = (
    "base-files", "ca-certificates", "libc6", "libgcc-s1", "libpython3.11-stdlib", "libstdc++6", "media-types", "netbase",
    "python3-minimal", "python3.11-minimal", "python3.11-venv",
)  # fmt: skip
"""Their dependencies come with them. zoneinfo's data come with the environment's package tzdata."""
LEFT_OUT: Final = (
    # Of the machine that builds.
    "etc/hostname", "etc/resolv.conf", "etc/apt/*", "var/lib/apt/*", "var/log/apt/*", "var/cache/*",
    # For people at a terminal and package managers only.
    "usr/share/doc/*", "usr/share/man/*", "usr/share/info/*", "usr/share/locale/*", "usr/share/lintian/*", "usr/share/perl5/*",
    "usr/share/pixmaps/*", "usr/share/bash-completion/*", "usr/share/gcc/*", "usr/share/gdb/*", "usr/lib/*/perl*", "usr/bin/dpkg*",
    "usr/bin/debconf*", "usr/bin/update-alternatives", "usr/bin/openssl", "usr/bin/c_rehash", "usr/bin/mawk", "usr/bin/py*doc*",
    "bin/tar", "usr/sbin/*", "sbin/*", "var/lib/dpkg/info/*", "usr/lib/python3.11/pydoc_data/*", "usr/lib/python3.11/lib2to3/*",
    "usr/lib/python3/dist-packages/*",
    # Character sets of iconv: Python has its own.
    "usr/lib/*/gconv/*",
    # Devices are the runtime's.
    "dev/*",
)  # fmt: skip
"""Patterns of paths; `*` matches slashes too."""
_AUTHORITIES: Final = "usr/share/ca-certificates/mozilla/"
_BUNDLE: Final = "etc/ssl/certs/ca-certificates.crt"
# Appended by us: dpkg writes the field when its scripts have run, which they do not.
_STATUS: Final = (
    'for deb in "$1"/var/cache/apt/archives/*.deb; do dpkg-deb --field "$deb"; echo "Status: install ok installed"; echo; done '
    '> "$1/var/lib/dpkg/status"'
)


def make_base(target: Path, epoch_s: int) -> Sequence[str]:
    """Writes the base's root file system as a tar archive.

    Args:
        target: where the archive goes.
        epoch_s: time of every file, seconds since 1970.

    Returns:
        Its packages as `name version`, sorted.

    Raises:
        ShippingError: there is no mmdebstrap, or it failed.
    """
    if shutil.which("mmdebstrap") is None:
        raise ShippingError(
            "BASE=debian needs mmdebstrap, which is not here (Debian, Ubuntu: apt install mmdebstrap); or name a BASE that can be pulled"
        )
    with tempfile.TemporaryDirectory() as folder:
        unpacked = Path(folder, "unpacked.tar")
        command = [
            "mmdebstrap", "--quiet", "--variant=extract", f"--include={','.join(PACKAGES)}", f"--extract-hook={_STATUS}",
            SUITE, str(unpacked),
        ]  # fmt: skip
        checked(command, env={**os.environ, "SOURCE_DATE_EPOCH": str(epoch_s)})
        with tarfile.open(unpacked) as given, tarfile.open(target, "w", format=tarfile.GNU_FORMAT) as kept:
            return slimmed(given, kept, epoch_s)


def slimmed(given: tarfile.TarFile, kept: tarfile.TarFile, epoch_s: int) -> Sequence[str]:
    """Copies what a container needs from one archive to another and adds the file of authorities; returns the packages."""
    authorities: dict[str, bytes] = {}
    packages: Sequence[str] = ()
    for member in given:
        name = member.name.removeprefix("./")
        if any(fnmatch.fnmatchcase(name, pattern) for pattern in LEFT_OUT):
            continue
        content = given.extractfile(member) if member.isreg() else None
        if content is not None and name.startswith(_AUTHORITIES):
            authorities[name] = content.read()
            content = io.BytesIO(authorities[name])
        if content is not None and name == "var/lib/dpkg/status":
            status = content.read()
            packages = sorted(_packages(status.decode()))
            content = io.BytesIO(status)
        _add(kept, member, content, epoch_s)
    bundle = b"".join(authorities[name] for name in sorted(authorities))
    entry = tarfile.TarInfo(f"./{_BUNDLE}")
    entry.size, entry.mode = len(bundle), 0o644
    _add(kept, entry, io.BytesIO(bundle), epoch_s)
    return packages


def _add(kept: tarfile.TarFile, member: tarfile.TarInfo, content: IO[bytes] | None, epoch_s: int) -> None:
    member.mtime = epoch_s
    member.uname = member.gname = ""
    kept.addfile(member, content)


def _packages(status: str) -> Iterator[str]:
    for paragraph in status.split("\n\n"):
        fields = dict(
            line.split(": ", 1) for line in paragraph.splitlines() if ": " in line and line[0] != " "
        )
        if "Package" in fields:
            yield f"{fields['Package']} {fields['Version']}"

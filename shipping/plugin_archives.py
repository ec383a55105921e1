"""The plugin's archives for krew: one executable per platform, made by PEX of wheels; any Python 3.11 to 3.13 of the user runs it."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from packaging.tags import compatible_tags, cpython_tags, mac_platforms

from shipping.archives import packed
from shipping.commands import checked, tool

PYTHONS: Final = ((3, 11), (3, 12), (3, 13))
NEEDED: Final = (
    "annotated-types", "click", "msgspec", "pydantic", "pydantic-core", "pyyaml", "tree-sitter", "tree-sitter-bash", "typing-extensions",
    "typing-inspection",
)  # fmt: skip
"""Packages of the lock that the plugin's own verbs import; for figures it calls the command `breakeven`, whose numpy is larger than all of these."""
_MACOS: Final = (14, 0)
_ENTRY: Final = "breakeven_operator.plugin.__main__:main"


def pinned(lock: str) -> Sequence[str]:
    """The lines of a lock that pin what the plugin needs, with their conditions and hashes."""
    blocks = re.findall(r"(?m)^\S+==.*(?:\n    .*)*", lock)
    return [block for block in blocks if block.partition("==")[0] in NEEDED]


def complete_platform(system: str, machine: str, python: tuple[int, int]) -> Mapping[str, Any]:
    """A platform as PEX wants it described if it is not the one that it runs on: wheels that run there, and conditions of locks.

    Args:
        system: in krew's words, `linux` or `darwin`.
        machine: `amd64` or `arm64`.
        python: version, such as (3, 12).
    """
    names = {"amd64": "x86_64", "arm64": "aarch64" if system == "linux" else "arm64"}
    architecture = names[machine]
    if system == "linux":
        # glibc 2.28 (Debian 10, RHEL 8) and older.
        platforms = [
            *(f"manylinux_2_{minor}_{architecture}" for minor in range(28, 16, -1)),
            f"manylinux2014_{architecture}",
        ]
    else:
        platforms = list(mac_platforms(_MACOS, architecture))
    version = ".".join(map(str, python))
    interpreter = f"cp{version.replace('.', '')}"
    tags = [*cpython_tags(python, [interpreter], platforms), *compatible_tags(python, interpreter, platforms)]
    return {
        "compatible_tags": [str(tag) for tag in tags],
        "marker_environment": {
            "implementation_name": "cpython",
            "implementation_version": f"{version}.0",
            "os_name": "posix",
            "platform_machine": architecture,
            "platform_python_implementation": "CPython",
            "platform_release": "",
            "platform_system": {"linux": "Linux", "darwin": "Darwin"}[system],
            "platform_version": "",
            "python_full_version": f"{version}.0",
            "python_version": version,
            "sys_platform": system,
        },
    }


def plugin_archives(
    tree: Path, target: Path, manifest: Mapping[str, Any], epoch_s: int, say: Callable[[str], Any]
) -> Mapping[str, Any]:
    """Makes an archive for each platform of krew's manifest; returns the manifest with their digests.

    Raises:
        ShippingError: PEX failed, or the executable of this platform does not run.
    """
    platforms = []
    for entry in manifest["spec"]["platforms"]:
        labels = entry["selector"]["matchLabels"]
        name = entry["uri"].rpartition("/")[2]
        with tempfile.TemporaryDirectory() as folder:
            content = Path(folder)
            _executable(tree, content / entry["bin"], (labels["os"], labels["arch"]), epoch_s)
            shutil.copy(tree / "LICENSE", content / "LICENSE")
            if (labels["os"], labels["arch"]) == this_platform():
                say(f"{name}: {checked([str(content / entry['bin']), '--version']).strip()}")
            (target / name).write_bytes(packed(content, epoch_s))
        digest = hashlib.sha256((target / name).read_bytes()).hexdigest()
        platforms.append({**entry, "sha256": digest})
    return {**manifest, "spec": {**manifest["spec"], "platforms": platforms}}


def this_platform() -> tuple[str, str]:
    """This machine in krew's words."""
    machine = os.uname().machine
    return sys.platform, {"x86_64": "amd64", "aarch64": "arm64"}.get(machine, machine)


def _executable(tree: Path, target: Path, platform: tuple[str, str], epoch_s: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        sources, requirements = Path(folder, "sources"), Path(folder, "requirements.txt")
        for package in ("tuner/breakeven", "operator/breakeven_operator"):
            shutil.copytree(
                tree / package, sources / Path(package).name, ignore=shutil.ignore_patterns("__pycache__")
            )
        lock = (tree / "requirements" / "operator.lock").read_text(encoding="utf-8")
        requirements.write_text("\n".join(pinned(lock)) + "\n", encoding="utf-8")
        platforms = []
        for python in PYTHONS:
            platforms.append(Path(folder, f"{python[1]}.json"))
            platforms[-1].write_text(json.dumps(complete_platform(*platform, python)), encoding="utf-8")
        command = [
            str(tool("pex")), f"--sources-directory={sources}", f"--requirement={requirements}", "--intransitive", "--no-build",
            f"--entry-point={_ENTRY}", "--python-shebang=/usr/bin/env python3", f"--output-file={target}",
            *(f"--complete-platform={path}" for path in platforms),
        ]  # fmt: skip
        checked(command, env={**os.environ, "SOURCE_DATE_EPOCH": str(epoch_s)})

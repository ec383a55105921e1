"""A tree of its own, and mutants tried in it: each in a forked process that has everything but our own code already."""

from __future__ import annotations

import importlib
import multiprocessing
import os
import resource
import shutil
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import pytest

from mutation.sites import Site

_FOLDERS: Final = ("tuner", "operator", "tests", ".")
# Imported once by whoever forks: they are most of what a test's start costs, and none of it is ours.
_FOREIGN: Final = (
    "numpy", "scipy.optimize", "scipy.stats", "scipy.special", "pydantic", "yaml", "click", "rich.console", "rich.table",
    "aiohttp", "prometheus_client", "msgspec", "hypothesis", "pytest_asyncio", "coverage",
)  # fmt: skip
_OURS: Final = ("breakeven", "breakeven_sim", "breakeven_operator", "draws", "fakes", "conftest")
_KILLED_BY_CPU: Final = (signal.SIGXCPU, signal.SIGKILL)


@dataclass(frozen=True, slots=True)
class Outcome:
    """The fate of a mutant.

    Attributes:
        word: killed, survived, timeout, unreached, moved, or broken: pytest itself did not run.
        killer: the test, or the file of tests, that failed first.
        tests: how many were asked.
        cpu_s: of the trial.
    """

    word: str
    killer: str = ""
    tests: int = 0
    cpu_s: float = 0.0

    @property
    def caught(self) -> bool:
        """Whether some test noticed; one that computes for ever is noticed too."""
        return self.word in {"killed", "timeout"}

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)


def copied(root: Path, revision: str, folder: Path) -> Path:
    """Copy a tree: the files of a commit, or those of the working tree that git knows or would take.

    Args:
        root: the repository.
        revision: a commit; empty: the working tree.
        folder: for the copy, made here.
    """
    folder.mkdir(parents=True)
    if revision:
        archive = subprocess.run(
            ["git", "archive", revision], cwd=root, check=True, capture_output=True
        ).stdout
        subprocess.run(["tar", "--extract"], cwd=folder, input=archive, check=True)
        return folder
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=root, check=True, capture_output=True, text=True,
    ).stdout  # fmt: skip
    for name in filter(None, listed.split("\0")):
        if (root / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(root / name, folder / name)
    return folder


def search_path(tree: Path) -> list[str]:
    """Where Python finds our own code of a tree."""
    return [str((tree / folder).resolve()) for folder in _FOLDERS]


def preload() -> None:
    """Import what is not ours."""
    for name in _FOREIGN:
        importlib.import_module(name)


# Of a worker; its functions stand here because a process that is spawned does not import a package's `__main__`.
_own_tree: list[Path] = []


def start(trees: Any) -> None:
    """Begin a worker: take one of the trees out of a queue for itself."""
    _own_tree.append(trees.get())
    preload()


def in_own_tree(site: Site, tests: Sequence[str], cpu_s: int) -> Outcome:
    """Calls `trial` in the tree of this worker."""
    return trial(_own_tree[0], site, tests, cpu_s)


def trial(tree: Path, site: Site, tests: Sequence[str], cpu_s: int) -> Outcome:
    """Try a mutant; the tree is as before afterwards.

    Args:
        tree: a copy that nobody else uses.
        site: the change.
        tests: in this order; the first that fails ends it.
        cpu_s: seconds of CPU that they may take.
    """
    file = tree / site.mutant.path
    original, status = file.read_bytes(), file.stat()
    try:
        file.write_text(site.in_source(original.decode()))
        # Compiled code is known by time and size, and two mutants may have both in common.
        os.utime(file, ns=(status.st_atime_ns, time.time_ns()))
        return run(tree, tests, cpu_s)
    finally:
        file.write_bytes(original)
        os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))


def control(tree: Path, tests: Sequence[str], cpu_s: int) -> Outcome:
    """Run tests in a tree without any change, as they are run for a mutant: nobody may notice anything."""
    preload()
    return run(tree, tests, cpu_s)


def run(tree: Path, tests: Sequence[str], cpu_s: int) -> Outcome:
    """Run tests of a tree in a fork until one fails."""
    log = tree.with_suffix(".log")
    log.write_text("")
    process = multiprocessing.get_context("fork").Process(target=_run_tests, args=(tree, tests, cpu_s, log))
    before_s = _children_s()
    with warnings.catch_warnings():
        # Python 3.12 warns where threads are: those of pytest's workers wait for their master alone.
        warnings.simplefilter("ignore", DeprecationWarning)
        process.start()
    process.join()
    used_s = round(_children_s() - before_s, 2)
    if process.exitcode and -process.exitcode in _KILLED_BY_CPU:
        return Outcome("timeout", tests=len(tests), cpu_s=used_s)
    if process.exitcode == 0:
        return Outcome("survived", tests=len(tests), cpu_s=used_s)
    killer = log.read_text()
    # Whatever else ends it, no test noticed anything.
    return Outcome("killed" if killer else "broken", killer, len(tests), used_s)


def _children_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


class _Witness:
    """Writes down the first test that fails, as a pytest plugin."""

    def __init__(self, log: Path) -> None:
        self._log = log

    def pytest_collectreport(self, report: Any) -> None:
        self.pytest_runtest_logreport(report)

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.failed and not self._log.stat().st_size:
            self._log.write_text(report.nodeid)


def _run_tests(tree: Path, tests: Sequence[str], cpu_s: int, log: Path) -> None:
    """In a process of its own, which ends with pytest's exit status."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.dup2(nowhere, 2)
    sys.stdout = sys.stderr = open(nowhere, "w")  # noqa: SIM115, PTH123  # until the process ends
    resource.setrlimit(resource.RLIMIT_CPU, (cpu_s, cpu_s + 2))
    os.chdir(tree)
    ours = search_path(tree)
    sys.path[:0] = ours
    os.environ.update(PYTHONPATH=os.pathsep.join(ours), HYPOTHESIS_PROFILE="quick")
    for name in [one for one in sys.modules if one.partition(".")[0] in _OURS]:
        del sys.modules[name]
    sys.dont_write_bytecode = True
    # Pytest warns of its plugins that `preload` has imported, and a warning is an error.
    loaded = "-Wignore::pytest.PytestAssertRewriteWarning"
    words = [loaded, "-q", "-x", "--no-header", "-p", "no:cacheprovider", "-p", "no:xdist", "--tb=no"]
    sys.exit(int(pytest.main([*words, *tests], plugins=[_Witness(log)])))

"""Paths of the cluster's programs on this machine; builds a missing program once.

The search goes in this order, program by program:

1. `BREAKEVEN_ASSETS`, a folder: taken as it is.
2. `KUBEBUILDER_ASSETS`, the same idea of other projects: taken if its Kubernetes minor version is the pinned one.
   An older API server under a newer controller manager breaks Kubernetes' own version skew policy.
3. the cache folder (`cache.py`), into which it is built from pinned source.

`python -m localcluster.binaries` builds those that every cluster has, with nothing but Python: `make demo` does so while the packages of
everything else are still being installed.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from types import MappingProxyType
from typing import Final

from localcluster.building import build
from localcluster.cache import cache_folder, exclusive
from localcluster.catalog import EVERYDAY, PROGRAMS, Bundle, CataloguedProgram
from localcluster.failure import LocalClusterError
from localcluster.progress import Say, duration, say
from localcluster.toolchain import Toolchain, install

# Go's module cache and its compiled packages for all programs, measured: 3.9 and 4.6 GB.
WORKSHOP_GB: Final = 9
STREAMS: Final = 2
"""Of builds: more of them need more memory than a small machine has."""
SKEW_CHECKED: Final = ("kube-apiserver", "kube-controller-manager", "kube-scheduler")


def ensure(
    names: Iterable[str] = EVERYDAY,
    *,
    environment: Mapping[str, str] | None = None,
    tell: Say = say,
) -> Mapping[str, Path]:
    """Paths of the named programs, each built now if this machine does not have it.

    Args:
        names: programs of `catalog.PROGRAMS`.
        environment: where `BREAKEVEN_ASSETS` and the others are read from; the process's own by default.
        tell: receives progress.

    Raises:
        LocalClusterError: a program cannot be had; its text says what to do.
        KeyError: a name is not in the catalogue.
    """
    env = os.environ if environment is None else environment
    wanted = {name: PROGRAMS[name] for name in names}
    cache = cache_folder(env)
    found = _present(wanted, cache, env)
    if len(found) < len(wanted):
        with exclusive(cache, tell):
            # Another builder may have finished them while this one waited for the lock.
            found = _present(wanted, cache, env)
            missing = {name: entry for name, entry in wanted.items() if name not in found}
            if missing:
                found |= _build_all(missing, cache, env, tell)
            everyday = {name: PROGRAMS[name] for name in EVERYDAY}
            if len(_present(everyday, cache, env)) == len(everyday):
                shutil.rmtree(_workshop(cache), ignore_errors=True)
    return MappingProxyType({name: found[name] for name in wanted})


def present(names: Iterable[str], environment: Mapping[str, str] | None = None) -> bool:
    """Whether this machine has the programs, so that `ensure` builds nothing."""
    env = os.environ if environment is None else environment
    wanted = {name: PROGRAMS[name] for name in names}
    return len(_present(wanted, cache_folder(env), env)) == len(wanted)


def _workshop(cache: Path) -> Path:
    """Holds the toolchain and Go's caches while something is left to build; deleted when everything is there."""
    return cache / "workshop"


def _present(
    wanted: Mapping[str, CataloguedProgram], cache: Path, environment: Mapping[str, str]
) -> dict[str, Path]:
    found = {}
    for name, (bundle, _) in wanted.items():
        candidates = [
            _asset(name, "BREAKEVEN_ASSETS", environment),
            _matching(_asset(name, "KUBEBUILDER_ASSETS", environment), bundle),
            cache / bundle.cache_name() / name,
        ]
        path = next((c for c in candidates if c is not None and os.access(c, os.X_OK) and c.is_file()), None)
        if path is not None:
            found[name] = path
    return found


def _asset(name: str, variable: str, environment: Mapping[str, str]) -> Path | None:
    folder = environment.get(variable)
    if not folder:
        return None
    if not Path(folder).is_dir():
        raise LocalClusterError(
            f"{variable}={folder} is not a folder; expected one that holds programs like {name}"
        )
    return Path(folder).absolute() / name


def _matching(path: Path | None, bundle: Bundle) -> Path | None:
    """The path if it may stand beside programs of the pinned version."""
    if path is None or path.name not in SKEW_CHECKED or not path.is_file():
        return path
    said = subprocess.run([path, "--version"], capture_output=True, text=True, check=False).stdout
    return path if same_minor(said, bundle.version()) else None


def same_minor(said: str, pinned: str) -> bool:
    """Whether `Kubernetes v1.36.1` and `v1.36.3` agree in major and minor version."""
    found = re.search(r"v(\d+\.\d+)\.", said)
    return found is not None and pinned.startswith(f"v{found[1]}.")


def _build_all(
    missing: Mapping[str, CataloguedProgram], cache: Path, environment: Mapping[str, str], tell: Say
) -> dict[str, Path]:
    usual_s = sum(program.usual_s for _, program in missing.values())
    tell(f"building {len(missing)} programs once, usually {duration(usual_s)}; they are kept in {cache}")
    fresh = not _workshop(cache).exists()
    toolchain = install(_workshop(cache), environment, tell)
    if fresh and toolchain.environment["GOCACHE"].startswith(str(cache)):
        _require_space(cache)
    return _build_side_by_side(missing, cache, toolchain, tell)


def _build_side_by_side(
    missing: Mapping[str, CataloguedProgram], cache: Path, toolchain: Toolchain, tell: Say
) -> dict[str, Path]:
    """Builds the programs of each bundle one after another, and `STREAMS` bundles side by side.

    A program of a bundle finds what the one before it compiled. While one bundle downloads or links, which keeps no core
    or one core busy, another compiles.
    """
    positions = {name: f"{number}/{len(missing)}" for number, name in enumerate(missing, start=1)}
    built = {name: cache / bundle.cache_name() / name for name, (bundle, _) in missing.items()}
    bundles = {
        bundle: [n for n, entry in missing.items() if entry.bundle is bundle]
        for bundle, _ in missing.values()
    }
    given_up = threading.Event()
    failures: list[BaseException] = []

    def build_bundle(bundle: Bundle, names: Iterable[str]) -> None:
        try:
            for name in names:
                if given_up.is_set():
                    return
                program = missing[name].program
                build(bundle, program, built[name], toolchain, tell, positions[name], given_up)
        except BaseException as failure:  # noqa: BLE001 - raised below, by the thread that waits
            failures.append(failure)
            given_up.set()

    with ThreadPoolExecutor(STREAMS) as pool:
        try:
            wait([pool.submit(build_bundle, *item) for item in bundles.items()])
        finally:
            # An interrupted builder waits for no compiler.
            given_up.set()
    if failures:
        # Builds that were given up because of the first failure fail later with a message that says less.
        raise failures[0]
    return built


def _require_space(cache: Path) -> None:
    free_gb = shutil.disk_usage(cache).free / 1e9
    if free_gb < WORKSHOP_GB:
        raise LocalClusterError(
            f"{cache} has {free_gb:.1f} GB free; expected {WORKSHOP_GB} GB while building (deleted afterwards); "
            "set XDG_CACHE_HOME to a roomier place"
        )


def main() -> int:
    """Build what is missing; exit 0, 1 with one line, or 130 if interrupted."""
    try:
        ensure()
    except LocalClusterError as problem:
        say(str(problem))
        return 1
    except KeyboardInterrupt:
        say("interrupted; what was built is kept")
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Where built programs are kept, and how two builders keep out of each other's way."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path

from localcluster.progress import Say

# Unfinished work carries this in its name until it is renamed into place; whoever holds the lock may delete it.
PARTIAL = ".partial"


def cache_folder(environment: Mapping[str, str]) -> Path:
    """`$XDG_CACHE_HOME/breakeven`, or `~/.cache/breakeven` when that is unset, empty or (against the XDG rules) relative."""
    base = Path(environment.get("XDG_CACHE_HOME", ""))
    return (base if base.is_absolute() else Path.home() / ".cache") / "breakeven"


@contextlib.contextmanager
def exclusive(folder: Path, say: Say) -> Iterator[None]:
    """Holds the folder's build lock; waits for another builder and says so.

    The lock dies with its holder, so an interrupted or killed build leaves nothing to clean up by hand; what it left
    half done is deleted here.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "build.lock").open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say(f"another process is building into {folder}; waiting for it")
            fcntl.flock(lock, fcntl.LOCK_EX)
        _drop_partial(folder)
        yield


def _drop_partial(folder: Path) -> None:
    for leftover in [*folder.glob(f"*{PARTIAL}"), *folder.glob(f"*/*{PARTIAL}")]:
        if leftover.is_dir():
            shutil.rmtree(leftover)
        else:
            leftover.unlink()


@contextlib.contextmanager
def published(target: Path) -> Iterator[Path]:
    """Yields a path to build at; it becomes `target` in one step when the block succeeds, and vanishes otherwise.

    Only under `exclusive`, whose next holder deletes what a killed one left unfinished. The name carries the process
    id: a compiler that outlived its builder by a moment must not write into the next builder's file.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    unfinished = target.with_name(f"{target.name}.{os.getpid()}{PARTIAL}")
    try:
        yield unfinished
        unfinished.replace(target)
    finally:
        if unfinished.is_dir():
            shutil.rmtree(unfinished)
        else:
            unfinished.unlink(missing_ok=True)

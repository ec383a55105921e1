"""Files, folders and patterns of a sweep as points, with the notes that a person who gave them should read."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from breakeven.arm import Arm
from breakeven.errors import ForeignFileError, InputError
from breakeven.points.point import Origin, Point
from breakeven.readers.reading import distinct, read_file

_MOST_FILES = 10_000
_PATTERN = frozenset("*?[")


class SweepFiles(NamedTuple):
    """Points of a sweep; `notes` name what was passed over, cut off, or has no known meaning."""

    points: tuple[Point, ...]
    notes: tuple[str, ...]


def read_sweep(
    given: Sequence[Path], arms: Mapping[Path, tuple[Arm, str | None]] | None = None
) -> SweepFiles:
    """Read all files of a sweep.

    Args:
        given: files, folders, and patterns such as `runs/*.json`.
        arms: the arm, and its schedule if it has one, of what does not name its arm.

    Raises:
        InputError: as the readers; also if nothing is a result, or there is no such file.
    """
    read: list[Point] = []
    foreign: list[ForeignFileError] = []
    for place in given:
        arm, schedule = (arms or {}).get(place, (None, None))
        for file in files_in(place):
            # A folder of results also holds logs, summaries and configurations, and runs without a single answer.
            found = read_file(file, arm, foreign)
            # The rows of a table say themselves which arm they are of.
            read += (
                one if schedule is None or one.origin.line else replace(one, schedule=schedule)
                for one in found
            )
    if foreign and not read:
        raise foreign[0]
    points, repeated = distinct(read)
    return SweepFiles(points, tuple(_notes(foreign, repeated, points)))


def files_in(path: Path) -> tuple[Path, ...]:
    """The files of a folder and of the folders in it, or of a pattern, in order of their names; of a file that file itself.

    Raises:
        InputError: there is none, or there are more than a sweep has; hidden ones do not count.
    """
    if not path.exists() and is_pattern(path):
        matching = sorted(Path(path.anchor or ".").glob(str(path.relative_to(path.anchor))))
        if not matching:
            raise InputError(str(path), "a pattern that no file matches", "the results of a sweep")
        return tuple(file for one in matching for file in files_in(one))
    if not path.is_dir():
        return (path,)
    found: list[Path] = []
    for folder, inner, names in os.walk(path):
        inner[:] = sorted(name for name in inner if not name.startswith("."))
        found += (Path(folder, name) for name in sorted(names) if not name.startswith("."))
        if len(found) > _MOST_FILES:
            raise InputError(
                str(path), f"a folder of more than {_MOST_FILES} files", "the results of a sweep"
            )
    found = [one for one in found if one.is_file()]
    if not found:
        raise InputError(str(path), "a folder without a file", "the results of a sweep")
    return tuple(found)


def is_pattern(path: Path) -> bool:
    """Whether a path has signs that stand for other letters, as a shell takes them."""
    return not _PATTERN.isdisjoint(str(path))


def _notes(
    foreign: Sequence[ForeignFileError], repeated: Sequence[Origin], points: Sequence[Point]
) -> Iterator[str]:
    """Notes about the files: those passed over, remarks on runs, runs whose ends were cut off, keys that no reader uses."""
    for refused in foreign:
        yield f"passed over: {refused}"
    for origin in repeated:
        yield f"passed over: {origin}: the same run was given before"
    for origin in (one.origin for one in points if one.origin.part):
        yield f"ends cut off: {origin}: {origin.part}"
    remarks: dict[str, list[Origin]] = {}
    for origin in (one.origin for one in points if one.origin.remark):
        remarks.setdefault(origin.remark, []).append(origin)
    for remark, origins in remarks.items():
        more = f" and {len(origins) - 1} more" if len(origins) > 1 else ""
        yield f"{origins[0]}{more}: {remark}"
    unknown: dict[str, dict[str, None]] = {}
    for one in points:
        unknown.setdefault(one.origin.tool, {}).update(dict.fromkeys(one.unknown))
    for tool, keys in unknown.items():
        if keys:
            yield f"{tool}: keys without a known meaning, not used: {', '.join(keys)[:300]}"

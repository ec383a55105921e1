"""Points files: CSV with a header, in as people and spreadsheets really save them, out as `COLUMNS` says.

Taken as it comes: a byte order mark, commas, semicolons or tabs between fields, decimal commas where semicolons
separate, blank lines, spaces around values, columns in any order. Unknown columns are kept.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Mapping, Sequence

from breakeven.errors import InputError
from breakeven.points.point import ACCEPT, COLUMNS, NUMBERS, TEXTS, Origin, Point
from breakeven.points.row import point

_SELDOM = frozenset({"schedule", "text_source", "replicate", "max_num_seqs"})
"""Columns that a file has only where a row fills them: few arms are schedules, and nobody but people numbers replicates."""

MOST_ROWS = 10_000
"""Largest number of rows of a points file; a sweep of one arm has about ten."""

_NEEDED = ("method", "k", "mean_latency_s")


def read(text: str, source: str, most_rows: int = MOST_ROWS) -> tuple[Point, ...]:
    """Read a points file; one with more than `most_rows` lines is refused before any of them is read.

    Raises:
        InputError: naming file, row, line (counted from 1) and column.
    """
    text = text.removeprefix("\ufeff")
    if "\0" in text:
        raise InputError(source, "a binary file", "a points file (CSV with header)")
    # Lines are counted before any is read, because reading a line takes a thousand times as long.
    if text.count("\n") > 2 * most_rows + 100:
        raise InputError(
            source, f"{text.count(chr(10))} lines", f"at most {most_rows} rows, one per operating point"
        )
    header_line = next((line for line in text.splitlines() if line.strip()), "")
    delimiter = max(",;\t", key=header_line.count)
    rows = _rows(text, delimiter, source)
    if not rows:
        raise InputError(source, "an empty file", "a points file (CSV with header)")
    if len(rows) - 1 > most_rows:
        raise InputError(source, f"{len(rows) - 1} rows", f"at most {most_rows}, one per operating point")
    line, header = rows[0]
    columns = _columns(header, f"{source}: line {line}")
    points = []
    for row, (line, fields) in enumerate(rows[1:], start=1):
        origin = Origin(source, row, line)
        if len(fields) > len(columns) and any(field.strip() for field in fields[len(columns) :]):
            raise InputError(str(origin), f"{len(fields)} fields", f"{len(columns)}, as the header has")
        if len(fields) < len(columns):
            raise InputError(
                str(origin),
                f"{len(fields)} fields, none in column {columns[len(fields)]}",
                f"{len(columns)}, as the header has",
            )
        named = {name: value for name, value in zip(columns, fields, strict=False) if name}
        points.append(point(named, origin, decimal_comma=delimiter == ";"))
    if not points:
        raise InputError(source, "a header and no row", "one row per measured operating point")
    return tuple(points)


def _rows(text: str, delimiter: str, source: str) -> list[tuple[int, list[str]]]:
    """Split into rows of fields, each with the line on which it begins; blank ones are left out."""
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
    rows: list[tuple[int, list[str]]] = []
    try:
        start = 1
        for fields in reader:
            if any(value.strip() for value in fields):
                rows.append((start, fields))
            start = reader.line_num + 1
    except csv.Error as error:
        raise InputError(
            f"{source}: line {reader.line_num}", f"not CSV ({error})", "CSV with a header"
        ) from error
    return rows


def _columns(header: list[str], where: str) -> list[str]:
    names = [name.strip() for name in header]
    known = {*NUMBERS, *TEXTS, *(low for name in names if ACCEPT.fullmatch(low := name.lower()))}
    names = [name.lower() if name.lower() in known else name for name in names]
    seen: set[str] = set()
    for name in names:
        if name and name in seen:
            raise InputError(where, f"column {name!r} twice", "each column once")
        seen.add(name)
    for name in _NEEDED:
        if name not in seen:
            shown = ", ".join(repr(n[:24]) for n in names[:6] if n) or "none"
            raise InputError(f"{where}, column {name}", f"no such column (found {shown})", f"a column {name}")
    if not seen & {"concurrency", "request_rate_rps"}:
        raise InputError(
            f"{where}, columns concurrency and request_rate_rps", "neither column", "the one that was imposed"
        )
    return names


def document(point: Point) -> dict[str, float | str | None]:
    """The point's columns as JSON has them: numbers as numbers, counts as whole ones, None if nothing was measured."""
    found: dict[str, float | str | None] = {}
    for name, column in COLUMNS.items():
        value = getattr(point, name)
        if name == "accept":
            found |= {f"accept_{position}": share for position, share in enumerate(value, start=1)}
        elif column.counted and value is not None and value == int(value):
            found[name] = int(value)
        elif name not in _SELDOM or value is not None:
            found[name] = value
    return {**found, **point.extra}


def cells(point: Point) -> dict[str, str]:
    """The point's columns as a row of a points file; what was not measured is an empty field."""
    return {
        name: value if isinstance(value, str) else decimal(value) for name, value in document(point).items()
    }


def written(rows: Sequence[Mapping[str, str]]) -> str:
    """A points file of rows; a row that lacks another's column has an empty field there."""
    columns = list(dict.fromkeys(name for row in rows for name in row))
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def rows_as_they_stand(text: str, source: str) -> list[dict[str, str]]:
    """The rows of a points file unread, so that the file can grow without a change in what is there.

    Raises:
        InputError: the text is not a CSV with the header of a points file.
    """
    reader = csv.DictReader(io.StringIO(text), strict=True)
    try:
        rows = list(reader)
    except csv.Error as error:
        raise InputError(source, str(error), "a points file (CSV with header)") from error
    missing = {"method", "k"} - set(reader.fieldnames or ())
    if missing and (rows or reader.fieldnames):
        raise InputError(
            f"{source}: row 1", f"no column {', '.join(sorted(missing))}", "a points file's header"
        )
    for number, row in enumerate(rows, start=2):
        if None in row or None in row.values():
            raise InputError(f"{source}: row {number}", "not as many fields as the header", "one per column")
    return rows


def decimal(value: float | None) -> str:
    """A number in six significant digits without an exponent where that is readable; empty if there is none."""
    if value is None or not math.isfinite(value):
        return ""
    return (
        f"{value:.6g}"
        if 1e-4 <= abs(value) < 1e6 or value == 0
        else f"{value:.0f}"
        if abs(value) >= 1e6
        else f"{value:.3e}"
    )

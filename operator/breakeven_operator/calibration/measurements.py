"""Points as they stand in a CalibrationRun, and the same points as rows of a points file."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Mapping
from datetime import datetime

from breakeven.calibrate.points import Measured
from breakeven_operator.resources.calibrationrun import CalibrationRunStatus, Plan, Point

_ACCEPT = re.compile(r"^accept_(\d+)$")
_WORDS = frozenset({"method", "candidate", "load_mode", "flag", "sweep", "engine_version"})
_INTEGERS = frozenset({"k", "requests", "failed", "preemptions", "replicate"})


def point_of_row(arm: str, index: int, row: Mapping[str, str], time: datetime | None) -> Point:
    """A row that the driver's `Point.row` wrote, as a point of a run's status; empty fields are left out.

    Raises:
        pydantic.ValidationError: a figure does not fit its field.
    """
    fields: dict[str, object] = {"arm": arm, "index": index, "time": time}
    survival: dict[int, float] = {}
    for column, text in row.items():
        accept = _ACCEPT.match(column)
        if not text:
            continue
        if accept:
            survival[int(accept[1])] = float(text)
        elif column in Point.model_fields:
            fields[column] = (
                text if column in _WORDS else int(float(text)) if column in _INTEGERS else float(text)
            )
    fields["accept"] = tuple(survival[position] for position in sorted(survival))
    return Point.model_validate(fields, by_name=True)


def row_of_point(point: Point) -> dict[str, str]:
    """The point's columns as a points file has them, `accept_1` ... `accept_k` included."""
    document = point.model_dump(mode="json", exclude_none=True, exclude={"arm", "index", "time", "accept"})
    row = {column: str(value) for column, value in document.items()}
    return row | {f"accept_{position}": str(value) for position, value in enumerate(_accept(point), start=1)}


def _accept(point: Point) -> list[str]:
    dumped = point.model_dump(mode="json", include={"accept"})["accept"]
    return [str(value) for value in dumped]


def points_csv(status: CalibrationRunStatus, plan: Plan) -> str:
    """All points of a run as one points file, with what they have in common in columns of their own."""
    rows = [
        {**row_of_point(point), "gpu": plan.gpu_product, "model": plan.model or ""}
        for arm in plan.arms
        for point in status.points_of(arm.arm)
    ]
    columns = list(dict.fromkeys(column for row in rows for column in row))
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def measured_of(points: Iterable[Point]) -> list[Measured]:
    """The same points as the sweep's design takes them; those it cannot go on from are left out."""
    return [measured for point in points if (measured := Measured.of_row(row_of_point(point))) is not None]

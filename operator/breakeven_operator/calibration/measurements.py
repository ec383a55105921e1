"""A measured point as it stands in a CalibrationRun, and back; all points of a run as a points file for the fit's process."""

from __future__ import annotations

from collections.abc import Container, Iterable
from datetime import datetime

from pydantic import ValidationError

from breakeven.load_driver.design import of_the_sweep
from breakeven.points.point import COLUMNS, LoadMode, Point
from breakeven.points.table import written
from breakeven_operator.resources.calibrationrun import (
    STORED_COLUMNS,
    CalibrationPlan,
    CalibrationRunStatus,
    StoredPoint,
)


def stored(arm: str, index: int, point: Point, time: datetime | None) -> StoredPoint:
    """A point as a run's status holds it, without the columns that were not measured.

    Raises:
        pydantic.ValidationError: a figure does not fit its field.
    """
    columns = {name: value for name in STORED_COLUMNS if (value := getattr(point, name)) is not None}
    columns |= {name: int(value) for name, value in columns.items() if COLUMNS[name].counted}
    return StoredPoint(arm=arm, index=index, time=time, **columns)


def measured(point: StoredPoint) -> Point | None:
    """The point that a run's status holds; None if a sweep cannot go on from it."""
    columns = {name: value for name in STORED_COLUMNS if (value := getattr(point, name)) is not None}
    columns.setdefault("load_mode", LoadMode.CLOSED if "concurrency" in columns else LoadMode.POISSON)
    try:
        return Point(**columns)
    except ValidationError:
        return None


def measured_of(points: Iterable[StoredPoint]) -> list[Point]:
    """The points as the sweep's design takes them; those it cannot go on from are left out."""
    return [found for point in points if (found := measured(point)) is not None]


def sweep_of(points: Iterable[StoredPoint]) -> list[Point]:
    """The points of an arm at its own lengths: the other points show the costs of steps, and do not count."""
    return of_the_sweep(measured_of(points))


def usable_points(points: Iterable[StoredPoint]) -> int:
    """Number of an arm's points that can be used, at its own lengths."""
    return sum(point.usable for point in sweep_of(points))


def points_csv(
    status: CalibrationRunStatus, plan: CalibrationPlan, arms: Container[str] | None = None
) -> str:
    """The points of a run as one points file in the plan's order, with what they have in common in columns of their own.

    None stands for all arms.
    """
    return written(
        [
            {**_cells(point), "gpu": plan.gpu_product, "model": plan.model or ""}
            for arm in plan.arms
            if arms is None or arm.arm in arms
            for point in status.points_of(arm.arm)
        ]
    )


def _cells(point: StoredPoint) -> dict[str, str]:
    """The columns as the status spells them: a CRD has no numbers with a fraction, only decimal strings."""
    document = point.model_dump(mode="json", exclude_none=True, exclude={"arm", "index", "time"})
    shares = document.pop("accept", ())
    cells = {column: str(value) for column, value in document.items()}
    return cells | {f"accept_{position}": str(share) for position, share in enumerate(shares, start=1)}

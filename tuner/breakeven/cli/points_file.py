"""The points file that `breakeven calibrate` appends to."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING

from breakeven.cli.output import write_atomically
from breakeven.errors import InputError
from breakeven.intake import file_text

if TYPE_CHECKING:
    from breakeven.points.point import Point


class PointsFile:
    """A points file that grows by one row at a time and is whole at every moment."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def rows(self) -> list[dict[str, str]]:
        """Every row as it stands in the file; none if there is no file yet.

        Raises:
            InputError: the file is not a CSV with the header of a points file.
        """
        from breakeven.points.table import rows_as_they_stand

        if not self.path.exists():
            return []
        return rows_as_they_stand(file_text(self.path, "a points file (CSV with header)"), str(self.path))

    def points(self) -> list[Point]:
        """Every row that is a point. A sweep cannot continue from the other rows.

        Raises:
            InputError: see `rows`.
        """
        from breakeven.points.point import Origin
        from breakeven.points.row import point

        found = []
        for number, row in enumerate(self.rows(), start=1):
            with contextlib.suppress(InputError):
                found.append(point(row, Origin(str(self.path), number)))
        return found

    def append(self, point: Point) -> None:
        """Add a row; columns that the file does not have yet are added to all rows, empty."""
        from breakeven.points.table import cells, written

        write_atomically(self.path, written([*self.rows(), cells(point)]))

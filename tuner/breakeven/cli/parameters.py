"""Types of options and arguments: files to read, files to write, and numbers that are numbers."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import click

from breakeven.errors import InputError


class Number(click.FloatRange):
    """A finite number within bounds: NaN is within all of them, since it compares false with each."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return the number; wrong usage if it is not finite or out of bounds."""
        number = float(super().convert(value, param, ctx))
        if not math.isfinite(number):
            self.fail(f"{value!r} is not a finite number.", param, ctx)
        return number


class InputFile(click.Path):
    """A file to read. One that is not there is a refused input (exit 1), as one is that says something wrong."""

    def __init__(self, *, dash: bool = False) -> None:
        super().__init__(allow_dash=dash, path_type=Path)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Path:
        """Return the path, or refuse it as input."""
        path = Path(value)
        if self.allow_dash and str(path) == "-":
            return path
        if not path.exists():
            raise InputError(str(path), "no such file", "a file to read")
        if path.is_dir():
            raise InputError(str(path), "a folder", "a file to read")
        return path


class OutputFile(click.Path):
    """A file to write. Its folder must be there before any work begins: a sweep takes minutes."""

    def __init__(self) -> None:
        super().__init__(path_type=Path)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Path:
        """Return the path, or refuse it as input."""
        path = Path(value)
        if path.is_dir():
            raise InputError(str(path), "a folder", "a file to write")
        if not path.parent.is_dir():
            raise InputError(str(path.parent), "no such folder", "a folder to write to")
        return path

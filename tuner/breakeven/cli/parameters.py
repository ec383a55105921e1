"""Types of options and arguments: files to read, files to write, numbers that are numbers, and lists of them."""

from __future__ import annotations

import itertools
import math
import re
from pathlib import Path
from typing import Any, Literal

import click

from breakeven.arm import ADAPTIVE, SCHEDULE
from breakeven.errors import InputError
from breakeven.tiers import ADAPTIVE_FORM, AdaptiveDrafts, Drafts, Schedule


class Number(click.FloatRange):
    """A finite number within bounds. NaN needs a check of its own, because every comparison with it is false."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return the number; wrong usage if it is not finite or out of bounds."""
        number = float(super().convert(value, param, ctx))
        if not math.isfinite(number):
            self.fail(f"{value!r} is not a finite number.", param, ctx)
        return number


MeasuredDrafts = Literal["schedule", "adaptive"]
"""The words for drafts whose length follows the load, as they were measured."""


def read_draft_length(
    _ctx: click.Context, _param: click.Parameter, value: str | None
) -> int | MeasuredDrafts | None:
    """Read a draft length from 0 to 1000, or the word for the schedule or the adaptive verification that was measured."""
    if value is None:
        return None
    word: MeasuredDrafts | None = {SCHEDULE: "schedule", ADAPTIVE: "adaptive"}.get(value)  # type: ignore[assignment]
    return _draft_length(value, f"one of the words {SCHEDULE} and {ADAPTIVE}") if word is None else word


def read_lengths_or_schedules(
    _ctx: click.Context, _param: click.Parameter, values: tuple[str, ...]
) -> tuple[Drafts, ...]:
    """Read draft lengths from 0 to 1000, schedules such as 1-8:5,9-:0, and adaptive:7; wrong usage if one is none of these."""
    return tuple(length_or_schedule(value) for value in values)


def length_or_schedule(value: str) -> Drafts:
    """Read a draft length or a schedule, as `read_lengths_or_schedules` does."""
    if adaptive := ADAPTIVE_FORM.fullmatch(value):
        return AdaptiveDrafts(int(adaptive[1]))
    if ":" in value:
        return Schedule.parse(value, "--k")
    return _draft_length(value, "a schedule such as 1-8:5,9-:0, nor adaptive:7")


def _draft_length(value: str, other: str) -> int:
    if not (value.isascii() and value.isdecimal() and int(value) <= 1000):
        raise click.BadParameter(f"{value!r} is no draft length (0 to 1000), nor {other}.")
    return int(value)


def read_loads(_ctx: click.Context, _param: click.Parameter, value: str) -> int | Literal["auto"]:
    """Read a number of loads from 3 to 1000, or the word for those that are chosen; wrong usage if it is neither."""
    if value == "auto":
        return "auto"
    if not (value.isascii() and value.isdecimal() and 3 <= int(value) <= 1000):
        raise click.BadParameter(f"{value!r} is no number of loads (3 to 1000), nor the word auto.")
    return int(value)


def read_draft_lengths(
    _ctx: click.Context, _param: click.Parameter, value: str | None
) -> tuple[int, ...] | None:
    """Read draft lengths such as `1-7` or `1,3,7`: each once, ascending; wrong usage if one is not within 1 to 1000."""
    if value is None:
        return None
    found: set[int] = set()
    for part in value.split(","):
        low, dash, high = (end.strip() for end in part.partition("-"))
        high = high if dash else low
        ends = (int(low), int(high)) if low.isdecimal() and high.isdecimal() else (0, 0)
        if not 1 <= ends[0] <= ends[1] <= 1000:
            raise click.BadParameter(
                f"{value!r} is no list of draft lengths (1 to 1000) such as 1-10 or 1,3,5"
            )
        found.update(range(ends[0], ends[1] + 1))
    return tuple(sorted(found))


class Share(Number):
    """A number between 0 and 1, or a percentage with its sign."""

    def __init__(self) -> None:
        super().__init__(0)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return the share; a refused input if it is above 1."""
        text = value.strip() if isinstance(value, str) else value
        percent = isinstance(text, str) and text.endswith("%")
        number = super().convert(text[:-1] if percent else text, param, ctx)
        where = f"--{param.name}" if param is not None else "share"
        if percent and number > 100:
            raise InputError(where, repr(value), "a percentage of at most 100%")
        return checked_share(where, number / 100 if percent else number)


def checked_share(where: str, share: float) -> float:
    """Return the share; a refused input if it is not between 0 and 1, because a percentage needs its sign."""
    if not 0 <= share <= 1:
        hint = f", or {share:g}% as a percentage" if 1 < share <= 100 else ""
        raise InputError(where, f"{share:g}", f"a share between 0 and 1{hint}")
    return share


def read_numbers(_ctx: click.Context, param: click.Parameter, value: str | None) -> tuple[float, ...] | None:
    """Read numbers between commas, semicolons or blanks, percentages, or a list as JSON has it; wrong usage if one is none.

    Raises:
        InputError: it is a line of vLLM's log.
    """
    if value is None:
        return None
    if "acceptance rate" in value or "SpecDecoding" in value:
        raise InputError(
            f"--{(param.name or '').replace('_', '-')}",
            "a line of vLLM's log",
            "--log FILE, or --log - for standard input",
        )
    text = value.strip()
    if text[:1] == "[" and text[-1:] == "]":
        text = text[1:-1]
    parts = (
        [part.strip() for part in text.split(";")] if ";" in text else re.split(r"\s*,\s*|\s+", text.strip())
    )
    try:
        return tuple(float(part[:-1]) / 100 if part.endswith("%") else float(part) for part in parts)
    except ValueError as error:
        raise click.BadParameter(f"{value!r} is not a comma-separated list of numbers") from error


def read_survival(ctx: click.Context, param: click.Parameter, value: str | None) -> tuple[float, ...] | None:
    """Read unconditional survival per position; wrong usage if it is no numbers, a refused input if no drafts can have it."""
    shares = read_numbers(ctx, param, value)
    if shares is None:
        return None
    for position, (before, share) in enumerate(itertools.pairwise((1.0, *shares)), start=1):
        where = f"--per-position, position {position}"
        checked_share(where, share)
        if share > before + 1e-9:
            expected = "shares of all drafts, which never rise with the position"
            raise InputError(where, f"{share:g} after {before:g}", expected)
    return shares


class InputFile(click.Path):
    """A file to read. A missing file is a refused input (exit 1), like a file with wrong content."""

    def __init__(self, *, dash: bool = False, folder: bool = False) -> None:
        super().__init__(allow_dash=dash, path_type=Path)
        self.folder = folder

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Path:
        """Return the path, or refuse it as input."""
        path = Path(value)
        if self.allow_dash and str(path) == "-":
            return path
        if not path.exists():
            from breakeven.readers.reading import is_pattern

            if self.folder and is_pattern(path):
                return path
            raise InputError(str(path), "no such file", "a file to read")
        if path.is_dir() and not self.folder:
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

"""Names of lines, written where the lines leave a picture: a legend sends the eye back and forth."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np

from breakeven.laws.arrays import FloatArray, Span
from breakeven.reporting.theme import Stroke

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from breakeven.arm import Arm


MOST_NAMES = 4
"""More names than this at the ends of lines that bunch would drift away from their lines."""

# Bold 9 pt type: the width of a letter and the height of a line, in inches.
_LETTER_IN, _LINE_IN = 0.085, 0.175
NAMES_PT = 18.0
"""Points between frame and title, for the names of lines."""


class NamedLine(NamedTuple):
    """The line of one arm: loads and values."""

    arm: Arm
    rps: FloatArray
    values: FloatArray


class LineEnd(NamedTuple):
    """Place of the name of an arm's line, in units of the axes."""

    x: float
    y: float
    arm: Arm


def name_lines(
    axes: Axes,
    lines: Sequence[NamedLine],
    strokes: Mapping[Arm, Stroke],
    empty_corner: Literal["upper left", "lower left"],
) -> None:
    """Name every line in its colour; to be called when the limits of the axes are set.

    A line that leaves through the top has its name above the frame, the others have it at their right end. Names that
    would touch are moved along the frame by as little as parts them.

    Args:
        axes: where the lines are drawn; its title, on the left, makes room for names above the frame.
        lines: to be named.
        strokes: by arm.
        empty_corner: for a legend, which is the lesser evil where there are more lines than names have room.
    """
    if len(lines) > MOST_NAMES:
        axes.legend(loc=empty_corner, fontsize=8, handlelength=3.5)
        return
    bottom, top = axes.get_ylim()
    above: list[LineEnd] = []
    beside: list[LineEnd] = []
    for arm, rps, values in lines:
        inside = np.flatnonzero(np.isfinite(values) & (values <= top) & (values >= bottom))
        if len(inside):
            last = int(inside[-1])
            leaves = last + 1 < len(values) and values[last + 1] > top
            (above if leaves else beside).append(LineEnd(float(rps[last]), float(values[last]), arm))
    letter, line = _type_size(axes)
    if above:
        axes.set_title(axes.get_title(loc="left"), loc="left", pad=NAMES_PT)
    for end in _side_by_side(above, letter):
        _name(axes, end._replace(y=top), strokes, above=True)
    for end in _one_below_another(beside, letter, line, (bottom, top)):
        _name(axes, end, strokes, above=False)


def _type_size(axes: Axes) -> tuple[float, float]:
    """Width of a letter and height of a line in units of the axes, near enough: the layout is settled on drawing."""
    frame = axes.get_window_extent().transformed(axes.figure.dpi_scale_trans.inverted())
    (left, right), (bottom, top) = axes.get_xlim(), axes.get_ylim()
    return _LETTER_IN * (right - left) / frame.width, _LINE_IN * (top - bottom) / frame.height


def _side_by_side(ends: Sequence[LineEnd], letter: float) -> list[LineEnd]:
    """Centres of names above the frame, from the left; each begins where the one before it ends, or later."""
    placed: list[LineEnd] = []
    reach = -np.inf
    for x, y, arm in sorted(ends):
        half = 0.5 * letter * (len(arm.name) + 1)
        placed.append(LineEnd(max(x, reach + half), y, arm))
        reach = placed[-1].x + half
    return placed


def _one_below_another(ends: Sequence[LineEnd], letter: float, line: float, limits: Span) -> list[LineEnd]:
    """Places of names at the right ends, moved up or down, by as little as parts them and never out of the picture."""
    placed: list[LineEnd] = []
    for x, y, arm in sorted(ends, key=lambda end: end.y):
        width = letter * (len(arm.name) + 1)
        free = [
            moved
            for moved in (y + step * line for shift in range(len(ends) + 1) for step in (shift, -shift))
            if limits[0] < moved < limits[1]
            and all(abs(x - u) > width or abs(moved - v) > 0.99 * line for u, v, _ in placed)
        ]
        placed.append(LineEnd(x, free[0] if free else y, arm))
    return placed


def _name(axes: Axes, end: LineEnd, strokes: Mapping[Arm, Stroke], *, above: bool) -> None:
    """Write an arm's name above the end of its line, or to the right of it."""
    axes.annotate(
        end.arm.name,
        (end.x, end.y),
        xytext=(0, 3) if above else (4, 0),
        textcoords="offset points",
        ha="center" if above else "left",
        va="bottom" if above else "center",
        fontsize=9,
        weight="bold",
        color=strokes[end.arm].colour,
        annotation_clip=False,
    )

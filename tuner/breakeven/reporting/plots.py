"""The pictures of a profile, drawn on given axes from curves that are already computed.

Each function draws one statement and returns nothing; the page, the PNG export and the demo compose them. Bands are
the profile's intervals; hollow markers are measured points; a vertical tick is a break-even with its interval.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Literal

import numpy as np

from breakeven.laws.arrays import FloatArray, Span
from breakeven.phrases import figure
from breakeven.reporting.lines import ArmCurve, BestArmMap, KindCurve, Measured, highest
from breakeven.reporting.theme import Stroke, Theme

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from numpy.typing import NDArray

    from breakeven.arm import Arm

MOST_NAMES = 4
"""More names than this at the ends of lines that bunch would drift away from their lines."""

NAMES_PT = 18.0
"""Points between frame and title, for the names of lines."""

_LOAD = "load per replica, requests/s"
# Bold 9 pt type: the width of a letter and the height of a line, in inches.
_LETTER_IN, _LINE_IN = 0.085, 0.175
# Regions of the map below this share of its area have no room for a name.
_SMALLEST_NAMED = 0.005
# Height of a region's name and a line's width around it, in acceptance.
_NAME_HEIGHT = 0.045
# Room left of load 0, as a share of the axis: marks of a lone request's latency are not cut in half.
_MARGIN = 0.012


def speedup_against_load(
    axes: Axes,
    curves: Sequence[ArmCurve],
    strokes: Mapping[Arm, Stroke],
    theme: Theme,
) -> None:
    """Speedup over no speculation at equal rate: the line of each arm, its band, its points, its break-even.

    Above 1 speculation pays.
    """
    axes.axhline(1.0, color=theme.ink, linewidth=1.0)
    speculative = [curve for curve in curves if curve.arm.k > 0]
    for number, curve in enumerate(speculative):
        ends = curve.speedup_lower, curve.speedup_upper
        _draw(
            axes,
            curve,
            strokes[curve.arm],
            theme,
            (curve.speedup, curve.measured_speedup, *ends),
            speculative,
        )
        beside = (5, -14, 17, -26, 29, -38)[number % 6]
        few = len(speculative) <= MOST_NAMES
        _break_even(axes, curve, strokes[curve.arm].colour, theme, beside_pt=beside if few else None)
    lines = highest(array for c in speculative for array in (c.speedup, c.measured_speedup))
    bands = highest(c.speedup_upper for c in speculative)
    # A band that opens towards saturation does not press the lines flat.
    top = max(1.0, lines, min(bands, 1.25 * lines))
    axes.set_ylim(0, min(1.1 * top, 6.0))
    _load_axis(axes)
    axes.set_ylabel("speedup over no speculation")
    axes.set_title("Does it pay? Above the line, yes")
    name_lines(axes, [(c.arm, c.rps, c.speedup) for c in speculative], strokes, "lower left")


def latency_against_load(
    axes: Axes,
    curves: Sequence[ArmCurve],
    strokes: Mapping[Arm, Stroke],
    theme: Theme,
) -> None:
    """Mean request latency of each arm with its band and its measured points; a dotted edge is its saturation."""
    measured_top = max((float(np.nanmax(c.measured_latency_s, initial=0.0)) for c in curves), default=0.0)
    lowest = min((float(np.nanmin(c.latency_s)) for c in curves), default=1.0)
    slowest = max((float(np.nanmax(c.latency_s)) for c in curves), default=1.0)
    # Hyperbolas leave through the top; a flat line is not drawn at the bottom of an empty picture.
    top = 1.1 * max(measured_top, min(5 * lowest, 1.5 * slowest))
    for curve in curves:
        # An open upper bound (the arm may be saturated there) reaches beyond the picture.
        lower, upper = curve.latency_lower_s, curve.latency_upper_s
        upper = np.where(np.isfinite(lower) & ~np.isfinite(upper), np.maximum(2 * top, lower), upper)
        drawn = curve.latency_s, curve.measured_latency_s, lower, upper
        _draw(axes, curve, strokes[curve.arm], theme, drawn, curves)
        axes.axvline(
            curve.saturation_rps, color=strokes[curve.arm].colour, linestyle=":", linewidth=1.0, alpha=0.8
        )
    axes.set_ylim(0, top)
    _load_axis(axes)
    axes.set_ylabel("mean request latency, s")
    axes.set_title("Latency against load")
    name_lines(axes, [(c.arm, c.rps, c.latency_s) for c in curves], strokes, "upper left")


def kinds_against_load(
    axes: Axes,
    kinds: Sequence[KindCurve],
    strokes: Mapping[Arm, Stroke],
    _: Theme,
) -> None:
    """Speed in percent of the fastest arm's: no speculation, a fixed length, the schedule, adaptive verification."""
    lines = []
    for kind in kinds:
        stroke = strokes[kind.arm]
        speed = np.where(np.isfinite(kind.longer), 100.0 / (1.0 + kind.longer), np.nan)
        axes.plot(kind.rps, speed, color=stroke.colour, linestyle=stroke.dash, label=kind.arm.name)
        lines.append((kind.arm, kind.rps, speed))
    axes.set_ylim(0.0, 104.0)
    axes.set_xlim(right=float(kinds[0].rps[-1]))
    _load_axis(axes)
    axes.set_ylabel("speed, % of the fastest arm's")
    axes.set_title("Which of none, fixed, schedule, adaptive")
    name_lines(axes, lines, strokes, "lower left")


def best_arm_map(axes: Axes, best: BestArmMap, strokes: Mapping[Arm, Stroke], theme: Theme) -> None:
    """The best arm for every load and acceptance; the dashed line is where the profile was measured."""
    for arm, lead in zip(best.arms, best.lead, strict=True):
        fastest = lead > 0
        if not fastest.any():
            continue
        colour, strength = (theme.shade, 1.0) if arm.k == 0 else (strokes[arm].colour, 0.45)
        axes.contourf(best.rps, best.alpha, lead, levels=[0.0, np.inf], colors=[colour], alpha=strength)
        if not fastest.all():
            axes.contour(best.rps, best.alpha, lead, levels=[0.0], colors=theme.ink, linewidths=0.7)
        if fastest.mean() < _SMALLEST_NAMED:
            continue
        # The middle of the region's middle row lies inside it for the wedges that occur; its mean may fall outside.
        row = _off_the_line(
            best, fastest, int(np.searchsorted(np.cumsum(fastest.sum(axis=1)), fastest.sum() / 2))
        )
        axes.text(
            best.rps[int(np.median(np.flatnonzero(fastest[row])))],
            best.alpha[row],
            arm.name,
            ha="center",
            va="center",
            fontsize=9,
            weight="bold",
        )
    axes.grid(visible=False)
    nowhere = [
        arm.name
        for arm, lead in zip(best.arms, best.lead, strict=True)
        if (lead > 0).mean() < _SMALLEST_NAMED and not best.leads_as_measured.get(arm, np.zeros(1)).any()
    ]
    if nowhere:
        axes.text(
            1.0, 1.015, f"nowhere the fastest: {', '.join(nowhere)}", transform=axes.transAxes, ha="right", va="bottom",
            fontsize=8, color=theme.faint,
        )  # fmt: skip
    if best.measured_alpha is not None:
        for arm, leads in best.leads_as_measured.items():
            _strip(axes, best, leads, strokes[arm].colour, arm.name)
        axes.axhline(best.measured_alpha, color=theme.ink, linewidth=1.0, linestyle=(0, (4, 3)))
        axes.annotate(
            f"measured\n{best.measured_alpha:.2f}",
            (best.rps[-1], best.measured_alpha),
            xytext=(4, 0),
            textcoords="offset points",
            va="center",
            fontsize=8,
            annotation_clip=False,
        )
    axes.set_xlabel(_LOAD)
    axes.set_ylabel("acceptance of one draft token (alpha)")
    axes.set_title("Best arm by load and acceptance")


def _strip(axes: Axes, best: BestArmMap, leads: NDArray[np.bool_], colour: str, name: str) -> None:
    """Mark the loads at which an arm leads on the measured line, with its name above the middle of the widest."""
    if not leads.any():
        return
    alpha = best.measured_alpha or 0.0
    axes.plot(best.rps, np.where(leads, alpha, np.nan), color=colour, linewidth=5, solid_capstyle="butt")
    axes.annotate(
        name,
        (float(best.rps[int(np.median(np.flatnonzero(leads)))]), alpha),
        xytext=(0, 5), textcoords="offset points", ha="center", va="bottom", fontsize=9, weight="bold", color=colour,
    )  # fmt: skip


def _off_the_line(best: BestArmMap, fastest: NDArray[np.bool_], row: int) -> int:
    """The row for a region's name: the given one, or the nearer edge of the measured line's surroundings that is wider."""
    line = best.measured_alpha
    if line is None or abs(best.alpha[row] - line) > _NAME_HEIGHT:
        return row
    beside = [int(np.abs(best.alpha - (line + side * _NAME_HEIGHT)).argmin()) for side in (-1, 1)]
    return max(beside, key=lambda near: int(fastest[near].sum()))


def measured_against_predicted(
    axes: Axes, measured: Sequence[Measured], strokes: Mapping[Arm, Stroke], theme: Theme
) -> None:
    """Error of the predicted latency at every point, in percent; the shaded lane is 10 % either way."""
    from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter  # noqa: PLC0415 - as above

    axes.axhspan(-10.0, 10.0, color=theme.shade)
    axes.axhline(0.0, color=theme.ink, linewidth=1.0)
    arms = tuple(dict.fromkeys(point.arm for point in measured))
    worst = 10.0
    for arm in arms:
        own = [point for point in measured if point.arm == arm]
        stroke = strokes[arm]
        errors = [100.0 * (point.predicted_s / point.measured_s - 1.0) for point in own]
        worst = max(worst, *(abs(error) for error in errors))
        axes.plot(
            [point.inflight for point in own],
            errors,
            linestyle="none",
            marker=stroke.marker,
            color=stroke.colour,
            markerfacecolor=theme.paper,
            label=arm.name,
        )
    axes.set_ylim(-1.15 * worst, 1.15 * worst)
    axes.yaxis.set_major_formatter(lambda error, _: f"{error:+g}" if error else "0")
    axes.set_xscale("log")
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.xaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.set_xlabel("mean requests in flight")
    axes.set_ylabel("predicted over measured latency, %")
    columns = min(len(arms), 2 if theme.narrow else 5)
    # Above the frame, where no point can lie under it, and on a phone below the title.
    pad = NAMES_PT * -(-len(arms) // columns) if theme.narrow else None
    axes.set_title("How well the law fits", pad=pad)
    axes.legend(ncols=columns, fontsize=8, loc="lower right", bbox_to_anchor=(1.0, 1.0), borderaxespad=0.2)


def _load_axis(axes: Axes) -> None:
    axes.set_xlim(left=-_MARGIN * axes.get_xlim()[1])
    axes.set_xlabel(_LOAD)


def _draw(
    axes: Axes,
    curve: ArmCurve,
    stroke: Stroke,
    theme: Theme,
    drawn: tuple[FloatArray, FloatArray, FloatArray, FloatArray],
    beside: Sequence[ArmCurve],
) -> None:
    """An arm's line, its measured points, and its band from a lower to an upper end: many bands would hide the lines."""
    line, points, lower, upper = drawn
    opacity = 0.18 if len(beside) <= MOST_NAMES else 0.08
    axes.fill_between(curve.rps, lower, upper, color=stroke.colour, alpha=opacity, linewidth=0)
    axes.plot(curve.rps, line, color=stroke.colour, linestyle=stroke.dash, label=curve.arm.name)
    axes.plot(
        curve.measured_rps,
        points,
        linestyle="none",
        marker=stroke.marker,
        markerfacecolor=theme.paper,
        color=stroke.colour,
        markersize=5.5,
    )


def _break_even(axes: Axes, curve: ArmCurve, colour: str, theme: Theme, *, beside_pt: int | None) -> None:
    """Mark the load at which an arm's speedup is 1, with its interval and, so many points above the line, its figure.

    With None it is the mark alone. Figures of neighbours stand on both sides of the line, and the next ones beyond them, because they are often near. An open end of the interval goes to the line's end (or 0). Intervals of many arms would lie on top of each other.
    """
    if curve.break_even_rps is None:
        return
    axes.plot([curve.break_even_rps], [1.0], marker="|", markersize=16, markeredgewidth=2.2, color=colour)
    if beside_pt is None:
        return
    low, high = curve.break_even_ci_rps
    ends = (0.0 if low is None else low, float(curve.rps[-1]) if high is None else high)
    axes.plot(ends, [1.0, 1.0], marker="|", markersize=6, markeredgewidth=1.8, color=colour)
    axes.annotate(
        f"{figure(curve.break_even_rps)}",
        (curve.break_even_rps, 1.0),
        xytext=(4, beside_pt),
        textcoords="offset points",
        fontsize=9,
        weight="bold",
        color=colour,
        bbox={"boxstyle": "round,pad=0.1", "facecolor": theme.paper, "edgecolor": "none", "alpha": 0.7},
    )


def shade_load(axes: Axes, load_range_rps: Span, theme: Theme) -> None:
    """Shade the loads that the fleet sees; to be called before anything is drawn on them."""
    axes.axvspan(*load_range_rps, color=theme.shade, zorder=0)
    axes.annotate(
        "load seen",
        (sum(load_range_rps) / 2, 0.985),
        xycoords=("data", "axes fraction"),
        ha="center",
        va="top",
        fontsize=8,
        color=theme.faint,
    )


def name_lines(
    axes: Axes,
    lines: Sequence[tuple[Arm, FloatArray, FloatArray]],
    strokes: Mapping[Arm, Stroke],
    empty_corner: Literal["upper left", "lower left"],
) -> None:
    """Name every line, an arm with its loads and values, in its colour; to be called when the limits of the axes are set.

    A line that leaves through the top has its name above the frame, the others have it at their right end. Names that
    would touch are moved along the frame by as little as parts them. A legend stands in the empty corner where there are more
    lines than names have room.
    """
    if len(lines) > MOST_NAMES:
        axes.legend(loc=empty_corner, fontsize=8, handlelength=3.5)
        return
    bottom, top = axes.get_ylim()
    above: list[tuple[float, float, Arm]] = []
    beside: list[tuple[float, float, Arm]] = []
    for arm, rps, values in lines:
        inside = np.flatnonzero(np.isfinite(values) & (values <= top) & (values >= bottom))
        if len(inside):
            last = int(inside[-1])
            leaves = last + 1 < len(values) and values[last + 1] > top
            (above if leaves else beside).append((float(rps[last]), float(values[last]), arm))
    # Width of a letter and height of a line in units of the axes, near enough: the layout is settled on drawing.
    frame = axes.get_window_extent().transformed(axes.figure.dpi_scale_trans.inverted())
    letter = _LETTER_IN * float(np.ptp(axes.get_xlim())) / frame.width
    height = _LINE_IN * (top - bottom) / frame.height
    if above:
        axes.set_title(axes.get_title(loc="left"), loc="left", pad=NAMES_PT)
    reach = -np.inf
    for x, _, arm in sorted(above):
        # From the left: each begins where the one before it ends, or later.
        half = 0.5 * letter * (len(arm.name) + 1)
        center = max(x, reach + half)
        reach = center + half
        _name(axes, arm, (center, top), strokes, above=True)
    for x, y, arm in _one_below_another(beside, letter, height, (bottom, top)):
        _name(axes, arm, (x, y), strokes, above=False)


def _one_below_another(
    ends: Sequence[tuple[float, float, Arm]], letter: float, line: float, limits: Span
) -> list[tuple[float, float, Arm]]:
    """Places of names at the right ends, moved up or down, by as little as parts them and never out of the picture."""
    placed: list[tuple[float, float, Arm]] = []
    for x, y, arm in sorted(ends, key=lambda end: end[1]):
        width = letter * (len(arm.name) + 1)
        free = (
            moved
            for moved in (y + step * line for shift in range(len(ends) + 1) for step in (shift, -shift))
            if limits[0] < moved < limits[1]
            and all(abs(x - u) > width or abs(moved - v) > 0.99 * line for u, v, _ in placed)
        )
        placed.append((x, next(free, y), arm))
    return placed


def _name(axes: Axes, arm: Arm, at: Span, strokes: Mapping[Arm, Stroke], *, above: bool) -> None:
    axes.annotate(
        arm.name,
        at,
        xytext=(0, 3) if above else (4, 0),
        textcoords="offset points",
        ha="center" if above else "left",
        va="bottom" if above else "center",
        fontsize=9,
        weight="bold",
        color=strokes[arm].colour,
        annotation_clip=False,
    )

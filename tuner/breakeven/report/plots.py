"""The pictures of a profile, drawn on given axes from curves that are already computed.

Each function draws one statement and returns nothing; the page, the PNG export and the demo compose them. Bands are
the profile's intervals; hollow markers are measured points; a vertical tick is a break-even with its interval.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Literal

import numpy as np

from breakeven.report.curves import ArmCurve, BestArmMap, Measured
from breakeven.report.theme import Stroke, Theme

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from breakeven.arm import Arm

# More names than this at the ends of lines that bunch would drift away from their lines.
_MOST_NAMES = 4


def speedup_against_load(
    axes: Axes,
    curves: Sequence[ArmCurve],
    strokes: Mapping[Arm, Stroke],
    theme: Theme,
    load_range_rps: tuple[float, float] | None = None,
) -> None:
    """Speedup over no speculation at equal rate: the line of each arm, its band, its points, its break-even.

    Above 1 speculation pays. `load_range_rps` shades the loads that the fleet sees.
    """
    _shade_load(axes, load_range_rps, theme)
    axes.axhline(1.0, color=theme.ink, linewidth=1.0)
    top = 1.0
    for curve in curves:
        if curve.arm.k == 0:
            continue
        stroke = strokes[curve.arm]
        axes.fill_between(
            curve.rps, curve.speedup_lower, curve.speedup_upper, color=stroke.colour, alpha=0.18, linewidth=0
        )
        axes.plot(curve.rps, curve.speedup, color=stroke.colour, linestyle=stroke.dash, label=curve.arm.name)
        axes.plot(
            curve.measured_rps,
            curve.measured_speedup,
            linestyle="none",
            marker=stroke.marker,
            markerfacecolor=theme.paper,
            color=stroke.colour,
            markersize=5.5,
        )
        top = max(top, float(np.nanmax(curve.speedup_upper, initial=1.0)))
        if curve.break_even_rps is not None:
            low, high = curve.break_even_ci_rps
            axes.errorbar(
                [curve.break_even_rps],
                [1.0],
                xerr=[
                    [curve.break_even_rps - (low if low is not None else 0.0)],
                    [(high if high is not None else curve.rps[-1]) - curve.break_even_rps],
                ],
                fmt="|",
                markersize=16,
                markeredgewidth=2.2,
                color=stroke.colour,
                capsize=3,
            )
    axes.set_ylim(0, min(1.15 * top, 6.0))
    axes.set_xlim(left=0)
    axes.set_xlabel("load per replica, requests/s")
    axes.set_ylabel("speedup over no speculation")
    axes.set_title("Does it pay? Above the line, yes")
    _name_lines(axes, [(c.arm, c.rps, c.speedup) for c in curves if c.arm.k > 0], strokes, "lower left")


def latency_against_load(
    axes: Axes,
    curves: Sequence[ArmCurve],
    strokes: Mapping[Arm, Stroke],
    theme: Theme,
    load_range_rps: tuple[float, float] | None = None,
) -> None:
    """Mean request latency of each arm with its band and its measured points; a dotted edge is its saturation."""
    _shade_load(axes, load_range_rps, theme)
    measured_top = max((float(np.nanmax(c.measured_latency_s, initial=0.0)) for c in curves), default=0.0)
    lowest = min((float(np.nanmin(c.latency_s)) for c in curves), default=1.0)
    top = max(1.1 * measured_top, 5 * lowest)
    for curve in curves:
        stroke = strokes[curve.arm]
        # An open upper bound (the arm may be saturated there) reaches beyond the picture.
        open_above = np.isfinite(curve.latency_lower_s) & ~np.isfinite(curve.latency_upper_s)
        axes.fill_between(
            curve.rps,
            curve.latency_lower_s,
            np.where(open_above, np.maximum(2 * top, curve.latency_lower_s), curve.latency_upper_s),
            color=stroke.colour,
            alpha=0.18,
            linewidth=0,
        )
        axes.plot(
            curve.rps, curve.latency_s, color=stroke.colour, linestyle=stroke.dash, label=curve.arm.name
        )
        axes.plot(
            curve.measured_rps,
            curve.measured_latency_s,
            linestyle="none",
            marker=stroke.marker,
            markerfacecolor=theme.paper,
            color=stroke.colour,
            markersize=5.5,
        )
        axes.axvline(curve.saturation_rps, color=stroke.colour, linestyle=":", linewidth=1.0, alpha=0.8)
    axes.set_ylim(0, top)
    axes.set_xlim(left=0)
    axes.set_xlabel("load per replica, requests/s")
    axes.set_ylabel("mean request latency, s")
    axes.set_title("Latency against load")
    _name_lines(axes, [(c.arm, c.rps, c.latency_s) for c in curves], strokes, "upper left")


def best_arm_map(axes: Axes, best: BestArmMap, strokes: Mapping[Arm, Stroke], theme: Theme) -> None:
    """The best arm for every load and acceptance; the cross marks where the profile was measured."""
    from matplotlib.colors import ListedColormap  # noqa: PLC0415 - with the rest of matplotlib, on use

    colours = [theme.shade if arm.k == 0 else strokes[arm].colour for arm in best.arms]
    axes.pcolormesh(
        best.rps,
        best.alpha,
        best.index,
        cmap=ListedColormap(colours),
        vmin=-0.5,
        vmax=len(best.arms) - 0.5,
        shading="nearest",
        alpha=0.85,
        rasterized=True,
    )
    axes.grid(visible=False)
    for number, arm in enumerate(best.arms):
        where = np.argwhere(best.index == number)
        if len(where) * 200 < best.index.size:
            continue
        # The middle of the region's middle row lies inside it for the wedges that occur; its mean may fall outside.
        row = int(np.median(where[:, 0]))
        columns = where[where[:, 0] == row, 1]
        column = int(np.median(columns)) if len(columns) else int(where[0, 1])
        axes.text(
            best.rps[column],
            best.alpha[row],
            arm.name,
            ha="center",
            va="center",
            fontsize=9,
            weight="bold",
            color=theme.ink,
            bbox={"boxstyle": "round,pad=0.2", "facecolor": theme.paper, "edgecolor": "none", "alpha": 0.8},
        )
    if best.measured_alpha is not None:
        axes.axhline(best.measured_alpha, color=theme.ink, linewidth=1.0, linestyle=(0, (4, 3)))
        axes.annotate(
            "measured acceptance",
            (best.rps[-1], best.measured_alpha),
            ha="right",
            va="bottom",
            fontsize=8,
            color=theme.ink,
        )
    axes.set_xlabel("load per replica, requests/s")
    axes.set_ylabel("acceptance of one draft token (alpha)")
    axes.set_title("Best arm by load and acceptance")


def measured_against_predicted(
    axes: Axes, measured: Sequence[Measured], strokes: Mapping[Arm, Stroke], theme: Theme
) -> None:
    """Predicted over measured latency at every point; the shaded lane is 10 % either way."""
    from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter  # noqa: PLC0415 - as above

    axes.axhspan(0.9, 1.1, color=theme.shade)
    axes.axhline(1.0, color=theme.ink, linewidth=1.0)
    for arm in dict.fromkeys(point.arm for point in measured):
        own = [point for point in measured if point.arm == arm]
        stroke = strokes[arm]
        axes.plot(
            [point.inflight for point in own],
            [point.predicted_s / point.measured_s for point in own],
            linestyle="none",
            marker=stroke.marker,
            color=stroke.colour,
            markerfacecolor=theme.paper,
            label=arm.name,
        )
    axes.set_xscale("log")
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.xaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.set_xlabel("mean requests in flight")
    axes.set_ylabel("predicted / measured latency")
    axes.set_title("How well the law fits")
    axes.legend(ncols=2, fontsize=8, loc="best")


def _shade_load(axes: Axes, load_range_rps: tuple[float, float] | None, theme: Theme) -> None:
    if load_range_rps is not None:
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


def _name_lines(
    axes: Axes,
    lines: Sequence[tuple[Arm, np.ndarray, np.ndarray]],
    strokes: Mapping[Arm, Stroke],
    empty_corner: Literal["upper left", "lower left"],
) -> None:
    """Write each arm's name where its line leaves the picture: a legend sends the eye back and forth.

    Names that would touch are moved up or down, by as little as parts them and never out of the picture. Where there
    are more lines than names have room, a legend in the corner that the lines leave empty is the lesser evil.
    """
    if len(lines) > _MOST_NAMES:
        axes.legend(loc=empty_corner, fontsize=8, handlelength=3.5)
        return
    (left, right), (bottom, top) = axes.get_xlim(), axes.get_ylim()
    width, height = 0.11 * (right - left), 0.055 * (top - bottom)
    ends = []
    for arm, rps, values in lines:
        inside = np.flatnonzero(np.isfinite(values) & (values <= top) & (values >= bottom))
        if len(inside):
            ends.append((float(values[inside[-1]]), float(rps[inside[-1]]), arm))
    taken: list[tuple[float, float]] = []
    for value, x, arm in sorted(ends, key=lambda end: end[0]):
        free = [
            y
            for y in (value + step * height for shift in range(len(ends) + 1) for step in (shift, -shift))
            if bottom < y < top and all(abs(x - u) > width or abs(y - v) > 0.99 * height for u, v in taken)
        ]
        y = free[0] if free else value
        taken.append((x, y))
        axes.annotate(
            arm.name,
            (x, y),
            xytext=(4, 0),
            textcoords="offset points",
            va="center",
            fontsize=9,
            weight="bold",
            color=strokes[arm].colour,
            annotation_clip=False,
        )

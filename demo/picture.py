"""The demo in one picture: per service, where speculation pays, and what the operator did about it over time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from breakeven.arm import NO_SPECULATION
from breakeven.laws.arrays import FloatArray
from breakeven.phrases import figure
from breakeven.profile import Profile
from breakeven.reporting.lines import arm_curves
from breakeven.reporting.plots import NAMES_PT, latency_against_load, speedup_against_load
from breakeven.reporting.theme import Stroke, Theme
from demo.record import Record, ServiceRecord

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# A load's name stands to the right of its line, but not where it would leave the picture: this far along the axis.
_NAMED_TO_THE_LEFT = 0.8
# Promise and measurement of a roll stand side by side.
_BESIDE = 0.12
# Of the axes: lines that are nearer to each other share one name, and a bar that is narrower than its name has none.
_NAME_HEIGHT, _LETTER_WIDTH = 0.12, 0.016


def draw(record: Record, profiles: Mapping[str, Profile], theme: Theme) -> Figure:
    """Draw one column per service: speedup and latency against load, below them the run, and what each roll promised and brought."""
    from matplotlib.figure import Figure  # noqa: PLC0415 - the terminal part of the demo does without it

    figure = Figure(figsize=(13.0, 13.0))
    axes = figure.subplots(
        5, len(record.services), squeeze=False, gridspec_kw={"height_ratios": [3, 3, 2.2, 1.4, 1.8]}
    )
    for column, service in enumerate(record.services.values()):
        profile = profiles[service.name]
        curves = arm_curves(profile)
        strokes = theme.strokes([curve.arm for curve in curves])
        by_name = {arm.name: stroke for arm, stroke in strokes.items()}
        speedup_against_load(axes[0][column], curves, strokes, theme)
        latency_against_load(axes[1][column], curves, strokes, theme)
        _loads(axes[0][column], axes[1][column], service, theme)
        axes[0][column].set_title(
            f"{service.name} on {service.gpu}, mode {service.mode}\nDoes it pay? Above the line, yes",
            pad=NAMES_PT,
        )
        edges = _break_evens(profile)
        _run(axes[2][column], axes[3][column], record, service, by_name, edges, theme)
        _rolls(axes[4][column], service, by_name, theme)
    return figure


def _loads(speedup: Axes, latency: Axes, service: ServiceRecord, theme: Theme) -> None:
    """Mark the loads of the run, each named, once, after the first phase that had it; the axes reach to all of them."""
    first = {result.phase.rps: result.phase.name for result in reversed(service.phases)}
    for axes in (speedup, latency):
        # Lines end where their arms saturate; a load that only the other arm can serve may lie beyond.
        left, right = axes.get_xlim()
        axes.set_xlim(left, max(right, 1.04 * max(first, default=0.0)))
        for rps in first:
            axes.axvline(rps, color=theme.faint, linewidth=0.9, linestyle=(0, (5, 4)))
    left, right = speedup.get_xlim()
    for rps, name in first.items():
        near_the_end = rps - left > _NAMED_TO_THE_LEFT * (right - left)
        speedup.annotate(
            f"{name} {figure(rps)}",
            (rps, 1.0),
            xycoords=("data", "axes fraction"),
            xytext=(-3 if near_the_end else 3, -3),
            textcoords="offset points",
            ha="right" if near_the_end else "left",
            va="top",
            fontsize=8,
            color=theme.faint,
            bbox={"boxstyle": "round,pad=0.1", "facecolor": theme.paper, "edgecolor": "none", "alpha": 0.7},
        )


def _break_evens(profile: Profile) -> Sequence[float]:
    compared = [profile.compare(fit.arm, NO_SPECULATION, rps=0.0) for fit in profile.arms if fit.arm.k]
    return [c.break_even_rps for c in compared if c.break_even_rps is not None]


def _run(
    load: Axes,
    arms: Axes,
    record: Record,
    service: ServiceRecord,
    strokes: Mapping[str, Stroke],
    break_evens: Sequence[float],
    theme: Theme,
) -> None:
    """Load with the break-evens, the users' latency, and a ribbon each for running arm, recommended arm and alert.

    Time begins with the demo, whatever had to be built or installed before the first look at the cluster.
    """
    times = np.array([sample.at_s - record.started_s for sample in service.samples])
    if not len(times):
        return
    _load_and_latency(load, times, service, break_evens, theme)
    _ribbons(arms, times, service, strokes, theme)
    for axis in (load, arms):
        axis.set_xlim(0.0, float(times[-1]))


def _load_and_latency(
    axes: Axes, times: FloatArray, service: ServiceRecord, break_evens: Sequence[float], theme: Theme
) -> None:
    rps = [sample.offered_rps for sample in service.samples]
    axes.fill_between(times, rps, step="post", color=theme.grid, alpha=0.5, linewidth=0)
    axes.step(times, rps, where="post", color=theme.faint, linewidth=1.2)
    top = 1.15 * max(*rps, *break_evens)
    named: list[list[float]] = []
    for edge in sorted(break_evens):
        axes.axhline(edge, color=theme.ink, linewidth=0.9, linestyle=(0, (4, 3)))
        if named and edge - named[-1][-1] < _NAME_HEIGHT * top:
            named[-1].append(edge)
        else:
            named.append([edge])
    for edges in named:
        text = f"break-even {', '.join(map(figure, edges))}"
        axes.annotate(text, (0.0, edges[-1]), xytext=(4, 2), textcoords="offset points", fontsize=8)
    axes.set_ylim(0, top)
    axes.set_ylabel("load, requests/s")
    axes.set_title("The run: load (grey) and the latency users saw")
    axes.tick_params(labelbottom=False)
    latency = axes.twinx()
    latency.grid(visible=False)
    latency.spines["right"].set_visible(True)
    seen = np.array([np.nan if s.latency_s is None else s.latency_s for s in service.samples])
    latency.plot(times, seen, color=theme.palette[1], linewidth=1.4)
    latency.set_ylim(bottom=0)
    latency.set_ylabel("mean latency, s", color=theme.palette[1])


def _ribbons(
    axes: Axes, times: FloatArray, service: ServiceRecord, strokes: Mapping[str, Stroke], theme: Theme
) -> None:
    for start, end, _ in _stretches(times, [s.alert or None for s in service.samples]):
        axes.broken_barh(
            [(start, end - start)], (0.15, 0.7), facecolor=theme.palette[1], hatch="//", edgecolor=theme.paper
        )
    _ribbon(axes, 1, times, [s.recommended for s in service.samples], strokes, theme)
    _ribbon(axes, 2, times, [s.arm for s in service.samples], strokes, theme)
    axes.set_yticks([0.5, 1.5, 2.5], ["alert", "recommended", "running"])
    axes.set_ylim(0, 3)
    axes.grid(visible=False)
    axes.set_xlabel("seconds since the demo began")


def _ribbon(
    axes: Axes,
    bottom: int,
    times: FloatArray,
    values: Sequence[str],
    strokes: Mapping[str, Stroke],
    theme: Theme,
) -> None:
    for start, end, name in _stretches(
        times, [value if value not in {"", "-"} else None for value in values]
    ):
        colour = strokes[name].colour if name in strokes else theme.faint
        axes.broken_barh([(start, end - start)], (bottom + 0.15, 0.7), facecolor=colour)
        if end - start > _LETTER_WIDTH * len(name) * (times[-1] - times[0]):
            axes.text(
                (start + end) / 2,
                bottom + 0.5,
                name,
                ha="center",
                va="center",
                fontsize=8,
                weight="bold",
                color=theme.paper,
            )


def _rolls(axes: Axes, service: ServiceRecord, strokes: Mapping[str, Stroke], theme: Theme) -> None:
    """Speedup of each roll: promised (hollow) beside measured (filled, in the colour of the new arm), with their bounds."""
    if not service.rolls:
        axes.set_axis_off()
        axes.set_title("No roll: it is only advised")
        return
    axes.axhline(1.0, color=theme.faint, linewidth=0.9)
    for place, roll in enumerate(service.rolls):
        colour = strokes[roll.to_arm].colour if roll.to_arm in strokes else theme.faint
        for shift, speedup, filled in ((-_BESIDE, roll.promised, False), (_BESIDE, roll.measured, True)):
            if speedup is None:
                continue
            lower = speedup.value if speedup.lower is None else speedup.lower
            upper = speedup.value if speedup.upper is None else speedup.upper
            axes.errorbar(
                [place + shift],
                [speedup.value],
                yerr=[[max(speedup.value - lower, 0.0)], [max(upper - speedup.value, 0.0)]],
                fmt="o",
                color=colour,
                markerfacecolor=colour if filled else theme.paper,
                capsize=3,
            )
    names = [f"{roll.from_arm} to {roll.to_arm}\n{roll.result}" for roll in service.rolls]
    axes.set_xticks(range(len(names)), names, fontsize=8)
    axes.set_xlim(-0.6, len(names) - 0.4)
    axes.set_ylabel("speedup")
    axes.set_title("Each roll: promised (hollow) and measured (filled)")


def _stretches(times: FloatArray, values: Sequence[object]) -> list[tuple[float, float, str]]:
    """Stretches of equal values as (start, end, value); None is no stretch."""
    found: list[tuple[float, float, str]] = []
    start = 0
    for index in range(1, len(values) + 1):
        if index == len(values) or values[index] != values[start]:
            if values[start] is not None:
                found.append(
                    (float(times[start]), float(times[min(index, len(times) - 1)]), str(values[start]))
                )
            start = index
    return found

"""Curves against load as figures of an SVG: places and paths, no text of strangers and no markup. Pure.

Under the curves, on the same axis of load, lies the load of the last hours with the newest on top; the template draws both.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from breakeven.profile import Bounds
from breakeven.reporting.lines import ArmCurve, Array, highest
from breakeven_operator.board.load_trail import LoadSample
from breakeven_operator.resources.decisionstatus import DecisionStatus

WIDTH, HEIGHT = 760, 330
"""Size of a picture's plot, in units of the SVG."""

STRIP_HEIGHT = 70
STYLES = 6
"""Styles of lines: colour, dashes and marker go together."""

_HIGHEST_SPEEDUP = 6.0
_TICKS = 6
_LEAST_TOP = 1.2
_MARKER = 4.0
_FARTHEST = 1.5
_NAME_WIDTH, _NAME_HEIGHT = 90.0, 13.0


@dataclass(frozen=True, slots=True)
class Tick:
    """A figure on an axis, and where."""

    place: float
    text: str


@dataclass(frozen=True, slots=True)
class DrawnArm:
    """One arm's line.

    Attributes:
        style: 0 is no speculation; others come round.
        line, band: paths; the band is empty without bounds.
        markers: path of its measured points.
        end: where the name of the arm stands.
        break_even: places of the figure and its ends; None without one.
    """

    name: str
    style: int
    line: str
    band: str
    markers: str
    end: tuple[float, float]
    break_even: tuple[float, float, float] | None


@dataclass(frozen=True, slots=True)
class DrawnPoint:
    """The point of now, with the bounds of its figure."""

    x: float
    y: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class CurvePicture:
    """Lines over load; `one` is the height of speedup 1, None for latencies."""

    arms: Sequence[DrawnArm]
    rps: Sequence[Tick]
    values: Sequence[Tick]
    one: float | None
    now: DrawnPoint | None


@dataclass(frozen=True, slots=True)
class LoadStrip:
    """The load of the last hours: x is load, y is time with the newest on top.

    `peak` is the place of the highest expected load; None if the present load is taken to last.
    """

    path: str
    peak: float | None
    hours: float


@dataclass(frozen=True, slots=True)
class SharedAxes:
    """The axes that curves and strip share."""

    end_rps: float
    top: float

    def x(self, rps: float) -> float:
        """Place of a load."""
        return round(WIDTH * min(max(rps / self.end_rps, 0.0), 1.0), 1)

    def y(self, value: float) -> float:
        """Place of a value; what lies above the picture stands at its upper edge."""
        return round(HEIGHT * (1.0 - min(max(value / self.top, 0.0), 1.0)), 1)


def end_of_axis(
    curves: Iterable[ArmCurve], trail: Sequence[LoadSample], decision: DecisionStatus | None
) -> float:
    """Highest load that the pictures show (1/s); loads far beyond every saturation stand at the edge."""
    shown = [curve.saturation_rps for curve in curves]
    shown += [one for one in (decision and decision.load_rps, decision and decision.expected_peak_rps) if one]
    farthest = max((one for one in shown if math.isfinite(one) and one > 0.0), default=1.0)
    seen = max((one.rps for one in trail), default=0.0)
    return 1.03 * max(farthest, min(seen, _FARTHEST * farthest))


def speedup_picture(
    curves: Sequence[ArmCurve], end_rps: float, decision: DecisionStatus | None
) -> CurvePicture:
    """Speedup over no speculation of every speculative arm, and where the service is now."""
    shown = [curve for curve in curves if curve.arm.k > 0]
    top = highest(one for c in shown for one in (c.speedup, c.measured_speedup))
    frame = SharedAxes(end_rps, min(1.15 * max(top, _LEAST_TOP), _HIGHEST_SPEEDUP))
    arms = [
        _arm(c, frame, number + 1, c.speedup, (c.speedup_lower, c.speedup_upper), c.measured_speedup)
        for number, c in enumerate(shown)
    ]
    now = decision and _now(
        frame, decision.load_rps, decision.speedup, (decision.speedup_lower, decision.speedup_upper)
    )
    return _picture(arms, frame, now or None, one=frame.y(1.0))


def latency_picture(
    curves: Sequence[ArmCurve], end_rps: float, decision: DecisionStatus | None
) -> CurvePicture:
    """Mean latency of every arm, and the measured one of now."""
    measured = highest(c.measured_latency_s for c in curves)
    lone_s = [float(c.latency_s[0]) for c in curves if np.isfinite(c.latency_s[0])]
    top = 1.1 * max(
        measured, 4.0 * min(lone_s, default=0.25), (decision and decision.observed_latency_seconds) or 0.0
    )
    frame = SharedAxes(end_rps, top)
    numbers = {c.arm: number for number, c in enumerate((c for c in curves if c.arm.k > 0), 1)}
    arms = [
        _arm(
            c, frame, numbers.get(c.arm, 0), c.latency_s, (c.latency_lower_s, c.latency_upper_s), c.measured_latency_s
        )
        for c in curves
    ]  # fmt: skip
    now = decision and _now(frame, decision.load_rps, decision.observed_latency_seconds, (None, None))
    return _picture(arms, frame, now or None, one=None)


def load_strip(
    trail: Sequence[LoadSample], end_rps: float, decision: DecisionStatus | None
) -> LoadStrip | None:
    """The loads that were seen; None if there are fewer than two."""
    if len(trail) < 2:
        return None
    newest_s, oldest_s = trail[-1].time_s, trail[0].time_s
    frame, span_s = SharedAxes(end_rps, 1.0), max(newest_s - oldest_s, 1.0)
    places = [
        (frame.x(one.rps), round(STRIP_HEIGHT * (newest_s - one.time_s) / span_s, 1))
        for one in reversed(trail)
    ]
    peak = decision.expected_peak_rps if decision is not None else None
    return LoadStrip(
        _path(places),
        frame.x(peak) if peak is not None and math.isfinite(peak) else None,
        (newest_s - oldest_s) / 3600.0,
    )


def _picture(
    arms: Sequence[DrawnArm], frame: SharedAxes, now: DrawnPoint | None, *, one: float | None
) -> CurvePicture:
    return CurvePicture(
        _named_apart(arms),
        [Tick(frame.x(value), f"{value:g}") for value in ticks(frame.end_rps)],
        [Tick(frame.y(value), f"{value:g}") for value in ticks(frame.top)],
        one,
        now,
    )


def _named_apart(arms: Sequence[DrawnArm]) -> Sequence[DrawnArm]:
    """The arms, with names that would lie on each other moved down."""
    taken: list[tuple[float, float]] = []
    ends: dict[str, tuple[float, float]] = {}
    for arm in sorted(arms, key=lambda one: one.end[1]):
        x, y = arm.end
        while any(abs(x - there[0]) < _NAME_WIDTH and abs(y - there[1]) < _NAME_HEIGHT for there in taken):
            y += 1.0
        taken.append((x, y))
        ends[arm.name] = (x, y)
    return [replace(arm, end=ends[arm.name]) for arm in arms]


def ticks(end: float) -> list[float]:
    """Round figures from 0 to the end: steps of 1, 2 or 5 times a power of ten."""
    power = 10.0 ** math.floor(math.log10(end / _TICKS))
    step = next(factor * power for factor in (1.0, 2.0, 5.0, 10.0) if end / (factor * power) <= _TICKS)
    return [round(number * step, 10) for number in range(int(end / step * (1.0 + 1e-9)) + 1)]


def _now(frame: SharedAxes, rps: float | None, value: float | None, bounds: Bounds) -> DrawnPoint | None:
    if rps is None or value is None or not (math.isfinite(rps) and math.isfinite(value)):
        return None
    low, high = (value if end is None else end for end in bounds)
    return DrawnPoint(frame.x(rps), frame.y(value), frame.y(low), frame.y(high))


def _arm(
    curve: ArmCurve,
    frame: SharedAxes,
    number: int,
    values: Array,
    bounds: tuple[Array, Array],
    measured: Array,
) -> DrawnArm:
    style = 0 if number == 0 else 1 + (number - 1) % STYLES
    inside = np.isfinite(values) & (values <= frame.top) & (values >= 0.0)
    places = [
        (frame.x(float(x)), frame.y(float(y))) for x, y in zip(curve.rps[inside], values[inside], strict=True)
    ]
    lower, upper = bounds
    # An open upper bound reaches to the edge of the picture.
    known = inside & np.isfinite(lower)
    top = np.where(np.isfinite(upper), upper, frame.top)
    ends = [
        [(frame.x(float(x)), frame.y(float(y))) for x, y in zip(curve.rps[known], side[known], strict=True)]
        for side in (lower, top)
    ]
    band = _path([*ends[0], *reversed(ends[1])]) + "Z" if len(ends[0]) > 1 else ""
    points = [
        (frame.x(float(x)), frame.y(float(y)))
        for x, y in zip(curve.measured_rps, measured, strict=True)
        if np.isfinite(x) and np.isfinite(y)
    ]
    return DrawnArm(
        curve.arm.name,
        style,
        _path(places),
        band,
        "".join(_path([(x + dx, y + dy) for dx, dy in _CORNERS[style](_MARKER)]) + "Z" for x, y in points),
        places[-1] if places else (0.0, 0.0),
        _break_even(curve, frame) if number else None,
    )


def _break_even(curve: ArmCurve, frame: SharedAxes) -> tuple[float, float, float] | None:
    edge = curve.break_even_rps
    if edge is None or not math.isfinite(edge):
        return None
    low, high = curve.break_even_ci_rps
    return (
        frame.x(edge),
        frame.x(0.0 if low is None else low),
        frame.x(frame.end_rps if high is None else high),
    )


def _path(places: Sequence[tuple[float, float]]) -> str:
    """`M0,1L2,3`; empty without places."""
    return "M" + "L".join(f"{x:g},{y:g}" for x, y in places) if places else ""


_CORNERS: Sequence[Callable[[float], Sequence[tuple[float, float]]]] = (
    lambda r: [(-r, 0), (0, -r), (r, 0), (0, r)],
    lambda r: [(-r, -r), (r, -r), (r, r), (-r, r)],
    lambda r: [(0, -r), (r, r), (-r, r)],
    lambda r: [(0, r), (r, -r), (-r, -r)],
    lambda r: [(-r, -r / 2), (0, -r), (r, -r / 2), (r, r / 2), (0, r), (-r, r / 2)],
    lambda r: [(-r, r / 2), (-r / 2, -r), (r / 2, -r), (r, r / 2)],
    lambda r: [(0, -r), (r / 2, 0), (0, r), (-r / 2, 0)],
)
"""Corners of a marker about its middle, by style."""

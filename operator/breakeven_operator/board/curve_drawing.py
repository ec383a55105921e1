"""Pictures of a service as places: the speedup over load with the point of now, and the load over time. No markup. Pure.

x is in percent of the width, which the reader's screen decides, y in pixels: so text keeps its size on every screen. A path is
drawn in a box of `WIDTH` units that is stretched.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np

from breakeven.arm import NO_SPECULATION
from breakeven.phrases import are_known, column, figure, fixed, ratio_read, spoken
from breakeven.reporting.lines import ArmCurve, highest
from breakeven_operator.board.board_rows import AxisPlace
from breakeven_operator.board.load_trail import LoadSample
from breakeven_operator.resources import SpeculativeServiceStatus
from breakeven_operator.resources.decisionstatus import DecisionStatus

WIDTH, HEIGHT, DAY_HEIGHT = 1000, 260, 240
STYLES = 6
"""Styles of lines: colour, dashes and marker go together; style 0 is no speculation."""

MARKERS = "●●■▲▼◆✚"
"""Markers of measured points by style."""

_HIGHEST_SPEEDUP = 6.0
_TICKS = 6
_LEAST_TOP = 1.2
_HOUR_S = 3600.0
_Row = tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Tick:
    """A figure on an axis, and where."""

    place: float
    text: str


@dataclass(frozen=True, slots=True)
class DrawnArm:
    """One arm's line.

    Attributes:
        line, band: paths; the band is where its bounds say something.
        points: places of its measured points.
        compared: whether the decision's figures are about this arm.
    """

    name: str
    style: int
    line: str
    band: str
    points: Sequence[tuple[float, float]]
    compared: bool

    @property
    def marker(self) -> str:
        """Marker of its points."""
        return MARKERS[self.style]


@dataclass(frozen=True, slots=True)
class DrawnPoint:
    """The point of now, with the bounds of its figure."""

    x: float
    y: float
    low: float
    high: float
    text: str


@dataclass(frozen=True, slots=True)
class CurvePicture:
    """Speedup over load; `one` is the height of speedup 1, `break_even` of the arm in question now."""

    arms: Sequence[DrawnArm]
    rps: Sequence[Tick]
    values: Sequence[Tick]
    one: float
    break_even: AxisPlace | None
    now: DrawnPoint | None


@dataclass(frozen=True, slots=True)
class ArmSpan:
    """A time in which an arm ran: where it begins, and how wide it is."""

    begin: float
    width: float
    arm: str
    style: int


@dataclass(frozen=True, slots=True)
class LoadPicture:
    """The load of the last hours, the newest to the right; `break_even` and `peak` are heights, None if they are not known."""

    line: str
    area: str
    hours: str
    times: Sequence[Tick]
    values: Sequence[Tick]
    break_even: AxisPlace | None
    peak: float | None
    arms: Sequence[ArmSpan]


@dataclass(frozen=True, slots=True)
class Axes:
    """The two axes of a picture, each from 0."""

    right: float
    top: float
    height: float

    def x(self, value: float) -> float:
        """Place in percent of the width."""
        return round(100.0 * min(max(value / self.right, 0.0), 1.0), 2)

    def y(self, value: float) -> float:
        """Place in pixels; what lies above the picture stands at its upper edge."""
        return round(self.height * (1.0 - min(max(value / self.top, 0.0), 1.0)), 1)

    def path(self, places: Iterable[tuple[float, float]]) -> str:
        """`M0,1L2,3` through values; empty without any."""
        drawn = [f"{WIDTH / 100 * self.x(x):g},{self.y(y):g}" for x, y in places]
        return "M" + "L".join(drawn) if drawn else ""


def styles_of(curves: Sequence[ArmCurve]) -> Mapping[str, int]:
    """Style of each arm by its name."""
    names = [one.arm.name for one in curves if one.arm.k > 0]
    return {NO_SPECULATION.name: 0} | {name: 1 + place % STYLES for place, name in enumerate(names)}


def speedup_picture(curves: Sequence[ArmCurve], status: SpeculativeServiceStatus) -> CurvePicture:
    """Speedup over no speculation of every speculative arm, and where the service is now."""
    decision = status.decision
    shown = [curve for curve in curves if curve.arm.k > 0]
    top = 1.15 * max(highest(one for c in shown for one in (c.speedup, c.measured_speedup)), _LEAST_TOP)
    loads = (decision.load_rps, decision.break_even_rps) if decision is not None else ()
    ends = [*(curve.saturation_rps for curve in shown), *loads]
    right = 1.03 * max((one for one in ends if one and math.isfinite(one)), default=1.0)
    axes, styles = Axes(right, min(top, _HIGHEST_SPEEDUP), HEIGHT), styles_of(curves)
    compared = decision.compared_arm if decision is not None else None
    return CurvePicture(
        [_arm(c, axes, styles[c.arm.name], compared=c.arm.name == compared) for c in shown],
        [Tick(axes.x(value), f"{value:g}") for value in ticks(axes.right)],
        [Tick(axes.y(value), f"{value:g}") for value in ticks(axes.top)],
        axes.y(1.0),
        _break_even(decision, axes.x, 0.0, 100.0),
        _now(axes, status),
    )


def load_picture(
    trail: Sequence[LoadSample], status: SpeculativeServiceStatus, styles: Mapping[str, int]
) -> LoadPicture | None:
    """The loads that were seen, and the arms that ran; None if there are fewer than two."""
    if len(trail) < 2:
        return None
    decision, first_s = status.decision, trail[0].time_s
    span_s = max(trail[-1].time_s - first_s, 1.0)
    peak = decision.expected_peak_rps if decision is not None else None
    edge = decision.break_even_rps if decision is not None else None
    highs = [*(one.rps for one in trail), edge, peak]
    axes = Axes(
        span_s, 1.15 * max((one for one in highs if one and math.isfinite(one)), default=1.0), DAY_HEIGHT
    )
    places = [(one.time_s - first_s, one.rps) for one in trail]
    step_s = _step_s(span_s)
    return LoadPicture(
        axes.path(places),
        axes.path([(0.0, 0.0), *places, (span_s, 0.0)]) + "Z",
        _ago(span_s),
        [
            Tick(axes.x(span_s - back * step_s), f"-{_ago(back * step_s)}" if back else "now")
            for back in range(int(span_s / step_s + 1e-9) + 1)
        ],
        [Tick(axes.y(value), f"{value:g}") for value in ticks(axes.top)],
        _break_even(decision, axes.y, DAY_HEIGHT, 0.0),
        axes.y(peak) if peak is not None and math.isfinite(peak) else None,
        list(_arm_spans(status, axes, first_s, styles)),
    )


def _arm_spans(
    status: SpeculativeServiceStatus, axes: Axes, first_s: float, styles: Mapping[str, int]
) -> Iterator[ArmSpan]:
    """The arms one after the other: until a change had ended, the arm before it ran."""
    current = status.current
    ended = [(one.time, one.from_arm) for one in reversed(status.history)]
    if ended and current is not None and current.since is not None:
        # A roll ends when it is judged, and its arm runs before that.
        ended[-1] = (min(ended[-1][0], current.since), ended[-1][1])
    ends = [(time.timestamp() - first_s, arm) for time, arm in ended]
    begin = 0.0
    for end, arm in (*ends, (axes.right, current.arm if current is not None else None)):
        if begin < end and arm is not None:
            yield ArmSpan(
                axes.x(begin), round(axes.x(end) - axes.x(begin), 2), spoken(arm), styles.get(arm, STYLES)
            )
        begin = max(begin, min(end, axes.right))


def _ago(seconds: float) -> str:
    return f"{figure(seconds / _HOUR_S, 2)} h" if seconds >= _HOUR_S else f"{figure(seconds / 60.0, 2)} min"


def _step_s(span_s: float) -> float:
    steps = (60.0, 300.0, 900.0, 1800.0, _HOUR_S, 2 * _HOUR_S)
    return next((one for one in steps if span_s / one <= _TICKS), 3 * _HOUR_S)


def ticks(end: float) -> list[float]:
    """Round figures from 0 to the end: steps of 1, 2 or 5 times a power of ten."""
    power = 10.0 ** math.floor(math.log10(end / _TICKS))
    step = next(factor * power for factor in (1.0, 2.0, 5.0, 10.0) if end / (factor * power) <= _TICKS)
    return [round(number * step, 10) for number in range(int(end / step * (1.0 + 1e-9)) + 1)]


def _break_even(
    decision: DecisionStatus | None, place: Callable[[float], float], least: float, most: float
) -> AxisPlace | None:
    edge = decision.break_even_rps if decision is not None else None
    if decision is None or edge is None or not math.isfinite(edge):
        return None
    low, high = decision.break_even_lower_rps, decision.break_even_upper_rps
    ends = (least if low is None else place(low), most if high is None else place(high))
    return AxisPlace(place(edge), min(ends), max(ends))


def _now(axes: Axes, status: SpeculativeServiceStatus) -> DrawnPoint | None:
    rps = status.decision.load_rps if status.decision is not None else None
    # The column holds the figure that PAYS goes by, which may be a measured one.
    known = ratio_read(str(status.display.speedup)) if status.display is not None else None
    if rps is None or not math.isfinite(rps) or known is None or known.value is None:
        return None
    low, high = (known.value if end is None else end for end in (known.lower, known.upper))
    text = f"now {fixed(known.value, 2)} at {column(rps, 'rps')}"
    return DrawnPoint(axes.x(rps), axes.y(known.value), axes.y(low), axes.y(high), text)


def _arm(curve: ArmCurve, axes: Axes, style: int, *, compared: bool) -> DrawnArm:
    rows = [
        tuple(map(float, row))
        for row in zip(curve.rps, curve.speedup, curve.speedup_lower, curve.speedup_upper, strict=True)
    ]
    lines = _parts(rows, lambda row: 0.0 <= row[1] <= axes.top)
    bands = _parts(rows, lambda row: are_known(*row[1:]))
    return DrawnArm(
        curve.arm.name,
        style,
        "".join(axes.path((x, y) for x, y, *_ in part) for part in lines),
        "".join(
            axes.path([*((row[0], row[2]) for row in part), *((row[0], row[3]) for row in reversed(part))])
            + "Z"
            for part in bands
            if len(part) > 1
        ),
        [
            (axes.x(float(x)), axes.y(float(y)))
            for x, y in zip(curve.measured_rps, curve.measured_speedup, strict=True)
            if np.isfinite(x) and np.isfinite(y)
        ],
        compared,
    )


def _parts(rows: Sequence[_Row], keep: Callable[[_Row], bool]) -> list[list[_Row]]:
    """The stretches of rows to keep: a figure that is not known leaves a gap."""
    return [list(part) for kept, part in groupby(rows, keep) if kept]

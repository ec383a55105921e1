"""The next load of a sweep, as a pure function of the points so far: a resumed sweep goes on as if it had never stopped.

A sweep runs from synchronous (one client) to the throughput ceiling (the most clients allowed), then open-loop rates
between the two. The line through those two ends estimates C1 and C2 and with them the saturation rate 1/C2. It is
pessimistic if latency bends upward, so nothing is aimed beyond the engine. Rates are spread evenly in utilisation.

Each next rate is the one furthest from everything measured: a sweep that is cut short still covers its range. A rate at
which the engine turns out saturated bounds the rest from above, and the gap below it is filled.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from breakeven.errors import InputError
from breakeven.points.point import FEWEST_OF_A_LAW, ImposedLoad, LoadMode, Point, first_half
from breakeven.reasons import Reason

SAME_RATE = 0.05  # two rates closer than this, relative to the larger, are one load
# A window grows to this multiple of what was planned: a planned one may be shorter than a request of this engine.
_LENGTHENED = 10.0

HIGHEST_UTILISATION = 0.80
"""Highest open-loop rate as a share of the saturation rate: nearer to it every figure scatters."""
EXTRA_ATTEMPTS = 3
"""How many more points than a sweep's loads may be spent when some turn out unusable."""

_LONGER_SURELY = 2.0
"""A point whose prompts are this multiple of the shortest ones is one at other lengths: windows of a sweep differ by less."""


@dataclass(frozen=True, slots=True)
class SweepSettings:
    """The shape of one arm's sweep; every time is settable.

    Attributes:
        loads: operating points wanted, the synchronous one and the ceiling included.
        max_concurrency: clients of the ceiling point.
        lowest_utilisation: lowest open-loop rate as a share of the saturation rate.
        point_seconds, min_point_seconds: longest and shortest window.
        warmup_seconds: load before the window; never less than one expected request latency.
        relative_error: standard error of a point's mean latency at which its window may end.
        max_seconds: time for the whole sweep; None if there is no limit.
        reference_rps: rates measured for another arm; a planned rate near one of them becomes it, so that arms can
            be compared at equal load.
        halved: the sweep ends with the first half of its loads, because a second start of the engine measures the others.
    """

    loads: int = 8
    arrivals: LoadMode = LoadMode.POISSON
    max_concurrency: int = 64
    lowest_utilisation: float = 0.15
    point_seconds: float = 60.0
    min_point_seconds: float = 5.0
    warmup_seconds: float = 5.0
    relative_error: float = 0.01
    max_seconds: float | None = None
    reference_rps: tuple[float, ...] = ()
    halved: bool = False

    def __post_init__(self) -> None:
        if self.loads < 3:
            raise InputError("loads", str(self.loads), "at least 3 (both ends and one between)")
        if self.arrivals is LoadMode.CLOSED:
            raise InputError("arrivals", "closed", "poisson or constant between the two closed-loop ends")
        if self.max_concurrency < 2:
            raise InputError("maximal concurrency", str(self.max_concurrency), "at least 2")
        if not 0 < self.min_point_seconds <= self.point_seconds:
            raise InputError(
                "seconds per point",
                f"{self.point_seconds:g}",
                f"at least the shortest, {self.min_point_seconds:g}",
            )


@dataclass(frozen=True, slots=True)
class Line:
    """L = C1 + n * C2 through what has been measured so far; good enough to choose loads, not a fit."""

    c1_s: float
    c2_s: float

    @property
    def saturation_rps(self) -> float:
        """1/C2."""
        return 1 / self.c2_s

    def latency_s(self, rps: float) -> float:
        """Expected open-loop latency; infinite from saturation on."""
        free = 1 - rps * self.c2_s
        return self.c1_s / free if free > 0 else math.inf


@dataclass(frozen=True, slots=True)
class SweepStep:
    """One load to measure next.

    Attributes:
        latency_s, inflight: expected means; None before anything is known.
        company_s: C2 as known so far; 0 before anything is known.
        warmup_s: load before the window.
        window_s: planned window.
        longest_s: limit of the window, which grows if its requests are too few.
        number: which point of the sweep this is, from 1.
        prompt_tokens: wanted prompt length if the sweep has another.
    """

    load: ImposedLoad
    latency_s: float | None
    inflight: float | None
    company_s: float
    warmup_s: float
    window_s: float
    longest_s: float
    number: int
    total: int
    prompt_tokens: int | None = None

    @property
    def expected_s(self) -> float:
        """Time the step takes, its last answers included; more if the window is lengthened."""
        return self.warmup_s + self.window_s + (self.latency_s or 0.0)


@dataclass(frozen=True, slots=True)
class Finished:
    """Nothing more to measure: every wanted load has a usable point (`complete`), or a sentence tells what ended the sweep."""

    complete: bool
    reason: str
    out_of_time: bool = False


def _inflight(point: Point) -> float:
    """Mean number in flight; if it was not counted, by Little's law from the imposed load."""
    counted = point.measured_inflight
    if counted is not None:
        return counted
    return point.load.value if point.closed else point.load.value * point.mean_latency_s


def of_the_sweep(points: Sequence[Point]) -> list[Point]:
    """The points at the arm's own lengths, by which its sweep goes on."""
    shortest = min((point.prompt_tokens for point in points if point.prompt_tokens), default=0.0)
    return [point for point in points if not (point.prompt_tokens or 0.0) > _LONGER_SURELY * shortest]


def line_through(measured: Sequence[Point]) -> Line | None:
    """The line through all usable points (relative weights), or through both closed-loop ends if there are no others.

    None until two different numbers in flight were measured, or if latency does not grow with the number in flight.
    """
    points = [point for point in measured if point.usable]
    if len({round(_inflight(point), 1) for point in points}) < 2:
        points = [point for point in measured if point.load.clients is not None]
    if len({round(_inflight(point), 1) for point in points}) < 2:
        return None
    latency = np.array([point.mean_latency_s for point in points])
    others = np.array([_inflight(point) - 1 if point.closed else _inflight(point) for point in points]).clip(
        min=0.0
    )
    design = np.column_stack([np.ones_like(others), others]) / latency[:, None]
    c1, c2 = np.linalg.lstsq(design, np.ones_like(latency), rcond=None)[0]
    return Line(float(c1), float(c2)) if c1 > 0 and c2 > 0 else None


def line_of_ends(measured: Sequence[Point]) -> Line | None:
    """The line through the first lone point and the first at most clients: what is measured later does not move it."""
    closed = [point for point in measured if point.load.clients is not None]
    ends = (pick(closed, key=lambda point: point.load.value) for pick in (min, max)) if closed else ()
    return line_through([*ends])


def carries(measured: Sequence[Point], load: ImposedLoad) -> bool:
    """Whether an arm of these points is measured at a load: a rate is below its saturation, as far as that is known."""
    ends = line_of_ends(measured)
    most = HIGHEST_UTILISATION * (1 + SAME_RATE) * ends.saturation_rps if ends else math.inf
    return load.rps is None or (load.rps <= most and load.rps < saturated_rps(measured))


def planned_rates(settings: SweepSettings, measured: Sequence[Point]) -> tuple[float, ...]:
    """The open-loop rates of the sweep, ascending, fixed by its two closed-loop ends; empty until both are measured."""
    ends = line_through([point for point in measured if point.load.clients is not None])
    if ends is None:
        return ()
    shares = np.linspace(settings.lowest_utilisation, HIGHEST_UTILISATION, settings.loads - 2)
    step = float(shares[1] - shares[0]) if len(shares) > 1 else HIGHEST_UTILISATION
    rates: list[float] = []
    for share in shares:
        wanted = float(share) * ends.saturation_rps
        near = min(settings.reference_rps, key=lambda rate: abs(rate - wanted), default=wanted)
        far = abs(near - wanted) > step / 2 * ends.saturation_rps
        beyond = near > HIGHEST_UTILISATION * ends.saturation_rps * (1 + SAME_RATE)
        rates.append(wanted if far or beyond or near in rates else near)
    return tuple(sorted(rates))


def next_step(
    settings: SweepSettings, measured: Sequence[Point], spent_s: float = 0.0
) -> SweepStep | Finished:
    """Decide what to measure next, by every point of this arm, flagged ones included, in any order.

    The window is shortened to what is left of the time if need be.
    """
    for clients in (1, settings.max_concurrency):
        closed = [point.load.clients for point in measured if point.load.clients is not None]
        # Any greater number of clients than one will do as the ceiling.
        if not any((count > 1) == (clients > 1) for count in closed):
            return step_at(settings, measured, ImposedLoad(LoadMode.CLOSED, clients), spent_s)
    if (usable := _usable(measured)) >= settings.loads:
        return Finished(complete=True, reason=f"all {settings.loads} loads measured")
    if len(measured) >= settings.loads + EXTRA_ATTEMPTS:
        return Finished(complete=False, reason=f"{usable} usable points after {len(measured)} attempts")
    line, rates = line_through(measured), planned_rates(settings, measured)
    if line is None:
        reason = "latency does not grow with the number in flight: no rate to aim at"
        return Finished(complete=False, reason=reason)
    rate = _furthest(rates, measured) if rates else None
    if rate is None:
        return Finished(complete=False, reason="no load left below saturation")
    return step_at(settings, measured, ImposedLoad(settings.arrivals, rate), spent_s)


def has_first_half(settings: SweepSettings, measured: Sequence[Point]) -> bool:
    """Whether a sweep that a second start will go on with has what its first start is to measure."""
    usable = sum(point.usable for point in measured)
    return usable >= FEWEST_OF_A_LAW and _usable(measured) >= first_half(settings.loads)


def closing_step(
    settings: SweepSettings, measured: Sequence[Point], spent_s: float = 0.0, before: Sequence[Point] = ()
) -> SweepStep | None:
    """A load of a sweep once more at its end; None if it was measured once more already, or time is up.

    A sweep in one start repeats its first load, so that a machine that drifts is seen. A second start repeats the usable load of
    the first one that is in the middle by requests in flight, with the same arrivals: starts and minutes differ by what it shows.
    `measured` are the points of the sweep in the order in which they were measured; the points of the first start, `before`, lead.
    """
    usable = sorted((point for point in before or measured[:1] if point.usable), key=_inflight)
    if not usable:
        return None
    repeated = usable[len(usable) // 2]
    if any(point.load == repeated.load for point in measured[len(before) or 1 :]):
        return None
    step = step_at(settings, measured, repeated.load, spent_s)
    if isinstance(step, Finished):
        return None
    return replace(step, number=[*before].index(repeated) + 1) if before else step


def _usable(measured: Sequence[Point]) -> int:
    """Points that count towards the wanted number; the ceiling does even when it queues, which is its purpose."""
    return sum(point.usable or (point.load.clients or 0) > 1 for point in measured)


def _furthest(rates: Sequence[float], measured: Sequence[Point]) -> float | None:
    """The planned rate furthest from all measured ones; once they are used up, the middle of the widest gap."""
    done = [point.load.rps for point in measured if point.load.rps is not None]
    bound = saturated_rps(measured)
    occupied = [0.0, *done, rates[-1] / HIGHEST_UTILISATION]
    left = [
        rate
        for rate in rates
        if rate < bound and all(abs(rate - other) > SAME_RATE * max(rate, other) for other in done)
    ]
    if left:
        # Rounded, so that equally far rates are taken in their order and not by the last bit of a sum.
        return max(left, key=lambda rate: round(min(abs(rate - other) for other in occupied) / rates[-1], 6))
    edges = sorted({0.0, *(rate for rate in done if rate < bound), min(bound, rates[-1])})
    gaps = [(high - low, (low + high) / 2) for low, high in pairwise(edges)]
    # Rounded: among equally wide gaps the sums' last digits, and with them the order of measuring, must not choose.
    width, middle = max(gaps, key=lambda gap: (round(gap[0] / rates[-1], 6), gap[1]), default=(0.0, 0.0))
    return middle if width > 2 * SAME_RATE * edges[-1] else None


def saturated_rps(measured: Sequence[Point]) -> float:
    """The lowest rate (1/s) at which the arm was seen saturated; infinite if it was not."""
    saturated = (
        point.load.rps
        for point in measured
        if point.load.rps is not None and {Reason.SATURATED_POINT, Reason.PREEMPTING} & set(point.flags)
    )
    return min(saturated, default=math.inf)


def step_at(
    settings: SweepSettings,
    measured: Sequence[Point],
    load: ImposedLoad,
    spent_s: float = 0.0,
    sharing: int = 1,
) -> SweepStep | Finished:
    """The step at a load for the arm of these points, or the reason why there is no time for it.

    The time that is left is for so many arms.
    """
    line = None if load.rps is None else line_through(measured)
    latency_s, inflight = None, None
    if load.rps is not None and line is not None:
        # The line may have moved since the rate was planned: never expect more than the highest utilisation.
        latency_s = line.latency_s(min(load.rps, HIGHEST_UTILISATION * line.saturation_rps))
        inflight = load.rps * latency_s
    elif load.clients is not None and (lone := [p for p in measured if p.load.clients == 1]):
        latency_s, inflight = lone[-1].mean_latency_s, float(load.clients)
    number = len(measured) + 1
    step = SweepStep(
        load=load,
        latency_s=latency_s,
        inflight=inflight,
        company_s=line.c2_s if line is not None else 0.0,
        warmup_s=max(settings.warmup_seconds, latency_s or 0.0),
        window_s=settings.point_seconds,
        longest_s=_LENGTHENED * settings.point_seconds,
        number=number,
        total=max(settings.loads, number),
    )
    if settings.max_seconds is None:
        return step
    left_s = (settings.max_seconds - spent_s) / sharing - (step.expected_s - step.window_s)
    if left_s < settings.min_point_seconds:
        reason = f"time is up: {spent_s:.0f} of {settings.max_seconds:.0f} s used"
        return Finished(complete=False, reason=reason, out_of_time=True)
    return replace(step, window_s=min(settings.point_seconds, left_s), longest_s=min(step.longest_s, left_s))


def seconds_left(settings: SweepSettings, measured: Sequence[Point]) -> float:
    """Estimate of the time to the end of a sweep without a limit, from how long the windows so far really took."""
    windows = [point for point in measured if point.load.rps is not None] or measured
    taken_s = sum(point.window_s or 0.0 for point in windows)
    window_s = taken_s / len(windows) if windows else settings.point_seconds
    line = line_through(measured)
    middle_s = line.latency_s(0.5 * line.saturation_rps) if line else 0.0
    per_point_s = window_s + max(settings.warmup_seconds, middle_s) + middle_s
    loads = first_half(settings.loads) if settings.halved else settings.loads
    return max(0, loads - _usable(measured)) * per_point_s

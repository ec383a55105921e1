"""Trials of starts that differ, and of a machine that drifts: factors on latencies, and the truth is without them.

Calibrations are closed loops alone: an engine whose steps all take a factor longer answers a closed loop in that factor of the
time, exactly. An arm's second start measures half of the loads.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import numpy as np

from breakeven.arm import Arm
from breakeven.fitting import fit_points
from breakeven.points.point import ON_MACHINE, Origin, Point
from breakeven.profile import Profile
from breakeven.profile.step_fit import EngineStarts
from validation.judged_engines import ENGINES, Half, JudgedEngine
from validation.law_door import CONFIDENCE
from validation.law_trials import MEASURED, measured_point
from validation.truths import Truths, closed_loop, open_loop

SCATTERS = (0.0, 0.01, 0.02, 0.04)
"""Standard deviations (ln) of a start around the mean of all."""

_NOISE = 0.02
_LOADS = (0, 1, 2, 3, 4, 5)
_AGAIN = (0, 2, 4)
_SHARE = 0.45
"""Load at which speedups are judged, as a share of the saturation of no speculation."""

START_HEADER = (
    "starts differ by",
    "starts an arm",
    "speedups held %",
    "without the term %",
    "width",
    "without the term",
    "break-evens held %",
    "without the term %",
)


DRIFTS = ((0.0, 120.0), (0.06, 120.0), (0.12, 120.0), (0.12, 30.0), (0.12, 5.0))
"""Standard deviations (ln) of a machine's speed, and the time (s) over which it changes."""

_WINDOW_S = 12


class _Place(NamedTuple):
    """Where a window stands: when, as a number of windows, the start of its engine, and the start's machine."""

    k: int
    load: int
    time: int
    start: str | None = None
    machine: int = 0


_HALVES = ((0, 5, 2), (1, 3, 4, 2))
"""Loads of a first start, and of a second one with a middle load once more."""


def _one_by_one(windows: Iterable[tuple[int, int, str | None]]) -> list[_Place]:
    return [_Place(k, load, time, start) for time, (k, load, start) in enumerate(windows)]


def _side_by_side(machines: int) -> list[_Place]:
    """All arms at the same time; with several machines an arm's second start stands on another one."""
    times = itertools.count()
    found = []
    for half, loads in enumerate(_HALVES):
        for load, time in zip(loads, times, strict=False):
            for place, k in enumerate(MEASURED):
                machine = (place + half) % machines
                found.append(_Place(k, load, time, f"{half}{ON_MACHINE}{machine}", machine))
    return found


_ORDERS = {
    "arm after arm": _one_by_one((k, i, None) for k in MEASURED for i in _LOADS),
    # As the operator does: half of the loads of each arm but the last, then the others in reverse, a middle load once more.
    "in turns": _one_by_one(
        [
            *((k, i, "1") for k in MEASURED[:-1] for i in _HALVES[0]),
            *((MEASURED[-1], i, "1") for i in _LOADS),
            *((k, i, "2") for k in MEASURED[-2::-1] for i in _HALVES[1]),
        ]
    ),
    "load by load": _one_by_one(
        (k, i, None) for i in _LOADS for k in (MEASURED if i % 2 else MEASURED[::-1])
    ),
    "side by side on one machine": _side_by_side(1),
    "side by side, a machine each": _side_by_side(len(MEASURED)),
}

DRIFT_HEADER = (
    "drift",
    "over",
    "order",
    "speedups held %",
    "promised over by 15 %",
    "error: mean, sd %",
    "width",
)


class _Held(NamedTuple):
    """Whether bounds hold a speedup or a break-even, with the term of starts and without it; and the width of speedups."""

    speedups: list[bool]
    plain_speedups: list[bool]
    widths: list[float]
    plain_widths: list[float]
    crossings: list[bool]
    plain_crossings: list[bool]


def start_rows(seeds: Sequence[int] = (101, 102, 103)) -> Iterator[list[str]]:
    """A row for each scatter and number of starts, over all engines kept apart."""
    engines = [one for one in ENGINES if one.half is Half.APART]
    with ProcessPoolExecutor(2) as pool:
        for scatter in SCATTERS:
            for starts in (1, 2):
                asked = [(engine, scatter, starts, seed) for engine in engines for seed in seeds]
                found = list(pool.map(_trial, asked))
                columns = [[one for held in found for one in held[i]] for i in range(len(_Held._fields))]
                held, plain, widths, plain_widths, crossed, plain_crossed = columns
                yield [
                    f"{scatter:.0%}",
                    str(starts),
                    f"{100 * np.mean(held):.0f}",
                    f"{100 * np.mean(plain):.0f}",
                    f"x{np.median(widths):.2f}",
                    f"x{np.median(plain_widths):.2f}",
                    f"{100 * np.mean(crossed):.0f} of {len(crossed)}",
                    f"{100 * np.mean(plain_crossed):.0f} of {len(plain_crossed)}",
                ]


def _trial(what: tuple[JudgedEngine, float, int, int]) -> _Held:
    engine, scatter, starts, seed = what
    truths = Truths.read(engine)
    profile = fit_points(list(_points(truths, scatter, starts, seed)), CONFIDENCE)
    found = _Held([], [], [], [], [], [])
    assert profile.steps is not None  # noqa: S101 - every arm has rows
    plain = replace(profile, steps=replace(profile.steps, starts=EngineStarts()))
    for k in MEASURED[1:]:
        arm, rate = engine.arm(k), _SHARE * truths.saturation_rps(0)
        if rate > 0.7 * truths.saturation_rps(k):
            continue
        true = truths.at(0, open_loop(rate)).latency_s / truths.at(k, open_loop(rate)).latency_s
        crossing = truths.break_even_rps(k)
        for one, held, widths, crossed in (
            (profile, found.speedups, found.widths, found.crossings),
            (plain, found.plain_speedups, found.plain_widths, found.plain_crossings),
        ):
            _judge(one, arm, rate, (true, crossing), (held, widths, crossed))
    return found


def _judge(
    profile: Profile,
    arm: Arm,
    rate_rps: float,
    true: tuple[float, float | None],
    into: tuple[list[bool], list[float], list[bool]],
) -> None:
    """Hold a comparison against the true speedup and break-even."""
    found = profile.compare(arm, rps=rate_rps, confidence=CONFIDENCE)
    lower, upper = found.speedup_ci or (None, None)
    into[0].append((lower or 0.0) <= true[0] <= (upper or math.inf))
    if lower and upper:
        into[1].append(upper / lower)
    if true[1] is not None and found.break_even_rps is not None:
        low, high = found.break_even_ci_rps or (None, None)
        into[2].append((low or 0.0) <= true[1] <= (high or math.inf))


def _points(truths: Truths, scatter: float, starts: int, seed: int) -> Iterator[Point]:
    """A calibration of all measured arms, each on so many starts."""
    engine, random, number = truths.engine, np.random.default_rng([seed, starts]), 0
    for k in MEASURED:
        for start in range(starts):
            factor = math.exp(scatter * random.standard_normal())
            for i in _LOADS if start == 0 else _AGAIN:
                number += 1
                load = closed_loop(engine.clients[i])
                true = truths.at(k, load)
                slowed = replace(true, latency_s=true.latency_s * factor, ttft_s=true.ttft_s * factor)
                point = measured_point(engine.arm(k), load, engine.asking, slowed, _NOISE, random, number)
                yield replace(point, start=str(start + 1), origin=Origin("second engine", number))


def drift_rows(seeds: Sequence[int] = (201, 202, 203, 204)) -> Iterator[list[str]]:
    """A row for each drift and order of the windows, over all engines kept apart."""
    asked = [(engine, seed) for engine in ENGINES if engine.half is Half.APART for seed in seeds]
    with ProcessPoolExecutor(2) as pool:
        for (sd, over_s), order in itertools.product(DRIFTS, _ORDERS):
            drifted = partial(_drifted, sd=sd, over_s=over_s, windows=_ORDERS[order])
            found = [one for some in pool.map(drifted, asked) for one in some]
            errors = np.array([one.error for one in found])
            yield [
                f"{sd:.0%}",
                f"{over_s:.0f} s",
                order,
                f"{100 * np.mean([one.held for one in found]):.0f} of {len(found)}",
                str(int(np.sum(errors > _PROMISED_OVER))),
                f"{100 * np.mean(errors):+.1f}, {100 * np.std(errors):.1f}",
                f"x{np.median([one.width for one in found]):.2f}",
            ]


_PROMISED_OVER = 0.15


class _Speedup(NamedTuple):
    """A speedup beside the true one."""

    error: float
    held: bool
    width: float


def _drifted(
    what: tuple[JudgedEngine, int],
    *,
    sd: float,
    over_s: float,
    windows: Sequence[_Place],
) -> list[_Speedup]:
    engine, seed = what
    truths, random = Truths.read(engine), np.random.default_rng([seed, 7])
    speeds = {machine: sd * random.standard_normal() for machine in sorted({one.machine for one in windows})}
    number, points = 0, []
    for time, some in itertools.groupby(windows, key=lambda one: one.time):
        factors: dict[int, list[float]] = {machine: [] for machine in speeds}
        for machine, _ in itertools.product(speeds, range(_WINDOW_S)):
            kept = math.exp(-1.0 / over_s)
            speeds[machine] *= kept
            speeds[machine] += sd * math.sqrt(1.0 - kept**2) * random.standard_normal()
            factors[machine].append(math.exp(speeds[machine]))
        for one in some:
            load, number = closed_loop(engine.clients[one.load]), number + 1
            true, factor = truths.at(one.k, load), float(np.mean(factors[one.machine]))
            slowed = replace(true, latency_s=true.latency_s * factor, ttft_s=true.ttft_s * factor)
            point = measured_point(engine.arm(one.k), load, engine.asking, slowed, 0.01, random, number - 1)
            begun_s, origin = float(time * _WINDOW_S), Origin("second engine", number)
            points.append(replace(point, begun_s=begun_s, start=one.start, origin=origin))
    profile, found = fit_points(points, CONFIDENCE), []
    rate = _SHARE * truths.saturation_rps(0)
    for k in MEASURED[1:]:
        if rate > 0.7 * truths.saturation_rps(k):
            continue
        truth = truths.at(0, open_loop(rate)).latency_s / truths.at(k, open_loop(rate)).latency_s
        compared = profile.compare(engine.arm(k), rps=rate, confidence=CONFIDENCE)
        lower, upper = compared.speedup_ci or (None, None)
        lower, upper = lower or 0.0, upper or math.inf
        width = upper / lower if lower else math.inf
        found.append(_Speedup((compared.speedup or 0.0) / truth - 1.0, lower <= truth <= upper, width))
    return found

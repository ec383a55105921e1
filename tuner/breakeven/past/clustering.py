"""Points of the past: windows of one arm at like loads within one block of time become one row with an error.

An hour of one load is not sixty measurements. Windows that follow each other share their lengths, their acceptance and
whatever else was in the air. So rows are means over blocks of time, and the error of a row comes from the scatter between hours.
Latency bends against load, so the loads of one row are close enough for a mean over them to lie on the curve. If days differ by more
than their hours explain, an arm has one row per block: the scatter between its rows then holds what differs between blocks, and
so do the bounds of a fit.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from breakeven.laws.arrays import FloatArray
from breakeven.past.pod_facts import PodKind
from breakeven.past.steady import SteadyWindow
from breakeven.points.point import LIVE_TRAFFIC, Origin, Point, significant
from breakeven.points.row import point
from breakeven.serving.counted_window import Load
from breakeven.serving.growths import EngineLimits, Growths

HOUR_S, DAY_S = 3600, 86400
_BLOCK_LENGTHS_S = (HOUR_S, 2 * HOUR_S, 3 * HOUR_S, 6 * HOUR_S, 12 * HOUR_S)
_ROWS, _BLOCKS = 24, 8
"""Rows of an arm at most, because the time of a fit grows with the cube of their number, and blocks of time."""

_LOAD_STEP = 0.3
"""Width (ln) of the loads of one row, in requests in flight and one more: a lone request and an idle engine are much the same."""

_NEAR_SATURATION = 4.0
"""Times a quiet latency from which a load is left out: its queue remembers longer (about L*L/L0) than a window shows."""

_QUIET = 0.05
"""Quantile of an arm's latencies by hour that counts as quiet."""

_AROUND = 2
"""Windows before and after over which the rate of a window is averaged to sort it by."""

_FEWEST_REQUESTS = 30.0
"""Requests below which a row is left out: its mean would be worth little."""

_LEAST_SHARE = 0.1
"""Share of the requests of an arm's middle row below which a row is left out."""

_FEW_CELLS = 12
"""Cells of time of which nothing tells how a latency bends against load from how it scatters."""

_SIGNIFICANCE = 0.01
_LEAST_SCATTER = 0.01
"""Level of the test that days differ, and the standard deviation between days (ln) below which it does not matter."""


@dataclass(frozen=True, slots=True)
class Scatter:
    """Scatter of latencies (ln) around what load, lengths and acceptance explain.

    Attributes:
        hours: standard deviation between the hours of one day, or between windows if there are few hours.
        days: the same between days beyond it; 0 if hours explain it.
        cell_s: length of what `hours` is about.
    """

    hours: float
    days: float
    cell_s: int = HOUR_S

    @property
    def days_differ(self) -> bool:
        """Whether days differ by more than their hours explain."""
        return self.days > 0.0


class HourCell(NamedTuple):
    """One hour of an arm; covariates are ln of prompt tokens, output tokens and tokens per step, 0 if one is not known."""

    begin_s: int
    requests: float
    latency_s: float
    inflight: float
    covariates: tuple[float, ...]

    @property
    def day(self) -> int:
        """Number of its day since 1970."""
        return self.begin_s // DAY_S


@dataclass(frozen=True, slots=True)
class ArmPast:
    """The past of one arm.

    Attributes:
        windows: those that count, by time.
        points: rows for a points file.
        scatter: of its hours and days; None with too few of them.
        near_saturation: windows that are left out because their load is too near to saturation.
    """

    kind: PodKind
    windows: tuple[SteadyWindow, ...]
    points: tuple[Point, ...]
    scatter: Scatter | None
    near_saturation: int
    hourly: tuple[HourCell, ...]

    @property
    def hours(self) -> float:
        """Time that its windows cover, h."""
        return sum(one.span_s for one in self.windows) / HOUR_S

    @property
    def seen(self) -> Load:
        """Figures of all its windows together."""
        return seen_in(self.windows)


def seen_in(windows: Sequence[SteadyWindow]) -> Load:
    """Figures of windows of one kind together; a window's pods are as many elements."""
    limits = EngineLimits(tokens_per_step=windows[0].kind.k + 1.0) if windows else None
    return Load.of([one.total for one in windows], limits, replicas=sum(one.pods for one in windows))


def arm_past(windows: Sequence[SteadyWindow], method: str, workload: str) -> ArmPast:
    """Cluster the windows of one kind, at least one and in any order, under the names of its arm and of the workload."""
    everything = sorted(windows, key=lambda one: one.end_s)
    ordered = _away_from_saturation(everything)
    cells = _cells(ordered, HOUR_S)
    scatter = _scatter(ordered, cells)
    points = tuple(
        made
        for number, row in enumerate(_of_weight(_rows(ordered, scatter)), start=1)
        if (made := _point(row, scatter, Origin(workload, number), method)) is not None
    )
    left_out = len(everything) - len(ordered)
    return ArmPast(ordered[0].kind, tuple(ordered), points, scatter, left_out, tuple(cells))


def _away_from_saturation(windows: Sequence[SteadyWindow]) -> list[SteadyWindow]:
    """The windows of loads at which an engine's queue forgets within a window.

    Loads are left out, not single windows: a load that keeps its quick windows alone would seem quicker than it is.
    """
    levels = _levels(windows)
    quiet_s = float(np.quantile([one.latency_s for one in _cells(windows, HOUR_S)], _QUIET))
    kept = []
    for level in np.unique(levels):
        members = [one for one, own in zip(windows, levels, strict=True) if own == level]
        if (seen_in(members).latency_s or 0.0) <= _NEAR_SATURATION * quiet_s:
            kept += members
    return sorted(kept, key=lambda one: one.end_s)


def _cells(windows: Sequence[SteadyWindow], length_s: int) -> list[HourCell]:
    cells: dict[int, list[SteadyWindow]] = defaultdict(list)
    for one in windows:
        cells[(one.end_s - 1) // length_s].append(one)
    found = []
    for number, members in sorted(cells.items()):
        seen = seen_in(members)
        if seen.latency_s is None:
            continue
        covariates = (seen.prompt_tokens, seen.output_tokens, seen.tokens_per_step)
        logs = tuple(math.log(value) if value else 0.0 for value in covariates)
        found.append(HourCell(number * length_s, seen.requests, seen.latency_s, _met(members)[0], logs))
    return found


def _met(windows: Sequence[SteadyWindow]) -> tuple[float, float]:
    """Number in flight and rate (1/s) that requests met, over windows, without what a window's own chance adds to its weight."""
    figures = [seen_in([one]) for one in windows]
    weights = [one.requests for one in figures]
    own = float(np.average([1.0 / (one.span_s * one.pods) for one in windows], weights=weights))
    latency_s = float(np.average([one.latency_s or 0.0 for one in figures], weights=weights))
    inflight = float(np.average([one.met_inflight for one in windows], weights=weights))
    rps = float(np.average([one.met_rps for one in windows], weights=weights))
    if len(windows) == 1:
        return inflight, rps
    return max(inflight - own * latency_s, 0.0), max(rps - own, 0.5 * rps)


def _scatter(windows: Sequence[SteadyWindow], hourly: Sequence[HourCell]) -> Scatter | None:
    """Scatter between hours and between days, of latencies without what load, lengths and acceptance explain."""
    few = len(hourly) <= _FEW_CELLS
    cell_s = min(one.span_s for one in windows) if few else HOUR_S
    cells = _cells(windows, cell_s) if few else hourly
    residuals, weights = _residuals(cells)
    if residuals is None:
        return None
    days = np.array([one.day for one in cells])
    names = np.unique(days)
    means = np.array([np.average(residuals[days == day], weights=weights[days == day]) for day in names])
    within = residuals - means[np.searchsorted(names, days)]
    free = residuals.size - names.size
    hours = math.sqrt(float(within @ within) / free) if free > 0 else float(np.std(residuals, ddof=1))
    if names.size < 3 or free < 3:
        return Scatter(hours, 0.0, cell_s)
    counts = np.array([float(np.sum(days == day)) for day in names])
    between = float(counts @ means**2) / (names.size - 1)
    return Scatter(hours, _beyond(between, hours, names.size, free, float(counts.mean())), cell_s)


def _beyond(between: float, hours: float, days: int, free: int, per_day: float) -> float:
    """Standard deviation between days beyond what hours explain, 0 unless it is significant."""
    from scipy.special import fdtri  # noqa: PLC0415  commands that do not ask for it start faster

    limit = float(fdtri(days - 1, free, 1.0 - _SIGNIFICANCE))
    if hours <= 0.0 or between <= limit * hours**2:
        return 0.0
    found = math.sqrt((between - hours**2) / per_day)
    return found if found > _LEAST_SCATTER else 0.0


def _residuals(cells: Sequence[HourCell]) -> tuple[FloatArray | None, FloatArray]:
    """Residuals (ln) of the cells' latencies, shape (cells,), and their weights; None with too few cells."""
    weights = np.array([one.requests for one in cells])
    if len(cells) <= _FEW_CELLS:
        return None, weights
    latency_s = np.array([one.latency_s for one in cells])
    covariates = np.array([one.covariates for one in cells])
    load = np.log1p([one.inflight for one in cells])
    columns = [*(load**power for power in (1, 2, 3)), *covariates.T]
    centered = [one - np.average(one, weights=weights) for one in columns]
    moving = [one for one in centered if float(np.std(one)) > 1e-3]
    design, root = np.column_stack([np.ones_like(load), *moving]), np.sqrt(weights)
    found, *_ = np.linalg.lstsq(design * root[:, None], np.log(latency_s) * root, rcond=None)
    return np.log(latency_s) - design @ found, weights


def _rows(windows: Sequence[SteadyWindow], scatter: Scatter | None) -> list[list[SteadyWindow]]:
    """Windows by row: blocks of time by load, or a load for each block in turn where days differ."""
    levels = dict(zip((id(one) for one in windows), _levels(windows).tolist(), strict=True))
    in_turn = scatter is not None and scatter.days_differ
    bins = len(set(levels.values()))
    found: list[list[SteadyWindow]] = []
    for number, block in enumerate(
        _blocks(windows, _ROWS if in_turn else min(max(_ROWS // bins, 1), _BLOCKS))
    ):
        by_load: dict[int, list[SteadyWindow]] = defaultdict(list)
        for one in block:
            by_load[levels[id(one)]].append(one)
        rows = [members for _, members in sorted(by_load.items())]
        found += [rows[number % len(rows)]] if in_turn else rows
    return found


def _of_weight(rows: Sequence[list[SteadyWindow]]) -> list[list[SteadyWindow]]:
    """Rows of enough requests: a fit takes lengths as the plain mean of all rows."""
    requests = [seen_in(row).requests for row in rows]
    least = _LEAST_SHARE * float(np.median(requests))
    return [row for row, count in zip(rows, requests, strict=True) if count >= least]


def _levels(windows: Sequence[SteadyWindow]) -> NDArray[np.int64]:
    """Level of each window's load, shape (windows,): windows of one level make a row.

    Windows are sorted by their rate, which users impose, over some windows around. Sorted by a number in flight or by a latency,
    windows that were slow by chance would gather in rows of their own. The steps between levels are even in the number in flight
    that belongs to a rate.
    """
    ends = np.array([one.end_s for one in windows])
    rates = np.array([one.met_rps for one in windows])
    near = np.array([one.span_s for one in windows]) * _AROUND
    sums = np.concatenate([[0.0], rates.cumsum()])
    first, last = np.searchsorted(ends, ends - near), np.searchsorted(ends, ends + near, side="right")
    order = np.argsort((sums[last] - sums[first]) / (last - first), kind="stable")
    inflight = np.log1p([windows[at].met_inflight for at in order])
    wide = max(min(len(windows), 5), len(windows) // 50)
    kernel = np.ones(wide)
    level = np.convolve(inflight, kernel, "same") / np.convolve(np.ones_like(inflight), kernel, "same")
    rising = np.maximum.accumulate(level)
    bins = max(math.ceil(float(np.ptp(rising)) / _LOAD_STEP), 1)
    found = np.empty(len(windows), dtype=np.int64)
    found[order] = np.minimum((rising - rising[0]) / max(float(np.ptp(rising)), 1e-9) * bins, bins - 1)
    return found


def _blocks(windows: Sequence[SteadyWindow], most: int) -> list[list[SteadyWindow]]:
    """Windows by blocks of time: the shortest of which there are at most so many."""
    found: dict[int, list[SteadyWindow]] = {}
    for length_s in (*_BLOCK_LENGTHS_S, *(days * DAY_S for days in range(1, 400))):
        found = defaultdict(list)
        for one in windows:
            found[(one.end_s - 1 - windows[0].end_s) // length_s].append(one)
        if len(found) <= most:
            break
    return [members for _, members in sorted(found.items())]


def _point(
    windows: Sequence[SteadyWindow], scatter: Scatter | None, origin: Origin, method: str
) -> Point | None:
    """The row of some windows; None with too few requests."""
    seen, kind = seen_in(windows), windows[0].kind
    if seen.latency_s is None or seen.requests < _FEWEST_REQUESTS:
        return None
    inflight, rps = _met(windows)
    span_s = float(sum(one.span_s for one in windows))
    by_rate = Growths.summed([one.total for one in windows]).occupied / len(windows)
    mean = (seen.inflight or 0.0) * sum(one.pods for one in windows) / len(windows)
    known = kind.fingerprint
    figures: dict[str, float | None] = {
        "request_rate_rps": rps,
        "mean_latency_s": seen.latency_s,
        "mean_inflight": inflight if inflight > 0.0 else None,
        "achieved_rps": rps,
        "ttft_mean_s": None if seen.ttft_s is None else min(seen.ttft_s, seen.latency_s),
        "tpot_mean_s": seen.tpot_s,
        "prompt_tokens": seen.prompt_tokens,
        "output_tokens": seen.output_tokens,
        "tokens_per_step": seen.tokens_per_step if kind.k else None,
        "drafted_per_step": seen.drafted_per_step if kind.k else None,
        "drafts": seen.drafts if kind.k else None,
        "requests": round(seen.requests),
        "window_s": span_s,
        "little_residual": abs(by_rate / mean - 1.0) if mean > 0.0 else None,
        "relative_error": _error(windows, scatter),
    }
    texts = {
        "method": method if kind.k else "none",
        "workload": origin.source,
        "gpu": known.gpu,
        "model": known.model,
        "engine_version": known.image,
        "schedule": kind.schedule,
        "text_source": LIVE_TRAFFIC,
        "from": _moment(windows[0].end_s - windows[0].span_s),
        "to": _moment(windows[-1].end_s),
    }
    falling = (
        np.minimum.accumulate(np.minimum(seen.survival[: kind.k], 1.0)) if seen.survival and kind.k else ()
    )
    fields: dict[str, str | float] = {"k": float(kind.k)}
    fields |= {name: text for name, text in texts.items() if text}
    fields |= {name: significant(value) for name, value in figures.items() if value is not None}
    fields |= {f"accept_{at}": significant(float(share)) for at, share in enumerate(falling, start=1)}
    return point(fields, origin)


def _error(windows: Sequence[SteadyWindow], scatter: Scatter | None) -> float | None:
    """Standard error of a row's mean latency, relative to it: the scatter of its hours and of its days, over their number."""
    if scatter is None:
        return None
    cells: dict[int, float] = defaultdict(float)
    days: dict[int, float] = defaultdict(float)
    for one in windows:
        requests = seen_in([one]).requests
        cells[(one.end_s - 1) // scatter.cell_s] += requests
        days[(one.end_s - 1) // DAY_S] += requests
    shares = [sum((part / sum(of.values())) ** 2 for part in of.values()) for of in (cells, days)]
    return math.sqrt(scatter.hours**2 * shares[0] + scatter.days**2 * shares[1])


def _moment(time_s: int) -> str:
    return datetime.fromtimestamp(time_s, UTC).isoformat(timespec="minutes").replace("+00:00", "Z")

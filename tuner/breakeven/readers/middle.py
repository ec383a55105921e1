"""The steady middle of a run whose file has the times of its single requests: both ends are cut off.

A run starts with an empty engine and ends with the last answers. So the means over all its requests belong to no
load: the number in flight and latency rise at first, and nothing is sent while the rest drains. Three rules:

- The beginning lasts some mean latencies, or longer if leaving out more makes the mean in flight more precise
  (MSER: the truncation with the smallest standard error; K. P. White, Simulation 69, 1997). If it takes half of the
  run or more, the run has no steady middle: an overloaded run grows to its end.
- The middle ends when the last request is sent.
- Requests count if they were sent at least one mean latency before that end. All of them are waited for, so that
  short requests are not favoured, and hardly any of them runs into the drain.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from breakeven.laws.arrays import FloatArray
from breakeven.laws.latency import littles_law_gap, others_met_at_constant_rate
from breakeven.points.point import Point
from breakeven.points.quality import FEWEST_GENERATIONS, reason_against, unsteady

_RISE_LATENCIES = {"closed": 1.0}
_RISE = 3.0
"""Mean latencies of the beginning. A closed loop is full at once, and its first requests all compute their prompts together. An
open loop fills up until its first long answers are over."""

_BINS = 50
"""Stretches of time in which the number in flight is followed."""

_FEWEST = 50
"""Requests of a middle. The mean of fewer scatters by more than the ends are wrong by (tests/unit/readers/test_middle.py)."""

_ALIKE = math.log(3.0)
"""Most by which a middle's rate and latency may differ from the whole run, which has a ramp and a drain."""

_LONGEST_S = 1e8
"""Three years: no run lasts so long, so that the times are none."""


@dataclass(frozen=True)
class RequestTimes:
    """The times of each request in a file, in any order.

    Attributes:
        starts_s: when each was sent (s), on any clock.
        ends_s: when its answer ended, or it was cut off.
        answered: whether its answer was complete; the others were in flight and count for nothing else.
        first_s: its time to first token; None if the file does not say.
        tokens: its output tokens; None if the file does not say.
    """

    starts_s: FloatArray
    ends_s: FloatArray
    answered: Any
    first_s: FloatArray | None = None
    tokens: FloatArray | None = None


@dataclass(frozen=True)
class Middle:
    """The middle of a run: its mean in flight over time, columns to replace the whole run's columns, and which requests count."""

    inflight: float
    columns: dict[str, float | None]
    part: str

    def resting_on(self, field: str) -> dict[str, tuple[Any, ...]]:
        """The columns as `Document.point` takes them, each resting on one field."""
        return {name: (value, field) for name, value in self.columns.items()}


def times_of(
    starts_s: Sequence[float],
    latencies_s: Sequence[float],
    first_s: Sequence[float] = (),
    tokens: Sequence[float] = (),
    cut_off: Sequence[tuple[float, float]] = (),
) -> RequestTimes | None:
    """The times of a run's answered requests and of those that were cut off; None if the lists do not fit together.

    Each request that was cut off has a begin and an end; the other lists are empty if they are not known.
    """
    count = len(starts_s)
    if not count or len(latencies_s) != count or min(latencies_s) <= 0.0:
        return None
    broken = np.array(cut_off, dtype=float).reshape(-1, 2)
    with np.errstate(over="ignore", invalid="ignore"):
        starts = np.concatenate([np.array(starts_s, dtype=float), broken[:, 0]])
        ends = np.concatenate([starts[:count] + np.array(latencies_s, dtype=float), broken[:, 1]])
        # A clock's absolute seconds use up half of a number's digits.
        starts, ends = starts - starts.min(), ends - starts.min()
    if not (ends.max() < _LONGEST_S and (ends >= starts).all()):
        return None
    return RequestTimes(
        starts,
        ends,
        np.arange(len(starts)) < count,
        np.array(first_s, dtype=float) if len(first_s) == count and min(first_s) > 0.0 else None,
        np.array(tokens, dtype=float)
        if len(tokens) == count and min(tokens) >= 1.0 and max(tokens) < _LONGEST_S
        else None,
    )


def middle_of(run: RequestTimes, mode: str, rise_s: float = 0.0) -> Middle | None:
    """The steady middle; None if the run is too short to have one, or never was steady.

    The mode is closed, poisson or constant; the load rose on purpose for `rise_s`.
    """
    answered = run.answered
    latency_s = run.ends_s[answered] - run.starts_s[answered]
    sent_s = run.starts_s[answered]
    first_sent_s, end_s = float(run.starts_s.min()), float(run.starts_s.max())
    begin_s = _steady_from(run, first_sent_s + rise_s, end_s)
    if begin_s is None:
        return None
    begin_s = max(begin_s, first_sent_s + rise_s + _RISE_LATENCIES.get(mode, _RISE) * float(latency_s.mean()))
    # The middle has a longer latency than the whole run.
    near = (sent_s >= begin_s) & (sent_s <= end_s)
    if near.sum() < _FEWEST:
        return None
    last_s = end_s - float(latency_s[near].mean())
    counted = (sent_s >= begin_s) & (sent_s < last_s)
    count, seconds = int(counted.sum()), end_s - begin_s
    inflight = _inflight(run, np.array([begin_s, end_s]))[0] if seconds > 0 else 0.0
    if count < max(_FEWEST, FEWEST_GENERATIONS * inflight) or not last_s > begin_s:
        return None
    mean_s = float(latency_s[counted].mean())
    gap = float(littles_law_gap(inflight, count / (last_s - begin_s), mean_s))
    # The work in flight at the two edges differs by chance.
    if unsteady(gap, 1.5 * mean_s / (last_s - begin_s) / math.sqrt(max(inflight, 1e-9))):
        return None
    ends_s = run.ends_s[answered]
    # Clients come in waves: of a closed loop the rate is in-flight over latency.
    answered_rps = (
        inflight / mean_s
        if mode == "closed"
        else float(((ends_s >= begin_s) & (ends_s < end_s)).sum()) / seconds
    )
    tokens = None if run.tokens is None else run.tokens[counted]
    columns: dict[str, float | None] = {
        "mean_latency_s": mean_s,
        "achieved_rps": answered_rps,
        "requests": float(count),
        "window_s": seconds,
        "little_residual": None if mode == "closed" else gap,
        "mean_inflight": _company(inflight, mode, tokens),
    }
    columns |= _quantiles("p{}_latency_s", latency_s[counted])
    if run.first_s is not None:
        first_s = run.first_s[counted]
        columns |= {"ttft_mean_s": float(first_s.mean())} | _quantiles("ttft_p{}_s", first_s)
    if tokens is not None:
        columns |= _lengths(tokens, answered_rps)
        if run.first_s is not None:
            columns |= _per_token(latency_s[counted] - run.first_s[counted], tokens)

    before, after = int((sent_s < begin_s).sum()), int((sent_s >= last_s).sum())
    part = f"{count} of {len(sent_s)} requests count, {before} of its start and {after} of its end do not"
    return Middle(inflight, columns, part)


def _company(inflight: float, mode: str, tokens: FloatArray | None) -> float:
    """The mean of other requests in flight, as a windowed point holds it: the time average, or less at a constant rate."""
    if mode != "constant" or tokens is None:
        return inflight
    return max(float(others_met_at_constant_rate(inflight, float(tokens.std() / tokens.mean()))), 1e-6)


def middle_or_whole(middle: Point, whole: Point) -> Point:
    """The point of the middle if no flag is against it; else the whole run with its own flags.

    Times in a wrong unit agree with each other but contradict the run's own rate and latency.
    """
    stated = ((middle.answered_rps, whole.answered_rps), (middle.mean_latency_s, whole.mean_latency_s))
    alike = all(not ours or not theirs or abs(math.log(ours / theirs)) < _ALIKE for ours, theirs in stated)
    return middle if alike and reason_against(middle) is None else whole


def _steady_from(run: RequestTimes, from_s: float, to_s: float) -> float | None:
    """The time from which the number in flight is steady; None if that is later than half of the run."""
    if not to_s > from_s:
        return None
    edges = np.linspace(from_s, to_s, _BINS + 1)
    seen = _inflight(run, edges)
    errors = [float(seen[cut:].var()) / (_BINS - cut) for cut in range(_BINS // 2 + 1)]
    cut = int(np.argmin(errors))
    return None if cut >= _BINS // 2 else float(edges[cut])


def _inflight(run: RequestTimes, edges: FloatArray) -> FloatArray:
    """Time average of the requests in flight between each two edges."""
    starts, ends = np.sort(run.starts_s), np.sort(run.ends_s)
    spent = np.array([_spent(starts, edge) - _spent(ends, edge) for edge in edges])
    return np.asarray(np.diff(spent) / np.diff(edges))


def _spent(moments: FloatArray, until_s: float) -> float:
    """Seconds since each of the sorted moments that are over, added up."""
    over = moments[: int(np.searchsorted(moments, until_s))]
    return float((until_s - over).sum())


def _quantiles(form: str, values: FloatArray) -> dict[str, float | None]:
    return {form.format(percent): float(np.percentile(values, percent)) for percent in (50, 95, 99)}


def _lengths(tokens: FloatArray, answered_rps: float) -> dict[str, float | None]:
    mean = float(tokens.mean())
    return {
        "output_tokens": mean,
        "output_tokens_sq": float((tokens * tokens).mean()),
        "tokens_per_second": answered_rps * mean,
    }


def _per_token(decode_s: FloatArray, tokens: FloatArray) -> dict[str, float | None]:
    """TPOT: its mean is a ratio of sums, its quantiles are over requests."""
    following = tokens - 1.0
    some = (following > 0) & (decode_s > 0)
    if not some.any():
        return {"tpot_mean_s": None}
    mean_s = float(decode_s[some].sum() / following[some].sum())
    return {"tpot_mean_s": mean_s} | _quantiles("tpot_p{}_s", decode_s[some] / following[some])

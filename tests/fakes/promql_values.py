"""PromQL's functions, aggregations and operators over samples: of ranges, of groups and of pairs."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple, TypeAlias, cast

from fakes.held_series import NativeHistogram

Value: TypeAlias = float | NativeHistogram
Labels: TypeAlias = Mapping[str, str]


class Ranged(NamedTuple):
    """A series of a range vector: times in ms."""

    labels: Labels
    times_ms: Sequence[int]
    values: Sequence[Value]


class RangeSamples(NamedTuple):
    """Samples of a range, and the range: its begin does not belong to it."""

    series: Ranged
    begin_ms: int
    end_ms: int


class RefusedQueryError(Exception):
    """A query that Prometheus would refuse, or that this evaluator does not know."""


def no(what: object) -> RefusedQueryError:
    """The refusal of what no query of ours has."""
    return RefusedQueryError(f"{what}: no query of ours has it")


def _floats(window: RangeSamples) -> Sequence[float]:
    """Samples that are numbers: functions of numbers overlook histograms."""
    return [one for one in window.series.values if not isinstance(one, NativeHistogram)]


def _extrapolated(window: RangeSamples, *, counter: bool) -> Value | None:
    """Growth between the first and the last sample, drawn out to the ends of the range where those are near."""
    times_ms, values = window.series.times_ms, window.series.values
    if len(values) < 2:
        return None
    natives = sum(isinstance(one, NativeHistogram) for one in values)
    grown: Value | None
    if natives == 0:
        grown = _grown(cast("Sequence[float]", values), counter=counter)
        first, much = cast("float", values[0]), grown
    elif natives == len(values) and counter:
        grown = _histogram_grown(cast("Sequence[NativeHistogram]", values))
        first, much = cast("NativeHistogram", values[0]).count, grown.count
    else:
        return None
    sampled_s = (times_ms[-1] - times_ms[0]) / 1000
    mean_s = sampled_s / (len(values) - 1)
    before_s = (times_ms[0] - window.begin_ms) / 1000
    after_s = (window.end_ms - times_ms[-1]) / 1000
    if before_s >= 1.1 * mean_s:
        before_s = mean_s / 2
    if counter and much > 0 and first >= 0:
        # A counter began at 0 at the earliest.
        before_s = min(before_s, sampled_s * (first / much))
    if after_s >= 1.1 * mean_s:
        after_s = mean_s / 2
    factor = (sampled_s + before_s + after_s) / sampled_s
    return grown * factor if not isinstance(grown, NativeHistogram) else _times(grown, factor)


def _grown(values: Sequence[float], *, counter: bool) -> float:
    grown = values[-1] - values[0]
    if counter:
        for before, after in itertools.pairwise(values):
            if after < before:
                grown += before
    return grown


def _histogram_grown(values: Sequence[NativeHistogram]) -> NativeHistogram:
    grown = _plus(values[-1], values[0], -1.0)
    for before, after in itertools.pairwise(values):
        if _was_reset(before, after):
            grown = _plus(grown, before)
    return grown


def _was_reset(before: NativeHistogram, after: NativeHistogram) -> bool:
    if after.count < before.count:
        return True
    held = _by_place(after)
    return any(count > held.get(place, 0.0) for place, count in _by_place(before).items())


def _by_place(one: NativeHistogram) -> dict[int, float]:
    return {one.offset + i: count for i, count in enumerate(one.counts)}


def _plus(one: NativeHistogram, other: NativeHistogram, share: float = 1.0) -> NativeHistogram:
    if one.schema != other.schema:
        raise no("histograms of different schemas")
    places = _by_place(one)
    for place, count in _by_place(other).items():
        places[place] = places.get(place, 0.0) + share * count
    begin, end = min(places, default=0), max(places, default=-1)
    counts = tuple(places.get(place, 0.0) for place in range(begin, end + 1))
    return NativeHistogram(
        one.count + share * other.count, one.total + share * other.total, one.schema, begin, counts
    )


def _times(one: NativeHistogram, factor: float) -> NativeHistogram:
    counts = tuple(count * factor for count in one.counts)
    return NativeHistogram(one.count * factor, one.total * factor, one.schema, one.offset, counts)


def _extreme(values: Iterable[float], beyond: Callable[[float, float], bool]) -> float:
    """The first or the last in order; a number counts more than none."""
    found = math.nan
    for value in values:
        if beyond(value, found) or math.isnan(found):
            found = value
    return found


def _highest(values: Iterable[float]) -> float:
    return _extreme(values, lambda value, found: value > found)


def _lowest(values: Iterable[float]) -> float:
    return _extreme(values, lambda value, found: value < found)


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values) if all(map(math.isfinite, values)) else sum(values) / len(values)


def _of_floats(how: Callable[[Sequence[float]], float]) -> Callable[[RangeSamples], Value | None]:
    def value(window: RangeSamples) -> Value | None:
        numbers = _floats(window)
        return how(numbers) if numbers else None

    return value


OVER_TIME: Mapping[str, Callable[[RangeSamples], Value | None]] = {
    "increase": functools.partial(_extrapolated, counter=True),
    "delta": functools.partial(_extrapolated, counter=False),
    "avg_over_time": _of_floats(_mean),
    "stddev_over_time": _of_floats(
        lambda values: math.sqrt(_mean([(one - _mean(values)) ** 2 for one in values]))
    ),
    "min_over_time": _of_floats(_lowest),
    "max_over_time": _of_floats(_highest),
    "count_over_time": lambda window: float(len(window.series.values)) if window.series.values else None,
    "last_over_time": lambda window: window.series.values[-1] if window.series.values else None,
    "resets": _of_floats(
        lambda values: float(sum(after < before for before, after in itertools.pairwise(values)))
    ),
}


def _summed(values: Sequence[Value]) -> Value | None:
    numbers = [one for one in values if not isinstance(one, NativeHistogram)]
    if len(numbers) == len(values):
        return math.fsum(numbers) if all(map(math.isfinite, numbers)) else sum(numbers)
    if numbers:
        # Prometheus warns, and leaves out what mixes numbers and histograms.
        return None
    return functools.reduce(_plus, cast("Sequence[NativeHistogram]", values))


def _averaged(values: Sequence[Value]) -> Value | None:
    found = _summed(values)
    if isinstance(found, NativeHistogram):
        return _times(found, 1.0 / len(values))
    return None if found is None else found / len(values)


def _of_numbers(how: Callable[[Iterable[float]], float]) -> Callable[[Sequence[Value]], Value | None]:
    def value(values: Sequence[Value]) -> Value | None:
        numbers = [one for one in values if not isinstance(one, NativeHistogram)]
        return how(numbers) if numbers else None

    return value


AGGREGATIONS: Mapping[str, Callable[[Sequence[Value]], Value | None]] = {
    "sum": _summed,
    "avg": _averaged,
    "min": _of_numbers(_lowest),
    "max": _of_numbers(_highest),
    "count": lambda values: float(len(values)),
    "group": lambda _: 1.0,
}


def _divided(one: float, other: float) -> float:
    if other:
        return one / other
    return (
        math.nan if math.isnan(one) or one == 0 else math.copysign(math.inf, one) * math.copysign(1.0, other)
    )


COMPARED: Mapping[str, Callable[[float, float], bool]] = {
    ">": lambda one, other: one > other,
    "==": lambda one, other: one == other,
    "!=": lambda one, other: one != other,
}
COMPUTED: Mapping[str, Callable[[float, float], float]] = {
    "+": lambda one, other: one + other,
    "-": lambda one, other: one - other,
    "/": _divided,
}

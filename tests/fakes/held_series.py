"""Time series as a Prometheus holds them: samples of labelled series over time, native histograms and markers of staleness."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeAlias


class Stale:
    """Marks the moment at which a target no longer had a series."""

    def __deepcopy__(self, _: object) -> Stale:
        return self


STALE: Final = Stale()


@dataclass(frozen=True, slots=True)
class NativeHistogram:
    """A cumulative histogram in one sample, with exponential buckets.

    Attributes:
        count, total: number of values, and their sum.
        schema: 2 ** schema buckets double the edge.
        offset: of the first bucket: its upper edge is 2 ** (2 ** -schema * (offset + 1)).
        counts: of the buckets, each of its own values.
    """

    count: float
    total: float
    schema: int = 0
    offset: int = 0
    counts: tuple[float, ...] = ()

    def upper(self, place: int) -> float:
        """Upper edge of a bucket."""
        return float(2.0 ** (2.0**-self.schema * (self.offset + place + 1)))

    @classmethod
    def of(cls, values: Iterable[float], schema: int = 2) -> NativeHistogram:
        """The observations, all of them positive."""
        found = list(values)
        places = [math.ceil(math.log2(value) * 2**schema) - 1 for value in found]
        if not places:
            return cls(0.0, 0.0, schema)
        first = min(places)
        counts = [0.0] * (max(places) - first + 1)
        for place in places:
            counts[place - first] += 1.0
        return cls(float(len(found)), math.fsum(found), schema, first, tuple(counts))


Held: TypeAlias = float | NativeHistogram | Stale


@dataclass
class HeldSeries:
    """One series: its labels, the name among them, and its samples in time (Unix time, ms)."""

    labels: Mapping[str, str]
    times_ms: list[int] = field(default_factory=list)
    values: list[Held] = field(default_factory=list)

    def add(self, time_s: float, value: Held) -> None:
        """The newest sample."""
        time_ms = round(time_s * 1000)
        assert not self.times_ms or time_ms > self.times_ms[-1], "samples come in time"
        self.times_ms.append(time_ms)
        self.values.append(value)

    def extend(self, times_s: Sequence[float], values: Sequence[Held]) -> None:
        """Newer samples, in time."""
        times_ms = [round(time_s * 1000) for time_s in times_s]
        assert not self.times_ms or not times_ms or times_ms[0] > self.times_ms[-1], "samples come in time"
        self.times_ms += times_ms
        self.values += values


class SeriesStore:
    """All series, by name."""

    def __init__(self) -> None:
        self._by_labels: dict[tuple[tuple[str, str], ...], HeldSeries] = {}
        self._by_name: dict[str, list[HeldSeries]] = defaultdict(list)

    @property
    def series(self) -> Sequence[HeldSeries]:
        """Every one, in the order in which they came."""
        return list(self._by_labels.values())

    def named(self, name: str) -> Sequence[HeldSeries]:
        """Those with a metric's name."""
        return self._by_name.get(name, ())

    def of(self, name: str, labels: Mapping[str, str]) -> HeldSeries:
        """The series with these labels; a new one where there is none. Empty labels are none."""
        own = {"__name__": name, **{key: value for key, value in labels.items() if value}}
        key = tuple(sorted(own.items()))
        if key not in self._by_labels:
            self._by_labels[key] = HeldSeries(own)
            self._by_name[name].append(self._by_labels[key])
        return self._by_labels[key]

    def add(self, name: str, labels: Mapping[str, str], time_s: float, value: Held) -> None:
        """One more sample."""
        self.of(name, labels).add(time_s, value)

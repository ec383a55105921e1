"""Courses of pods: counters and gauges of each pod at the ends of windows, of the answers to range queries."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from breakeven.laws.arrays import FloatArray
from breakeven.readers.prometheus import Samples
from breakeven.serving.promql import COUNTED, DRAFTED, REPLICA, RUNNING, WAITING, EngineSeries

POD = ("namespace", REPLICA, "model_name")
"""Labels of a pod's series: the third one tells an engine that was started with another model."""

SAMPLES, RESETS, NOW = "samples", "resets", "_now"
"""Statistics of the series themselves: scrapes in a window, counters that began again; suffix of a gauge at a window's end."""

GAUGES = ("running", "waiting")
_UNUSED = frozenset({"prefilled", "hits"})
COUNTERS = (*(stat for stat in COUNTED if stat not in {*_UNUSED, "accepted"}), "drafted")
"""Counters whose value at the end of a window is asked for; `accepted` is asked for by position."""


class PodName(NamedTuple):
    """A pod and the model that it serves; outside of Kubernetes `replica` is the scraped address."""

    namespace: str
    replica: str
    model: str


class TimeGrid(NamedTuple):
    """Ends of windows: so many `times` from `first_s` (Unix time, s), `step_s` apart."""

    first_s: int
    step_s: int
    times: int

    @classmethod
    def of_past(cls, now_s: float, past_s: float, step_s: int) -> TimeGrid:
        """The grid of a past that ends now; its times are multiples of the step, as caches of answers want them."""
        last = int(now_s) // step_s
        windows = max(int(past_s // step_s), 1)
        return cls((last - windows) * step_s, step_s, windows + 1)

    @property
    def last_s(self) -> int:
        """The last time."""
        return self.first_s + (self.times - 1) * self.step_s

    def since(self, time_s: int) -> TimeGrid:
        """The same without the times before one; at least one window is left."""
        left_out = min(max((time_s - self.first_s) // self.step_s, 0), max(self.times - 2, 0))
        return TimeGrid(self.first_s + left_out * self.step_s, self.step_s, self.times - left_out)

    def chunks(self, windows: int) -> Iterator[TimeGrid]:
        """Grids of at most so many windows. Neighbours share a time, so that no window is lost or counted twice."""
        for begin in range(0, self.times - 1, windows):
            count = min(windows, self.times - 1 - begin) + 1
            yield TimeGrid(self.first_s + begin * self.step_s, self.step_s, count)

    def place(self, time_s: float) -> int | None:
        """Index of a time; None if it is not on the grid."""
        found = round((time_s - self.first_s) / self.step_s)
        on_it = abs(time_s - self.first_s - found * self.step_s) < 1.0
        return found if on_it and 0 <= found < self.times else None


@dataclass(frozen=True, slots=True)
class PodCourse:
    """Course of one pod, over all of its engines.

    Attributes:
        stats: by statistic, shape (times,): counters and gauges with the suffix `_now` at each time, other gauges over the window
            that ends there. NaN: no sample; infinite: a sample that is no number.
        accepted: likewise the counters of accepted drafts, by position from 0.
    """

    name: PodName
    stats: Mapping[str, FloatArray]
    accepted: Mapping[int, FloatArray]

    def values(self, stat: str) -> FloatArray | None:
        """A statistic at each time; None if there is no sample of it."""
        found = self.stats.get(stat)
        return None if found is None or np.isnan(found).all() else found

    @property
    def longest_draft(self) -> int:
        """Positions that its engine counts, else drafted tokens of a draft, rounded up; 0: neither is known."""
        counted = [at + 1 for at, values in self.accepted.items() if not np.isnan(values).all()]
        drafted, drafts = self.values("drafted"), self.values("drafts")
        if counted or drafted is None or drafts is None:
            return max(counted, default=0)
        with np.errstate(invalid="ignore", divide="ignore"):
            lengths = np.diff(drafted) / np.diff(drafts)
        finite = lengths[np.isfinite(lengths) & (lengths > 0)]
        return math.ceil(float(finite.max()) - 1e-6) if finite.size else 0


def questions(engines: EngineSeries, window_s: int) -> dict[str, str]:
    """PromQL of each statistic; an element per pod, for `accepted` also per position.

    Copies of an engine count once, as in `promql`. Counters are asked for as they stand at a window's ends: growths of
    all of them then belong to the same two scrapes, and no server extrapolates them in a way of its own.
    """
    found = {
        stat: engines.by_pod("sum", engines.once("max", engines.counter(stat))) for stat in COUNTERS[:-1]
    }
    found["drafted"] = engines.by_pod("sum", engines.once("max", engines.named(DRAFTED.name)))
    by_position = engines.once("max", engines.counter("accepted"), "position")
    found["accepted"] = engines.by_pod("sum", by_position, "position")
    for stat, name in zip(GAUGES, (RUNNING, WAITING), strict=True):
        found[stat] = engines.by_pod(
            "sum", engines.once("avg", engines.gauge("avg_over_time", name, window_s))
        )
        found[f"{stat}{NOW}"] = engines.by_pod("sum", engines.once("avg", engines.named(name)))
    least = engines.gauge("min_over_time", WAITING, window_s)
    found["waiting_min"] = engines.by_pod("sum", engines.once("avg", least))
    found[SAMPLES] = engines.by_pod(
        "min", engines.once("max", engines.gauge("count_over_time", RUNNING, window_s))
    )
    made = engines.gauge("resets", COUNTED["generated"].name, window_s)
    found[RESETS] = engines.by_pod("max", engines.once("max", made))
    return found


def courses(grid: TimeGrid, answers: Iterable[tuple[str, Iterable[Samples]]]) -> tuple[PodCourse, ...]:
    """The courses of all pods, in the order of their names, of answers to `questions`; samples at other times are left out."""
    stats: dict[PodName, dict[str, FloatArray]] = {}
    accepted: dict[PodName, dict[int, FloatArray]] = {}
    for stat, found in answers:
        for series in found:
            labels = series.labels
            name = PodName(labels.get("namespace", ""), labels.get(REPLICA, ""), labels.get("model_name", ""))
            if not name.replica:
                continue
            values = _on(grid, series)
            if stat != "accepted":
                stats.setdefault(name, {})[stat] = values
            elif labels.get("position", "").isdigit():
                accepted.setdefault(name, {})[int(labels["position"])] = values
    return tuple(PodCourse(name, stats[name], accepted.get(name, {})) for name in sorted(stats))


def _on(grid: TimeGrid, series: Samples) -> FloatArray:
    values = np.full(grid.times, math.nan)
    for time_s, value in series.values:
        if (place := grid.place(time_s)) is not None:
            values[place] = value if math.isfinite(value) else math.inf
    return values

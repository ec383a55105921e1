"""Windows of the past that show a steady state, and a word for each one that does not.

A window counts if the same pods served through it, no counter began again, and what came in went out. All are decided from
counters at the window's two ends and gauges between them; nothing is carried over a gap.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

import numpy as np

from breakeven.intake import shipped_rows
from breakeven.laws.arrays import BoolArray, FloatArray
from breakeven.past.courses import COUNTERS, GAUGES, NOW, RESETS, SAMPLES, PodCourse, PodName, TimeGrid
from breakeven.past.pod_facts import PodKind
from breakeven.points.quality import few_requests, unsteady
from breakeven.serving.counted_window import Load
from breakeven.serving.growths import NEEDED_COUNTERS, EngineLimits, Growths, impossible

_WHOLE = 0.8
"""Share of a pod's usual scrapes below which a window of it has a gap."""

_TAIL = 1.5
"""Factor on the chance of a gap in Little's law: a few requests seen now and then are spread wider than their deviation says."""


MEANINGS = dict(shipped_rows(Path(__file__).with_name("words.csv")))
"""Meaning of each word about a past, as the end of a sentence."""


class WindowWord(StrEnum):
    """Reason for which a window of the past does not count."""

    PODS_CHANGED = "PodsChanged"
    SCRAPES_MISSING = "ScrapesMissing"
    COUNTER_RESET = "CounterReset"
    SERIES_MISSING = "SeriesMissing"
    SERIES_NOT_A_NUMBER = "SeriesNotANumber"
    SERIES_IMPOSSIBLE = "SeriesImpossible"
    TOO_FEW_REQUESTS = "TooFewRequests"
    CLIENTS_GIVE_UP = "ClientsGiveUp"
    PREEMPTING = "Preempting"
    SATURATED = "Saturated"
    QUEUE_MOVED = "QueueMoved"
    NOT_STEADY = "NotSteady"
    NEAR_SATURATION = "NearSaturation"


@dataclass(frozen=True, slots=True)
class SteadyWindow:
    """A window in which the pods of one kind served steadily.

    Attributes:
        end_s: its end, Unix time.
        total: what their counters grew by, summed; gauges summed over pods.
        met_inflight, met_rps: number in flight at a request's pod and that pod's rate (1/s), each as a mean over requests. They
            differ from the mean over pods where pods are loaded differently, and a mean latency belongs to these.
    """

    end_s: int
    span_s: int
    kind: PodKind
    pods: int
    total: Growths
    met_inflight: float
    met_rps: float


@dataclass(frozen=True, slots=True)
class CutPast:
    """Windows of a part of the past.

    Attributes:
        dropped: how many windows each word stands for; a window in which one arm's pods count and another's do not is in both.
        missing: statistics behind `SeriesMissing`.
        contradiction: the first one behind `SeriesImpossible`, as a sentence without a full stop.
    """

    windows: tuple[SteadyWindow, ...] = ()
    dropped: Counter[WindowWord] = field(default_factory=Counter)
    missing: frozenset[str] = frozenset()
    contradiction: str = ""

    def __add__(self, other: CutPast) -> CutPast:
        """Both parts."""
        return CutPast(
            (*self.windows, *other.windows),
            self.dropped + other.dropped,
            self.missing | other.missing,
            self.contradiction or other.contradiction,
        )


def cut(grid: TimeGrid, pods: Sequence[PodCourse], kind: Callable[[PodCourse], PodKind]) -> CutPast:
    """Cut a part of the past of one workload, whose pods have courses on that grid, into windows."""
    looks = [_Look.of(one, kind(one)) for one in sorted(pods, key=lambda one: one.name)]
    found = CutPast()
    for i in range(1, grid.times):
        there = [one for one in looks if one.present[i]]
        if there:
            found += _window(grid, i, there)
    return found


@dataclass(frozen=True, slots=True)
class _Look:
    """A pod's course, and what all windows need of it.

    Attributes:
        present, whole, began_again: per time, of the window that ends there: whether there is any sample, whether there are as
            many as usual and one at either end, and whether a counter fell.
        grown: growth of each statistic in that window; gauges as they are.
        accepted: growths by position.
    """

    name: PodName
    kind: PodKind
    present: BoolArray
    whole: BoolArray
    began_again: BoolArray
    grown: dict[str, FloatArray]
    accepted: dict[int, FloatArray]
    samples: FloatArray

    @classmethod
    def of(cls, course: PodCourse, kind: PodKind) -> _Look:
        """Look at a course."""
        stats = course.stats
        nothing = np.full(next(iter(stats.values())).size, math.nan)
        samples = np.nan_to_num(stats.get(SAMPLES, nothing), nan=0.0, posinf=0.0)
        now = stats.get(f"running{NOW}", nothing)
        ends = ~np.isnan(now) & ~np.isnan(_before(now))
        grown = {name: _grown(stats[name]) for name in COUNTERS if name in stats}
        grown |= {name: stats[name] for name in (*GAUGES, "waiting_min") if name in stats}
        grown |= {f"{one}_growth": _grown(stats[f"{one}{NOW}"]) for one in GAUGES if f"{one}{NOW}" in stats}
        accepted = {position: _grown(values) for position, values in course.accepted.items()}
        fell = np.nan_to_num(stats.get(RESETS, nothing), nan=0.0) > 0
        for name, growth in (*grown.items(), *accepted.items()):
            if name in COUNTERS or isinstance(name, int):
                fell |= growth < 0
        return cls(
            course.name,
            kind,
            (samples > 0) | ~np.isnan(now),
            ends & (samples >= _WHOLE * samples.max(initial=1.0)),
            fell,
            grown,
            accepted,
            samples,
        )

    def growths(self, i: int, span_s: float) -> Growths:
        """Growths in the window that ends at a time; statistics that are not stored are left out."""
        stats = {name: float(values[i]) for name, values in self.grown.items() if not math.isnan(values[i])}
        own = {position: float(values[i]) for position, values in self.accepted.items()}
        accepted = {position: value for position, value in own.items() if not math.isnan(value)}
        return Growths(stats, accepted, span_s)


def _before(values: FloatArray) -> FloatArray:
    """Each value's predecessor."""
    return np.concatenate([[math.nan], values[:-1]])


def _grown(values: FloatArray) -> FloatArray:
    """Growth in the window that ends at each time; infinite where either end is no number."""
    before = _before(values)
    with np.errstate(invalid="ignore"):
        growth = values - before
    return np.where(np.isinf(values) | np.isinf(before), math.inf, growth)


def _window(grid: TimeGrid, i: int, there: Sequence[_Look]) -> CutPast:
    """One window of all pods: what holds for the workload first, then each arm's pods by themselves."""
    if not all(one.whole[i] for one in there):
        return _dropped(_gap(i, there))
    if any(one.began_again[i] for one in there):
        return _dropped(WindowWord.COUNTER_RESET)
    groups: dict[PodKind, list[_Look]] = {}
    for one in there:
        groups.setdefault(one.kind, []).append(one)
    found = CutPast()
    for kind, members in groups.items():
        found += _of_kind(grid, i, kind, members)
    return found


def _gap(i: int, there: Sequence[_Look]) -> WindowWord:
    """The reason why some pod has not all samples: it came or went, or was not scraped."""
    for one in there:
        last = i + 1 >= one.present.size or one.present[i + 1]
        if not one.whole[i] and not (one.present[i - 1] and last):
            return WindowWord.PODS_CHANGED
    return WindowWord.SCRAPES_MISSING


def _dropped(word: WindowWord) -> CutPast:
    return CutPast(dropped=Counter({word: 1}))


def _of_kind(grid: TimeGrid, i: int, kind: PodKind, members: Sequence[_Look]) -> CutPast:
    parts = [one.growths(i, float(grid.step_s)) for one in members]
    lacking = {name for one in parts for name in (*NEEDED_COUNTERS, *GAUGES) if name not in one.stats}
    if lacking:
        return CutPast(dropped=Counter({WindowWord.SERIES_MISSING: 1}), missing=frozenset(lacking))
    figures = (value for one in parts for value in (*one.stats.values(), *one.accepted.values()))
    if not all(map(math.isfinite, figures)):
        return _dropped(WindowWord.SERIES_NOT_A_NUMBER)
    total = Growths.summed(parts)
    wrong = impossible(total.over(len(parts)), EngineLimits(tokens_per_step=kind.k + 1.0), float(grid.step_s))
    if wrong:
        return CutPast(dropped=Counter({WindowWord.SERIES_IMPOSSIBLE: 1}), contradiction=wrong)
    word = _unsteady(total, Load.of([total], replicas=1), min(float(one.samples[i]) for one in members))
    if word is not None:
        return _dropped(word)
    end_s = grid.first_s + i * grid.step_s
    return CutPast((SteadyWindow(end_s, grid.step_s, kind, len(parts), total, *_met(parts)),))


def _unsteady(total: Growths, seen: Load, looks: float) -> WindowWord | None:
    """The word against a window of pods of one kind, each of which was scraped so often in it."""
    latency_s, inflight = seen.latency_s, seen.inflight or 0.0
    if latency_s is None or few_requests(seen.requests):
        return WindowWord.TOO_FEW_REQUESTS
    against = (
        (seen.given_up > 0.0, WindowWord.CLIENTS_GIVE_UP),
        ((seen.preemptions or 0.0) > 0.0, WindowWord.PREEMPTING),
        (seen.saturated, WindowWord.SATURATED),
        (total.queue_moved, WindowWord.QUEUE_MOVED),
        (_contradicts_little(total, inflight, latency_s, looks), WindowWord.NOT_STEADY),
    )
    return next((word for speaks_against, word in against if speaks_against), None)


def _contradicts_little(total: Growths, inflight: float, latency_s: float, looks: float) -> bool:
    """Whether the number in flight differs from rate times latency by more than sampling and the window's ends explain."""
    by_rate = total.occupied
    if inflight <= 0.0:
        return by_rate > 1.0
    # Scrapes that are closer to each other than a request lasts see the same requests again.
    sights = max(min(looks, total.span_s / (2.0 * latency_s)), 1.0)
    chance = math.sqrt((1.0 / sights + 2.0 * (latency_s / total.span_s) ** 2) / inflight)
    # Requests that are still there at the end are in the gauge already, and in no latency.
    ends = abs(total.inflight_growth) * latency_s / (total.span_s * inflight)
    return unsteady(abs(by_rate / inflight - 1.0) - ends, _TAIL * chance)


def _met(parts: Sequence[Growths]) -> tuple[float, float]:
    """Number in flight and rate (1/s) at a request's pod, as means over the requests of all pods.

    A pod that got more requests by chance weighs more, by one request's share of the window: that much is taken off again.
    """
    figures = [Load.of([one], replicas=1) for one in parts]
    weights = np.array([one.requests for one in figures])
    # By rate times latency. The gauge is read some twenty times a window and strays by percents: a law fitted at loads that
    # stray lies off at every rate, and the scatter of its rows, which holds latencies alone, does not say so.
    inflight = np.array([one.occupied for one in parts])
    rates = np.array([one.rps for one in figures])
    own = 1.0 / parts[0].span_s if len(parts) > 1 else 0.0
    latency_s = float(np.average([one.latency_s or 0.0 for one in figures], weights=weights))
    met_inflight = float(np.average(inflight, weights=weights)) - latency_s * own
    met_rps = float(np.average(rates, weights=weights)) - own
    return max(met_inflight, 0.0), max(met_rps, 0.5 * float(rates.mean()))

"""Pages of engines at a steady load, as the series that scrapes of them leave in a Prometheus."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Literal, NamedTuple, TypeAlias

from breakeven.serving.promql import COUNTED, RUNNING, WAITING
from fakes.held_series import STALE, Held, NativeHistogram, SeriesStore, Stale

SCRAPE_S = 15.0
_ENDED_S = 120.0
_FAR_TOO_MUCH = 1e9
# So long ago the counters of a pod that nobody has seen begin would have been 0.
_LONG_S = 1e5


class State(StrEnum):
    """The fault of a statistic's series."""

    ABSENT = "absent"
    STALE = "stale"
    NAN = "NaN"
    IMPOSSIBLE = "impossible"

    def of(self, times_s: Sequence[float], values: Sequence[Held]) -> Iterator[tuple[float, Held]]:
        """The samples in this state in place of the right ones."""
        if self is State.ABSENT:
            return
        samples = [*zip(times_s, values, strict=True)]
        if self is State.STALE:
            # A relabelling that drops it came with a reload two minutes ago.
            samples = [one for one in samples if one[0] < times_s[-1] - _ENDED_S]
            yield from samples
            yield samples[-1][0] + SCRAPE_S, STALE
        elif self is State.NAN:
            yield from samples[:-1]
            last = samples[-1][1]
            # A histogram that was given such a value goes on counting.
            yield (
                times_s[-1],
                replace(last, total=math.nan) if isinstance(last, NativeHistogram) else math.nan,
            )
        else:
            yield from ((at_s, _far_too_much(value)) for at_s, value in samples)


def _far_too_much(value: Held) -> Held:
    if isinstance(value, NativeHistogram):
        count, total = (_FAR_TOO_MUCH * (1.0 + one) for one in (value.count, value.total))
        return NativeHistogram(count, total, value.schema, value.offset, (count,))
    return value if isinstance(value, Stale) else _FAR_TOO_MUCH * (1.0 + value)


def all_in(state: State, stats: Iterable[str]) -> tuple[tuple[str, State], ...]:
    """Several statistics in one state."""
    return tuple((stat, state) for stat in sorted(stats))


@dataclass(frozen=True)
class Scrapes:
    """How pages come into Prometheus.

    Attributes:
        copies: labels that the jobs by which a pod is scraped add to its series.
        histograms: how they are stored.
        states: statistics (`engine_series.COUNTED`, or names of gauges and native histograms) that are not as they should be.
        engines: of a pod.
        prefix: of the names.
        silent: the engines count nothing (`--disable-log-stats`): the page is there without their series.
    """

    copies: tuple[tuple[tuple[str, str], ...], ...] = ((),)
    histograms: Literal["classic", "native", "both"] = "classic"
    states: tuple[tuple[str, State], ...] = ()
    engines: int = 1
    prefix: str = "vllm:"
    silent: bool = False


_Series: TypeAlias = tuple[str, str, Mapping[str, str], list[Held]]
"""A statistic, the name of its series, labels of its own, and values."""


class Grown(NamedTuple):
    """A counter's growth per second, and the labels of its own."""

    stat: str
    per_s: float
    labels: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class SteadyPage:
    """The counters of the engines of one pod, together.

    Attributes:
        rates: of the counters (1/s).
        running, waiting: means over the window of the gauges.
        running_per_s: by how much the first one grows.
        window_s: whose mean is meant.
        age_s: of the newest scrape.
        served_s: for how long the page has been there.
        posts: HTTP requests (1/s) by class of their status; empty: the page does not count them.
        up: whether scrapes succeed.
        away_s: how long ago (s) it went with its engine, and came again with counters at 0; None: it has not.
    """

    rates: tuple[Grown, ...]
    running: float
    waiting: float
    running_per_s: float
    window_s: float
    age_s: float = 1.0
    served_s: float = math.inf
    posts: tuple[tuple[str, float], ...] = ()
    up: bool = True
    away_s: tuple[float, float] | None = None
    scrapes: Scrapes = field(default_factory=Scrapes)

    def scraped(self, store: SeriesStore, labels: Mapping[str, str], now_s: float) -> None:
        """Put the pod's series of a window, and of a scrape before it, into a store."""
        step_s = min(SCRAPE_S, max(self.window_s / 4.0, 1.0))
        for place, copy in enumerate(self.scrapes.copies):
            # Jobs scrape at moments of their own.
            newest_s = now_s - self.age_s - 4.0 * place
            count = int(min(self.window_s + 2.0 * step_s, self.served_s) // step_s) + 1
            times_s = [newest_s - step_s * back for back in reversed(range(count))]
            if self.away_s is not None:
                gone_s, back_s = (now_s - ago_s for ago_s in self.away_s)
                times_s = [at_s for at_s in times_s if not gone_s < at_s < back_s]
            own = {**labels, **dict(copy)}
            target = {name: value for name, value in own.items() if name != "model_name"}
            for at_s in times_s:
                store.add("up", target, at_s, float(self.up))
            if not self.up:
                continue
            for status, per_s in self.posts:
                asked = {**target, "method": "POST", "handler": "/v1/completions", "status": status}
                for at_s, value in zip(times_s, self._grown(per_s, times_s, now_s), strict=True):
                    store.add("http_requests_total", asked, at_s, value)
            if not self.scrapes.silent:
                for engine in range(self.scrapes.engines):
                    self._engine(store, {**own, "engine": str(engine)}, times_s, now_s)

    def _engine(
        self, store: SeriesStore, labels: Mapping[str, str], times_s: list[float], now_s: float
    ) -> None:
        prefix, states = self.scrapes.prefix, dict(self.scrapes.states)
        for stat, name, more, values in (*self._gauges(times_s, now_s), *self._counters(times_s, now_s)):
            samples = (
                states[stat].of(times_s, values) if stat in states else zip(times_s, values, strict=True)
            )
            for at_s, held in samples:
                store.add(f"{prefix}{name}", {**labels, **more}, at_s, held)

    def _gauges(self, times_s: list[float], now_s: float) -> Iterator[_Series]:
        # A line has its mean in the middle of the samples.
        middle_s, share = now_s - self.window_s / 2.0, 1.0 / self.scrapes.engines
        for name, mean, per_s in ((RUNNING, self.running, self.running_per_s), (WAITING, self.waiting, 0.0)):
            values = [mean + per_s * (at_s - middle_s) if per_s else mean for at_s in times_s]
            yield name, name, {}, [share * value for value in values]

    def _grown(self, per_s: float, times_s: list[float], now_s: float) -> list[float]:
        """A counter of the page's life, which is 0 when an engine begins."""
        began_s = now_s - min(self.served_s, _LONG_S)
        again_s = math.inf if self.away_s is None else now_s - self.away_s[1]
        return [per_s * (at_s - (began_s if at_s < again_s else again_s)) for at_s in times_s]

    def _counters(self, times_s: list[float], now_s: float) -> Iterator[_Series]:
        forms = self.scrapes.histograms
        counted = {
            one: [value / self.scrapes.engines for value in self._grown(one.per_s, times_s, now_s)]
            for one in self.rates
        }
        whole: dict[str, dict[str, list[float]]] = {}
        for one, values in counted.items():
            series = COUNTED[one.stat]
            if series.suffix == "_total" or forms != "native":
                yield one.stat, series.name, dict(one.labels), [*values]
            if series.suffix != "_total" and forms != "classic":
                whole.setdefault(series.family, {})[series.suffix] = values
        for family, parts in whole.items():
            zero = [0.0] * len(times_s)
            pairs = zip(parts.get("_count", zero), parts.get("_sum", zero), strict=True)
            yield (
                family,
                family,
                {},
                [NativeHistogram(count, total, 0, 0, (count,)) for count, total in pairs],
            )

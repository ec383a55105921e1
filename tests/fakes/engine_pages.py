"""Pages of engines at a steady load, as the series that scrapes of them leave in a Prometheus."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from breakeven.serving.engine_series import COUNTED, RUNNING, WAITING
from fakes.held_series import Held, NativeHistogram, SeriesStore

SCRAPE_S = 15.0
# So long ago the counters of a pod that nobody has seen begin would have been 0.
_LONG_S = 1e5


@dataclass(frozen=True)
class Scrapes:
    """How pages come into Prometheus.

    Attributes:
        copies: labels that the jobs by which a pod is scraped add to its series.
        histograms: how they are stored.
        dropped: statistics (`engine_series.COUNTED`) whose series a relabelling drops; gauges by their names.
        engines: of a pod.
        prefix: of the names.
        silent: the engines count nothing (`--disable-log-stats`): the page is there without their series.
    """

    copies: tuple[tuple[tuple[str, str], ...], ...] = ((),)
    histograms: Literal["classic", "native", "both"] = "classic"
    dropped: frozenset[str] = frozenset()
    engines: int = 1
    prefix: str = "vllm:"
    silent: bool = False


class Grown(NamedTuple):
    """A counter's growth per second, and the labels of its own."""

    stat: str
    per_s: float
    labels: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class SteadyPage:
    """What the engines of one pod count, together.

    Attributes:
        rates: of the counters (1/s).
        running, waiting: means over the window of the gauges.
        running_per_s: by how much the first one grows.
        window_s: whose mean is meant.
        age_s: of the newest scrape.
        served_s: for how long the page has been there.
    """

    rates: tuple[Grown, ...]
    running: float
    waiting: float
    running_per_s: float
    window_s: float
    age_s: float = 1.0
    served_s: float = math.inf
    scrapes: Scrapes = field(default_factory=Scrapes)

    def scraped(self, store: SeriesStore, labels: Mapping[str, str], now_s: float) -> None:
        """Put the pod's series of a window, and of a scrape before it, into a store."""
        step_s = min(SCRAPE_S, max(self.window_s / 4.0, 1.0))
        for place, copy in enumerate(self.scrapes.copies):
            # Jobs scrape at moments of their own.
            newest_s = now_s - self.age_s - 4.0 * place
            count = int(min(self.window_s + 2.0 * step_s, self.served_s) // step_s) + 1
            times_s = [newest_s - step_s * back for back in reversed(range(count))]
            own = {**labels, **dict(copy)}
            target = {name: value for name, value in own.items() if name != "model_name"}
            for at_s in times_s:
                store.add("up", target, at_s, 1.0)
            if not self.scrapes.silent:
                for engine in range(self.scrapes.engines):
                    self._engine(store, {**own, "engine": str(engine)}, times_s, now_s)

    def _engine(
        self, store: SeriesStore, labels: Mapping[str, str], times_s: list[float], now_s: float
    ) -> None:
        share, dropped, prefix = 1.0 / self.scrapes.engines, self.scrapes.dropped, self.scrapes.prefix
        # A line has its mean in the middle of the samples.
        middle_s = now_s - self.window_s / 2.0
        for name, mean, per_s in ((RUNNING, self.running, self.running_per_s), (WAITING, self.waiting, 0.0)):
            if name not in dropped:
                for at_s in times_s:
                    value = mean if not per_s else mean + per_s * (at_s - middle_s)
                    store.add(f"{prefix}{name}", labels, at_s, share * value)
        for name, more, values in self._counters(times_s, now_s):
            for at_s, held in zip(times_s, values, strict=True):
                store.add(f"{prefix}{name}", {**labels, **more}, at_s, held)

    def _counters(
        self, times_s: list[float], now_s: float
    ) -> Iterator[tuple[str, Mapping[str, str], list[Held]]]:
        began_s = now_s - min(self.served_s, _LONG_S)
        forms = self.scrapes.histograms
        counted = {
            one: [one.per_s * (at_s - began_s) / self.scrapes.engines for at_s in times_s]
            for one in self.rates
            if one.stat not in self.scrapes.dropped
        }
        whole: dict[str, dict[str, list[float]]] = {}
        for one, values in counted.items():
            series = COUNTED[one.stat]
            if series.suffix == "_total" or forms != "native":
                yield series.name, dict(one.labels), [*values]
            if series.suffix != "_total" and forms != "classic":
                whole.setdefault(series.family, {})[series.suffix] = values
        for family, parts in whole.items():
            zero = [0.0] * len(times_s)
            pairs = zip(parts.get("_count", zero), parts.get("_sum", zero), strict=True)
            yield family, {}, [NativeHistogram(count, total, 0, 0, (count,)) for count, total in pairs]

"""One model's figures at a Prometheus, by instant queries: the input of `breakeven doctor` and of every diagnosis.

Counters of pods that are gone stay in a window until it has passed. They are left out, because a load per pod is that
of the pods that remain. The pods that are gone are named apart.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from breakeven.serving.counted_window import Load
from breakeven.serving.growths import (
    NEEDED_COUNTERS,
    EngineLimits,
    Growths,
    impossible,
    missing,
    not_a_number,
)
from breakeven.serving.promql import (
    COUNTED,
    ENGINE,
    GENERATES,
    HTTP_REQUESTS,
    NAMESPACES,
    PODS,
    PREFIXES,
    REPLICA,
    RUNNING,
    WAITING,
    EngineSeries,
    Matcher,
    by_replica,
    selector,
)

Ask = Callable[[str], Iterable[tuple[Mapping[str, str], float]]]
"""Asks an instant query; labels and value of each element."""

_POD = ("namespace", REPLICA)
_BY_POD = ",".join(_POD)
_BY_ENGINE = ",".join((*_POD, *ENGINE))
_STEP_S = 15
_MOST_SHOWN = 4


# Age of the newest sample above which figures are not used, as in the operator's metricsSource.stalenessSeconds.
_STALE_S = 120.0


class HttpRequests(NamedTuple):
    """HTTP requests for answers that a model's servers got, and those that they answered with 4xx or 5xx."""

    posts: float
    refused: float


@dataclass(frozen=True, slots=True)
class ModelSnapshot:
    """Figures of one model over one window.

    Attributes:
        pods: with series of this model.
        speculating: whether they count drafts.
        waiting_min: least queue at any time (0: the queue emptied). kv_usage: highest share in use; None if not counted.
        missing: names of needed series that are not there.
        not_a_number: the first statistic that is none.
        impossible: how counters contradict each other, as a sentence without a full stop.
        gone: pods that had series in the window and have none now, with the age of their newest sample (s).
        ages_s: the same age, of the pods that have series.
        ended: series that ended in the window while the engine's others go on, each with its pod.
        elsewhere: where other series are, as the end of a sentence; empty if there are pods, or no series at all.
    """

    pods: int
    window: Load
    speculating: bool = False
    waiting_min: float | None = None
    kv_usage: float | None = None
    missing: tuple[str, ...] = ()
    not_a_number: str | None = None
    impossible: str | None = None
    gone: Mapping[str, float] = field(default_factory=dict)
    ages_s: Mapping[str, float] = field(default_factory=dict)
    ended: tuple[str, ...] = ()
    http: HttpRequests | None = None
    elsewhere: str = ""

    @property
    def stale(self) -> Mapping[str, float]:
        """The pods whose newest sample is old."""
        return {pod: age_s for pod, age_s in self.ages_s.items() if age_s > _STALE_S}

    @property
    def unfinished(self) -> float | None:
        """HTTP requests that no engine finished, and whose clients waited; None where HTTP requests are not counted."""
        seen = self.window
        return None if self.http is None else self.http.posts - seen.requests - seen.given_up_requests


@dataclass(frozen=True, slots=True)
class ModelWatch:
    """The series of one model, under the first prefix that has some; increases go back `window_s`."""

    ask: Ask
    engines: EngineSeries
    pods: int
    window_s: int
    prefixes: tuple[str, ...] = PREFIXES

    @classmethod
    def of(cls, ask: Ask, matchers: tuple[Matcher, ...], prefix: str | None, window_s: int) -> ModelWatch:
        """Find the prefix of a model's series: if none is given, the first usual one that has series now, or in the window."""
        prefixes = (prefix,) if prefix is not None else PREFIXES
        tried = [EngineSeries(matchers, one, _POD, by_replica) for one in prefixes]
        for engines in tried:
            running = engines.labelled(engines.named(RUNNING))
            if pods := _first(ask(f"count(count by({_BY_POD})({running}))")):
                return cls(ask, engines, int(pods), window_s, prefixes)
        for engines in tried:
            if _first(ask(f"count({engines.gauge('max_over_time', RUNNING, window_s)})")):
                return cls(ask, engines, 0, window_s, prefixes)
        return cls(ask, tried[0], 0, window_s, prefixes)

    def snapshot(self) -> ModelSnapshot:
        """Figures of the pods that have series now."""
        if not self.pods:
            return ModelSnapshot(0, Load(window_s=float(self.window_s), replicas=0))
        engines, window_s = self.engines, self.window_s
        stats: dict[str, float] = {}
        accepted: dict[int, float] = {}
        for stat, counted in COUNTED.items():
            once = self._alive(engines.once("max", engines.increase(stat, window_s), *counted.labels))
            if stat == "accepted":
                for labels, number in self.ask(f"sum by (position) ({once})"):
                    if labels.get("position", "").isdigit():
                        accepted[int(labels["position"])] = number
            elif (number_of_all := _first(self.ask(f"sum({once})"))) is not None:
                stats[stat] = number_of_all
        for growth, gauge in (("waiting_growth", WAITING), ("running_growth", RUNNING)):
            once = self._alive(engines.once("avg", engines.gauge("delta", gauge, window_s)))
            grown = _first(self.ask(f"sum({once})"))
            stats |= {growth: grown} if grown is not None else {}
        counters = Growths(stats, accepted, float(window_s))
        return ModelSnapshot(
            pods=self.pods,
            window=Load.of([counters], replicas=self.pods),
            speculating="drafts" in stats,
            waiting_min=self._gauge("min", "min_over_time", WAITING),
            kv_usage=self._gauge("max", "max_over_time", "kv_cache_usage_perc"),
            missing=tuple(
                f"{engines.prefix}{COUNTED[stat].name}" for stat in missing(counters, NEEDED_COUNTERS)
            ),
            not_a_number=not_a_number(counters),
            # Checked for the mean pod: the limits are for one engine.
            impossible=impossible(counters.over(self.pods), EngineLimits(), float(window_s)),
        )

    def with_events(self, snapshot: ModelSnapshot) -> ModelSnapshot:
        """The snapshot with what its sums do not show: pods that are gone, samples that are old, series that ended, HTTP failures."""
        engines, running = self.engines, self.engines.named(RUNNING)
        present = _by_pod(self.ask(f"count by({_BY_POD})({engines.labelled(running)})"))
        sampled = f"max_over_time(timestamp({running})[{self.window_s}s:{_STEP_S}s])"
        # An age below zero is rounding: no sample comes from the future.
        younger = f"max by({_BY_POD})({engines.labelled(sampled)}) - time()"
        ages_s = {pod: -seconds for pod, seconds in _by_pod(self.ask(younger)).items()}
        ended = [
            f"{labels['__name__']} of {labels[REPLICA]}"
            for labels, _ in self.ask(engines.ended((*NEEDED_COUNTERS, "drafts", "accepted"), self.window_s))
            if labels.get("__name__") and labels.get(REPLICA)
        ]
        gone = {pod: age_s for pod, age_s in ages_s.items() if pod not in present}
        return replace(
            snapshot,
            gone=gone,
            ages_s={pod: age_s for pod, age_s in ages_s.items() if pod in present},
            ended=tuple(sorted(ended)),
            http=self._http() if self.pods else None,
            elsewhere="" if self.pods or gone else self._elsewhere(),
        )

    def _elsewhere(self) -> str:
        """Labels of this model's series, if other than those asked for; else the models that there are."""
        model = tuple(one for one in self.engines.matchers if one.label == "model_name")
        for matchers, labels in (
            (model, ("namespace", "pod", *NAMESPACES, *PODS)),
            ((), ("model_name",)),
        ):
            for prefix in self.prefixes:
                running = EngineSeries(matchers, prefix).named(RUNNING)
                found = sorted(
                    " ".join(f"{label}={one[label]!r}" for label in labels if one.get(label))
                    or "no such labels"
                    for one, _ in self.ask(f"group by({','.join(labels)})({running})")
                    if one or not matchers
                )
                if found:
                    return f"there are some with {', '.join(found[:_MOST_SHOWN])}{' and others' if len(found) > _MOST_SHOWN else ''}"
        return ""

    def _http(self) -> HttpRequests | None:
        """HTTP requests for answers; None if the page does not count them."""
        own = [one for one in self.engines.matchers if one.label == "namespace"]
        posts = selector([*own, Matcher("handler", "=~", GENERATES), Matcher("method", "=", "POST")])
        grown = self.engines.labelled(f"increase({HTTP_REQUESTS}{posts}[{self.window_s}s])")
        once = f"max by({_BY_POD},handler,method,status)({grown})"
        running = self.engines.labelled(self.engines.named(RUNNING))
        by_status = {
            labels["status"]: number
            for labels, number in self.ask(f"sum by(status)({once} and on({_BY_POD}) {running})")
            if labels.get("status")
        }
        if not by_status:
            return None
        refused = sum(number for status, number in by_status.items() if status[0] in "45")
        return HttpRequests(sum(by_status.values()), refused)

    def _gauge(self, how: str, function: str, name: str) -> float | None:
        of_each = self.engines.labelled(self.engines.gauge(function, name, self.window_s))
        return _first(self.ask(f"{how}({self._alive(of_each)})"))

    def _alive(self, expression: str) -> str:
        """The elements whose engine has series now."""
        return f"({expression}) and on({_BY_ENGINE}) {self.engines.labelled(self.engines.named(RUNNING))}"


def _first(elements: Iterable[tuple[Mapping[str, str], float]]) -> float | None:
    return next((number for _, number in elements), None)


def _by_pod(elements: Iterable[tuple[Mapping[str, str], float]]) -> dict[str, float]:
    return {labels[REPLICA]: number for labels, number in elements if labels.get(REPLICA)}

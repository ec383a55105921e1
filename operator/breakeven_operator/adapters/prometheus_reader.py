"""Questions to every Prometheus in a cycle: a fixed number of queries, however many services there are."""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from breakeven_operator.adapters.answer_round import RoundOfAnswers
from breakeven_operator.adapters.background import SETTLE_S
from breakeven_operator.adapters.due_pods import DuePods
from breakeven_operator.adapters.first_pasts import FirstPasts
from breakeven_operator.adapters.past_loads import History, Lookback
from breakeven_operator.adapters.present_arrivals import PresentArrivals
from breakeven_operator.adapters.present_latencies import PresentLatencies
from breakeven_operator.adapters.present_loads import PODS_PER_QUERY, Present, PresentSums
from breakeven_operator.adapters.prometheus_answers import Watch
from breakeven_operator.adapters.roll_blocks import LaterFailures, RollBlocks, under_way
from breakeven_operator.adapters.service_queries import ServiceQueries
from breakeven_operator.ports import Clock, Fitter, Manifest, Metrics, PrometheusAccess
from breakeven_operator.resources import SpeculativeService
from breakeven_operator.workloads.object_facts import owner_uid

# Cycles that follow each other at once ask no Prometheus more often than this: an answer about ten thousand pods is expensive.
_SOON_S = 10.0


class QueryLimits(NamedTuple):
    """Limits of queries.

    Attributes:
        settle_s: longest time a cycle waits for them.
        pods_per_query: a fleet of more pods is read by ReplicaSet.
    """

    settle_s: float = SETTLE_S
    pods_per_query: int = PODS_PER_QUERY


class PrometheusReader:
    """Asks every Prometheus.

    Args:
        metrics, clock: ports.
        default_source: Prometheus of services that name none.
        fitter: of the rows of pasts; None: no past of a service without a profile is read.
        counted: is called with the outcome of every query: ok, empty or error.
        limits: of the queries.

    Attributes:
        queries: what is asked about a service.
        firsts: the pasts of services of which nothing is measured.
        due_pods: the pods of large fleets.
    """

    def __init__(
        self,
        metrics: Metrics,
        clock: Clock,
        *,
        default_source: PrometheusAccess | None,
        fitter: Fitter | None = None,
        counted: Callable[[str], None] | None = None,
        limits: QueryLimits = QueryLimits(),  # noqa: B008 - it is frozen
    ) -> None:
        self._pods_per_query, settle_s = limits.pods_per_query, limits.settle_s
        self._clock = clock
        self._last: RoundOfAnswers | None = None
        tell = counted or (lambda _outcome: None)
        self.queries = ServiceQueries(default_source)
        self.firsts = FirstPasts(self.queries, metrics, clock, fitter, tell)
        self.due_pods = DuePods(
            self.queries, metrics, clock, tell, settle_s=settle_s, pods_per_query=limits.pods_per_query
        )
        self._present = Present(metrics, clock, tell, settle_s)
        self._sums = PresentSums(metrics, clock, tell, settle_s)
        self._latencies = PresentLatencies(metrics, clock, tell, settle_s)
        self._history = History(metrics, clock, tell, settle_s)
        self._rolls = RollBlocks(metrics, clock, tell, settle_s)
        self._later = LaterFailures(metrics, clock, tell, settle_s)
        self._arrivals = PresentArrivals(metrics, clock, tell, settle_s)

    async def close(self) -> None:
        """End the queries that are under way."""
        parts = (
            self._present,
            self._sums,
            self.due_pods,
            self._latencies,
            self._history,
            self._rolls,
            self._later,
            self._arrivals,
        )
        await asyncio.gather(*(part.close() for part in parts))
        await self.firsts.close()

    async def read(
        self, services: Sequence[SpeculativeService], pods: Mapping[str, Sequence[Manifest]], *, soon: bool
    ) -> RoundOfAnswers:
        """The answers of every Prometheus: new ones, or those of a moment ago if the questions are the same.

        Args:
            services: about which they are asked.
            pods: that run, by namespace.
            soon: this cycle follows the last one at once.
        """
        about = frozenset(
            (self.queries.watch_of(service), self.queries.lookback_of(service), service.metadata.namespace)
            for service in services
        )
        last, now_s = self._last, self._clock.monotonic()
        fresh = last is not None and last.about == about and now_s - last.asked_s < _SOON_S
        if soon and last is not None and fresh and last.whole:
            return last
        asked, surplus = self.queries.within_limits(services)
        small, large = self._fleets(asked, pods)
        (readings, sums, pasts), (latencies, rolls, later, arrivals) = await asyncio.gather(
            asyncio.gather(
                self._present.read(small), self._sums.read(large), self._history.read(self._lookbacks(asked))
            ),
            asyncio.gather(
                self._latencies.read(asked, self.queries.watch_of),
                self._rolls.read(under_way(asked, self.queries.watch_of)),
                self._later.read(asked, self.queries.watch_of),
                self._arrivals.read(asked, self.queries.watch_of),
            ),
        )
        self._last = RoundOfAnswers(
            about, now_s, {**readings, **surplus}, pasts, latencies, rolls, later, sums, arrivals
        )
        return self._last

    async def ask_nothing(self) -> None:
        """There is no service: end the queries that are under way, and forget their answers."""
        await asyncio.gather(
            self._present.read({}),
            self._sums.read({}),
            self.due_pods.ask_nothing(),
            self._history.read({}),
            self._latencies.read((), self.queries.watch_of),
            self._rolls.read({}),
            self._later.read((), self.queries.watch_of),
            self._arrivals.read((), self.queries.watch_of),
            self.firsts.ask_nothing(),
        )

    def _fleets(
        self, services: Iterable[SpeculativeService], pods: Mapping[str, Sequence[Manifest]]
    ) -> tuple[dict[Watch, dict[str, int]], dict[Watch, dict[str, int]]]:
        """Fleets that are read pod by pod, and fleets that are read by ReplicaSet: number of pods by namespace, by Watch."""
        namespaces: dict[Watch, set[str]] = defaultdict(set)
        for service in services:
            namespaces[self.queries.watch_of(service)].add(service.metadata.namespace)
        small, large = {}, {}
        for watch, names in namespaces.items():
            numbers = {name: len(pods.get(name, ())) for name in names}
            if sum(numbers.values()) <= self._pods_per_query:
                small[watch] = numbers
            else:
                large[watch] = {name: len({owner_uid(pod) for pod in pods.get(name, ())}) for name in names}
        return small, large

    def _lookbacks(self, services: Iterable[SpeculativeService]) -> dict[Lookback, Counter[str]]:
        """Number of services by namespace, by their lookback."""
        namespaces: dict[Lookback, Counter[str]] = defaultdict(Counter)
        for service in services:
            lookback = self.queries.lookback_of(service)
            if lookback is not None:
                namespaces[lookback][service.metadata.namespace] += 1
        return namespaces

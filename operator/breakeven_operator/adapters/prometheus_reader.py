"""Questions to every Prometheus in a cycle: a fixed number of queries, however many services there are."""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from breakeven.laws.arrays import FloatArray
from breakeven_operator.adapters.background import SETTLE_S
from breakeven_operator.adapters.past_loads import History, Lookback
from breakeven_operator.adapters.present_loads import PODS_PER_QUERY, FleetAnswers, Present, PresentSums
from breakeven_operator.adapters.prometheus_answers import (
    Answer,
    PrometheusAnswers,
    Said,
    Watch,
    parted,
    targets_of,
)
from breakeven_operator.adapters.roll_blocks import LaterFailures, RollBlocks, under_way
from breakeven_operator.adapters.service_queries import ServiceQueries
from breakeven_operator.adapters.snapshot import Legible, Snapshot
from breakeven_operator.adapters.workload_pasts import FirstPasts
from breakeven_operator.kinds import NamespacedName
from breakeven_operator.ports import Clock, Fitter, Manifest, Metrics, PrometheusAccess
from breakeven_operator.reconcile.fleet_query import arrivals_query, fleet_query, siblings_of
from breakeven_operator.reconcile.latency_metrics import (
    LatencyOwner,
    LatencyReading,
    latency_query,
    read_latencies,
)
from breakeven_operator.reconcile.live_metrics import FleetReading, SeriesOwner
from breakeven_operator.reconcile.objectives import objectives_of
from breakeven_operator.reconcile.past_metrics import PastReading
from breakeven_operator.reconcile.roll_failures import LaterReading, RollAnswer
from breakeven_operator.reconcile.roll_metrics import RollReading, read_roll
from breakeven_operator.resources import SpeculativeService
from breakeven_operator.workloads.known import target_name
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


# The answers of every Prometheus in one cycle.


class RoundOfAnswers(NamedTuple):
    """The answers of every Prometheus in one cycle: their subject, and when they were asked for (monotonic, s)."""

    about: frozenset[tuple[Watch, Lookback | None, str]]
    asked_s: float
    readings: Mapping[Watch, FleetReading]
    pasts: Mapping[Lookback, PastReading]
    latencies: Mapping[Watch, LatencyReading]
    rolls: Mapping[Watch, RollAnswer]
    later: Mapping[Watch, LaterReading]
    sums: Mapping[Watch, FleetReading]
    arrivals: Mapping[Watch, RollReading]

    @property
    def whole(self) -> bool:
        """Whether every Prometheus has answered; one that has not is asked again, however soon."""
        late = any(past.awaited for past in self.pasts.values())
        return not late and all(
            reading.error is None for reading in (*self.readings.values(), *self.sums.values())
        )


# The pods of large fleets, asked for as their services fall due.


class DuePods:
    """Asks about the pods of fleets that are read by ReplicaSet.

    Args:
        queries: say which Prometheus is asked.
        metrics, clock: ports.
        tell: is called with the outcome of every query.
        settle_s: longest time a cycle waits for an answer.
        pods_per_query: as many pods fit into one answer.
    """

    def __init__(
        self,
        queries: ServiceQueries,
        metrics: Metrics,
        clock: Clock,
        tell: Callable[[str], None],
        *,
        settle_s: float,
        pods_per_query: int,
    ) -> None:
        self._queries = queries
        self._pods = PresentPods(metrics, clock, tell, settle_s)
        self._pods_per_query = pods_per_query

    async def close(self) -> None:
        """End the queries that are under way."""
        await self._pods.close()

    async def ask_nothing(self) -> None:
        """There is no service: end the queries that are under way, and forget their answers."""
        await self._pods.read({})

    async def legible(self, world: Snapshot, due: Sequence[SpeculativeService]) -> Legible:
        """The world with the readings of those services that are decided about next.

        If a fleet is read by ReplicaSet its pods are asked for here: as many as fit into one answer, so that no cycle takes
        long. The services behind them are neither ready nor awaited. A Prometheus that does not answer about ReplicaSets is not
        asked about pods.

        Args:
            world: as it was observed.
            due: the services, the most urgent first.
        """
        chosen, wanted = self._next(world, due)
        told = await self._pods.read(wanted)
        failed = {watch: sums for watch, sums in world.sums.items() if sums.error is not None}
        readings = {**world.readings, **failed, **{watch: answer.reading for watch, answer in told.items()}}
        ready, awaited, late = [], set(), set()
        for service in chosen:
            uid, watch = service.metadata.uid, self._queries.watch_of(service)
            answer = told.get(watch)
            if watch in wanted and (answer is None or target_name(service) not in answer.about):
                awaited.add(uid)
                continue
            ready.append(uid)
            if answer is not None and answer.late:
                late.add(uid)
        if awaited:
            # Services behind them wait for the next regular cycle too: asked for at once, they would get no answer.
            awaited |= {service.metadata.uid for service in due[len(chosen) :]}
        return Legible(replace(world, readings=readings), ready, frozenset(awaited), frozenset(late))

    def _next(
        self, world: Snapshot, due: Sequence[SpeculativeService]
    ) -> tuple[list[SpeculativeService], dict[Watch, Wanted]]:
        """The first of those that are due whose pods fit into one answer, at least one, and what to ask for them."""
        pods: dict[Watch, dict[NamespacedName, int]] = defaultdict(dict)
        lost: set[Watch] = set()
        chosen: list[SpeculativeService] = []
        room = self._pods_per_query
        for service in due:
            watch = self._queries.watch_of(service)
            sums = world.sums.get(watch)
            if sums is not None and sums.error is None:
                target, own = target_name(service), world.target_pods(service)
                more = len(own) if target not in pods.get(watch, ()) else 0
                if pods and more > max(room, 0):
                    break
                room -= more
                pods[watch][target] = len(own)
                if own and not any(_siblings(pod) in sums.pods for pod in own):
                    lost.add(watch)
            chosen.append(service)
        return chosen, {watch: Wanted(counts, watch in lost) for watch, counts in pods.items()}


def _siblings(pod: Manifest) -> NamespacedName:
    return NamespacedName(pod["metadata"]["namespace"], siblings_of(pod["metadata"]["name"]))


# Present figures of single pods in fleets too large to be read pod by pod: of the services that are decided about next.


@dataclass(frozen=True, slots=True)
class Wanted:
    """The workloads whose pods are asked for.

    Attributes:
        pods: how many each of them has.
        lost: whether one has pods and no series: then it is asked whose series there are anywhere.
    """

    pods: Mapping[NamespacedName, int]
    lost: bool


class PodsAnswer(NamedTuple):
    """The newest answer.

    Attributes:
        about: which workloads.
        reading: what it says of their pods.
        late: whether it was asked for in an earlier cycle.
    """

    about: Collection[NamespacedName]
    reading: FleetReading
    late: bool


class PresentPods(FleetAnswers[Wanted]):
    """The newest answers, one per Watch; one that comes late is of use to a later cycle."""

    async def read(self, wanted: Mapping[Watch, Wanted]) -> dict[Watch, PodsAnswer]:
        """The newest answer of each Watch that has one that is no older than its staleness.

        Args:
            wanted: by what is asked; nothing else is remembered.
        """
        began_s = self._clock.monotonic()
        known = await self._about(wanted)
        now_s = self._clock.monotonic()
        return {
            watch: PodsAnswer(answer.subjects.pods.keys(), answer.reading, answer.asked_s < began_s)
            for watch, answer in known.items()
            if now_s - answer.asked_s <= watch.staleness_s
        }

    async def _ask(self, source: PrometheusAccess, watch: Watch, wanted: Wanted) -> Said[FleetReading]:
        return await self._read(source, _promql(watch, wanted))


def _promql(watch: Watch, wanted: Wanted) -> Iterator[str]:
    for place, part in enumerate(parted(wanted.pods, PODS_PER_QUERY)):
        yield fleet_query(
            sorted({one.namespace for one in part}),
            watch.engines,
            watch.window_s,
            watch.staleness_s,
            workloads=[one.name for one in part],
            anywhere=wanted.lost and place == 0,
        )


# Arrivals at the targets' pods: an answer covers six windows, so the question is put once per window.


# A pod has 240 values of 25 bytes: ten pods each make 3 MiB.
_ARRIVALS_PER_QUERY = 50


class PresentArrivals(PrometheusAnswers[frozenset[NamespacedName], RollReading]):
    """The newest answers, one per Watch; an earlier one stands, because the past does not change."""

    async def read(
        self, services: Iterable[SpeculativeService], watch_of: Callable[[SpeculativeService], Watch]
    ) -> dict[Watch, RollReading]:
        """The newest answer about the services' targets."""
        return await self._readings(targets_of(services, watch_of))

    def _pause_s(self, watch: Watch) -> float:
        return float(watch.window_s)

    async def _ask(
        self, source: PrometheusAccess, watch: Watch, targets: frozenset[NamespacedName]
    ) -> Said[RollReading]:
        pods: dict[SeriesOwner, Mapping[str, FloatArray]] = {}
        for part in parted(dict.fromkeys(targets, 1), _ARRIVALS_PER_QUERY):
            promql = arrivals_query(part, watch.engines, watch.window_s)
            # One answer at a time is read: all of a large fleet at once would keep the loop from everything else.
            pods |= read_roll(await self._metrics.query_past(source, promql)).pods
        return Said(RollReading(pods=pods), not pods)

    def _without(self, error: str) -> RollReading:
        return RollReading(error=error)


# Present latencies of services that have objectives: asked beside the loads, so that neither answer waits for the other.


# Sixty-five buckets of each ReplicaSet, of which a roll has two, at 250 bytes: half of what an answer may have.
_LATENCIES_PER_QUERY = 250


class PresentLatencies(PrometheusAnswers[frozenset[NamespacedName], LatencyReading]):
    """The newest answers, one per Watch; one that is older than the Watch's staleness is none."""

    async def read(
        self, services: Iterable[SpeculativeService], watch_of: Callable[[SpeculativeService], Watch]
    ) -> dict[Watch, LatencyReading]:
        """The newest answer about the targets of the services that have objectives; nothing if none has any."""
        wanted = targets_of((one for one in services if objectives_of(one.spec.slo)), watch_of)
        known = await self._about(wanted)
        return {watch: self._newest(watch, known.get(watch), found) for watch, found in wanted.items()}

    def _newest(
        self,
        watch: Watch,
        known: Answer[frozenset[NamespacedName], LatencyReading] | None,
        targets: frozenset[NamespacedName],
    ) -> LatencyReading:
        late = known is not None and self._clock.monotonic() - known.asked_s > watch.staleness_s
        if known is None or late or not targets <= known.subjects:
            return self._without("it has not answered in time")
        return known.reading

    async def _ask(
        self, source: PrometheusAccess, watch: Watch, targets: frozenset[NamespacedName]
    ) -> Said[LatencyReading]:
        counts: dict[LatencyOwner, Mapping[str, Mapping[float, float]]] = {}
        for part in parted(dict.fromkeys(targets, 1), _LATENCIES_PER_QUERY):
            promql = latency_query(part, watch.engines, watch.window_s)
            counts |= read_latencies(await self._metrics.query(source, promql)).counts
        return Said(LatencyReading(counts), not counts)

    def _without(self, error: str) -> LatencyReading:
        return LatencyReading(error=error)

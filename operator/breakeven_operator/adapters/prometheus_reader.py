"""Questions to every Prometheus in a cycle: a fixed number of queries, however many services there are."""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from breakeven.serving.engine_series import EngineSeries
from breakeven.serving.promql import Matcher
from breakeven_operator.adapters.background import SETTLE_S
from breakeven_operator.adapters.past_loads import History, Lookback
from breakeven_operator.adapters.present_arrivals import PresentArrivals
from breakeven_operator.adapters.present_latencies import PresentLatencies
from breakeven_operator.adapters.present_loads import PODS_PER_QUERY, Present, PresentSums, prometheus_of
from breakeven_operator.adapters.present_pods import PresentPods, Wanted
from breakeven_operator.adapters.prometheus_answers import Watch
from breakeven_operator.adapters.roll_blocks import LaterFailures, RollBlocks, under_way
from breakeven_operator.adapters.snapshot import Legible, Snapshot
from breakeven_operator.adapters.workload_pasts import WorkloadPast, WorkloadPasts
from breakeven_operator.kinds import NamespacedName
from breakeven_operator.ports import Clock, Fitter, Manifest, Metrics, PrometheusAccess
from breakeven_operator.reconcile.first_answer import AWAITED, FirstAnswer, cost_of, facts_of
from breakeven_operator.reconcile.fleet_query import past_step_s, siblings_of, workload_of
from breakeven_operator.reconcile.latency_metrics import LatencyReading
from breakeven_operator.reconcile.live_metrics import FleetReading
from breakeven_operator.reconcile.past_metrics import PastReading
from breakeven_operator.reconcile.roll_failures import LaterReading, RollAnswer
from breakeven_operator.reconcile.roll_metrics import RollReading
from breakeven_operator.resources import SpeculativeService
from breakeven_operator.resources.calibrationspec import PastUse
from breakeven_operator.workloads.known import kind_at, target_name, target_of, with_halves
from breakeven_operator.workloads.object_facts import owner_uid

# Cycles that follow each other at once ask no Prometheus more often than this: an answer about ten thousand pods is expensive.
_SOON_S = 10.0
SOURCES_PER_NAMESPACE = 4


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
        self._default_source = default_source
        self._clock = clock
        self._last: RoundOfAnswers | None = None
        tell = counted or (lambda _outcome: None)
        self._present = Present(metrics, clock, tell, settle_s)
        self._sums = PresentSums(metrics, clock, tell, settle_s)
        self._pods = PresentPods(metrics, clock, tell, settle_s)
        self._latencies = PresentLatencies(metrics, clock, tell, settle_s)
        self._history = History(metrics, clock, tell, settle_s)
        self._rolls = RollBlocks(metrics, clock, tell, settle_s)
        self._later = LaterFailures(metrics, clock, tell, settle_s)
        self._arrivals = PresentArrivals(metrics, clock, tell, settle_s)
        self._firsts = WorkloadPasts(metrics, fitter, clock, tell) if fitter is not None else None

    async def close(self) -> None:
        """End the queries that are under way."""
        parts = (
            self._present,
            self._sums,
            self._pods,
            self._latencies,
            self._history,
            self._rolls,
            self._later,
            self._arrivals,
        )
        await asyncio.gather(*(part.close() for part in parts))
        if self._firsts is not None:
            await self._firsts.close()

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
            (self.watch_of(service), self.lookback_of(service), service.metadata.namespace)
            for service in services
        )
        last, now_s = self._last, self._clock.monotonic()
        fresh = last is not None and last.about == about and now_s - last.asked_s < _SOON_S
        if soon and last is not None and fresh and last.whole:
            return last
        asked, surplus = self._within_limits(services)
        small, large = self._fleets(asked, pods)
        (readings, sums, pasts), (latencies, rolls, later, arrivals) = await asyncio.gather(
            asyncio.gather(self._present.read(small), self._sums.read(large), self._pasts(asked)),
            asyncio.gather(
                self._latencies.read(asked, self.watch_of),
                self._rolls.read(under_way(asked, self.watch_of)),
                self._later.read(asked, self.watch_of),
                self._arrivals.read(asked, self.watch_of),
            ),
        )
        self._last = RoundOfAnswers(
            about, now_s, {**readings, **surplus}, pasts, latencies, rolls, later, sums, arrivals
        )
        return self._last

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
            uid, watch = service.metadata.uid, self.watch_of(service)
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

    async def firsts(self, world: Snapshot) -> dict[str, FirstAnswer]:
        """The pasts of services of which nothing is measured, by uid."""
        if self._firsts is None:
            return {}
        about = self._without_profile(world)
        asked = {uid: one for uid, one in about.items() if one is not None}
        awaited = dict.fromkeys(about.keys() - asked.keys(), AWAITED)
        return await self._firsts.read(asked) | awaited

    def _without_profile(self, world: Snapshot) -> dict[str, WorkloadPast | None]:
        """Questions about the pasts of services of which nothing is measured, by uid; None: after the first look at the target."""
        asked, _ = self._within_limits(world.services)
        found: dict[str, WorkloadPast | None] = {}
        for service in asked:
            watch, name, target = self.watch_of(service), target_name(service), target_of(service)
            measured = world.profiles.get(NamespacedName(service.metadata.namespace, service.metadata.name))
            pods = [pod["metadata"]["name"] for pod in world.target_pods(service)]
            ignored, seen = service.spec.calibration.past is PastUse.IGNORE, service.status.target
            if measured or ignored or watch.source is None or not pods:
                continue
            if seen is None or not seen.model:
                found[service.metadata.uid] = None
                continue
            rolled = kind_at(target.resource).rolled
            words = {method.method for method in service.spec.candidates.methods}
            found[service.metadata.uid] = WorkloadPast(
                watch.source,
                watch.engines,
                name.namespace,
                name.name,
                workload_of(pods[0]) if rolled else "",
                frozenset() if rolled else frozenset(map(siblings_of, pods)),
                service.spec.candidates.arms(),
                words.pop() if len(words) == 1 else None,
                facts_of(seen),
                cost_of(service.spec, seen),
            )
        return found

    async def ask_nothing(self) -> None:
        """There is no service: end the queries that are under way, and forget their answers."""
        await asyncio.gather(
            self._present.read({}),
            self._sums.read({}),
            self._pods.read({}),
            self._pasts(()),
            self._latencies.read((), self.watch_of),
            self._rolls.read({}),
            self._later.read((), self.watch_of),
            self._arrivals.read((), self.watch_of),
            *((self._firsts.read({}),) if self._firsts is not None else ()),
        )

    def watch_of(self, service: SpeculativeService) -> Watch:
        """How a service is watched; equal watches share one query."""
        source = service.spec.metrics_source
        matchers = tuple(Matcher(m.label, m.operator.sign, m.value) for m in source.prometheus.extra_matchers)
        return Watch(
            prometheus_of(service) or self._default_source,
            EngineSeries(matchers, source.metric_prefix),
            source.window_seconds,
            source.staleness_seconds,
        )

    def lookback_of(self, service: SpeculativeService) -> Lookback | None:
        """How a service's past is read; equal lookbacks share one query. None: it is not read, or there is no Prometheus."""
        watch, lookback_s = self.watch_of(service), service.spec.update_policy.lookback_seconds
        if watch.source is None or lookback_s == 0:
            return None
        step_s = past_step_s(lookback_s, watch.window_s)
        return Lookback(watch.source, watch.engines, lookback_s, step_s)

    def _within_limits(
        self, services: Sequence[SpeculativeService]
    ) -> tuple[list[SpeculativeService], dict[Watch, FleetReading]]:
        """The services whose Prometheus is asked, and a message for the others: a namespace may name a limited number of servers.

        The oldest services of a namespace come first, so that a new one takes no figures away.
        """
        named: dict[str, set[PrometheusAccess | None]] = defaultdict(set)
        asked, refused = [], []
        for service in sorted(services, key=lambda one: str(one.metadata.creation_timestamp or "")):
            source, names = self.watch_of(service).source, named[service.metadata.namespace]
            if source == self._default_source or source in names or len(names) < SOURCES_PER_NAMESPACE:
                names |= {source} - {self._default_source}
                asked.append(service)
            else:
                refused.append(service)
        problem = f"the services of this namespace name more than {SOURCES_PER_NAMESPACE} Prometheus servers"
        kept = {self.watch_of(service) for service in asked}
        surplus = {self.watch_of(service): FleetReading({}, frozenset(), problem) for service in refused}
        return asked, {watch: reading for watch, reading in surplus.items() if watch not in kept}

    def _fleets(
        self, services: Iterable[SpeculativeService], pods: Mapping[str, Sequence[Manifest]]
    ) -> tuple[dict[Watch, dict[str, int]], dict[Watch, dict[str, int]]]:
        """Fleets that are read pod by pod, and fleets that are read by ReplicaSet: number of pods by namespace, by Watch."""
        namespaces: dict[Watch, set[str]] = defaultdict(set)
        for service in services:
            namespaces[self.watch_of(service)].add(service.metadata.namespace)
        small, large = {}, {}
        for watch, names in namespaces.items():
            numbers = {name: len(pods.get(name, ())) for name in names}
            if sum(numbers.values()) <= self._pods_per_query:
                small[watch] = numbers
            else:
                large[watch] = {name: len({owner_uid(pod) for pod in pods.get(name, ())}) for name in names}
        return small, large

    def _next(
        self, world: Snapshot, due: Sequence[SpeculativeService]
    ) -> tuple[list[SpeculativeService], dict[Watch, Wanted]]:
        """The first of those that are due whose pods fit into one answer, at least one, and what to ask for them."""
        pods: dict[Watch, dict[NamespacedName, int]] = defaultdict(dict)
        lost: set[Watch] = set()
        chosen: list[SpeculativeService] = []
        room = self._pods_per_query
        for service in due:
            watch = self.watch_of(service)
            sums = world.sums.get(watch)
            if sums is not None and sums.error is None:
                own = {target_name(one): world.target_pods(one) for one in with_halves([service])}
                more = sum(len(of) for target, of in own.items() if target not in pods.get(watch, ()))
                if pods and more > max(room, 0):
                    break
                room -= more
                pods[watch] |= {target: len(of) for target, of in own.items()}
                if any(of and not any(_siblings(pod) in sums.pods for pod in of) for of in own.values()):
                    lost.add(watch)
            chosen.append(service)
        return chosen, {watch: Wanted(counts, watch in lost) for watch, counts in pods.items()}

    async def _pasts(self, services: Iterable[SpeculativeService]) -> dict[Lookback, PastReading]:
        namespaces: dict[Lookback, Counter[str]] = defaultdict(Counter)
        for service in services:
            lookback = self.lookback_of(service)
            if lookback is not None:
                namespaces[lookback][service.metadata.namespace] += 1
        return await self._history.read(namespaces)


def _siblings(pod: Manifest) -> NamespacedName:
    return NamespacedName(pod["metadata"]["namespace"], siblings_of(pod["metadata"]["name"]))

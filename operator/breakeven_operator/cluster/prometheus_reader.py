"""Questions to every Prometheus in a cycle: a fixed number of queries, however many services there are."""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import NamedTuple

from breakeven.laws.arrays import FloatArray
from breakeven_operator.case import (
    ArmRequests,
    FirstAnswer,
    FleetReading,
    LatencyReading,
    LaterReading,
    RollAnswer,
    RollReading,
    SeriesOwner,
)
from breakeven_operator.cluster.prometheus_answers import (
    PODS_PER_QUERY,
    SETTLE_S,
    Answer,
    FleetAnswers,
    History,
    Lookback,
    Present,
    PresentSums,
    PrometheusAnswers,
    ServiceQueries,
    Watch,
    parted,
    targets_of,
)
from breakeven_operator.cluster.snapshot import Legible, Snapshot
from breakeven_operator.cluster.workload_pasts import WorkloadPasts, asked_pasts
from breakeven_operator.kinds import NamespacedName
from breakeven_operator.observing.fleet_query import (
    arrivals_query,
    block_s,
    fleet_query,
    roll_query,
    siblings_of,
)
from breakeven_operator.observing.latency_metrics import latency_query, read_latencies
from breakeven_operator.observing.objectives import objectives_of
from breakeven_operator.observing.past_metrics import AWAITED
from breakeven_operator.observing.roll_metrics import read_roll
from breakeven_operator.ports import Clock, Fitter, Manifest, Metrics, MetricsError, PrometheusAccess
from breakeven_operator.resources import SpeculativeService
from breakeven_operator.resources.targetstatus import MEASURED_PHASES
from breakeven_operator.rolls.roll_evidence import GIVE_UP_WINDOWS
from breakeven_operator.rolls.roll_failures import failures_query, later_query, read_later
from breakeven_operator.workloads.known import target_name
from breakeven_operator.workloads.object_facts import owner_uid

# Cycles that follow each other at once ask no Prometheus more often than this: an answer about ten thousand pods is expensive.
_SOON_S = 10.0
# A pod has 240 values of 25 bytes: ten pods each make 3 MiB.
_ARRIVALS_PER_QUERY = 50
# Sixty-five buckets of each ReplicaSet, of which a roll has two, at 250 bytes: half of what an answer may have.
_LATENCIES_PER_QUERY = 250
_ROLLED_PER_QUERY = 250
# Before a roll as many windows are read as can be measured after it at most.
_WINDOWS_BEFORE = GIVE_UP_WINDOWS
# Only the last hours of a longer roll are measured: the answer must have a bound.
_LONGEST_ROLL_S = 6 * 3600


class QueryLimits(NamedTuple):
    """The longest time a cycle waits for queries; a fleet of more pods than fit into one is read by ReplicaSet."""

    settle_s: float = SETTLE_S
    pods_per_query: int = PODS_PER_QUERY


class _Round(NamedTuple):
    """The answers of one cycle, the questions, and when these were put (monotonic, s)."""

    about: frozenset[tuple[Watch, Lookback | None, str]]
    asked_s: float
    answers: Snapshot

    @property
    def whole(self) -> bool:
        """Whether every Prometheus has answered; one that has not is asked again, however soon."""
        said = self.answers
        readings = (*said.readings.values(), *said.sums.values())
        return all(one.error is None for one in readings) and not any(
            past.awaited for past in said.pasts.values()
        )


class PrometheusReader:
    """Asks every Prometheus.

    Args:
        default_source: Prometheus of services that name none.
        fitter: of the rows of pasts; None if no past of a service without a profile is read.
        counted: is called with the outcome of every query: ok, empty or error.
    """

    def __init__(
        self,
        metrics: Metrics,
        clock: Clock,
        *,
        default_source: PrometheusAccess | None,
        fitter: Fitter | None = None,
        counted: Callable[[str], None] = lambda _outcome: None,
        limits: QueryLimits = QueryLimits(),  # noqa: B008 - it is frozen
    ) -> None:
        self._pods_per_query = limits.pods_per_query
        self._clock = clock
        self._last: _Round | None = None
        self.queries = ServiceQueries(default_source)
        self._firsts = WorkloadPasts(metrics, fitter, clock, counted) if fitter is not None else None
        asking = (metrics, clock, counted, limits.settle_s)
        self._present = Present(*asking)
        self._pods = PresentPods(*asking)
        self._sums = PresentSums(*asking)
        self._latencies = PresentLatencies(*asking)
        self._history = History(*asking)
        self._rolls = RollBlocks(*asking)
        self._later = LaterFailures(*asking)
        self._arrivals = PresentArrivals(*asking)

    async def close(self) -> None:
        """End the queries that are under way."""
        parts = (
            self._present,
            self._pods,
            self._sums,
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
    ) -> Snapshot:
        """A world of new answers of every Prometheus, or `soon` of answers of a moment ago if the questions are the same.

        Args:
            services: about which they are asked.
            pods: that run, by namespace.
            soon: whether this cycle follows the last one at once.
        """
        about = frozenset(
            (self.queries.watch_of(service), self.queries.lookback_of(service), service.metadata.namespace)
            for service in services
        )
        last, now_s = self._last, self._clock.monotonic()
        fresh = last is not None and last.about == about and now_s - last.asked_s < _SOON_S
        if soon and last is not None and fresh and last.whole:
            return last.answers
        asked, surplus = self.queries.within_limits(services)
        small, large = self._fleets(asked, pods)
        (readings, sums, pasts), (latencies, rolls, later, arrivals) = await asyncio.gather(
            asyncio.gather(
                self._present.read(small), self._sums.read(large), self._history.read(self._lookbacks(asked))
            ),
            asyncio.gather(
                self._latencies.read(asked, self.queries.watch_of),
                self._rolls.read(asked, self.queries.watch_of),
                self._later.read(asked, self.queries.watch_of),
                self._arrivals.read(asked, self.queries.watch_of),
            ),
        )
        answers = Snapshot(
            readings={**readings, **surplus},
            pasts=pasts,
            latencies=latencies,
            rolls=rolls,
            later=later,
            sums=sums,
            arrivals=arrivals,
        )
        self._last = _Round(about, now_s, answers)
        return answers

    async def firsts(self, world: Snapshot) -> dict[str, FirstAnswer]:
        """The pasts of services of which nothing is measured, by uid."""
        if self._firsts is None:
            return {}
        about = asked_pasts(world, self.queries)
        asked = {uid: one for uid, one in about.items() if one is not None}
        return await self._firsts.read(asked) | dict.fromkeys(about.keys() - asked.keys(), AWAITED)

    async def ask_nothing(self) -> None:
        """There is no service: end the queries that are under way, and forget their answers."""
        await self.read((), {}, soon=False)
        await self._pods.read({})
        if self._firsts is not None:
            await self._firsts.read({})

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

    async def legible(self, world: Snapshot, due: Sequence[SpeculativeService]) -> Legible:
        """The world with the readings of those services that are decided about next.

        If a fleet is read by ReplicaSet its pods are asked for here: as many as fit into one answer, so that no cycle takes
        long. The services behind them are neither ready nor awaited. A Prometheus that does not answer about ReplicaSets is not
        asked about pods. The most urgent services stand first in `due`.
        """
        chosen, wanted = self._next(world, due)
        told = await self._pods.read(wanted)
        failed = {watch: sums for watch, sums in world.sums.items() if sums.error is not None}
        readings = {**world.readings, **failed, **{watch: answer.reading for watch, answer in told.items()}}
        ready, awaited, late = [], set(), set()
        for service in chosen:
            uid, watch = service.metadata.uid, self.queries.watch_of(service)
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
        """The first services due whose pods fit into one answer, at least one, and what to ask for them."""
        pods: dict[Watch, dict[NamespacedName, int]] = defaultdict(dict)
        lost: set[Watch] = set()
        chosen: list[SpeculativeService] = []
        room = self._pods_per_query
        for service in due:
            watch = self.queries.watch_of(service)
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


@dataclass(frozen=True, slots=True)
class Wanted:
    """The workloads whose pods are asked for, with the number of these.

    If one is `lost`, it has pods and no series: then it is asked whose series there are anywhere.
    """

    pods: Mapping[NamespacedName, int]
    lost: bool


class PodsAnswer(NamedTuple):
    """The newest answer about the pods of these workloads; a late one was asked for in an earlier cycle."""

    about: Collection[NamespacedName]
    reading: FleetReading
    late: bool


class PresentPods(FleetAnswers[Wanted]):
    """Present figures of single pods of services that are decided about next, in fleets too large to be read pod by pod.

    An answer that comes late is of use to a later cycle.
    """

    async def read(self, wanted: Mapping[Watch, Wanted]) -> dict[Watch, PodsAnswer]:
        """The newest answer of each Watch that has one no older than its staleness; nothing else is remembered."""
        began_s = self._clock.monotonic()
        known = await self._about(wanted)
        now_s = self._clock.monotonic()
        return {
            watch: PodsAnswer(answer.subjects.pods.keys(), answer.reading, answer.asked_s < began_s)
            for watch, answer in known.items()
            if now_s - answer.asked_s <= watch.staleness_s
        }

    async def _ask(self, source: PrometheusAccess, watch: Watch, wanted: Wanted) -> tuple[FleetReading, bool]:
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


class PresentArrivals(PrometheusAnswers[frozenset[NamespacedName], RollReading]):
    """Arrivals at the targets' pods. An answer covers six windows, so the question is put once per window.

    An earlier answer stands, because the past does not change.
    """

    async def read(
        self, services: Iterable[SpeculativeService], watch_of: Callable[[SpeculativeService], Watch]
    ) -> dict[Watch, RollReading]:
        """The newest answer about the services' targets."""
        return await self._readings(targets_of(services, watch_of))

    def _pause_s(self, watch: Watch) -> float:
        return float(watch.window_s)

    async def _ask(
        self, source: PrometheusAccess, watch: Watch, targets: frozenset[NamespacedName]
    ) -> tuple[RollReading, bool]:
        pods: dict[SeriesOwner, Mapping[str, FloatArray]] = {}
        for part in parted(dict.fromkeys(targets, 1), _ARRIVALS_PER_QUERY):
            promql = arrivals_query(part, watch.engines, watch.window_s)
            # One answer at a time is read: all of a large fleet at once would keep the loop from everything else.
            pods |= read_roll(await self._metrics.query_past(source, promql)).pods
        return RollReading(pods=pods), not pods

    def _without(self, error: str) -> RollReading:
        return RollReading(error=error)


class PresentLatencies(PrometheusAnswers[frozenset[NamespacedName], LatencyReading]):
    """Present latencies of services that have objectives: asked beside the loads, so that neither answer waits for the other.

    An answer that is older than the Watch's staleness is none.
    """

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
    ) -> tuple[LatencyReading, bool]:
        counts: dict[SeriesOwner, Mapping[str, Mapping[float, float]]] = {}
        for part in parted(dict.fromkeys(targets, 1), _LATENCIES_PER_QUERY):
            promql = latency_query(part, watch.engines, watch.window_s)
            counts |= read_latencies(await self._metrics.query(source, promql)).counts
        return LatencyReading(counts), not counts

    def _without(self, error: str) -> LatencyReading:
        return LatencyReading(error=error)


@dataclass(frozen=True, slots=True)
class RolledTarget:
    """A workload that is rolled, and since when."""

    namespace: str
    deployment: str
    started: datetime


class RollBlocks(PrometheusAnswers[frozenset[RolledTarget], RollAnswer]):
    """The newest answers, one per Watch with a roll under way. An earlier answer stays valid, because past blocks do not change."""

    async def read(
        self, services: Iterable[SpeculativeService], watch_of: Callable[[SpeculativeService], Watch]
    ) -> dict[Watch, RollAnswer]:
        """The newest answer about the targets whose rolls are measured now; mostly none."""
        targets: dict[Watch, set[RolledTarget]] = defaultdict(set)
        for service in services:
            rollout = service.status.rollout
            if rollout is None or rollout.phase not in MEASURED_PHASES or rollout.started_time is None:
                continue
            targets[watch_of(service)].add(RolledTarget(*target_name(service), rollout.started_time))
        return await self._readings({watch: frozenset(found) for watch, found in targets.items()})

    async def _ask(
        self, source: PrometheusAccess, watch: Watch, targets: frozenset[RolledTarget]
    ) -> tuple[RollAnswer, bool]:
        started = min(target.started for target in targets)
        since_s = (self._clock.now() - started).total_seconds() + _WINDOWS_BEFORE * watch.window_s
        names = [(target.namespace, target.deployment) for target in targets]
        span_s, step_s = int(min(since_s, _LONGEST_ROLL_S)), block_s(watch.window_s)
        promql = roll_query(names, watch.engines, span_s, step_s)
        reading = read_roll(await self._metrics.query_past(source, promql))
        try:
            asked = failures_query(names, watch.engines, span_s, step_s)
            failures = read_roll(await self._metrics.query_past(source, asked))
        except MetricsError as error:
            # Latencies are judged without failures, and a note says that failures are missing.
            failures = RollReading(error=str(error))
        return RollAnswer(reading, failures), not reading.pods

    def _without(self, error: str) -> RollAnswer:
        return RollAnswer(RollReading(error=error), RollReading(error=error))


class LaterFailures(PrometheusAnswers[frozenset[NamespacedName], LaterReading]):
    """The newest answers about requests after the last word of a roll, over as many windows as one is measured for.

    Asked once per window at most: the answer is about six of them.
    """

    async def read(
        self, services: Iterable[SpeculativeService], watch_of: Callable[[SpeculativeService], Watch]
    ) -> dict[Watch, LaterReading]:
        """The newest answer about the targets whose last roll was judged by failures too; mostly all that speculate."""
        return await self._readings(targets_of(filter(_is_looked_back_at, services), watch_of))

    def _pause_s(self, watch: Watch) -> float:
        return float(watch.window_s)

    async def _ask(
        self, source: PrometheusAccess, watch: Watch, targets: frozenset[NamespacedName]
    ) -> tuple[LaterReading, bool]:
        found: dict[NamespacedName, ArmRequests] = {}
        for part in parted(dict.fromkeys(targets, 1), _ROLLED_PER_QUERY):
            promql = later_query(part, watch.engines, GIVE_UP_WINDOWS * watch.window_s)
            found |= read_later(await self._metrics.query(source, promql)).requests
        return LaterReading(found), not found

    def _without(self, error: str) -> LaterReading:
        return LaterReading(error=error)


def _is_looked_back_at(service: SpeculativeService) -> bool:
    memory = service.status.memory
    return memory is not None and memory.requests_before is not None and service.status.rollout is None

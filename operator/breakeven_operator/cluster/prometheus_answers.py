"""The questions that each Prometheus is asked, and the newest answer to each: services with equal questions share one query.

A cycle asks all servers at the same time and waits briefly; a query that takes longer goes on, and its answer serves a later cycle.
Past loads are asked for seldom, because a history of days hardly changes in a cycle and is expensive to compute.

An answer about ten thousand pods takes two seconds to read. So a fleet that fits into one answer is read pod by pod, and a larger one
by ReplicaSet. The sums show which services have moved, and the pods of those are asked for afterwards (`prometheus_reader.py`).
"""

from __future__ import annotations

import asyncio
import functools
import logging
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable, Collection, Coroutine, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

from breakeven.phrases import duration_text
from breakeven.planning.forecast import PastRates
from breakeven.serving.promql import SAME_LABELS, EngineSeries, LabelNames, Matcher
from breakeven_operator.case import FleetReading, PastReading, SeriesOwner
from breakeven_operator.kinds import NamespacedName
from breakeven_operator.observing.fleet_query import fleet_query, past_query, past_step_s, sums_query
from breakeven_operator.observing.live_metrics import read_fleet
from breakeven_operator.observing.past_metrics import read_past
from breakeven_operator.ports import (
    Clock,
    Header,
    Metrics,
    MetricsError,
    PrometheusAccess,
    SecretHeader,
    SecretKey,
)
from breakeven_operator.resources import SpeculativeService
from breakeven_operator.workloads.known import target_name

K = TypeVar("K")
SETTLE_S = 2.0


class Background(Generic[K]):
    """At most one task per key; the tasks run side by side and outlive the cycle that began them.

    A key whose last task took longer than `settle_s` is not waited for again until a task of it is quick: a server that
    hangs costs the cycles `settle_s` once, and nothing after that. Every task must end by itself. `close` it.

    Args:
        settle_s: longest wait for the tasks of one `run`.
        first_s: how much longer to wait for the first task of all.
    """

    def __init__(self, settle_s: float = SETTLE_S, *, first_s: float = 0.0) -> None:
        self.settle_s = settle_s
        self._first_s = first_s
        self._any_ended = False
        self._tasks: dict[K, asyncio.Task[None]] = {}
        self._slow: set[K] = set()
        # The event loop itself holds tasks weakly: one that is on its way out is held here.
        self._leaving: set[asyncio.Task[None]] = set()

    async def run(
        self, wanted: Collection[K], due: Mapping[K, Callable[[], Coroutine[Any, Any, None]]]
    ) -> None:
        """Begin the tasks that are due and not under way, and wait for them briefly; tasks without a wanted key are cancelled.

        Raises:
            Exception: what a task raised.
        """
        self._end(self._tasks.keys() - set(wanted))
        self._slow &= set(wanted)
        self._reap()
        begun = {
            key: asyncio.create_task(self._timed(key, work), name="background")
            for key, work in due.items()
            if key not in self._tasks
        }
        self._tasks |= begun
        quick = {key: task for key, task in begun.items() if key not in self._slow}
        if quick:
            await asyncio.wait(quick.values(), timeout=self.settle_s)
            if not self._any_ended:
                await asyncio.wait(quick.values(), timeout=self._first_s, return_when=asyncio.FIRST_COMPLETED)
            self._slow |= {key for key, task in quick.items() if not task.done()}
        self._reap()

    async def close(self) -> None:
        """Cancel all tasks and see them end."""
        self._end(set(self._tasks))
        await asyncio.gather(*self._leaving, return_exceptions=True)

    async def _timed(self, key: K, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        await work()
        self._any_ended = True
        (self._slow.discard if loop.time() - began_s <= self.settle_s else self._slow.add)(key)

    def _end(self, keys: Collection[K]) -> None:
        for key in keys:
            task = self._tasks.pop(key)
            self._leaving.add(task)
            task.add_done_callback(self._leaving.discard)
            task.cancel()

    def _reap(self) -> None:
        for key, task in list(self._tasks.items()):
            if task.done():
                del self._tasks[key]
                if not task.cancelled():
                    task.result()


Subjects = TypeVar("Subjects")
Name = TypeVar("Name", bound=str | tuple[str, ...])
Reading = TypeVar("Reading")
_LOG = logging.getLogger(__name__)
# The first answer is worth a longer wait. Otherwise every restart of the operator reports missing figures for a thousand
# services, and a cycle later that they are back.
_FIRST_WAITS = 4


@dataclass(frozen=True, slots=True)
class Watch:
    """One Prometheus, and the question about the services that share it."""

    source: PrometheusAccess | None
    engines: EngineSeries
    window_s: int
    staleness_s: int


@dataclass(frozen=True, slots=True)
class Answer(Generic[Subjects, Reading]):
    """The newest answer to a Watch: figures or an error, about what was asked then (monotonic, s)."""

    subjects: Subjects
    reading: Reading
    asked_s: float


class PrometheusAnswers(ABC, Generic[Subjects, Reading]):
    """One kind of question, and its newest answers, one per Watch; a failure is an answer too.

    A query that does not end while a cycle waits goes on, and its answer serves a later cycle.

    Args:
        counted: is called with the outcome of every query: ok, empty or error.
        settle_s: longest time a cycle waits; five times as long for the first answer of all.
    """

    def __init__(
        self, metrics: Metrics, clock: Clock, counted: Callable[[str], None], settle_s: float
    ) -> None:
        self._metrics = metrics
        self._clock = clock
        self._settle_s = settle_s
        self._counted = counted
        self._queries: Background[Watch] = Background(settle_s, first_s=_FIRST_WAITS * settle_s)
        self._answers: dict[Watch, Answer[Subjects, Reading]] = {}

    @abstractmethod
    async def _ask(self, source: PrometheusAccess, watch: Watch, subjects: Subjects) -> tuple[Reading, bool]:
        """Put the question to a Prometheus: its answer, and whether that is empty.

        Raises:
            MetricsError, ValueError: there is no usable answer.
        """

    @abstractmethod
    def _without(self, error: str) -> Reading:
        """A reading that holds an error and no figures."""

    async def _about(self, wanted: Mapping[Watch, Subjects]) -> Mapping[Watch, Answer[Subjects, Reading]]:
        """The newest answers, some of them from earlier cycles and about what was wanted then; nothing else is remembered."""
        self._answers = {watch: answer for watch, answer in self._answers.items() if watch in wanted}
        due = {
            watch: functools.partial(self._put, watch.source, watch, subjects)
            for watch, subjects in wanted.items()
            if watch.source is not None and self._is_due(watch, subjects)
        }
        await self._queries.run(wanted, due)
        return dict(self._answers)

    async def _readings(self, wanted: Mapping[Watch, Subjects]) -> dict[Watch, Reading]:
        """The figures of the newest answers, however old they are."""
        return {watch: answer.reading for watch, answer in (await self._about(wanted)).items()}

    def _pause_s(self, watch: Watch) -> float:  # noqa: ARG002 - of the kinds of question that have one
        """How long an answer about the same subjects stands before the question is put again, s."""
        return 0.0

    def _is_due(self, watch: Watch, subjects: Subjects) -> bool:
        known = self._answers.get(watch)
        if known is None or known.subjects != subjects:
            return True
        return self._clock.monotonic() - known.asked_s >= self._pause_s(watch)

    async def close(self) -> None:
        """End the queries that are under way."""
        await self._queries.close()

    async def _put(self, source: PrometheusAccess, watch: Watch, subjects: Subjects) -> None:
        asked_s = self._clock.monotonic()
        try:
            reading, empty = await self._ask(source, watch, subjects)
            outcome = "empty" if empty else "ok"
        except (MetricsError, ValueError) as error:
            reading, outcome = self._without(str(error)), "error"
        except Exception as error:  # noqa: BLE001 - reported in full, and the other sources' services go on
            # One server's surprise must not take the figures of the others away.
            _LOG.exception("reading the answer of %s failed", source.name)
            reading = self._without(f"reading the answer of {source.name} failed ({type(error).__name__})")
            outcome = "error"
        self._counted(outcome)
        self._answers[watch] = Answer(subjects, reading, asked_s)


def targets_of(
    services: Iterable[SpeculativeService], watch_of: Callable[[SpeculativeService], Watch]
) -> dict[Watch, frozenset[NamespacedName]]:
    """The services' targets, by how their services are watched."""
    found: dict[Watch, set[NamespacedName]] = defaultdict(set)
    for service in services:
        found[watch_of(service)].add(target_name(service))
    return {watch: frozenset(targets) for watch, targets in found.items()}


def parted(sizes: Mapping[Name, int], most: int) -> Iterator[list[Name]]:
    """Names in groups that each fit into one answer of Prometheus; at least one group.

    Each name adds its size, and an answer may hold `most`. A name that is too large alone is a group of its own.
    """
    group: list[Name] = []
    size = 0
    for name in sorted(sizes):
        if group and size + sizes[name] > most:
            yield group
            group, size = [], 0
        group.append(name)
        size += sizes[name]
    yield group


# After a failure the next cycles do not wait again; the query is repeated soon, so that one bad second costs no day.
_RETRY_S = 60.0
# Past days change slowly: an answer of some hours ago still has most of them.
_KEPT_STEPS = 12
# A day of a service in steps of five minutes takes 9 kB, and ten times as much while it is read.
_SERVICES_PER_QUERY = 300


@dataclass(frozen=True, slots=True)
class Lookback:
    """One Prometheus, and the question about the past of the services that share it; rates have the distance `step_s`."""

    source: PrometheusAccess
    engines: EngineSeries
    lookback_s: int
    step_s: int


@dataclass(frozen=True, slots=True)
class _PastAnswer:
    """The newest usable answer to one Lookback, else the error; when it was taken, and when to ask again (monotonic, s)."""

    namespaces: frozenset[str]
    reading: PastReading
    taken_s: float
    due_s: float


class History:
    """Answers from memory for one step.

    A query that does not end while a cycle waits goes on. The answer before it stands meanwhile; if there is none,
    the reading says which namespaces still wait for their first one. `counted` hears ok, empty or error of every query.
    """

    def __init__(
        self,
        metrics: Metrics,
        clock: Clock,
        counted: Callable[[str], None],
        settle_s: float = SETTLE_S,
    ) -> None:
        self._metrics = metrics
        self._clock = clock
        self._counted = counted
        self._queries: Background[Lookback] = Background(settle_s)
        self._answers: dict[Lookback, _PastAnswer] = {}

    async def read(self, wanted: Mapping[Lookback, Mapping[str, int]]) -> dict[Lookback, PastReading]:
        """The past of these namespaces, which come with their numbers of services; a failure is an answer too.

        Nothing else is remembered.
        """
        self._answers = {lookback: a for lookback, a in self._answers.items() if lookback in wanted}
        due = {
            lookback: functools.partial(self._ask, lookback, namespaces)
            for lookback, namespaces in wanted.items()
            if self._is_due(lookback, namespaces.keys())
        }
        await self._queries.run(wanted, due)
        return {
            lookback: self._newest(lookback, namespaces.keys()) for lookback, namespaces in wanted.items()
        }

    async def close(self) -> None:
        """End the queries that are under way."""
        await self._queries.close()

    def _newest(self, lookback: Lookback, namespaces: AbstractSet[str]) -> PastReading:
        known = self._answers.get(lookback)
        if known is None:
            return PastReading(awaited=frozenset(namespaces))
        return replace(known.reading, awaited=frozenset(namespaces - known.namespaces))

    def _is_due(self, lookback: Lookback, namespaces: AbstractSet[str]) -> bool:
        known = self._answers.get(lookback)
        return known is None or self._clock.monotonic() >= known.due_s or not namespaces <= known.namespaces

    async def _ask(self, lookback: Lookback, services: Mapping[str, int]) -> None:
        namespaces = frozenset(services)
        try:
            rates: dict[SeriesOwner, PastRates] = {}
            for part in parted(services, _SERVICES_PER_QUERY):
                promql = past_query(part, lookback.engines, lookback.lookback_s, lookback.step_s)
                rates |= read_past(await self._metrics.query_past(lookback.source, promql)).rates
            reading = PastReading(rates)
        except (MetricsError, ValueError) as error:
            self._answers[lookback] = self._failed(lookback, namespaces, str(error))
        except Exception as error:  # noqa: BLE001 - reported in full, and the other sources' services go on
            _LOG.exception("reading the answer of %s failed", lookback.source.name)
            said = f"reading the answer of {lookback.source.name} failed ({type(error).__name__})"
            self._answers[lookback] = self._failed(lookback, namespaces, said)
        else:
            self._counted("ok" if reading.rates else "empty")
            now_s = self._clock.monotonic()
            self._answers[lookback] = _PastAnswer(namespaces, reading, now_s, now_s + lookback.step_s)

    def _failed(self, lookback: Lookback, namespaces: frozenset[str], error: str) -> _PastAnswer:
        self._counted("error")
        known = self._answers.get(lookback)
        now_s = self._clock.monotonic()
        due_s = now_s + min(_RETRY_S, lookback.step_s)
        fresh = known is not None and now_s - known.taken_s < _KEPT_STEPS * lookback.step_s
        if known is not None and known.reading.error is None and fresh:
            return _PastAnswer(namespaces, known.reading, known.taken_s, due_s)
        if known is None or known.reading.error != error:
            _LOG.warning(
                "loads of the past %s cannot be read, so present loads are taken to last: %s",
                duration_text(lookback.lookback_s),
                error,
            )
        return _PastAnswer(namespaces, PastReading(error=error), now_s, due_s)


# A pod, or a ReplicaSet, takes some 20 series of 200 bytes each, and five times as much while they are read.
PODS_PER_QUERY = 500


def prometheus_of(service: SpeculativeService) -> PrometheusAccess | None:
    """The Prometheus a service names; None if it names none."""
    given = service.spec.metrics_source.prometheus
    if given.address is None:
        return None
    bearer, authority, tls = given.bearer_token_secret_ref, given.ca_secret_ref, given.client_cert_secret_ref
    tenant = given.tenant_header
    secret = tenant.value_secret_ref if tenant is not None else None
    return PrometheusAccess(
        address=given.address,
        # Only where Secrets are read does the namespace make two sources different.
        namespace=service.metadata.namespace if any((bearer, authority, tls, secret)) else "",
        bearer_secret=SecretKey(bearer.name, bearer.key) if bearer is not None else None,
        ca_secret=SecretKey(authority.name, authority.key) if authority is not None else None,
        cert_secret=SecretKey(tls.name, "tls.crt") if tls is not None else None,
        key_secret=SecretKey(tls.name, "tls.key") if tls is not None else None,
        headers=(Header(tenant.name, tenant.value),)
        if tenant is not None and tenant.value is not None
        else (),
        secret_headers=(SecretHeader(tenant.name, SecretKey(secret.name, secret.key)),)
        if tenant is not None and secret is not None
        else (),
        labels=LabelNames(given.label_names.namespace, given.label_names.pod)
        if given.label_names is not None
        else SAME_LABELS,
    )


class FleetAnswers(PrometheusAnswers[Subjects, FleetReading]):
    """Answers about fleets, each put together from those to one or several queries."""

    async def _read(self, source: PrometheusAccess, queries: Iterable[str]) -> tuple[FleetReading, bool]:
        # One after another, because two answers at a time would be in memory at a time.
        readings = [read_fleet(await self._metrics.query(source, promql)) for promql in queries]
        whole = functools.reduce(_together, readings, FleetReading({}, frozenset()))
        return whole, not whole.pods

    def _without(self, error: str) -> FleetReading:
        return FleetReading({}, frozenset(), error)


class Present(FleetAnswers[Mapping[str, int]]):
    """The newest answers, one per Watch.

    An answer of an earlier cycle counts as long as it is no older than the Watch's staleness. Until then the Watch's services,
    and no others, have no figures.
    """

    async def read(self, wanted: Mapping[Watch, Mapping[str, int]]) -> dict[Watch, FleetReading]:
        """The newest answer about these namespaces; without one, a reading that says why.

        Numbers of pods by namespace are wanted; nothing else is remembered.
        """
        known = await self._about(wanted)
        return {
            watch: self._newest(watch, known.get(watch), namespaces) for watch, namespaces in wanted.items()
        }

    def _newest(
        self,
        watch: Watch,
        known: Answer[Mapping[str, int], FleetReading] | None,
        namespaces: Mapping[str, int],
    ) -> FleetReading:
        if watch.source is None:
            return self._without("no address: set metricsSource.prometheus.address")
        if known is None or not namespaces.keys() <= known.subjects.keys():
            return self._without(f"{watch.source.name} has not answered within {self._settle_s:g} s")
        if known.reading.error is not None:
            return known.reading
        if self._clock.monotonic() - known.asked_s > watch.staleness_s:
            return self._without(f"{watch.source.name} has not answered within {watch.staleness_s} s")
        return known.reading

    async def _ask(
        self, source: PrometheusAccess, watch: Watch, namespaces: Mapping[str, int]
    ) -> tuple[FleetReading, bool]:
        return await self._read(source, self._promql(watch, namespaces))

    def _promql(self, watch: Watch, namespaces: Mapping[str, int]) -> Iterator[str]:
        for place, part in enumerate(parted(namespaces, PODS_PER_QUERY)):
            yield fleet_query(part, watch.engines, watch.window_s, watch.staleness_s, anywhere=place == 0)


class PresentSums(Present):
    """The newest sums over ReplicaSets, one per Watch, whose numbers take the place of numbers of pods."""

    def _promql(self, watch: Watch, namespaces: Mapping[str, int]) -> Iterator[str]:
        for part in parted(namespaces, PODS_PER_QUERY):
            yield sums_query(part, watch.engines, watch.window_s, watch.staleness_s)


def _together(one: FleetReading, other: FleetReading) -> FleetReading:
    """Two answers about different parts of a fleet, as old as the older one."""
    times = [time_s for time_s in (one.evaluated_s, other.evaluated_s) if time_s is not None]
    return replace(
        one,
        pods={**one.pods, **other.pods},
        present=one.present | other.present,
        silent=one.silent | other.silent,
        down=one.down | other.down,
        renamed={**one.renamed, **other.renamed},
        turned_away={**one.turned_away, **other.turned_away},
        evaluated_s=min(times, default=None),
    )


SOURCES_PER_NAMESPACE = 4


class ServiceQueries:
    """The questions about services; a service that names no Prometheus has the default one."""

    def __init__(self, default_source: PrometheusAccess | None) -> None:
        self._default_source = default_source

    def watch_of(self, service: SpeculativeService) -> Watch:
        """How a service is watched; equal watches share one query."""
        source = service.spec.metrics_source
        matchers = tuple(Matcher(m.label, "=", m.value) for m in source.prometheus.extra_matchers)
        return Watch(
            prometheus_of(service) or self._default_source,
            EngineSeries(matchers, source.metric_prefix),
            source.window_seconds,
            source.staleness_seconds,
        )

    def lookback_of(self, service: SpeculativeService) -> Lookback | None:
        """How a service's past is read; equal lookbacks share one query. None if it is not read, or there is no Prometheus."""
        watch, lookback_s = self.watch_of(service), service.spec.update_policy.lookback_seconds
        if watch.source is None or lookback_s == 0:
            return None
        step_s = past_step_s(lookback_s, watch.window_s)
        return Lookback(watch.source, watch.engines, lookback_s, step_s)

    def within_limits(
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

"""The questions that each Prometheus is asked, as one table, and the runner that puts them and keeps the newest answers.

An answer about ten thousand pods takes two seconds to read. So a fleet that fits into one answer is read pod by pod, and a larger one
by ReplicaSet. The sums show which services have moved, and the pods of those are asked for afterwards.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections import defaultdict
from collections.abc import Awaitable, Callable, Collection, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from datetime import datetime
from functools import reduce
from typing import Any, Final, Generic, Protocol, TypeAlias, TypeVar

from breakeven.phrases import duration_text
from breakeven.serving.promql import SAME_LABELS, EngineSeries, LabelNames, Matcher
from breakeven_operator.case import (
    FleetReading,
    LatencyReading,
    LaterReading,
    PastReading,
    RollAnswer,
    RollReading,
)
from breakeven_operator.kinds import NamespacedName
from breakeven_operator.observing.fleet_query import (
    CONTROL_WINDOWS,
    arrivals_query,
    block_s,
    fleet_query,
    past_query,
    past_step_s,
    roll_query,
    sums_query,
)
from breakeven_operator.observing.latency_metrics import latency_query, prompts_query, read_latencies
from breakeven_operator.observing.live_metrics import read_fleet
from breakeven_operator.observing.past_metrics import read_past
from breakeven_operator.observing.questions import objectives_of
from breakeven_operator.observing.roll_metrics import read_roll
from breakeven_operator.ports import (
    Clock,
    Metrics,
    MetricsError,
    PrometheusAccess,
)
from breakeven_operator.resources import SpeculativeService
from breakeven_operator.resources.targetstatus import MEASURED_PHASES
from breakeven_operator.rolls.roll_evidence import GIVE_UP_WINDOWS
from breakeven_operator.rolls.roll_failures import failures_query, later_query, read_later
from breakeven_operator.workloads.known import target_name


class Asked(Protocol):
    """A key of a question: whom it is put to, and what distinguishes those whom it is about."""

    @property
    def source(self) -> PrometheusAccess | None:
        """Nobody is asked without an address."""


Key = TypeVar("Key", bound=Asked)
Name = TypeVar("Name", bound=str | tuple[str, ...])
Reading = TypeVar("Reading")

_LOG = logging.getLogger(__name__)
SETTLE_S = 2.0
SOURCES_PER_NAMESPACE = 4
# A pod, or a ReplicaSet, takes some 20 series of 200 bytes each, and five times as much while they are read.
PODS_PER_QUERY = 500
# A day of a service in steps of five minutes takes 9 kB, and ten times as much while it is read.
_SERVICES_PER_QUERY = 300
# A pod has 240 values of 25 bytes: ten pods each make 3 MiB.
_ARRIVALS_PER_QUERY = 50
# Sixty-five buckets of each ReplicaSet, of which a roll has two, at 250 bytes: half of what an answer may have.
_LATENCIES_PER_QUERY = 250
_PROMPTS_PER_QUERY = 500
_ROLLED_PER_QUERY = 250
# Only the last hours of a longer roll are measured: the answer must have a bound.
_LONGEST_ROLL_S = 6 * 3600
ANYWHERE: Final = NamespacedName("", "")
"""Among the workloads whose pods are asked for: one of them has pods and no series, so it is asked whose series there are anywhere."""


@dataclass(frozen=True, slots=True)
class Watch:
    """One Prometheus, and a question about the services that share it.

    Attributes:
        window_s: time over which figures are taken; of a past, the distance of its rates.
        oldest_s: age of the oldest figures that count; of a past, how far back they go.
    """

    source: PrometheusAccess | None
    engines: EngineSeries
    window_s: int
    oldest_s: int


@dataclass(frozen=True, slots=True)
class Answer(Generic[Reading]):
    """The newest answer to a question, of figures or of an error.

    `asked_s` is when the question was put, and `again_s` when it is put again if it is about the same (monotonic).
    """

    about: Collection[Any]
    reading: Reading
    error: str | None
    asked_s: float
    again_s: float

    def covers(self, wanted: Collection[Any]) -> bool:
        """Whether all that is wanted was asked about."""
        return set(wanted) <= set(self.about)


Ask: TypeAlias = Callable[[Metrics, Any, Any, datetime], Awaitable[tuple[Any, str]]]
"""Puts a question, with its key and subjects: the reading, and ok, empty or error. MetricsError, ValueError: no usable answer."""


@dataclass(frozen=True, slots=True)
class StandingQuestion(Generic[Key, Reading]):
    """One kind of question, which is put once for each key: a Prometheus and what distinguishes the services that it watches.

    Attributes:
        ask: see Ask.
        failed: the reading that holds no figures, and the error if that is told.
        newest: the reading to go by: of key, subjects, newest answer, its age (s) and the longest wait (s); None if there is none.
        subject: what is asked about a service; None if nothing is. None for questions about namespaces.
        pause_s, retry_s: how long an answer about the same subjects stands, and a failure at most.
        keeps: the pauses during which a failure leaves the answer before it.
        patience: longest wait of a cycle for an answer, in parts of the usual wait; and how much longer for the first of all.
        turns: for questions that are put one at a time: the group of a key. Groups take turns.
        warning: what is logged of a new failure, with the key and the error.
    """

    ask: Ask
    failed: Callable[[str], Reading]
    newest: Callable[[Key, Collection[Any], Answer[Reading] | None, float, float], Reading | None]
    subject: Callable[[SpeculativeService], Hashable] | None = None
    pause_s: Callable[[Key], float] = lambda _: 0.0
    retry_s: float = float("inf")
    keeps: int = 0
    # Without the longer wait every restart of the operator would report missing figures for a thousand services.
    patience: tuple[int, int] = (1, 4)
    turns: Callable[[Key], str] | None = None
    warning: Callable[[Key, str], str] | None = None


class Runner(Generic[Key, Reading]):
    """Puts one question, to each key at most once at a time and to all side by side; a failure is an answer too.

    A key whose last query took longer than a cycle waits is not waited for again until a query of it is quick: a server that
    hangs costs the cycles that wait once, and nothing after that. Every query must end by itself. `close` the runner.

    Args:
        counted: is called with the outcome of every query: ok, empty or error.
        settle_s: the usual longest wait of a cycle.

    Attributes:
        answers: the newest ones, of the keys that were wanted last.
    """

    def __init__(
        self,
        question: StandingQuestion[Key, Reading],
        metrics: Metrics,
        clock: Clock,
        counted: Callable[[str], None],
        settle_s: float = SETTLE_S,
    ) -> None:
        self._question = question
        self._metrics = metrics
        self._clock = clock
        self._counted = counted
        self._settle_s, self._first_s = (parts * settle_s for parts in question.patience)
        self._any_ended = False
        self.answers: dict[Key, Answer[Reading]] = {}
        self._tasks: dict[Key, asyncio.Task[None]] = {}
        self._slow: set[Key] = set()
        # The event loop itself holds tasks weakly: one that is on its way out is held here.
        self._leaving: set[asyncio.Task[None]] = set()
        # When each group of keys that take turns had its last one.
        self._turns: dict[str, float] = {}

    async def read(self, wanted: Mapping[Key, Collection[Any]]) -> dict[Key, Reading]:
        """The readings to go by about what is wanted, some of them of earlier cycles; nothing else is remembered."""
        self.answers = {key: answer for key, answer in self.answers.items() if key in wanted}
        self._end(self._tasks.keys() - wanted.keys())
        self._slow &= wanted.keys()
        self._reap()
        begun = {
            key: asyncio.create_task(self._put(key, wanted[key]), name="question")
            for key in self._due(wanted)
        }
        self._tasks |= begun
        quick = [task for key, task in begun.items() if key not in self._slow]
        if quick:
            await asyncio.wait(quick, timeout=self._settle_s)
            if not self._any_ended:
                await asyncio.wait(quick, timeout=self._first_s, return_when=asyncio.FIRST_COMPLETED)
        self._reap()
        newest = {key: self._newest(key, about) for key, about in wanted.items()}
        return {key: reading for key, reading in newest.items() if reading is not None}

    async def close(self) -> None:
        """Cancel all queries and see them end."""
        self._end(set(self._tasks))
        await asyncio.gather(*self._leaving, return_exceptions=True)

    def _newest(self, key: Key, about: Collection[Any]) -> Reading | None:
        answer = self.answers.get(key)
        age_s = self._clock.monotonic() - answer.asked_s if answer is not None else math.inf
        return self._question.newest(key, about, answer, age_s, self._settle_s)

    def _due(self, wanted: Mapping[Key, Collection[Any]]) -> Sequence[Key]:
        due = [
            key
            for key, about in wanted.items()
            if key.source is not None and key not in self._tasks and self._is_due(key, about)
        ]
        group_of = self._question.turns
        if group_of is None:
            return due
        groups = set(map(group_of, wanted))
        self._turns = {group: time_s for group, time_s in self._turns.items() if group in groups}
        if self._tasks or not due:
            return ()
        key = min(due, key=lambda one: self._turns.get(group_of(one), -math.inf))
        self._turns[group_of(key)] = self._clock.monotonic()
        return (key,)

    def _is_due(self, key: Key, about: Collection[Any]) -> bool:
        answer = self.answers.get(key)
        return answer is None or not answer.covers(about) or self._clock.monotonic() >= answer.again_s

    async def _put(self, key: Key, about: Collection[Any]) -> None:
        loop = asyncio.get_running_loop()
        began_s, asked_s, error = loop.time(), self._clock.monotonic(), None
        try:
            reading, outcome = await self._question.ask(self._metrics, key, about, self._clock.now())
        except (MetricsError, ValueError) as failure:
            error = str(failure)
        except Exception as failure:  # noqa: BLE001 - reported in full, and the other sources' services go on
            # One server's surprise must not take the figures of the others away.
            name = key.source.name if key.source is not None else ""
            _LOG.exception("reading the answer of %s failed", name)
            error = f"reading the answer of {name} failed ({type(failure).__name__})"
        if error is not None:
            reading, outcome = self._question.failed(error), "error"
        self._counted(outcome)
        pause_s, known = self._question.pause_s(key), self.answers.get(key)
        again_s = asked_s + (min(self._question.retry_s, pause_s) if outcome == "error" else pause_s)
        answer = Answer(about, reading, error, asked_s, again_s)
        kept = known is not None and asked_s - known.asked_s < self._question.keeps * pause_s
        if error is not None and known is not None and known.error is None and kept:
            answer = replace(known, about=about, again_s=again_s)
        elif error is not None and self._question.warning and (known is None or known.error != error):
            _LOG.warning("%s", self._question.warning(key, error))
        self.answers[key] = answer
        self._any_ended = True
        (self._slow.discard if loop.time() - began_s <= self._settle_s else self._slow.add)(key)

    def _end(self, keys: Collection[Key]) -> None:
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


def _queries(
    promql: Callable[[Watch, Any], Iterator[str]],
    read: Callable[[Any], Any],
    figures: str,
    *,
    past: bool = False,
) -> Ask:
    """A question that is put by one or several queries, whose readings are one; it is empty if its `figures` are."""

    async def ask(metrics: Metrics, watch: Watch, about: Any, _: datetime) -> tuple[Any, str]:
        assert watch.source is not None  # noqa: S101 - nobody is asked without an address
        readings = []
        # One after another: two answers at a time would be in memory at a time, and all at once would keep the loop from everything else.
        for text in promql(watch, about):
            found = await (metrics.query_past if past else metrics.query)(watch.source, text)
            readings.append(read(found))
        whole = reduce(_together, readings)
        return whole, "ok" if getattr(whole, figures) else "empty"

    return ask


def _together(one: Any, other: Any) -> Any:
    """Two readings about different parts of a fleet, as old as the older one."""
    pairs = {field.name: (getattr(one, field.name), getattr(other, field.name)) for field in fields(one)}
    joined = {name: a | b for name, (a, b) in pairs.items() if isinstance(a, dict | frozenset)}
    if "evaluated_s" in pairs:
        times = (time_s for time_s in pairs["evaluated_s"] if time_s is not None)
        joined["evaluated_s"] = min(times, default=None)
    return replace(one, **joined)


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


def _of_targets(
    query: Callable[[Sequence[NamespacedName], EngineSeries, int], str], most: int
) -> Callable[[Watch, Collection[NamespacedName]], Iterator[str]]:
    return lambda watch, targets: (
        query(part, watch.engines, watch.window_s) for part in parted(dict.fromkeys(targets, 1), most)
    )


def _of_fleet(watch: Watch, pods: Mapping[str, int]) -> Iterator[str]:
    for place, part in enumerate(parted(pods, PODS_PER_QUERY)):
        yield fleet_query(part, watch.engines, watch.window_s, watch.oldest_s, anywhere=place == 0)


def _of_sums(watch: Watch, sets: Mapping[str, int]) -> Iterator[str]:
    for part in parted(sets, PODS_PER_QUERY):
        yield sums_query(part, watch.engines, watch.window_s, watch.oldest_s)


def _of_pods(watch: Watch, pods: Mapping[NamespacedName, int]) -> Iterator[str]:
    for part in parted(pods, PODS_PER_QUERY):
        named = [one for one in part if one != ANYWHERE]
        yield fleet_query(
            sorted({one.namespace for one in named}),
            watch.engines,
            watch.window_s,
            watch.oldest_s,
            workloads=[one.name for one in named],
            anywhere=ANYWHERE in part,
        )


def _of_controlled(watch: Watch, targets: Collection[NamespacedName]) -> Iterator[str]:
    """One query of all, because blocks of two answers would lie at other times."""
    yield roll_query(
        sorted(targets), watch.engines, CONTROL_WINDOWS * watch.window_s, block_s(watch.window_s)
    )


def _of_past(watch: Watch, services: Mapping[str, int]) -> Iterator[str]:
    for part in parted(services, _SERVICES_PER_QUERY):
        yield past_query(part, watch.engines, watch.oldest_s, watch.window_s)


async def _ask_rolls(
    metrics: Metrics, watch: Watch, rolled: Collection[tuple[NamespacedName, datetime]], now: datetime
) -> tuple[RollAnswer, str]:
    assert watch.source is not None  # noqa: S101 - nobody is asked without an address
    # Before a roll as many windows are read as can be measured after it at most.
    since_s = (now - min(started for _, started in rolled)).total_seconds() + GIVE_UP_WINDOWS * watch.window_s
    names, span_s, step_s = (
        [n for n, _ in rolled],
        int(min(since_s, _LONGEST_ROLL_S)),
        block_s(watch.window_s),
    )
    promql = roll_query(names, watch.engines, span_s, step_s)
    reading = read_roll(await metrics.query_past(watch.source, promql))
    try:
        asked = failures_query(names, watch.engines, span_s, step_s)
        failures = read_roll(await metrics.query_past(watch.source, asked))
    except MetricsError as error:
        # Latencies are judged without failures, and a note says that failures are missing.
        failures = RollReading(error=str(error))
    return RollAnswer(reading, failures), "ok" if reading.pods else "empty"


async def _ask_guards(
    metrics: Metrics, watch: Watch, about: Collection[tuple[str, ...]], _: datetime
) -> tuple[Mapping[str, float], str]:
    """Every expression by itself and side by side: one that is refused, or hangs, takes no other one's value away."""
    assert watch.source is not None  # noqa: S101 - nobody is asked without an address
    source, values = watch.source, {}

    async def ask(text: str) -> None:
        try:
            found = await metrics.query(source, text)
        except MetricsError as error:
            _LOG.info("a guard has no value (%.100s): %s", text, error)
            return
        if len(found) == 1 and not math.isnan(found[0].value):
            values[text] = found[0].value

    await asyncio.gather(*map(ask, sorted({query for queries in about for query in queries})))
    return values, "ok" if values else "empty"


def _no_fleet(error: str) -> FleetReading:
    return FleetReading({}, frozenset(), error)


def _in_time(
    watch: Watch, about: Collection[Any], answer: Answer[FleetReading] | None, age_s: float, waited_s: float
) -> FleetReading:
    """An answer of an earlier cycle counts as long as it is no older than figures may be. After that there are no figures."""
    if watch.source is None:
        return _no_fleet("no address: set metricsSource.prometheus.address")
    if answer is None or not answer.covers(about):
        return _no_fleet(f"{watch.source.name} has not answered within {waited_s:g} s")
    if answer.error is None and age_s > watch.oldest_s:
        return _no_fleet(f"{watch.source.name} has not answered within {watch.oldest_s} s")
    return answer.reading


def _latencies_in_time(
    watch: Watch, about: Collection[Any], answer: Answer[LatencyReading] | None, age_s: float, _: float
) -> LatencyReading:
    if answer is None or not answer.covers(about) or age_s > watch.oldest_s:
        return LatencyReading(error="it has not answered in time")
    return answer.reading


def _as_known(
    _: Watch, about: Collection[Any], answer: Answer[PastReading] | None, _age_s: float, _waited_s: float
) -> PastReading:
    """An earlier answer stands, with the namespaces that still wait for their first one."""
    if answer is None:
        return PastReading(awaited=frozenset(about))
    return replace(answer.reading, awaited=frozenset(about) - frozenset(answer.about))


def _standing(
    _: Any, _about: Collection[Any], answer: Answer[Reading] | None, _age_s: float, _waited_s: float
) -> Reading | None:
    """An earlier answer stands, because blocks and counts of the past do not change."""
    return answer.reading if answer is not None else None


def _while_young(
    watch: Watch, _about: Collection[Any], answer: Answer[Reading] | None, age_s: float, _waited_s: float
) -> Reading | None:
    return answer.reading if answer is not None and age_s <= watch.oldest_s else None


def _rolled(service: SpeculativeService) -> tuple[NamespacedName, datetime] | None:
    rollout = service.status.rollout
    if rollout is None or rollout.phase not in MEASURED_PHASES or rollout.started_time is None:
        return None
    return target_name(service), rollout.started_time


def _looked_back_at(service: SpeculativeService) -> NamespacedName | None:
    """The target whose last roll was judged by failures too; mostly all that speculate."""
    memory = service.status.memory
    judged = memory is not None and memory.requests_before is not None and service.status.rollout is None
    return target_name(service) if judged else None


def _with_profile(service: SpeculativeService) -> NamespacedName | None:
    calibration = service.status.calibration
    return target_name(service) if calibration is not None and calibration.profile is not None else None


def _a_window(watch: Watch) -> float:
    return float(watch.window_s)


# Present figures: of fleets that are read pod by pod, of fleets that are read by ReplicaSet, and of single pods of the latter.
FLEET: StandingQuestion[Watch, FleetReading] = StandingQuestion(
    _queries(_of_fleet, read_fleet, "pods"), _no_fleet, _in_time
)
SUMS = replace(FLEET, ask=_queries(_of_sums, read_fleet, "pods"))
PODS: StandingQuestion[Watch, FleetReading] = replace(
    FLEET,
    ask=_queries(_of_pods, read_fleet, "pods"),
    newest=_while_young,
)
# Asked beside the loads, so that neither answer waits for the other.
LATENCIES: StandingQuestion[Watch, LatencyReading] = StandingQuestion(
    _queries(_of_targets(latency_query, _LATENCIES_PER_QUERY), read_latencies, "counts"),
    lambda error: LatencyReading(error=error),
    _latencies_in_time,
    lambda service: target_name(service) if objectives_of(service.spec.slo) else None,
)
# Lengths of prompts, of services that have a profile to ask: twenty buckets of each, once a window.
PROMPTS: StandingQuestion[Watch, LatencyReading] = replace(
    LATENCIES,
    ask=_queries(_of_targets(prompts_query, _PROMPTS_PER_QUERY), read_latencies, "counts"),
    newest=_standing,
    subject=_with_profile,
    pause_s=_a_window,
    # Nothing is decided by it, so that no cycle waits.
    patience=(0, 0),
)
# In every cycle, because a roll that does harm is undone by them.
GUARDS: StandingQuestion[Watch, Mapping[str, float]] = StandingQuestion(
    _ask_guards,
    lambda _: {},
    _while_young,
    lambda service: tuple(one.query for one in service.spec.update_policy.guards) or None,
)
ROLLS: StandingQuestion[Watch, RollAnswer] = StandingQuestion(
    _ask_rolls,
    lambda error: RollAnswer(RollReading(error=error), RollReading(error=error)),
    _standing,
    _rolled,
)
# Requests after the last word of a roll, over as many windows as one is measured for; and arrivals over six windows.
LATER: StandingQuestion[Watch, LaterReading] = StandingQuestion(
    _queries(
        _of_targets(
            lambda targets, engines, window_s: later_query(targets, engines, GIVE_UP_WINDOWS * window_s),
            _ROLLED_PER_QUERY,
        ),
        read_later,
        "requests",
    ),
    lambda _: LaterReading(),
    _standing,
    _looked_back_at,
    _a_window,
)
ARRIVALS: StandingQuestion[Watch, RollReading] = StandingQuestion(
    _queries(_of_targets(arrivals_query, _ARRIVALS_PER_QUERY), read_roll, "pods", past=True),
    lambda error: RollReading(error=error),
    _standing,
    target_name,
    _a_window,
)
# Asked seldom: a history of days hardly changes in a cycle, is expensive to compute, and some hours later still has most of its days.
PASTS: StandingQuestion[Watch, PastReading] = StandingQuestion(
    _queries(_of_past, read_past, "rates", past=True),
    lambda error: PastReading(error=error),
    _as_known,
    pause_s=_a_window,
    # Soon, so that one bad second costs no day.
    retry_s=60.0,
    keeps=12,
    patience=(1, 0),
    warning=lambda watch, error: (
        f"loads of the past {duration_text(watch.oldest_s)} cannot be read, so present loads are taken to last: {error}"
    ),
)
# Of targets that have a standing control, and of the controls: twice in the time that they are compared over.
CONTROLS: StandingQuestion[Watch, RollReading] = replace(
    ARRIVALS,
    ask=_queries(_of_controlled, read_roll, "pods", past=True),
    subject=lambda service: (
        target_name(service)
        if service.spec.control_of is not None or service.status.control is not None
        else None
    ),
    pause_s=lambda watch: CONTROL_WINDOWS * watch.window_s / 2.0,
    retry_s=60.0,
    patience=(0, 0),
)
EACH_CYCLE: Final[tuple[StandingQuestion[Watch, Any], ...]] = (
    FLEET,
    SUMS,
    PASTS,
    LATENCIES,
    PROMPTS,
    ROLLS,
    LATER,
    ARRIVALS,
    CONTROLS,
    GUARDS,
)


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
        bearer_secret=(bearer.name, bearer.key) if bearer is not None else None,
        ca_secret=(authority.name, authority.key) if authority is not None else None,
        cert_secret=(tls.name, "tls.crt") if tls is not None else None,
        key_secret=(tls.name, "tls.key") if tls is not None else None,
        headers=((tenant.name, tenant.value),) if tenant is not None and tenant.value is not None else (),
        secret_headers=((tenant.name, (secret.name, secret.key)),)
        if tenant is not None and secret is not None
        else (),
        labels=LabelNames(given.label_names.namespace, given.label_names.pod)
        if given.label_names is not None
        else SAME_LABELS,
    )


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

    def guards_of(self, service: SpeculativeService) -> Watch:
        """How a service's guards are asked: apart from other namespaces', whose expressions may hang.

        The namespace also makes the source another one than the installation's, whose credentials no expression of a service is
        asked with: a service may name the installation's server.
        """
        own = prometheus_of(service)
        source = replace(own, namespace=service.metadata.namespace) if own is not None else None
        return replace(self.watch_of(service), source=source)

    def past_of(self, service: SpeculativeService) -> Watch | None:
        """How a service's past is read; equal ones share one query. None if it is not read, or there is no Prometheus."""
        watch, lookback_s = self.watch_of(service), service.spec.update_policy.lookback_seconds
        if watch.source is None or lookback_s == 0:
            return None
        return replace(watch, window_s=past_step_s(lookback_s, watch.window_s), oldest_s=lookback_s)

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
        surplus = {self.watch_of(service): _no_fleet(problem) for service in refused}
        return asked, {watch: reading for watch, reading in surplus.items() if watch not in kept}

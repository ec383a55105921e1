"""The answers of every Prometheus in a cycle, to the questions of `prometheus_questions.py`, and the pasts of unmeasured services.

A cycle asks all servers at the same time, with a fixed number of queries, however many services there are. It waits briefly; a query
that takes longer goes on, and its answer serves a later cycle. Pasts are read one at a time, in a thread, and seldom.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import logging
import math
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Coroutine, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, NamedTuple, TypeVar

from breakeven.arm import Arm
from breakeven.errors import BreakevenError, InputError
from breakeven.past.courses import TimeGrid
from breakeven.past.others_measured import facts_of_past, others_measured
from breakeven.past.past_reading import AskedPast, read_past
from breakeven.points.point import Point
from breakeven.points.table import cells, written
from breakeven.prior.public_table import ServiceFacts
from breakeven.profile import Profile
from breakeven.readers.prometheus import Samples
from breakeven.serving.promql import REPLICA, EngineSeries
from breakeven_operator.case import FirstAnswer
from breakeven_operator.cluster.prometheus_questions import (
    ANYWHERE,
    EACH_CYCLE,
    FLEET,
    GUARDS,
    PASTS,
    PODS,
    PODS_PER_QUERY,
    SETTLE_S,
    SUMS,
    Runner,
    ServiceQueries,
    StandingQuestion,
    Watch,
)
from breakeven_operator.cluster.snapshot import Snapshot
from breakeven_operator.kinds import NamespacedName
from breakeven_operator.observing.fleet_query import of_workloads, siblings_of, workload_of
from breakeven_operator.observing.past_metrics import AWAITED, facts_of, first_answer, no_answer
from breakeven_operator.ports import Clock, Fitter, Manifest, Metrics, MetricsError, PrometheusAccess
from breakeven_operator.resources import SpeculativeService
from breakeven_operator.workloads.known import kind_at, target_name, target_of
from breakeven_operator.workloads.object_facts import owner_uid

_LOG = logging.getLogger(__name__)
# Cycles that follow each other at once ask no Prometheus more often than this: an answer about ten thousand pods is expensive.
_SOON_S = 10.0


class QueryLimits(NamedTuple):
    """The longest time a cycle waits for queries; a fleet of more pods than fit into one is read by ReplicaSet."""

    settle_s: float = SETTLE_S
    pods_per_query: int = PODS_PER_QUERY


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
        self.queries = ServiceQueries(default_source)
        # What the last round was about, when it was asked for (monotonic, s), and what came.
        self._about: AbstractSet[Any] = frozenset()
        self._asked_s = -math.inf
        self._answers: dict[StandingQuestion[Watch, Any], dict[Watch, Any]] = {}

        def runner(question: StandingQuestion[Any, Any]) -> Runner[Any, Any]:
            return Runner(question, metrics, clock, counted, limits.settle_s)

        self._runners = {question: runner(question) for question in (*EACH_CYCLE, PODS)}
        self._firsts = runner(first_answers(fitter)) if fitter is not None else None

    async def close(self) -> None:
        """End the queries that are under way."""
        await asyncio.gather(*(one.close() for one in self._all()))

    async def ask_nothing(self) -> None:
        """There is no service: end the queries that are under way, and forget their answers."""
        self._about = frozenset()
        await asyncio.gather(*(one.read({}) for one in self._all()))

    async def read(
        self, services: Sequence[SpeculativeService], pods: Mapping[str, Sequence[Manifest]], *, soon: bool
    ) -> dict[StandingQuestion[Watch, Any], dict[Watch, Any]]:
        """New answers of every Prometheus, or `soon` those of a moment ago if the questions are the same and all were answered.

        Args:
            services: about which they are asked.
            pods: that run, by namespace.
            soon: whether this cycle follows the last one at once.
        """
        queries = self.queries
        about = frozenset((queries.watch_of(s), queries.past_of(s), s.metadata.namespace) for s in services)
        now_s = self._clock.monotonic()
        if soon and about == self._about and now_s - self._asked_s < _SOON_S and self._is_whole():
            return self._answers
        asked, surplus = queries.within_limits(services)
        wanted = self._wanted(asked, pods)
        found = await asyncio.gather(*(self._runners[question].read(wanted[question]) for question in wanted))
        self._answers = dict(zip(wanted, found, strict=True))
        self._answers[FLEET] |= surplus
        self._about, self._asked_s = about, now_s
        return self._answers

    async def firsts(self, world: Snapshot) -> dict[str, FirstAnswer]:
        """The pasts of services of which nothing is measured, by uid."""
        if self._firsts is None:
            return {}
        asked, _ = self.queries.within_limits(world.services)
        about = asked_pasts(world, asked, self.queries)
        told = await self._firsts.read({one: () for one in about.values() if one is not None})
        return {uid: told[one] if one is not None else AWAITED for uid, one in about.items()}

    async def legible(self, world: Snapshot, due: Sequence[SpeculativeService]) -> Snapshot:
        """The world with the readings of those services that are decided about next.

        If a fleet is read by ReplicaSet its pods are asked for here: as many as fit into one answer, so that no cycle takes
        long. The services behind them are neither ready nor awaited. A Prometheus that does not answer about ReplicaSets is not
        asked about pods. The most urgent services stand first in `due`.
        """
        chosen, wanted = self._next(world, due)
        began_s = self._clock.monotonic()
        told, answers = await self._runners[PODS].read(wanted), self._runners[PODS].answers
        failed = {
            watch: sums for watch, sums in world.answers.get(SUMS, {}).items() if sums.error is not None
        }
        ready, awaited, late = [], set(), set()
        for service in chosen:
            uid, watch = service.metadata.uid, self.queries.watch_of(service)
            if watch in wanted and (watch not in told or target_name(service) not in answers[watch].about):
                awaited.add(uid)
                continue
            ready.append(uid)
            if watch in told and answers[watch].asked_s < began_s:
                late.add(uid)
        if awaited:
            # Services behind them wait for the next regular cycle too: asked for at once, they would get no answer.
            awaited |= {service.metadata.uid for service in due[len(chosen) :]}
        fleets = {**world.answers.get(FLEET, {}), **failed, **told}
        return replace(
            world, answers={**world.answers, FLEET: fleets}, ready=ready, awaited=awaited, late=late
        )

    def _all(self) -> Iterable[Runner[Any, Any]]:
        return filter(None, (*self._runners.values(), self._firsts))

    def _is_whole(self) -> bool:
        """Whether every Prometheus has answered; one that has not is asked again, however soon."""
        fleets = (*self._answers[FLEET].values(), *self._answers[SUMS].values())
        return all(one.error is None for one in fleets) and not any(
            past.awaited for past in self._answers[PASTS].values()
        )

    def _wanted(
        self, services: Sequence[SpeculativeService], pods: Mapping[str, Sequence[Manifest]]
    ) -> dict[StandingQuestion[Watch, Any], Mapping[Watch, Collection[Any]]]:
        """What each question is about: targets of services, or namespaces with numbers of pods, ReplicaSets or services."""
        namespaces: dict[Watch, set[str]] = defaultdict(set)
        pasts: dict[Watch, Counter[str]] = defaultdict(Counter)
        targets = {
            question: defaultdict[Watch, set[Any]](set)
            for question in EACH_CYCLE
            if question.subject is not None
        }
        for service in services:
            watch, past = self.queries.watch_of(service), self.queries.past_of(service)
            namespaces[watch].add(service.metadata.namespace)
            if past is not None:
                pasts[past][service.metadata.namespace] += 1
            for question, found in targets.items():
                if question.subject is not None and (subject := question.subject(service)) is not None:
                    key = self.queries.guards_of(service) if question is GUARDS else watch
                    found[key].add(subject)
        small, large = {}, {}
        for watch, names in namespaces.items():
            numbers = {name: len(pods.get(name, ())) for name in names}
            if sum(numbers.values()) <= self._pods_per_query:
                small[watch] = numbers
            else:
                large[watch] = {name: len({owner_uid(pod) for pod in pods.get(name, ())}) for name in names}
        return {FLEET: small, SUMS: large, PASTS: pasts, **targets}

    def _next(
        self, world: Snapshot, due: Sequence[SpeculativeService]
    ) -> tuple[list[SpeculativeService], dict[Watch, dict[NamespacedName, int]]]:
        """The first services due whose pods fit into one answer, at least one, and what to ask for them: numbers of pods."""
        wanted: dict[Watch, dict[NamespacedName, int]] = defaultdict(dict)
        chosen: list[SpeculativeService] = []
        room = self._pods_per_query
        for service in due:
            watch = self.queries.watch_of(service)
            sums = world.answer(SUMS, watch)
            if sums is not None and sums.error is None:
                target, own = target_name(service), world.target_pods(service)
                more = len(own) if target not in wanted.get(watch, ()) else 0
                if wanted and more > max(room, 0):
                    break
                room -= more
                wanted[watch][target] = len(own)
                if own and not any(_siblings(pod) in sums.pods for pod in own):
                    wanted[watch][ANYWHERE] = 0
            chosen.append(service)
        return chosen, wanted


def _siblings(pod: Manifest) -> NamespacedName:
    return NamespacedName(pod["metadata"]["namespace"], siblings_of(pod["metadata"]["name"]))


LOOKBACK_S, _WINDOW_S = 14 * 86_400, 600
# A service waits for its calibration for hours, not for weeks. What failed may be mended soon.
AGAIN_S, RETRY_S = 6 * 3600.0, 1800.0
# One service at a time: a server that answers slowly must not keep the others from their answers for long.
_LONGEST_S = 180.0
# A day of 150 pods; a sample takes 100 bytes while its day is read.
MOST_SAMPLES = 600_000

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class WorkloadPast:
    """A question about the past of one service's target.

    Attributes:
        title: kind and name; empty: its pods' names have no grammar, and `siblings` are beginnings that they share.
        method: vLLM's word for drafts of which no series says how they are made; None if it could be several.
    """

    source: PrometheusAccess
    engines: EngineSeries
    namespace: str
    name: str
    title: str
    siblings: frozenset[str]
    arms: tuple[Arm, ...]
    method: str | None
    facts: ServiceFacts

    def owns(self, pod: str) -> bool:
        """Whether a pod of this name belongs, or belonged, to the target."""
        return workload_of(pod) == self.title if self.title else siblings_of(pod) in self.siblings


def asked_pasts(
    world: Snapshot, services: Iterable[SpeculativeService], queries: ServiceQueries
) -> dict[str, WorkloadPast | None]:
    """Questions about the pasts of services of which nothing is measured, by uid; None before the first look at the target."""
    found: dict[str, WorkloadPast | None] = {}
    for service in services:
        watch, name, target = queries.watch_of(service), target_name(service), target_of(service)
        measured = world.profiles.get(NamespacedName(service.metadata.namespace, service.metadata.name))
        pods = [pod["metadata"]["name"] for pod in world.target_pods(service)]
        ignored, seen = service.spec.calibration.past == "Ignore", service.status.target
        ignored = ignored or service.spec.control_of is not None
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
        )
    return found


def first_answers(fitter: Fitter) -> StandingQuestion[WorkloadPast, FirstAnswer]:
    """The question about pasts. No cycle waits for a reading; namespaces take turns, so that many services of one keep no other waiting."""

    async def ask(metrics: Metrics, about: WorkloadPast, _: object, now: datetime) -> tuple[FirstAnswer, str]:
        answer = await _answer(AskedServer(metrics, fitter, about), about, now)
        return answer, "error" if answer.profile is None else "ok"

    return StandingQuestion(
        ask,
        no_answer,
        lambda _, __, answer, ___, ____: answer.reading if answer is not None else AWAITED,
        pause_s=lambda _: AGAIN_S,
        retry_s=RETRY_S,
        patience=(0, 0),
        turns=lambda about: about.namespace,
    )


async def _answer(server: AskedServer, about: WorkloadPast, now: datetime) -> FirstAnswer:
    asked = AskedPast(
        (*of_workloads([(about.namespace, about.name)]), *about.engines.matchers),
        about.engines.prefix,
        TimeGrid.of_past(now.timestamp(), LOOKBACK_S, _WINDOW_S),
        about.method,
        single=False,
        arms=about.arms,
    )
    try:
        async with asyncio.timeout(_LONGEST_S):
            return await asyncio.to_thread(_told, server, asked, about)
    except TimeoutError:
        return no_answer(f"{about.source.name} took more than {_LONGEST_S:g} s to tell it")
    except InputError as error:
        # Its place is an option of the command line.
        return no_answer(error.problem)
    except BreakevenError as error:
        return no_answer(str(error))
    except Exception:  # noqa: BLE001 - a stranger's series must not end a cycle
        _LOG.exception("the past of %s/%s could not be read", about.namespace, about.name)
        return no_answer("it could not be read; the operator's log says why")
    finally:
        server.end()


def _told(server: AskedServer, asked: AskedPast, about: WorkloadPast) -> FirstAnswer:
    """Read a past and hold it against the measurements of others; in a thread."""
    past = read_past(server, asked, lambda _share: None, server.fit)
    # A table of draft lengths is not looked up: it is another one for every service.
    asked_of_others = [arm for arm in about.arms if arm.k and (arm.adaptive or not arm.scheduled)]
    others = (
        others_measured(past, asked_of_others, facts_of_past(past, about.facts)) if asked_of_others else ()
    )
    return first_answer(past, about.arms, others, server.queries, server.samples)


class AskedServer:
    """A Prometheus as the library asks it from a thread; every query runs in the operator's loop."""

    def __init__(self, metrics: Metrics, fitter: Fitter, about: WorkloadPast) -> None:
        self._metrics = metrics
        self._fitter = fitter
        self._about = about
        self._loop = asyncio.get_running_loop()
        self._ended = False
        self._pending: concurrent.futures.Future[Any] | None = None
        self._of_day = (-1, 0)
        self.queries = self.samples = 0

    def over(self, promql: str, grid: TimeGrid) -> Iterable[Samples]:
        """See PastServer.over."""
        span_s = (grid.times - 1) * grid.step_s + grid.step_s // 2
        # A subquery's times are multiples of its step, as the grid's are.
        asked = f"({promql})[{span_s}s:{grid.step_s}s] @ {grid.last_s}"
        found = self._ask(self._metrics.query_past(self._about.source, asked))
        self._count(grid, sum(len(one.values) for one in found))
        return tuple(
            one for one in found if REPLICA not in one.labels or self._about.owns(one.labels[REPLICA])
        )

    def at(self, promql: str, time_s: int) -> Iterable[tuple[Mapping[str, str], float]]:
        """See PastServer.at."""
        # The modifier @ takes a subquery, not any expression.
        asked = f"last_over_time(({promql})[1s:1s] @ {time_s})"
        return [(one.labels, one.value) for one in self._ask(self._metrics.query(self._about.source, asked))]

    def fit(self, rows: Sequence[Point]) -> Profile:
        """The fit of a past's rows, by the child process.

        Raises:
            BreakevenError: there is none.
        """
        outcome = self._wait(self._fitter.fit(written([cells(row) for row in rows]), ()))
        if outcome.profile_json is None:
            raise BreakevenError(outcome.error or "the fit gave no profile")
        return Profile.from_json(outcome.profile_json, "fit of the past")

    def end(self) -> None:
        """Let the thread end at its next question; a question under way is given up."""
        self._ended = True
        if self._pending is not None:
            self._pending.cancel()

    def _count(self, grid: TimeGrid, samples: int) -> None:
        self.samples += samples
        day, held = self._of_day
        held = samples + (held if day == grid.first_s else 0)
        self._of_day = (grid.first_s, held)
        if held > MOST_SAMPLES:
            raise BreakevenError(
                f"a day of it has more than {MOST_SAMPLES} samples, too many to be read beside a fleet: "
                "breakeven history reads it elsewhere"
            )

    def _ask(self, query: Coroutine[Any, Any, Result]) -> Result:
        self.queries += 1
        try:
            return self._wait(query)
        except MetricsError as error:
            raise BreakevenError(str(error)) from error

    def _wait(self, work: Coroutine[Any, Any, Result]) -> Result:
        if self._ended:
            work.close()
            raise BreakevenError("the reading was ended")
        pending = asyncio.run_coroutine_threadsafe(work, self._loop)
        self._pending = pending
        try:
            return pending.result()
        except concurrent.futures.CancelledError as error:
            raise BreakevenError("the reading was ended") from error

"""The answers of every Prometheus in a cycle, to the questions of `prometheus_questions.py`.

A cycle asks all servers at the same time, with a fixed number of queries, however many services there are. It waits briefly; a query
that takes longer goes on, and its answer serves a later cycle.
"""

from __future__ import annotations

import asyncio
import math
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace
from typing import Any, NamedTuple

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
from breakeven_operator.cluster.workload_pasts import asked_pasts, first_answers
from breakeven_operator.kinds import NamespacedName
from breakeven_operator.observing.fleet_query import siblings_of
from breakeven_operator.observing.past_metrics import AWAITED
from breakeven_operator.ports import Clock, Fitter, Manifest, Metrics, PrometheusAccess
from breakeven_operator.resources import SpeculativeService
from breakeven_operator.workloads.known import target_name
from breakeven_operator.workloads.object_facts import owner_uid

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

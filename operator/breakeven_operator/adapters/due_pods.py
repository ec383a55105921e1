"""The pods of large fleets, asked for as their services fall due."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace

from breakeven_operator.adapters.present_pods import PresentPods, Wanted
from breakeven_operator.adapters.prometheus_answers import Watch
from breakeven_operator.adapters.service_queries import ServiceQueries
from breakeven_operator.adapters.snapshot import Legible, Snapshot
from breakeven_operator.kinds import NamespacedName
from breakeven_operator.ports import Clock, Manifest, Metrics
from breakeven_operator.reconcile.fleet_query import siblings_of
from breakeven_operator.resources import SpeculativeService
from breakeven_operator.workloads.known import target_name


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

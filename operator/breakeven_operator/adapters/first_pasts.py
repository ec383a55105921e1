"""Questions about the pasts of services of which nothing is measured."""

from __future__ import annotations

from collections.abc import Callable

from breakeven_operator.adapters.service_queries import ServiceQueries
from breakeven_operator.adapters.snapshot import Snapshot
from breakeven_operator.adapters.workload_pasts import WorkloadPast, WorkloadPasts
from breakeven_operator.kinds import NamespacedName
from breakeven_operator.ports import Clock, Fitter, Metrics
from breakeven_operator.reconcile.first_answer import AWAITED, FirstAnswer, facts_of
from breakeven_operator.reconcile.fleet_query import siblings_of, workload_of
from breakeven_operator.resources.calibrationspec import PastUse
from breakeven_operator.workloads.known import kind_at, target_name, target_of


class FirstPasts:
    """Asks about the past of each service without a profile.

    Args:
        queries: say which Prometheus is asked.
        metrics, clock: ports.
        fitter: of the rows of pasts; None: no past is read.
        tell: is called with the outcome of every query.
    """

    def __init__(
        self,
        queries: ServiceQueries,
        metrics: Metrics,
        clock: Clock,
        fitter: Fitter | None,
        tell: Callable[[str], None],
    ) -> None:
        self._queries = queries
        self._pasts = WorkloadPasts(metrics, fitter, clock, tell) if fitter is not None else None

    async def close(self) -> None:
        """End the queries that are under way."""
        if self._pasts is not None:
            await self._pasts.close()

    async def ask_nothing(self) -> None:
        """There is no service: end the queries that are under way, and forget their answers."""
        if self._pasts is not None:
            await self._pasts.read({})

    async def read(self, world: Snapshot) -> dict[str, FirstAnswer]:
        """The pasts of services of which nothing is measured, by uid."""
        if self._pasts is None:
            return {}
        about = self._without_profile(world)
        asked = {uid: one for uid, one in about.items() if one is not None}
        awaited = dict.fromkeys(about.keys() - asked.keys(), AWAITED)
        return await self._pasts.read(asked) | awaited

    def _without_profile(self, world: Snapshot) -> dict[str, WorkloadPast | None]:
        """Questions about the pasts of services of which nothing is measured, by uid; None: after the first look at the target."""
        asked, _ = self._queries.within_limits(world.services)
        found: dict[str, WorkloadPast | None] = {}
        for service in asked:
            watch, name, target = self._queries.watch_of(service), target_name(service), target_of(service)
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
            )
        return found

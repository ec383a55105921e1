"""Blocks of the rolls that are under way: asked for in each cycle while there are any, and at no other time."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from datetime import datetime

from breakeven_operator.adapters.prometheus_answers import PrometheusAnswers, Said, Watch, parted, targets_of
from breakeven_operator.kinds import NamespacedName
from breakeven_operator.ports import MetricsError, PrometheusAccess
from breakeven_operator.reconcile.fleet_query import block_s, roll_query
from breakeven_operator.reconcile.roll_evidence import GIVE_UP_WINDOWS
from breakeven_operator.reconcile.roll_failures import (
    ArmRequests,
    LaterReading,
    RollAnswer,
    failures_query,
    later_query,
    read_later,
)
from breakeven_operator.reconcile.roll_metrics import RollReading, read_roll
from breakeven_operator.resources import SpeculativeService
from breakeven_operator.resources.rolloutstatus import MEASURED_PHASES
from breakeven_operator.workloads.known import target_name

# Before a roll as many windows are read as can be measured after it at most.
_WINDOWS_BEFORE = GIVE_UP_WINDOWS
_TARGETS_PER_QUERY = 250
# Only the last hours of a longer roll are measured: the answer must have a bound.
_LONGEST_S = 6 * 3600


@dataclass(frozen=True, slots=True)
class RolledTarget:
    """A workload that is rolled, and since when."""

    namespace: str
    deployment: str
    started: datetime


def under_way(
    services: Iterable[SpeculativeService], watch_of: Callable[[SpeculativeService], Watch]
) -> dict[Watch, set[RolledTarget]]:
    """The targets whose rolls are measured now, by how their services are watched; mostly none."""
    targets: dict[Watch, set[RolledTarget]] = defaultdict(set)
    for service in services:
        rollout = service.status.rollout
        if rollout is None or rollout.phase not in MEASURED_PHASES or rollout.started_time is None:
            continue
        targets[watch_of(service)].add(RolledTarget(*target_name(service), rollout.started_time))
    return targets


class RollBlocks(PrometheusAnswers[frozenset[RolledTarget], RollAnswer]):
    """The newest answers, one per Watch with a roll under way. An earlier answer stays valid, because past blocks do not change."""

    async def read(self, wanted: Mapping[Watch, AbstractSet[RolledTarget]]) -> dict[Watch, RollAnswer]:
        """The newest answer about these targets; a failure is an answer too.

        Args:
            wanted: targets by what is asked; nothing else is remembered.
        """
        return await self._readings({watch: frozenset(targets) for watch, targets in wanted.items()})

    async def _ask(
        self, source: PrometheusAccess, watch: Watch, targets: frozenset[RolledTarget]
    ) -> Said[RollAnswer]:
        started = min(target.started for target in targets)
        since_s = (self._clock.now() - started).total_seconds() + _WINDOWS_BEFORE * watch.window_s
        names = [(target.namespace, target.deployment) for target in targets]
        span_s, step_s = int(min(since_s, _LONGEST_S)), block_s(watch.window_s)
        promql = roll_query(names, watch.engines, span_s, step_s)
        reading = read_roll(await self._metrics.query_past(source, promql))
        try:
            asked = failures_query(names, watch.engines, span_s, step_s)
            failures = read_roll(await self._metrics.query_past(source, asked))
        except MetricsError as error:
            # Latencies are judged without failures, and a note says that failures are missing.
            failures = RollReading(error=str(error))
        return Said(RollAnswer(reading, failures), not reading.pods)

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
    ) -> Said[LaterReading]:
        found: dict[NamespacedName, ArmRequests] = {}
        for part in parted(dict.fromkeys(targets, 1), _TARGETS_PER_QUERY):
            promql = later_query(part, watch.engines, GIVE_UP_WINDOWS * watch.window_s)
            found |= read_later(await self._metrics.query(source, promql)).requests
        return Said(LaterReading(found), not found)

    def _without(self, error: str) -> LaterReading:
        return LaterReading(error=error)


def _is_looked_back_at(service: SpeculativeService) -> bool:
    memory = service.status.memory
    return memory is not None and memory.requests_before is not None and service.status.rollout is None

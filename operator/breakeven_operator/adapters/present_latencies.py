"""Present latencies of services that have objectives: asked beside the loads, so that neither answer waits for the other."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable

from breakeven_operator.adapters.prometheus_answers import Answer, PrometheusAnswers, Said, Watch
from breakeven_operator.kinds import NamespacedName
from breakeven_operator.ports import Clock, Metrics, PrometheusAccess
from breakeven_operator.reconcile.latency_metrics import LatencyReading, latency_query, read_latencies
from breakeven_operator.reconcile.objectives import objectives_of
from breakeven_operator.resources import SpeculativeService


class PresentLatencies:
    """The newest answers, one per Watch; one that is older than the Watch's staleness is none.

    Args:
        metrics, clock: ports.
        counted: is called with the outcome of every query: ok, empty or error.
        settle_s: longest time a cycle waits.
    """

    def __init__(
        self, metrics: Metrics, clock: Clock, counted: Callable[[str], None], settle_s: float
    ) -> None:
        self._metrics = metrics
        self._clock = clock
        self._answers = PrometheusAnswers(self._ask, _without, clock, counted, settle_s)

    async def read(
        self, services: Iterable[SpeculativeService], watch_of: Callable[[SpeculativeService], Watch]
    ) -> dict[Watch, LatencyReading]:
        """The newest answer about the targets of the services that have objectives; nothing where none has any."""
        targets: dict[Watch, set[NamespacedName]] = defaultdict(set)
        for service in services:
            if objectives_of(service.spec.slo):
                target = NamespacedName(service.metadata.namespace, service.spec.target_ref.name)
                targets[watch_of(service)].add(target)
        wanted = {watch: frozenset(found) for watch, found in targets.items()}
        known = await self._answers.about(wanted)
        return {watch: self._newest(watch, known.get(watch), found) for watch, found in wanted.items()}

    async def close(self) -> None:
        """End the queries that are under way."""
        await self._answers.close()

    def _newest(
        self,
        watch: Watch,
        known: Answer[frozenset[NamespacedName], LatencyReading] | None,
        targets: frozenset[NamespacedName],
    ) -> LatencyReading:
        late = known is not None and self._clock.monotonic() - known.asked_s > watch.staleness_s
        if known is None or late or not targets <= known.subjects:
            return _without("it has not answered in time")
        return known.reading

    async def _ask(
        self, source: PrometheusAccess, watch: Watch, targets: frozenset[NamespacedName]
    ) -> Said[LatencyReading]:
        promql = latency_query(sorted(targets), watch.matchers, watch.window_s)
        reading = read_latencies(await self._metrics.query(source, promql))
        return Said(reading, not reading.counts)


def _without(error: str) -> LatencyReading:
    return LatencyReading(error=error)

"""Present latencies of services that have objectives: asked beside the loads, so that neither answer waits for the other."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from breakeven_operator.adapters.prometheus_answers import (
    Answer,
    PrometheusAnswers,
    Said,
    Watch,
    parted,
    targets_of,
)
from breakeven_operator.kinds import NamespacedName
from breakeven_operator.ports import PrometheusAccess
from breakeven_operator.reconcile.latency_metrics import (
    LatencyOwner,
    LatencyReading,
    latency_query,
    read_latencies,
)
from breakeven_operator.reconcile.objectives import objectives_of
from breakeven_operator.resources import SpeculativeService

# Sixty-five buckets of each ReplicaSet, of which a roll has two, at 250 bytes: half of what an answer may have.
_TARGETS_PER_QUERY = 250


class PresentLatencies(PrometheusAnswers[frozenset[NamespacedName], LatencyReading]):
    """The newest answers, one per Watch; one that is older than the Watch's staleness is none."""

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
    ) -> Said[LatencyReading]:
        counts: dict[LatencyOwner, Mapping[str, Mapping[float, float]]] = {}
        for part in parted(dict.fromkeys(targets, 1), _TARGETS_PER_QUERY):
            promql = latency_query(part, watch.engines, watch.window_s)
            counts |= read_latencies(await self._metrics.query(source, promql)).counts
        return Said(LatencyReading(counts), not counts)

    def _without(self, error: str) -> LatencyReading:
        return LatencyReading(error=error)

"""Present latencies of services that have objectives: asked beside the loads, so that neither answer waits for the other."""

from __future__ import annotations

import functools
import logging
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from breakeven_operator.adapters.background import Background
from breakeven_operator.adapters.present_loads import Watch
from breakeven_operator.kinds import NamespacedName
from breakeven_operator.ports import Clock, Metrics, MetricsError
from breakeven_operator.reconcile.latency_metrics import LatencyReading, latency_query, read_latencies
from breakeven_operator.reconcile.objectives import objectives_of
from breakeven_operator.resources import SpeculativeService

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _LatencyAnswer:
    """The newest answer to a Watch: which Deployments were asked about, what was said, and when (monotonic, s)."""

    targets: frozenset[NamespacedName]
    reading: LatencyReading
    asked_s: float


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
        self._counted = counted
        self._queries: Background[Watch] = Background(settle_s)
        self._answers: dict[Watch, _LatencyAnswer] = {}

    async def read(
        self, services: Iterable[SpeculativeService], watch_of: Callable[[SpeculativeService], Watch]
    ) -> dict[Watch, LatencyReading]:
        """The newest answer about the targets of the services that have objectives; nothing where none has any."""
        targets: dict[Watch, set[NamespacedName]] = defaultdict(set)
        for service in services:
            if objectives_of(service.spec.slo):
                target = NamespacedName(service.metadata.namespace, service.spec.target_ref.name)
                targets[watch_of(service)].add(target)
        wanted = {watch: frozenset(found) for watch, found in targets.items() if watch.source is not None}
        self._answers = {watch: answer for watch, answer in self._answers.items() if watch in wanted}
        due = {watch: functools.partial(self._ask, watch, found) for watch, found in wanted.items()}
        await self._queries.run(wanted, due)
        return {watch: self._newest(watch, wanted.get(watch, frozenset())) for watch in targets}

    async def close(self) -> None:
        """End the queries that are under way."""
        await self._queries.close()

    def _newest(self, watch: Watch, targets: frozenset[NamespacedName]) -> LatencyReading:
        known = self._answers.get(watch)
        late = known is not None and self._clock.monotonic() - known.asked_s > watch.staleness_s
        if known is None or late or not targets <= known.targets:
            return LatencyReading(error="it has not answered in time")
        return known.reading

    async def _ask(self, watch: Watch, targets: frozenset[NamespacedName]) -> None:
        assert watch.source is not None  # noqa: S101 - only those are due
        asked_s = self._clock.monotonic()
        try:
            promql = latency_query(sorted(targets), watch.matchers, watch.window_s)
            reading = read_latencies(await self._metrics.query(watch.source, promql))
            self._counted("ok" if reading.counts else "empty")
        except (MetricsError, ValueError) as error:
            reading = self._failed(str(error))
        except Exception as error:  # noqa: BLE001 - reported in full, and the other sources' services go on
            _LOG.exception("reading the answer of %s failed", watch.source.name)
            reading = self._failed(
                f"reading the answer of {watch.source.name} failed ({type(error).__name__})"
            )
        self._answers[watch] = _LatencyAnswer(targets, reading, asked_s)

    def _failed(self, error: str) -> LatencyReading:
        self._counted("error")
        return LatencyReading(error=error)

"""Arrivals at the targets' pods: an answer covers six windows, so the question is put once per window."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from breakeven.laws.arrays import FloatArray
from breakeven_operator.adapters.prometheus_answers import PrometheusAnswers, Said, Watch, parted, targets_of
from breakeven_operator.kinds import NamespacedName
from breakeven_operator.ports import PrometheusAccess
from breakeven_operator.reconcile.fleet_query import arrivals_query
from breakeven_operator.reconcile.live_metrics import SeriesOwner
from breakeven_operator.reconcile.roll_metrics import RollReading, read_roll
from breakeven_operator.resources import SpeculativeService

# A pod has 240 values of 25 bytes: ten pods each make 3 MiB.
_TARGETS_PER_QUERY = 50


class PresentArrivals(PrometheusAnswers[frozenset[NamespacedName], RollReading]):
    """The newest answers, one per Watch; an earlier one stands, because the past does not change."""

    async def read(
        self, services: Iterable[SpeculativeService], watch_of: Callable[[SpeculativeService], Watch]
    ) -> dict[Watch, RollReading]:
        """The newest answer about the services' targets."""
        return await self._readings(targets_of(services, watch_of))

    def _pause_s(self, watch: Watch) -> float:
        return float(watch.window_s)

    async def _ask(
        self, source: PrometheusAccess, watch: Watch, targets: frozenset[NamespacedName]
    ) -> Said[RollReading]:
        pods: dict[SeriesOwner, Mapping[str, FloatArray]] = {}
        for part in parted(dict.fromkeys(targets, 1), _TARGETS_PER_QUERY):
            promql = arrivals_query(part, watch.engines, watch.window_s)
            # One answer at a time is read: all of a large fleet at once would keep the loop from everything else.
            pods |= read_roll(await self._metrics.query_past(source, promql)).pods
        return Said(RollReading(pods=pods), not pods)

    def _without(self, error: str) -> RollReading:
        return RollReading(error=error)

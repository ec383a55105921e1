"""Which Prometheus is asked what about a service; services with equal questions share one query."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from breakeven.serving.engine_series import EngineSeries
from breakeven.serving.promql import Matcher
from breakeven_operator.adapters.past_loads import Lookback
from breakeven_operator.adapters.present_loads import prometheus_of
from breakeven_operator.adapters.prometheus_answers import Watch
from breakeven_operator.ports import PrometheusAccess
from breakeven_operator.reconcile.fleet_query import past_step_s
from breakeven_operator.reconcile.live_metrics import FleetReading
from breakeven_operator.resources import SpeculativeService

SOURCES_PER_NAMESPACE = 4


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

    def lookback_of(self, service: SpeculativeService) -> Lookback | None:
        """How a service's past is read; equal lookbacks share one query. None if it is not read, or there is no Prometheus."""
        watch, lookback_s = self.watch_of(service), service.spec.update_policy.lookback_seconds
        if watch.source is None or lookback_s == 0:
            return None
        step_s = past_step_s(lookback_s, watch.window_s)
        return Lookback(watch.source, watch.engines, lookback_s, step_s)

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
        surplus = {self.watch_of(service): FleetReading({}, frozenset(), problem) for service in refused}
        return asked, {watch: reading for watch, reading in surplus.items() if watch not in kept}

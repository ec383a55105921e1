"""Present figures of the pods: each cycle asks every Prometheus, all of them at once, and waits for none for long."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Set as AbstractSet

from breakeven_operator.adapters.prometheus_answers import Answer, PrometheusAnswers, Said, Watch
from breakeven_operator.ports import (
    Header,
    PrometheusAccess,
    SecretHeader,
    SecretKey,
)
from breakeven_operator.reconcile.fleet_query import fleet_query
from breakeven_operator.reconcile.live_metrics import FleetReading, read_fleet
from breakeven_operator.resources import SpeculativeService


def prometheus_of(service: SpeculativeService) -> PrometheusAccess | None:
    """The Prometheus a service names; None when it names none."""
    given = service.spec.metrics_source.prometheus
    if given.address is None:
        return None
    bearer, authority, tls, tenant = (
        given.bearer_token_secret_ref,
        given.ca_secret_ref,
        given.client_cert_secret_ref,
        given.tenant_header,
    )
    secret = tenant.value_secret_ref if tenant is not None else None
    return PrometheusAccess(
        address=given.address,
        # Only where Secrets are read does the namespace make two sources different.
        namespace=service.metadata.namespace if any((bearer, authority, tls, secret)) else "",
        bearer_secret=SecretKey(bearer.name, bearer.key) if bearer is not None else None,
        ca_secret=SecretKey(authority.name, authority.key) if authority is not None else None,
        cert_secret=SecretKey(tls.name, "tls.crt") if tls is not None else None,
        key_secret=SecretKey(tls.name, "tls.key") if tls is not None else None,
        headers=(Header(tenant.name, tenant.value),)
        if tenant is not None and tenant.value is not None
        else (),
        secret_headers=(SecretHeader(tenant.name, SecretKey(secret.name, secret.key)),)
        if tenant is not None and secret is not None
        else (),
    )


class Present(PrometheusAnswers[frozenset[str], FleetReading]):
    """The newest answers, one per Watch.

    An answer of an earlier cycle counts as long as it is no older than the Watch's staleness. Until then the Watch's services,
    and no others, have no figures.
    """

    async def read(self, wanted: Mapping[Watch, AbstractSet[str]]) -> dict[Watch, FleetReading]:
        """The newest answer about these namespaces; without one, a reading that says why.

        Args:
            wanted: namespaces by what is asked; nothing else is remembered.
        """
        known = await self._about({watch: frozenset(namespaces) for watch, namespaces in wanted.items()})
        return {
            watch: self._newest(watch, known.get(watch), namespaces) for watch, namespaces in wanted.items()
        }

    def _newest(
        self,
        watch: Watch,
        known: Answer[frozenset[str], FleetReading] | None,
        namespaces: AbstractSet[str],
    ) -> FleetReading:
        if watch.source is None:
            return self._without("no address: set metricsSource.prometheus.address")
        if known is None or not namespaces <= known.subjects:
            return self._without(f"{watch.source.name} has not answered within {self._settle_s:g} s")
        if known.reading.error is not None:
            return known.reading
        if self._clock.monotonic() - known.asked_s > watch.staleness_s:
            return self._without(f"{watch.source.name} has not answered within {watch.staleness_s} s")
        return known.reading

    async def _ask(
        self, source: PrometheusAccess, watch: Watch, namespaces: frozenset[str]
    ) -> Said[FleetReading]:
        promql = fleet_query(sorted(namespaces), watch.matchers, watch.window_s, watch.staleness_s)
        reading = read_fleet(await self._metrics.query(source, promql))
        return Said(reading, not reading.pods)

    def _without(self, error: str) -> FleetReading:
        return FleetReading({}, frozenset(), error)

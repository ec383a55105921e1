"""Present figures of the pods: each cycle asks every Prometheus, all of them at once, and waits for none for long."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from breakeven.serving.promql import Matcher
from breakeven_operator.adapters.background import Background
from breakeven_operator.ports import (
    Clock,
    Header,
    Metrics,
    MetricsError,
    PrometheusAccess,
    SecretHeader,
    SecretKey,
)
from breakeven_operator.reconcile.fleet_query import fleet_query
from breakeven_operator.reconcile.live_metrics import FleetReading, read_fleet
from breakeven_operator.resources import SpeculativeService

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Watch:
    """What one Prometheus is asked for the services that share it."""

    source: PrometheusAccess | None
    matchers: tuple[Matcher, ...]
    window_s: int
    staleness_s: int


@dataclass(frozen=True, slots=True)
class _LastAnswer:
    """The newest answer to a Watch.

    Attributes:
        namespaces: that were asked about.
        reading: the figures, or the error.
        asked_s: when the question was put; monotonic, s.
    """

    namespaces: frozenset[str]
    reading: FleetReading
    asked_s: float


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


class Present:
    """The newest answers, one per Watch.

    A query that does not end while a cycle waits goes on, and its answer serves a later cycle as long as it is no
    older than the Watch's staleness. Until then its services, and no others, have no figures.

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
        self._answers: dict[Watch, _LastAnswer] = {}

    async def read(self, wanted: Mapping[Watch, AbstractSet[str]]) -> dict[Watch, FleetReading]:
        """The newest answer about these namespaces; without one, a reading that says why.

        Args:
            wanted: namespaces by what is asked; nothing else is remembered.
        """
        self._answers = {watch: answer for watch, answer in self._answers.items() if watch in wanted}
        due = {
            watch: functools.partial(self._ask, watch, frozenset(namespaces))
            for watch, namespaces in wanted.items()
            if watch.source is not None
        }
        await self._queries.run(wanted, due)
        return {watch: self._newest(watch, namespaces) for watch, namespaces in wanted.items()}

    async def close(self) -> None:
        """End the queries that are under way."""
        await self._queries.close()

    def _newest(self, watch: Watch, namespaces: AbstractSet[str]) -> FleetReading:
        if watch.source is None:
            return _without("no address: set metricsSource.prometheus.address")
        known = self._answers.get(watch)
        if known is None or not namespaces <= known.namespaces:
            return _without(f"{watch.source.name} has not answered within {self._queries.settle_s:g} s")
        if known.reading.error is not None:
            return known.reading
        if self._clock.monotonic() - known.asked_s > watch.staleness_s:
            return _without(f"{watch.source.name} has not answered within {watch.staleness_s} s")
        return known.reading

    async def _ask(self, watch: Watch, namespaces: frozenset[str]) -> None:
        assert watch.source is not None  # noqa: S101 - only those are due
        asked_s = self._clock.monotonic()
        try:
            promql = fleet_query(sorted(namespaces), watch.matchers, watch.window_s, watch.staleness_s)
            reading = read_fleet(await self._metrics.query(watch.source, promql))
            self._counted("ok" if reading.pods else "empty")
        except (MetricsError, ValueError) as error:
            reading = self._failed(str(error))
        except Exception as error:  # noqa: BLE001 - reported in full, and the other sources' services go on
            # One server's surprise must not take the figures of the others away.
            _LOG.exception("reading the answer of %s failed", watch.source.name)
            reading = self._failed(
                f"reading the answer of {watch.source.name} failed ({type(error).__name__})"
            )
        self._answers[watch] = _LastAnswer(namespaces, reading, asked_s)

    def _failed(self, error: str) -> FleetReading:
        self._counted("error")
        return _without(error)


def _without(error: str) -> FleetReading:
    return FleetReading({}, frozenset(), error)

"""Present figures of the fleets: each cycle asks all Prometheus servers at the same time, and waits briefly for each.

An answer about ten thousand pods takes two seconds to read. So a fleet that fits into one answer is read pod by pod, and
a larger one by ReplicaSet. The sums show which services have moved, and the pods of those are asked for afterwards
(`prometheus_reader.py`).
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from breakeven.serving.promql import SAME_LABELS, LabelNames
from breakeven_operator.adapters.prometheus_answers import (
    Answer,
    PrometheusAnswers,
    Said,
    Subjects,
    Watch,
    parted,
)
from breakeven_operator.ports import Header, PrometheusAccess, SecretHeader, SecretKey
from breakeven_operator.reconcile.fleet_query import fleet_query, sums_query
from breakeven_operator.reconcile.live_metrics import FleetReading, read_fleet
from breakeven_operator.resources import SpeculativeService

# A pod, or a ReplicaSet, takes some 20 series of 200 bytes each, and five times as much while they are read.
PODS_PER_QUERY = 500


def prometheus_of(service: SpeculativeService) -> PrometheusAccess | None:
    """The Prometheus a service names; None if it names none."""
    given = service.spec.metrics_source.prometheus
    if given.address is None:
        return None
    bearer, authority, tls = given.bearer_token_secret_ref, given.ca_secret_ref, given.client_cert_secret_ref
    tenant = given.tenant_header
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
        labels=LabelNames(given.label_names.namespace, given.label_names.pod)
        if given.label_names is not None
        else SAME_LABELS,
    )


class FleetAnswers(PrometheusAnswers[Subjects, FleetReading]):
    """Answers about fleets, each put together from those to one or several queries."""

    async def _read(self, source: PrometheusAccess, queries: Iterable[str]) -> Said[FleetReading]:
        # One after another, because two answers at a time would be in memory at a time.
        readings = [read_fleet(await self._metrics.query(source, promql)) for promql in queries]
        whole = functools.reduce(_together, readings, FleetReading({}, frozenset()))
        return Said(whole, not whole.pods)

    def _without(self, error: str) -> FleetReading:
        return FleetReading({}, frozenset(), error)


class Present(FleetAnswers[Mapping[str, int]]):
    """The newest answers, one per Watch.

    An answer of an earlier cycle counts as long as it is no older than the Watch's staleness. Until then the Watch's services,
    and no others, have no figures.
    """

    async def read(self, wanted: Mapping[Watch, Mapping[str, int]]) -> dict[Watch, FleetReading]:
        """The newest answer about these namespaces; without one, a reading that says why.

        Numbers of pods by namespace are wanted; nothing else is remembered.
        """
        known = await self._about(wanted)
        return {
            watch: self._newest(watch, known.get(watch), namespaces) for watch, namespaces in wanted.items()
        }

    def _newest(
        self,
        watch: Watch,
        known: Answer[Mapping[str, int], FleetReading] | None,
        namespaces: Mapping[str, int],
    ) -> FleetReading:
        if watch.source is None:
            return self._without("no address: set metricsSource.prometheus.address")
        if known is None or not namespaces.keys() <= known.subjects.keys():
            return self._without(f"{watch.source.name} has not answered within {self._settle_s:g} s")
        if known.reading.error is not None:
            return known.reading
        if self._clock.monotonic() - known.asked_s > watch.staleness_s:
            return self._without(f"{watch.source.name} has not answered within {watch.staleness_s} s")
        return known.reading

    async def _ask(
        self, source: PrometheusAccess, watch: Watch, namespaces: Mapping[str, int]
    ) -> Said[FleetReading]:
        return await self._read(source, self._promql(watch, namespaces))

    def _promql(self, watch: Watch, namespaces: Mapping[str, int]) -> Iterator[str]:
        for place, part in enumerate(parted(namespaces, PODS_PER_QUERY)):
            yield fleet_query(part, watch.engines, watch.window_s, watch.staleness_s, anywhere=place == 0)


class PresentSums(Present):
    """The newest sums over ReplicaSets, one per Watch, whose numbers take the place of numbers of pods."""

    def _promql(self, watch: Watch, namespaces: Mapping[str, int]) -> Iterator[str]:
        for part in parted(namespaces, PODS_PER_QUERY):
            yield sums_query(part, watch.engines, watch.window_s, watch.staleness_s)


def _together(one: FleetReading, other: FleetReading) -> FleetReading:
    """Two answers about different parts of a fleet, as old as the older one."""
    times = [time_s for time_s in (one.evaluated_s, other.evaluated_s) if time_s is not None]
    return replace(
        one,
        pods={**one.pods, **other.pods},
        present=one.present | other.present,
        silent=one.silent | other.silent,
        down=one.down | other.down,
        renamed={**one.renamed, **other.renamed},
        turned_away={**one.turned_away, **other.turned_away},
        evaluated_s=min(times, default=None),
    )

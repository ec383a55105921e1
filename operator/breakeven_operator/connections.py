"""The connections of the operator's process: to the API server, and to every Prometheus."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

from breakeven_operator.adapters.api_json import problem_of
from breakeven_operator.adapters.kubernetes import KubernetesCluster
from breakeven_operator.adapters.prometheus_api import OwnPrometheus, PrometheusClient
from breakeven_operator.kinds import Resource
from breakeven_operator.ports import Clock, Manifest, PrometheusAccess
from breakeven_operator.serve.telemetry import Telemetry
from breakeven_operator.settings import Settings

_LOG = logging.getLogger(__name__)
# Somebody may make such objects in a loop: the log of all tenants must stay readable, and this process small.
_LINES, _PER_S = 20, 60.0
_REMEMBERED = 1000


@dataclass(frozen=True, slots=True)
class Connections:
    """Open connections; `own_prometheus` is for services whose spec names no server, None if the installation sets none."""

    cluster: KubernetesCluster
    metrics: PrometheusClient
    own_prometheus: PrometheusAccess | None

    @classmethod
    async def open(cls, settings: Settings, clock: Clock, telemetry: Telemetry) -> Connections:
        """Connect as the settings say; ClusterError without access to a cluster."""
        unreadable = UnreadableObjects(clock, lambda kind: telemetry.unreadable_objects.labels(kind).inc())
        cluster = await KubernetesCluster.connect(
            settings.kubeconfig or None,
            counted=lambda verb, code: telemetry.api_requests.labels(verb, str(code)).inc(),
            unreadable=unreadable.found,
        )
        own = (
            PrometheusAccess(settings.prometheus_address, labels=settings.prometheus_label_names)
            if settings.prometheus_address
            else None
        )
        metrics = PrometheusClient(
            cluster,
            timeout_s=settings.prometheus_timeout_s,
            own=None
            if own is None
            else OwnPrometheus(own, settings.prometheus_bearer_file, settings.prometheus_ca_file),
            allowed=settings.prometheus_allowed_addresses,
        )
        return cls(cluster, metrics, own)

    async def close(self) -> None:
        """End all requests."""
        await self.metrics.close()
        await self.cluster.close()


class UnreadableObjects:
    """Warns of each version of an object once, so that a watch that begins again repeats nothing, and counts all.

    `counted` is called with the kind of each.
    """

    def __init__(self, clock: Clock, counted: Callable[[str], None]) -> None:
        self._clock = clock
        self._counted = counted
        # Versions by uid, the oldest first.
        self._known: dict[str, str] = {}
        self._since_s = clock.monotonic()
        self._lines = 0

    def found(self, resource: Resource, manifest: Manifest) -> None:
        """An object came that is marked as unreadable."""
        meta = manifest["metadata"]
        uid, version = str(meta.get("uid", "")), str(meta.get("resourceVersion", ""))
        if self._known.get(uid) == version:
            return
        self._known.pop(uid, None)
        self._known[uid] = version
        if len(self._known) > _REMEMBERED:
            del self._known[next(iter(self._known))]
        self._counted(resource.kind)
        now_s = self._clock.monotonic()
        if now_s - self._since_s > _PER_S:
            self._since_s, self._lines = now_s, 0
        self._lines += 1
        if self._lines > _LINES:
            return
        name = f"{meta.get('namespace') or ''}/{meta.get('name', '')}".removeprefix("/")
        more = "; further ones of this minute are only counted" if self._lines == _LINES else ""
        _LOG.warning(
            "%s %s cannot be read and counts as invalid: %s%s",
            resource.kind,
            name,
            problem_of(manifest),
            more,
        )

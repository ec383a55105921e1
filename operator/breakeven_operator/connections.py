"""The connections of the operator's process: to the API server, and to every Prometheus."""

from __future__ import annotations

from dataclasses import dataclass

from breakeven_operator.adapters.kubernetes import KubernetesCluster
from breakeven_operator.adapters.prometheus_api import OwnPrometheus, PrometheusClient
from breakeven_operator.adapters.unreadable import UnreadableObjects
from breakeven_operator.ports import Clock, PrometheusAccess
from breakeven_operator.serve.telemetry import Telemetry
from breakeven_operator.settings import Settings


@dataclass(frozen=True, slots=True)
class Connections:
    """Open connections.

    Attributes:
        cluster: its requests and unreadable objects are counted.
        metrics: asks every Prometheus.
        own_prometheus: Prometheus for services whose spec names no server; None if the installation sets none.
    """

    cluster: KubernetesCluster
    metrics: PrometheusClient
    own_prometheus: PrometheusAccess | None

    @classmethod
    async def open(cls, settings: Settings, clock: Clock, telemetry: Telemetry) -> Connections:
        """Connect as the settings say.

        Raises:
            ClusterError: no access to a cluster.
        """
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

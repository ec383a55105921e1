"""The reading side of the operator's process: which adapter tells a cycle of objects, and which of figures."""

from __future__ import annotations

from collections.abc import Callable

from breakeven_operator.adapters.background import SETTLE_S
from breakeven_operator.adapters.cluster_objects import ClusterObjects
from breakeven_operator.adapters.listed_objects import ListedObjects
from breakeven_operator.adapters.own_objects import OwnObjects
from breakeven_operator.adapters.prometheus_reader import PrometheusReader, QueryLimits
from breakeven_operator.adapters.watched_objects import WatchedObjects
from breakeven_operator.connections import Connections
from breakeven_operator.ports import Clock, Fitter, WatchedCluster
from breakeven_operator.serve.telemetry import Telemetry
from breakeven_operator.settings import Settings


def objects_of(
    settings: Settings,
    cluster: WatchedCluster,
    clock: Clock,
    own: OwnObjects | None,
    wake: Callable[[], None],
) -> ClusterObjects:
    """The cluster's objects: listed for one cycle, else watched.

    Args:
        settings: of the operator.
        cluster: port.
        clock: port.
        own: objects of the product's own kinds, which kopf watches; None: there is one cycle only.
        wake: called when people change a target.
    """
    if own is None:
        return ListedObjects(cluster, settings.watch_namespaces)
    return WatchedObjects(cluster, clock, own, relist_s=settings.relist_s, wake=wake)


def answers_of(
    settings: Settings,
    connections: Connections,
    clock: Clock,
    telemetry: Telemetry,
    fitter: Fitter | None,
) -> PrometheusReader:
    """The answers of every Prometheus.

    Args:
        settings: of the operator.
        connections: to Prometheus.
        clock: port.
        telemetry: counts queries.
        fitter: fits pasts before the first calibration; None: there is one cycle only, in which no past is asked for.
    """
    # No later cycle would use what comes late.
    patience_s = settings.prometheus_timeout_s + 1.0 if fitter is None else SETTLE_S
    return PrometheusReader(
        connections.metrics,
        clock,
        default_source=connections.own_prometheus,
        fitter=fitter,
        counted=lambda outcome: telemetry.prometheus_queries.labels(outcome).inc(),
        limits=QueryLimits(patience_s),
    )

"""Present figures of a service out of the answers of one cycle: of its target, and of its objectives."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime

from breakeven.serving.plausibility import EngineLimits
from breakeven_operator.cluster_reasons import ClusterReason
from breakeven_operator.reconcile.arrival_metrics import arrivals_of
from breakeven_operator.reconcile.fleet_query import workload_of
from breakeven_operator.reconcile.latency_metrics import latencies_of
from breakeven_operator.reconcile.live_metrics import Live, read_service
from breakeven_operator.reconcile.objectives import Objectives, measured
from breakeven_operator.reconcile.observation import ServiceObservation
from breakeven_operator.reconcile.past_metrics import LoadOwner, past_of
from breakeven_operator.reconcile.pod_figures import WatchedPods
from breakeven_operator.resources import SpeculativeService
from breakeven_operator.workloads.workload import Workload


@dataclass(frozen=True, slots=True)
class PresentFigures:
    """Reads the present figures of a service.

    Attributes:
        service: as the API server holds it.
        observation: with what Prometheus answered.
        now: time of the observation.
    """

    service: SpeculativeService
    observation: ServiceObservation
    now: datetime

    def pods_of(self, workload: Workload, model_name: str) -> WatchedPods:
        """The pods of a workload that count, and the labels of their series."""
        return WatchedPods(
            self.service.metadata.namespace,
            model_name,
            workload.serving,
            self.observation.known_pods,
            keep_names=workload.kind.keeps_names,
        )

    def of(self, workload: Workload, watched: WatchedPods, can: EngineLimits) -> Live:
        """The figures of the target, with its arrivals and its past."""
        source = self.service.spec.metrics_source
        live = read_service(self.observation.fleet, watched, source, can, self.now)
        namespace, model_name, figures = watched.namespace, watched.model_name, live.figures
        if figures is not None:
            pods = {pod.name for pod in watched.serving}
            memory = self.service.status.memory
            rolled = memory.last_switch_time if memory is not None else None
            since_s = rolled.timestamp() if rolled is not None else None
            arrivals = arrivals_of(self.observation.arrivals, namespace, pods, model_name, figures, since_s)
            live = replace(live, figures=replace(figures, arrivals=arrivals))
        # Series have the workload that the grammar of their pod's name says; of a kind that names no pods it is that of its makers.
        grammar = (
            "" if workload.kind.pod_name else workload_of(next((pod.name for pod in watched.serving), ""))
        )
        key = LoadOwner(namespace, grammar or workload.title, model_name)
        past = past_of(self.observation.past, key, self.service.spec.update_policy)
        if past.awaited and live.usable:
            # A past that cannot be read is no reason to hold. One that comes within seconds is: an arm that the night alone
            # speaks for would be entered by every restart.
            return replace(live, reason=ClusterReason.METRICS_MISSING, message=past.problem)
        return replace(live, past=past)

    def objectives(self, watched: WatchedPods, live: Live) -> Objectives | None:
        """Latencies that users see against the service's objectives; None without objectives."""
        spec, known = self.service.spec, self.service.status.objectives
        latencies = latencies_of(self.observation.latencies, watched, live)
        return measured(spec.slo, latencies, known, spec.metrics_source.window_seconds, self.now)

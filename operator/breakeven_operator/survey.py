"""Grounds of every service's decision in a cycle: versions of its objects, and its figures, compared and not decided about."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Hashable, Iterator, Sequence
from dataclasses import replace
from datetime import datetime
from itertools import chain, product

from breakeven.serving.counted_window import Window
from breakeven.serving.growths import Growths
from breakeven_operator import calibration
from breakeven_operator.adapters.prometheus_answers import Watch
from breakeven_operator.adapters.service_queries import ServiceQueries
from breakeven_operator.adapters.snapshot import Snapshot
from breakeven_operator.agenda import Grounds
from breakeven_operator.kinds import NamespacedName
from breakeven_operator.labels import service_of
from breakeven_operator.ports import Manifest
from breakeven_operator.reconcile.fleet_query import LAST_SEEN, REPORTING, siblings_of
from breakeven_operator.reconcile.latency_metrics import LatencyOwner, LatencyReading
from breakeven_operator.reconcile.live_metrics import FleetReading
from breakeven_operator.resources import SpeculativeService
from breakeven_operator.workloads.known import target_of


def survey(world: Snapshot, queries: ServiceQueries, gpu_label: str, now: datetime) -> dict[str, Grounds]:
    """Grounds of each service's decision now, by uid, in the order of the services' names.

    `gpu_label` is the node label that names the GPU class.
    """
    surveyor = _Surveyor(world, queries, gpu_label, now)
    services = sorted(world.services, key=lambda s: (s.metadata.namespace, s.metadata.name))
    return {service.metadata.uid: surveyor.grounds(service) for service in services}


class _Surveyor:
    def __init__(self, world: Snapshot, queries: ServiceQueries, gpu_label: str, now: datetime) -> None:
        self._world = world
        self._queries = queries
        self._gpu_label = gpu_label
        self._now_s = now.timestamp()
        self._runs: dict[NamespacedName, list[Manifest]] = defaultdict(list)
        for run in world.runs:
            self._runs[NamespacedName(run["metadata"]["namespace"], service_of(run))].append(run)

    def grounds(self, service: SpeculativeService) -> Grounds:
        source = service.spec.metrics_source
        namespace = service.metadata.namespace
        pods = self._world.target_pods(service)
        watch, lookback = self._queries.watch_of(service), self._queries.lookback_of(service)
        # Of a large fleet sums tell whether anything has moved.
        sums = self._world.sums.get(watch)
        fleet = self._world.readings.get(watch) if sums is None else sums
        latencies = self._world.latencies.get(watch)
        past = self._world.pasts.get(lookback) if lookback is not None else None
        first = self._world.firsts.get(service.metadata.uid)
        names = [pod["metadata"]["name"] for pod in pods]
        if sums is not None:
            names = sorted({siblings_of(name) for name in names})
        found = fleet.pods if fleet is not None else {}
        readings = [reading for name in names for reading in found.get(NamespacedName(namespace, name), ())]
        counted = [replace(reading.counters, span_s=float(source.window_seconds)) for reading in readings]
        window, total = Window.of(counted), Growths.summed(counted).stats
        state = (
            tuple(self._versions(service, pods)),
            tuple(self._world.claims.get(target_of(service), ())),
            fleet.error if fleet is not None else "not asked",
            latencies.error if latencies is not None else "not asked",
            # A mean hides a tail: whoever has objectives is decided about when any bucket has moved.
            tuple(_buckets(latencies, namespace, pods, {one.model_name for one in readings}))
            if latencies is not None
            else (),
            (past.error, namespace in past.awaited) if past is not None else None,
            first.sentence if first is not None else None,
            tuple(
                (reading.model_name, len(reading.stats), reading.stats.get(REPORTING), bool(reading.mixed))
                for reading in readings
            ),
            tuple(name for name, value in total.items() if not math.isfinite(value)),
            self._fresh(counted, fleet, source.staleness_seconds),
            window.saturated,
        )
        figures = (*_figures(window), self._finished(watch, namespace, pods))
        finite = tuple(figure if math.isfinite(figure) else 0.0 for figure in figures)
        return Grounds(state, finite, float(source.window_seconds))

    def _finished(self, watch: Watch, namespace: str, pods: Sequence[Manifest]) -> float:
        """Part of the HTTP requests since the last roll that an engine finished; 0 if that is not counted."""
        later = self._world.later.get(watch)
        if later is None:
            return 0.0
        found = later.requests
        owners = {NamespacedName(namespace, siblings_of(pod["metadata"]["name"])) for pod in pods}
        counted = [found[owner] for owner in sorted(owners) if owner in found]
        posts = math.fsum(one.posts for one in counted)
        return math.fsum(one.served for one in counted) / posts if posts > 0.0 else 0.0

    def _versions(self, service: SpeculativeService, pods: Sequence[Manifest]) -> Iterator[Hashable]:
        world, meta = self._world, service.metadata
        name = NamespacedName(meta.namespace, meta.name)
        sets = world.makers_of(service)
        # Not its resourceVersion: what this operator wrote into its status is no news to it.
        yield meta.generation, meta.deletion_timestamp, tuple(sorted(meta.annotations.items()))
        there = world.target_objects(service)
        yield from map(_version, chain(there, sets, pods))
        # A pod does not change while events say why it does not come.
        awaited = chain(there, sets, pods)
        yield from (world.warnings.get(one["metadata"]["uid"], "") for one in awaited)
        for node in sorted({(pod.get("spec") or {}).get("nodeName") or "" for pod in pods}):
            yield world.node_labels.get(node, {}).get(self._gpu_label, ""), node in world.lost_nodes
        yield from map(_version, self._runs[name])
        for entry in world.profiles.get(name, ()):
            yield entry.uid, entry.in_force, entry.problem
        schedule = world.cron_jobs.get(
            NamespacedName(meta.namespace, calibration.made_name(service.metadata.name))
        )
        yield _version(schedule) if schedule is not None else None

    def _fresh(
        self, readings: Collection[Growths], fleet: FleetReading | None, staleness_s: float
    ) -> tuple[bool, ...]:
        """Of each reading whether its newest sample, and of the answer whether it, is younger than what counts as stale."""
        evaluated_s = fleet.evaluated_s if fleet is not None else None
        times_s = [evaluated_s, *(reading.stats.get(LAST_SEEN) for reading in readings)]
        return tuple(time_s is not None and abs(self._now_s - time_s) <= staleness_s for time_s in times_s)


def _version(manifest: Manifest) -> tuple[str, str]:
    meta = manifest["metadata"]
    return meta["uid"], meta["resourceVersion"]


def _buckets(
    latencies: LatencyReading, namespace: str, pods: Sequence[Manifest], models: Collection[str]
) -> Iterator[Hashable]:
    names = {siblings_of(pod["metadata"]["name"]) for pod in pods}
    for siblings, model in sorted(product(names, models)):
        counts = latencies.counts.get(LatencyOwner(namespace, siblings, model), {})
        for figure, edges in counts.items():
            yield figure, tuple(edges.items())


def _figures(window: Window) -> tuple[float, ...]:
    """See Grounds.figures; of sums over pods, in which a missing count is 0."""
    figures = (
        window.requests,
        window.total_rps,
        window.latency_s,
        window.ttft_s,
        window.tokens_per_step,
        window.prompt_tokens,
        window.output_tokens,
        window.given_up,
        window.accepted_per_draft,
    )
    return tuple(figure or 0.0 for figure in figures)

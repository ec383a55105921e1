"""One reading of the whole world: the cluster's objects, and a fixed number of queries, however many services there are."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from breakeven.serving.promql import Matcher
from breakeven_operator.adapters.api_json import problem_of
from breakeven_operator.adapters.background import SETTLE_S
from breakeven_operator.adapters.cluster_objects import ClusterObjects, Interest
from breakeven_operator.adapters.foreign_targets import ForeignTargets
from breakeven_operator.adapters.made_targets import lacking_pods, mounting, owners_of_pods
from breakeven_operator.adapters.past_loads import History, Lookback
from breakeven_operator.adapters.pod_warnings import PodWarnings
from breakeven_operator.adapters.present_arrivals import PresentArrivals
from breakeven_operator.adapters.present_latencies import PresentLatencies
from breakeven_operator.adapters.present_loads import PODS_PER_QUERY, Present, PresentSums, prometheus_of
from breakeven_operator.adapters.present_pods import PresentPods, Wanted
from breakeven_operator.adapters.profile_entries import FiledProfile
from breakeven_operator.adapters.prometheus_answers import Watch
from breakeven_operator.adapters.roll_blocks import LaterFailures, RollBlocks, under_way
from breakeven_operator.adapters.service_reader import Scope, ServiceReader
from breakeven_operator.adapters.snapshot import Legible, Snapshot
from breakeven_operator.adapters.workload_pasts import WorkloadPast, WorkloadPasts
from breakeven_operator.kinds import (
    BUDGETS,
    CLAIMS,
    CORE_SERVICES,
    CRONJOBS,
    EVENTS,
    JOBS,
    NETWORK_POLICIES,
    NODES,
    POD_MONITORS,
    PODS,
    RUNS,
    SERVICES,
    NamespacedName,
    Ref,
    Resource,
)
from breakeven_operator.ports import (
    Clock,
    Cluster,
    ClusterError,
    Fitter,
    Manifest,
    Metrics,
    PrometheusAccess,
)
from breakeven_operator.reconcile.active_profile import ProfileEntry
from breakeven_operator.reconcile.first_answer import AWAITED, cost_of, facts_of
from breakeven_operator.reconcile.fleet_query import past_step_s, siblings_of, workload_of
from breakeven_operator.reconcile.latency_metrics import LatencyReading
from breakeven_operator.reconcile.live_metrics import FleetReading
from breakeven_operator.reconcile.past_metrics import PastReading
from breakeven_operator.reconcile.roll_failures import LaterReading, RollAnswer
from breakeven_operator.reconcile.roll_metrics import RollReading
from breakeven_operator.reconcile.target import Claim
from breakeven_operator.resources import SpeculativeService
from breakeven_operator.resources.calibrationspec import PastUse
from breakeven_operator.workloads.known import (
    KINDS,
    asks_to_be_watched,
    kind_at,
    made_of,
    target_name,
    target_of,
    with_halves,
)
from breakeven_operator.workloads.object_facts import owner_uid
from breakeven_operator.workloads.presence import is_finished, node_is_lost

_LOG = logging.getLogger(__name__)
# Not allowed, and not installed.
_ABSENT = frozenset({403, 404})
# Cycles that follow each other at once ask no Prometheus more often than this: an answer about ten thousand pods is expensive.
_SOON_S = 10.0
SOURCES_PER_NAMESPACE = 4
_SELECTING = (CORE_SERVICES, BUDGETS, POD_MONITORS)


class _Targets(NamedTuple):
    """The targets.

    Attributes:
        found: those that exist, and what their controllers may have made of them. makers: of their pods. unread: those of kinds that cannot be read, and why.
        annotated: workloads whose annotation asks for a service.
    """

    found: dict[Ref, Manifest]
    makers: list[Manifest]
    unread: dict[Ref, str]
    annotated: dict[Ref, Manifest]


class _Heard(NamedTuple):
    """The answers of every Prometheus in one cycle: their subject, and when they were asked for (monotonic, s)."""

    about: frozenset[tuple[Watch, Lookback | None, str]]
    asked_s: float
    readings: Mapping[Watch, FleetReading]
    pasts: Mapping[Lookback, PastReading]
    latencies: Mapping[Watch, LatencyReading]
    rolls: Mapping[Watch, RollAnswer]
    later: Mapping[Watch, LaterReading]
    sums: Mapping[Watch, FleetReading]
    arrivals: Mapping[Watch, RollReading]

    @property
    def whole(self) -> bool:
        """Whether every Prometheus has answered; one that has not is asked again, however soon."""
        late = any(past.awaited for past in self.pasts.values())
        return not late and all(
            reading.error is None for reading in (*self.readings.values(), *self.sums.values())
        )


class QueryLimits(NamedTuple):
    """Limits of queries.

    Attributes:
        settle_s: longest time a cycle waits for them.
        pods_per_query: a fleet of more pods is read by ReplicaSet.
    """

    settle_s: float = SETTLE_S
    pods_per_query: int = PODS_PER_QUERY


class Observer:
    """Reads the world.

    Args:
        cluster, metrics, clock: ports. objects: of the cluster.
        default_source: Prometheus of services that name none.
        fitter: of the rows of pasts; None: no past of a service without a profile is read.
        counted: is called with the outcome of every query: ok, empty or error.
        limits: of its queries.
        scope: what the installation takes on.
    """

    def __init__(
        self,
        cluster: Cluster,
        metrics: Metrics,
        clock: Clock,
        objects: ClusterObjects,
        *,
        default_source: PrometheusAccess | None,
        fitter: Fitter | None = None,
        counted: Callable[[str], None] | None = None,
        limits: QueryLimits = QueryLimits(),  # noqa: B008 - it is frozen
        scope: Scope = Scope(),  # noqa: B008 - it is frozen
    ) -> None:
        self._scope = scope
        self._pods_per_query, settle_s = limits.pods_per_query, limits.settle_s
        self._cluster = cluster
        self._objects = objects
        self._default_source = default_source
        self._reader = ServiceReader(scope)
        self._clock = clock
        self._last_heard: _Heard | None = None
        tell = counted or (lambda _outcome: None)
        self._present = Present(metrics, clock, tell, settle_s)
        self._sums = PresentSums(metrics, clock, tell, settle_s)
        self._pods = PresentPods(metrics, clock, tell, settle_s)
        self._latencies = PresentLatencies(metrics, clock, tell, settle_s)
        self._history = History(metrics, clock, tell, settle_s)
        self._rolls = RollBlocks(metrics, clock, tell, settle_s)
        self._later = LaterFailures(metrics, clock, tell, settle_s)
        self._arrivals = PresentArrivals(metrics, clock, tell, settle_s)
        self._firsts = WorkloadPasts(metrics, fitter, clock, tell) if fitter is not None else None
        self._warnings = PodWarnings(cluster, clock)
        self._foreign = ForeignTargets(cluster)

    def age_s(self) -> float:
        """Seconds since the API server was last heard of, for the kind with the longest silence."""
        return self._objects.age_s()

    async def rest(self) -> None:
        """Nothing is observed for a while; end the watches."""
        self._reader.rest()
        await self._objects.rest()

    async def close(self) -> None:
        """End the watches, and the queries that are under way."""
        await self._objects.rest()
        parts = (
            self._present,
            self._sums,
            self._pods,
            self._latencies,
            self._history,
            self._rolls,
            self._later,
            self._arrivals,
        )
        await asyncio.gather(*(part.close() for part in parts))
        if self._firsts is not None:
            await self._firsts.close()

    async def observe(self, *, soon: bool = False) -> Snapshot:
        """One cycle's reading.

        Args:
            soon: this cycle follows the last one at once, so that its answers of Prometheus still count.

        Raises:
            ClusterError: the API server did not give a collection without which nothing can be decided.
        """
        world = await self._observed(soon=soon)
        if self._firsts is None:
            return world
        about = self._without_profile(world)
        asked = {uid: one for uid, one in about.items() if one is not None}
        awaited = dict.fromkeys(about.keys() - asked.keys(), AWAITED)
        return replace(world, firsts=await self._firsts.read(asked) | awaited)

    async def _observed(self, *, soon: bool) -> Snapshot:
        manifests = await self._objects.read(SERVICES)
        own, services, invalid, everyone = await self._reader.read(manifests)
        # Where there is no service at all, a run that names one must hear of it.
        if not manifests and not await self._objects.read(RUNS):
            await self._ask_nothing()
            return replace(_nothing(), annotated=(await self._targets(self._interest((), ()))).annotated)
        interest = self._interest(own, services)
        read = await asyncio.gather(
            self._targets(interest),
            self._objects.read(PODS, interest),
            asyncio.gather(*(self._objects.read(kind) for kind in (JOBS, CRONJOBS, RUNS))),
            self._nodes(),
            self._objects.profiles(),
        )
        (targets, makers, unread, annotated), pods, (jobs, crons, runs), nodes, profiles = read
        # Thousands of pods that have ended may stand beside a few that run, and answer no query.
        living = [pod for pod in pods if not is_finished(pod)]
        busy = sorted({run["metadata"]["namespace"] for run in runs})
        targets, unmade = await self._foreign.completed(with_halves(services), pods, makers, targets)
        readable = {ref: one for ref, one in targets.items() if problem_of(one) is None}
        # Only the pods of targets and of calibrations are asked about.
        ours = owners_of_pods(readable.values(), makers, jobs)
        awaited = (pod for pod in living if owner_uid(pod) in ours)
        said, (selectors, policies, events, volume_claims), warnings = await asyncio.gather(
            self._heard(services, _by_namespace(living), soon=soon),
            self._around(busy, mounting(readable)),
            self._warnings.read(awaited, lacking_pods(readable, makers)),
        )
        return Snapshot(
            services=services,
            manifests={m["metadata"]["uid"]: m for m in manifests},
            invalid=invalid,
            targets=readable,
            unreadable_targets={**unread, **unmade, **_problems(targets)},
            annotated=annotated,
            makers=_by_owner(makers),
            pods=(pods_by_namespace := _by_namespace(pods)),
            pods_of=_by_owner(living),
            pod_names=_names(pods_by_namespace),
            claims=_claims(everyone),
            jobs=_by_namespace(jobs),
            cron_jobs={NamespacedName.of(c): c for c in crons},
            runs=runs,
            node_labels={n["metadata"]["name"]: n["metadata"].get("labels") or {} for n in nodes},
            profiles=_by_service(profiles),
            readings=said.readings,
            pasts=said.pasts,
            latencies=said.latencies,
            rolls=said.rolls,
            later=said.later,
            sums=said.sums,
            arrivals=said.arrivals,
            selectors=selectors,
            network_policies=policies,
            events=events,
            warnings=warnings,
            volume_claims=volume_claims,
            lost_nodes=frozenset(node["metadata"]["name"] for node in nodes if node_is_lost(node)),
        )

    async def _around(
        self, namespaces: Sequence[str], mounted: Collection[str]
    ) -> tuple[dict[str, list[Manifest]], ...]:
        """Services, network policies, events and volume claims of the namespaces of calibrations, by namespace.

        Claims are read where a target mounts any, too.
        """
        return await asyncio.gather(
            self._selectors(namespaces),
            self._network_policies(namespaces),
            self._events(namespaces),
            self._volume_claims({*namespaces, *mounted}),
        )

    def _without_profile(self, world: Snapshot) -> dict[str, WorkloadPast | None]:
        """Questions about the pasts of services of which nothing is measured, by uid; None: after the first look at the target."""
        asked, _ = self._within_limits(world.services)
        found: dict[str, WorkloadPast | None] = {}
        for service in asked:
            watch, name, target = self.watch_of(service), target_name(service), target_of(service)
            measured = world.profiles.get(NamespacedName(service.metadata.namespace, service.metadata.name))
            pods = [pod["metadata"]["name"] for pod in world.target_pods(service)]
            ignored, seen = service.spec.calibration.past is PastUse.IGNORE, service.status.target
            if measured or ignored or watch.source is None or not pods:
                continue
            if seen is None or not seen.model:
                found[service.metadata.uid] = None
                continue
            rolled = kind_at(target.resource).rolled
            words = {method.method for method in service.spec.candidates.methods}
            found[service.metadata.uid] = WorkloadPast(
                watch.source,
                watch.matchers,
                watch.prefix,
                name.namespace,
                name.name,
                workload_of(pods[0]) if rolled else "",
                frozenset() if rolled else frozenset(map(siblings_of, pods)),
                service.spec.candidates.arms(),
                words.pop() if len(words) == 1 else None,
                facts_of(seen),
                cost_of(service.spec, seen),
            )
        return found

    async def _ask_nothing(self) -> None:
        """There is no service: end the queries that are under way, and forget their answers."""
        await asyncio.gather(
            self._present.read({}),
            self._sums.read({}),
            self._pods.read({}),
            self._pasts(()),
            self._latencies.read((), self.watch_of),
            self._rolls.read({}),
            self._later.read((), self.watch_of),
            self._arrivals.read((), self.watch_of),
            *((self._firsts.read({}),) if self._firsts is not None else ()),
        )

    def watch_of(self, service: SpeculativeService) -> Watch:
        """How a service is watched; equal watches share one query."""
        source = service.spec.metrics_source
        matchers = tuple(Matcher(m.label, m.operator.sign, m.value) for m in source.prometheus.extra_matchers)
        return Watch(
            prometheus_of(service) or self._default_source,
            matchers,
            source.window_seconds,
            source.staleness_seconds,
            source.metric_prefix,
        )

    def lookback_of(self, service: SpeculativeService) -> Lookback | None:
        """How a service's past is read; equal lookbacks share one query. None: it is not read, or there is no Prometheus."""
        watch, lookback_s = self.watch_of(service), service.spec.update_policy.lookback_seconds
        if watch.source is None or lookback_s == 0:
            return None
        step_s = past_step_s(lookback_s, watch.window_s)
        return Lookback(watch.source, watch.matchers, lookback_s, step_s, watch.prefix)

    def _interest(self, manifests: Iterable[Manifest], services: Iterable[SpeculativeService]) -> Interest:
        return Interest(
            frozenset(manifest["metadata"]["namespace"] for manifest in manifests),
            frozenset(
                ref for one in with_halves(services) for ref in (target_of(one), *made_of(target_of(one)))
            ),
            self._scope.annotated,
        )

    async def _targets(self, interest: Interest) -> _Targets:
        # A kind at which no service points needs no right to be read.
        pointed_at = {target.resource for target in interest.targets}
        makers = {maker for kind in pointed_at for maker in kind_at(kind).makers}
        searched = {kind for kind in KINDS if interest.everywhere(kind)}
        kinds = [kind for kind in {*KINDS, *makers} if kind in pointed_at | makers | searched]
        lists = await asyncio.gather(*(self._if_installed(kind, interest) for kind in kinds))
        found = dict(zip(kinds, lists, strict=True))
        unread = {ref: why for ref in interest.targets if isinstance(why := found.get(ref.resource), str)}
        read = {kind: objects for kind, objects in found.items() if not isinstance(objects, str)}
        objects = {Ref(kind, *NamespacedName.of(one)): one for kind, many in read.items() for one in many}
        return _Targets(
            {ref: one for ref, one in objects.items() if ref in interest.targets},
            [one for kind in makers for one in read.get(kind, ())],
            unread,
            {
                ref: one
                for ref, one in objects.items()
                if interest.everywhere(ref.resource) and asks_to_be_watched(one)
            },
        )

    async def _if_installed(self, kind: Resource, interest: Interest) -> Sequence[Manifest] | str:
        """The objects of a kind, or why there are none: one that a cluster may lack holds up no other kind's services."""
        try:
            return await self._objects.read(kind, interest)
        except ClusterError as error:
            if not kind.optional or error.status not in _ABSENT:
                raise
            return f"the API server gives no {kind.kind}s: {error}"

    async def _nodes(self) -> Sequence[Manifest]:
        # With a Role instead of a ClusterRole nodes cannot be read: only the pod template's nodeSelector can name the GPU class.
        try:
            return await self._objects.read(NODES)
        except ClusterError as error:
            if error.status not in _ABSENT:
                raise
            return []

    async def _heard(
        self, services: Sequence[SpeculativeService], pods: Mapping[str, Sequence[Manifest]], *, soon: bool
    ) -> _Heard:
        """The answers of every Prometheus: new ones, or those of a moment ago if the questions are the same."""
        about = frozenset(
            (self.watch_of(service), self.lookback_of(service), service.metadata.namespace)
            for service in services
        )
        last, now_s = self._last_heard, self._clock.monotonic()
        fresh = last is not None and last.about == about and now_s - last.asked_s < _SOON_S
        if soon and last is not None and fresh and last.whole:
            return last
        asked, surplus = self._within_limits(services)
        small, large = self._fleets(asked, pods)
        (readings, sums, pasts), (latencies, rolls, later, arrivals) = await asyncio.gather(
            asyncio.gather(self._present.read(small), self._sums.read(large), self._pasts(asked)),
            asyncio.gather(
                self._latencies.read(asked, self.watch_of),
                self._rolls.read(under_way(asked, self.watch_of)),
                self._later.read(asked, self.watch_of),
                self._arrivals.read(asked, self.watch_of),
            ),
        )
        self._last_heard = _Heard(
            about, now_s, {**readings, **surplus}, pasts, latencies, rolls, later, sums, arrivals
        )
        return self._last_heard

    def _within_limits(
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

    def _fleets(
        self, services: Iterable[SpeculativeService], pods: Mapping[str, Sequence[Manifest]]
    ) -> tuple[dict[Watch, dict[str, int]], dict[Watch, dict[str, int]]]:
        """Fleets that are read pod by pod, and fleets that are read by ReplicaSet: number of pods by namespace, by Watch."""
        namespaces: dict[Watch, set[str]] = defaultdict(set)
        for service in services:
            namespaces[self.watch_of(service)].add(service.metadata.namespace)
        small, large = {}, {}
        for watch, names in namespaces.items():
            numbers = {name: len(pods.get(name, ())) for name in names}
            if sum(numbers.values()) <= self._pods_per_query:
                small[watch] = numbers
            else:
                large[watch] = {name: len({owner_uid(pod) for pod in pods.get(name, ())}) for name in names}
        return small, large

    async def legible(self, world: Snapshot, due: Sequence[SpeculativeService]) -> Legible:
        """The world with the readings of those services that are decided about next.

        If a fleet is read by ReplicaSet its pods are asked for here: as many as fit into one answer, so that no cycle takes
        long. The services behind them are neither ready nor awaited. A Prometheus that does not answer about ReplicaSets is not
        asked about pods.

        Args:
            world: as it was observed.
            due: the services, the most urgent first.
        """
        chosen, wanted = self._next(world, due)
        told = await self._pods.read(wanted)
        failed = {watch: sums for watch, sums in world.sums.items() if sums.error is not None}
        readings = {**world.readings, **failed, **{watch: answer.reading for watch, answer in told.items()}}
        ready, awaited, late = [], set(), set()
        for service in chosen:
            uid, watch = service.metadata.uid, self.watch_of(service)
            answer = told.get(watch)
            if watch in wanted and (answer is None or target_name(service) not in answer.about):
                awaited.add(uid)
                continue
            ready.append(uid)
            if answer is not None and answer.late:
                late.add(uid)
        if awaited:
            # Services behind them wait for the next regular cycle too: asked for at once, they would get no answer.
            awaited |= {service.metadata.uid for service in due[len(chosen) :]}
        return Legible(replace(world, readings=readings), ready, frozenset(awaited), frozenset(late))

    def _next(
        self, world: Snapshot, due: Sequence[SpeculativeService]
    ) -> tuple[list[SpeculativeService], dict[Watch, Wanted]]:
        """The first of those that are due whose pods fit into one answer, at least one, and what to ask for them."""
        pods: dict[Watch, dict[NamespacedName, int]] = defaultdict(dict)
        lost: set[Watch] = set()
        chosen: list[SpeculativeService] = []
        room = self._pods_per_query
        for service in due:
            watch = self.watch_of(service)
            sums = world.sums.get(watch)
            if sums is not None and sums.error is None:
                own = {target_name(one): world.target_pods(one) for one in with_halves([service])}
                more = sum(len(of) for target, of in own.items() if target not in pods.get(watch, ()))
                if pods and more > max(room, 0):
                    break
                room -= more
                pods[watch] |= {target: len(of) for target, of in own.items()}
                if any(of and not any(_siblings(pod) in sums.pods for pod in of) for of in own.values()):
                    lost.add(watch)
            chosen.append(service)
        return chosen, {watch: Wanted(counts, watch in lost) for watch, counts in pods.items()}

    async def _pasts(self, services: Iterable[SpeculativeService]) -> dict[Lookback, PastReading]:
        namespaces: dict[Lookback, Counter[str]] = defaultdict(Counter)
        for service in services:
            lookback = self.lookback_of(service)
            if lookback is not None:
                namespaces[lookback][service.metadata.namespace] += 1
        return await self._history.read(namespaces)

    async def _selectors(self, namespaces: Sequence[str]) -> dict[str, list[Manifest]]:
        found: dict[str, list[Manifest]] = defaultdict(list)
        for namespace in namespaces:
            for resource in _SELECTING:
                # A copy avoids labels that this kind selects on. Without the kind, or the right to read it, none are known.
                manifests = await self._readable(resource, namespace)
                found[namespace].extend(filter(None, map(_selector, manifests)))
        return found

    async def _network_policies(self, namespaces: Sequence[str]) -> dict[str, list[Manifest]]:
        """NetworkPolicies; without the right to read them a copy that leaves one is not refused."""
        return {namespace: await self._readable(NETWORK_POLICIES, namespace) for namespace in namespaces}

    async def _volume_claims(self, namespaces: Collection[str]) -> dict[str, list[Manifest]]:
        """PersistentVolumeClaims; without the right to read them a volume that only one pod may have is not refused."""
        if not namespaces:
            return {}
        try:
            found = await self._objects.read(CLAIMS, Interest(frozenset(namespaces), frozenset()))
        except ClusterError as error:
            if error.status not in _ABSENT:
                raise
            return {}
        return _by_namespace(found)

    async def _events(self, namespaces: Sequence[str]) -> dict[str, list[Manifest]]:
        """Events about Jobs; a pod that quota or admission refuses shows nowhere else."""
        about = f"regarding.kind={JOBS.kind}"
        return {namespace: await self._readable(EVENTS, namespace, about) for namespace in namespaces}

    async def _readable(self, resource: Resource, namespace: str | None, fields: str = "") -> list[Manifest]:
        """Objects of a kind that an installation may lack (404) or that the operator's rights may not cover (403)."""
        try:
            found = await self._cluster.list_all(resource, namespace, fields=fields)
            return [manifest for manifest in found if problem_of(manifest) is None]
        except ClusterError as error:
            if error.status not in _ABSENT:
                raise
            return []


def _siblings(pod: Manifest) -> NamespacedName:
    return NamespacedName(pod["metadata"]["namespace"], siblings_of(pod["metadata"]["name"]))


def _selector(manifest: Manifest) -> Manifest | None:
    """The label selector of something that selects pods, in the form of matchLabels and matchExpressions."""
    spec = manifest.get("spec") or {}
    selector = spec.get("selector") or spec.get("podSelector")
    if not selector:
        return None
    return selector if {"matchLabels", "matchExpressions"} & selector.keys() else {"matchLabels": selector}


def _by_service(profiles: Iterable[FiledProfile]) -> dict[NamespacedName, list[ProfileEntry]]:
    found: dict[NamespacedName, list[ProfileEntry]] = defaultdict(list)
    for service, entry in profiles:
        found[service].append(entry)
    return found


def _nothing() -> Snapshot:
    return Snapshot((), {}, (), {}, {}, {}, {}, {}, {}, {}, {}, (), {}, {}, {})


def _names(members: Mapping[str, Iterable[Manifest]]) -> dict[str, frozenset[str]]:
    return {
        namespace: frozenset(one["metadata"]["name"] for one in found) for namespace, found in members.items()
    }


def _problems(targets: Mapping[Ref, Manifest]) -> dict[Ref, str]:
    """The targets that exist and could not be read, and why."""
    return {ref: problem for ref, one in targets.items() if (problem := problem_of(one)) is not None}


def _by_namespace(manifests: Iterable[Manifest]) -> dict[str, list[Manifest]]:
    found: dict[str, list[Manifest]] = defaultdict(list)
    for manifest in manifests:
        found[manifest["metadata"]["namespace"]].append(manifest)
    return found


def _by_owner(manifests: Iterable[Manifest]) -> dict[str, list[Manifest]]:
    found: dict[str, list[Manifest]] = defaultdict(list)
    for manifest in manifests:
        found[owner_uid(manifest)].append(manifest)
    return found


def _claims(services: Iterable[SpeculativeService]) -> dict[Ref, list[Claim]]:
    found: dict[Ref, list[Claim]] = defaultdict(list)
    for service in services:
        found[target_of(service)].append(Claim.of(service))
    return found

"""One reading of the whole world: the cluster's objects, and the answers of every Prometheus about them."""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple, TypeVar

from breakeven.errors import InputError
from breakeven.serving.rolling import mounted_claims
from breakeven_operator.cluster.api_json import problem_of
from breakeven_operator.cluster.cluster_objects import ClusterObjects, Interest
from breakeven_operator.cluster.prometheus_answers import PrometheusReader
from breakeven_operator.cluster.snapshot import InvalidService, Snapshot
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
from breakeven_operator.ports import Clock, Cluster, ClusterError, ClusterReader, Manifest
from breakeven_operator.resources import SpeculativeService
from breakeven_operator.settings import Settings
from breakeven_operator.workloads.known import (
    KINDS,
    OwningKind,
    asks_to_be_watched,
    kind_at,
    kind_of,
    made_of,
    target_of,
)
from breakeven_operator.workloads.object_facts import (
    is_finished,
    is_silent,
    node_is_lost,
    owner_uid,
    parse_time,
    refusal_of,
    warning_of,
)
from breakeven_operator.workloads.other_kinds import OwnedPods, manifest_of, owned_pods
from breakeven_operator.workloads.target import claim_of
from breakeven_operator.workloads.workload_kind import maker_of

_LOG = logging.getLogger(__name__)
# Not allowed, and not installed.
_ABSENT = frozenset({403, 404})
_SELECTING = (CORE_SERVICES, BUDGETS, POD_MONITORS)
# Pods that show a target's template, asked for at a time.
_AT_A_TIME = 8
# Most pods have an image's word by then.
_SILENT_S = 5.0
_AGAIN_S = 10.0
_MOST_PER_CYCLE = 8


class Observer:
    """Reads the world.

    Attributes:
        cluster: for what is read again after a write.
        queries: what Prometheus is asked about a service.
    """

    def __init__(
        self,
        cluster: Cluster,
        clock: Clock,
        objects: ClusterObjects,
        answers: PrometheusReader,
        settings: Settings,
    ) -> None:
        self._settings = settings
        self.cluster: ClusterReader = cluster
        self._objects = objects
        self._answers = answers
        self.queries = answers.queries
        # Services by uid: one is parsed again only if its object has changed, which most do not between two cycles.
        self._parsed: dict[str, SpeculativeService] = {}
        self._warnings = PodWarnings(cluster, clock)
        self._foreign = ForeignTargets(cluster)

    def age_s(self) -> float:
        """Seconds since the API server was last heard of, for the kind with the longest silence."""
        return self._objects.age_s()

    async def rest(self) -> None:
        """Nothing is observed for a while; end the watches."""
        await self._objects.rest()

    async def close(self) -> None:
        """End the watches, and the queries that are under way."""
        await self._objects.rest()
        await self._answers.close()

    async def observe(self, *, soon: bool = False) -> Snapshot:
        """One cycle's reading.

        Args:
            soon: this cycle follows the last one at once, so that its answers of Prometheus still count.

        Raises:
            ClusterError: the API server did not give a collection without which nothing can be decided.
        """
        world = await self._observed(soon=soon)
        return replace(world, firsts=await self._answers.firsts(world))

    async def legible(self, world: Snapshot, due: Sequence[SpeculativeService]) -> Snapshot:
        """See `PrometheusReader.legible`."""
        return await self._answers.legible(world, due)

    async def _observed(self, *, soon: bool) -> Snapshot:
        manifests = await self._objects.read(SERVICES)
        services, invalid = self._services(manifests)
        # Where there is no service at all, a run that names one must hear of it.
        if not manifests and not await self._objects.read(RUNS):
            await self._answers.ask_nothing()
            *_, annotated = await self._targets(self._interest((), ()))
            return Snapshot(annotated=annotated)
        interest = self._interest(manifests, services)
        read = await asyncio.gather(
            self._targets(interest),
            self._objects.read(PODS, interest),
            asyncio.gather(*(self._objects.read(kind) for kind in (JOBS, CRONJOBS, RUNS))),
            # With a Role instead of a ClusterRole nodes cannot be read: only the pod template's nodeSelector can name the GPU class.
            _if_there(self._objects.read(NODES)),
            self._objects.profiles(),
        )
        (targets, makers, unread, annotated), pods, (jobs, crons, runs), nodes, profiles = read
        # Thousands of pods that have ended may stand beside a few that run, and answer no query.
        living = [pod for pod in pods if not is_finished(pod)]
        busy = sorted({run["metadata"]["namespace"] for run in runs})
        targets, unmade = await self._foreign.completed(services, pods, makers, targets)
        readable = {ref: one for ref, one in targets.items() if problem_of(one) is None}
        # Only the pods of targets and of calibrations are asked about.
        ours = _owners_of_pods(readable.values(), makers, jobs)
        awaited = (pod for pod in living if owner_uid(pod) in ours)
        answers, selectors, around, warnings = await asyncio.gather(
            self._answers.read(services, _by_namespace(living), soon=soon),
            self._selectors(busy),
            self._around(busy, _mounting(readable)),
            self._warnings.read(awaited, _lacking_pods(readable, makers)),
        )
        in_namespaces = _by_namespace(pods)
        return Snapshot(
            services=services,
            manifests={m["metadata"]["uid"]: m for m in manifests},
            invalid=invalid,
            targets=readable,
            unreadable_targets={
                **unread,
                **unmade,
                **{ref: problem for ref, one in targets.items() if (problem := problem_of(one)) is not None},
            },
            annotated=annotated,
            makers=grouped(makers, owner_uid),
            pods_of=grouped(living, owner_uid),
            pod_names={
                namespace: frozenset(pod["metadata"]["name"] for pod in found)
                for namespace, found in in_namespaces.items()
            },
            claims={
                target: [claim_of(one) for one in theirs]
                for target, theirs in grouped(services, target_of).items()
            },
            objects={PODS: in_namespaces, JOBS: _by_namespace(jobs), **around},
            cron_jobs={NamespacedName.of(c): c for c in crons},
            runs=runs,
            profiles=grouped(profiles, lambda entry: entry.service),
            selectors=selectors,
            warnings=warnings,
            node_labels={n["metadata"]["name"]: n["metadata"].get("labels") or {} for n in nodes},
            lost_nodes=frozenset(node["metadata"]["name"] for node in nodes if node_is_lost(node)),
            answers=answers,
        )

    def _services(
        self, manifests: Sequence[Manifest]
    ) -> tuple[tuple[SpeculativeService, ...], tuple[InvalidService, ...]]:
        """The services among these objects, and those that break a rule, which an older CRD let through."""
        read = [(manifest, self._read(manifest)) for manifest in manifests]
        valid = tuple(one for _, one in read if isinstance(one, SpeculativeService))
        self._parsed = {one.metadata.uid: one for one in valid}
        return valid, tuple(InvalidService(manifest, one) for manifest, one in read if isinstance(one, str))

    def _read(self, manifest: Manifest) -> SpeculativeService | str:
        meta = manifest["metadata"]
        if (problem := problem_of(manifest)) is not None:
            return problem
        known = self._parsed.get(meta["uid"])
        if known is not None and known.metadata.resource_version == meta["resourceVersion"]:
            return known
        try:
            service = SpeculativeService.read(
                manifest, f"SpeculativeService {meta['namespace']}/{meta['name']}"
            )
        except InputError as error:
            return str(error)
        strays = (
            (m.name, m.strays_from(self._settings.allowed_drafters)) for m in service.spec.candidates.methods
        )
        problems = (f"spec.candidates.methods {name}: {problem}" for name, problem in strays if problem)
        return next(problems, service)

    async def _around(
        self, namespaces: Sequence[str], mounted: Collection[str]
    ) -> dict[Resource, dict[str, list[Manifest]]]:
        """Network policies, events and volume claims of the namespaces of calibrations, and claims where a target mounts any."""
        found = await asyncio.gather(
            # Without the right to read policies a copy that leaves one is not refused.
            self._of_each(NETWORK_POLICIES, namespaces),
            # A pod of a Job that quota or admission refuses shows nowhere else.
            self._of_each(EVENTS, namespaces, f"regarding.kind={JOBS.kind}"),
            self._volume_claims({*namespaces, *mounted}),
        )
        return dict(zip((NETWORK_POLICIES, EVENTS, CLAIMS), found, strict=True))

    def _interest(self, manifests: Iterable[Manifest], services: Iterable[SpeculativeService]) -> Interest:
        return Interest(
            frozenset(manifest["metadata"]["namespace"] for manifest in manifests),
            frozenset(ref for one in services for ref in (target_of(one), *made_of(target_of(one)))),
            self._settings.watch_annotated == "true",
        )

    async def _targets(
        self, interest: Interest
    ) -> tuple[dict[Ref, Manifest], list[Manifest], dict[Ref, str], dict[Ref, Manifest]]:
        """Targets that exist, makers of their pods, targets of kinds that cannot be read and why, and workloads that ask for a service."""
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
        return (
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

    async def _selectors(self, namespaces: Sequence[str]) -> dict[str, list[Manifest]]:
        found: dict[str, list[Manifest]] = defaultdict(list)
        for namespace in namespaces:
            for resource in _SELECTING:
                # A copy avoids labels that this kind selects on. Without the kind, or the right to read it, none are known.
                manifests = await self._readable(resource, namespace)
                found[namespace].extend(filter(None, map(_selector, manifests)))
        return found

    async def _of_each(
        self, resource: Resource, namespaces: Sequence[str], fields: str = ""
    ) -> dict[str, list[Manifest]]:
        return {namespace: await self._readable(resource, namespace, fields) for namespace in namespaces}

    async def _volume_claims(self, namespaces: Collection[str]) -> dict[str, list[Manifest]]:
        """PersistentVolumeClaims; without the right to read them a volume that only one pod may have is not refused."""
        if not namespaces:
            return {}
        wanted = Interest(frozenset(namespaces), frozenset())
        return _by_namespace(await _if_there(self._objects.read(CLAIMS, wanted)))

    async def _readable(self, resource: Resource, namespace: str, fields: str = "") -> list[Manifest]:
        found = await _if_there(self.cluster.list_all(resource, namespace, fields=fields))
        return [manifest for manifest in found if problem_of(manifest) is None]


async def _if_there(reading: Awaitable[Sequence[Manifest]]) -> Sequence[Manifest]:
    """Objects of a kind that an installation may lack (404) or that the operator's rights may not cover (403)."""
    try:
        return await reading
    except ClusterError as error:
        if error.status not in _ABSENT:
            raise
        return []


def _selector(manifest: Manifest) -> Manifest | None:
    """The label selector of something that selects pods, in the form of matchLabels and matchExpressions."""
    spec = manifest.get("spec") or {}
    selector = spec.get("selector") or spec.get("podSelector")
    if not selector:
        return None
    return selector if {"matchLabels", "matchExpressions"} & selector.keys() else {"matchLabels": selector}


Item = TypeVar("Item")
Key = TypeVar("Key")


def grouped(items: Iterable[Item], key: Callable[[Item], Key]) -> dict[Key, list[Item]]:
    """Items by a key, in their order."""
    found: dict[Key, list[Item]] = {}
    for item in items:
        found.setdefault(key(item), []).append(item)
    return found


def _by_namespace(manifests: Iterable[Manifest]) -> dict[str, list[Manifest]]:
    return grouped(manifests, lambda one: str(one["metadata"]["namespace"]))


def _owners_of_pods(
    targets: Iterable[Manifest], makers: Iterable[Manifest], jobs: Iterable[Manifest]
) -> set[str]:
    """Uids of what owns the pods of targets and of calibrations: the targets, their makers, the Jobs."""
    owners = {maker_of(one)["metadata"]["uid"] for one in targets}
    theirs = (one for one in makers if owner_uid(one) in owners)
    return owners | {one["metadata"]["uid"] for one in (*theirs, *jobs)}


def _lacking_pods(targets: Mapping[Ref, Manifest], makers: Iterable[Manifest]) -> Iterator[Manifest]:
    """The makers of pods of targets with fewer than they want, if only events say why."""
    for ref, target in targets.items():
        kind, made = kind_at(ref.resource).of(target)
        counts = kind.counts(made)
        if kind.refusals_in_events and counts.total < counts.desired:
            owners = kind.owners(made, makers)
            yield from (one for one in (made, *makers) if one["metadata"]["uid"] in owners)


def _mounting(targets: Mapping[Ref, Manifest]) -> set[str]:
    """Namespaces of targets that mount claims: a roll must know who else may."""
    made = ((ref.namespace, *kind_at(ref.resource).of(target)) for ref, target in targets.items())
    return {namespace for namespace, kind, one in made if mounted_claims(kind.template(one)["spec"])}


def joined_targets(
    asked: Iterable[Ref], objects: Mapping[Ref, Manifest]
) -> tuple[dict[Ref, Manifest], dict[Ref, str]]:
    """The targets at which services point, out of all objects that were read: targets, and what may have been made of them."""
    found: dict[Ref, Manifest] = {}
    unread: dict[Ref, str] = {}
    for ref in asked:
        one, kind = objects.get(ref), KINDS.get(ref.resource)
        if one is None:
            continue
        if isinstance(kind, OwningKind) and problem_of(one) is None:
            joined = kind.made_of(one, objects)
            problem = problem_of(maker_of(joined)) if joined is not None else kind.unmade(one)
            if joined is None or problem is not None:
                unread[ref] = str(problem)
                continue
            one = joined
        found[ref] = one
    return found, unread


def _is_incomplete(ref: Ref, manifest: Manifest) -> bool:
    """Whether a target that could be read has its pod template in another object."""
    return problem_of(manifest) is None and kind_at(ref.resource).borrows(manifest) is not None


def _with_template(target: Manifest, assembled: Manifest) -> Manifest:
    return {**target, "spec": {**target["spec"], "template": assembled["spec"]["template"]}}


class ForeignTargets:
    """Puts targets of kinds that the operator does not know together from their pods.

    Pods are kept without their specs, because there are ten thousands. The newest pod of such a target is asked for by its name,
    once, and remembered: a pod's spec does not change.
    """

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._shown: dict[Ref, Manifest] = {}
        self._slots = asyncio.Semaphore(_AT_A_TIME)

    async def completed(
        self,
        services: Sequence[SpeculativeService],
        pods: Sequence[Manifest],
        makers: Sequence[Manifest],
        known: Mapping[Ref, Manifest],
    ) -> tuple[dict[Ref, Manifest], dict[Ref, str]]:
        """All targets that were read, or that pods show; a target whose pod cannot be read keeps its former template.

        A target without a template has the template of its newest pod, and without a pod is none.
        """
        known, unread = joined_targets(set(map(target_of, services)), known)
        wanted = {target_of(one) for one in services if not kind_of(one.spec.target_ref).rolled}
        wanted |= {ref for ref, one in known.items() if _is_incomplete(ref, one)}
        owned = owned_pods(wanted, pods, makers)
        shown = await asyncio.gather(*(self._shows(ref, one) for ref, one in owned.items()))
        self._shown = {ref: pod for ref, pod in zip(owned, shown, strict=True) if pod is not None}
        assembled = {ref: manifest_of(ref, owned[ref], pod) for ref, pod in self._shown.items()}
        whole = {ref: one for ref, one in known.items() if not _is_incomplete(ref, one)}
        seen = {
            ref: _with_template(known[ref], one) if ref in known else one for ref, one in assembled.items()
        }
        return whole | seen, unread

    async def _shows(self, ref: Ref, owned: OwnedPods) -> Manifest | None:
        """The newest pod with all its fields; the one before while it cannot be read."""
        newest, known = owned.living[0]["metadata"], self._shown.get(ref)
        if known is not None and known["metadata"]["uid"] == newest["uid"]:
            return known
        try:
            async with self._slots:
                found = await self._cluster.list_all(
                    PODS, ref.namespace, fields=f"metadata.name={newest['name']}"
                )
        except ClusterError as error:
            _LOG.warning("pod %s/%s cannot be read: %s", ref.namespace, newest["name"], error)
            return known
        return next((pod for pod in found if pod["metadata"]["uid"] == newest["uid"]), known)


class _SaidOfPod(NamedTuple):
    warning: str
    asked_s: float


class _Subject(NamedTuple):
    """An object whose events are asked for by this part of a selector; `read` makes one text of them."""

    manifest: Manifest
    field: str
    read: Callable[[Iterable[Manifest]], str]


class PodWarnings:
    """Events about pods that do not come: asked for a few pods, by name, after some seconds, and seldom.

    Events are the most numerous objects of many clusters, and the API server looks through all of a namespace for a selector.
    So none are watched or listed for pods that come, or for pods whose conditions and containers state the reason.
    """

    def __init__(self, cluster: Cluster, clock: Clock) -> None:
        self._cluster = cluster
        self._clock = clock
        self._asked: dict[str, _SaidOfPod] = {}

    async def read(self, pods: Iterable[Manifest], lacking: Iterable[Manifest] = ()) -> dict[str, str]:
        """The warnings, by uids of pods and workloads; of each controller's pods the oldest one speaks.

        Events of workloads that are lacking pods may say why. An answer that does not come is none: nothing else waits for it.
        """
        subjects = [
            _Subject(pod, "regarding.kind=Pod,", partial(warning_of, pod)) for pod in self._awaited(pods)
        ]
        subjects += [_Subject(one, "", refusal_of) for one in lacking]
        awaited = {one.manifest["metadata"]["uid"]: one for one in subjects}
        self._asked = {uid: asked for uid, asked in self._asked.items() if uid in awaited}
        now_s = self._clock.monotonic()
        due = [
            uid for uid in awaited if uid not in self._asked or now_s - self._asked[uid].asked_s >= _AGAIN_S
        ]
        due.sort(key=lambda uid: self._asked[uid].asked_s if uid in self._asked else 0.0)
        await asyncio.gather(*(self._ask(uid, awaited[uid]) for uid in due[:_MOST_PER_CYCLE]))
        return {uid: asked.warning for uid, asked in self._asked.items() if asked.warning}

    def _awaited(self, pods: Iterable[Manifest]) -> Iterable[Manifest]:
        oldest: dict[str, Manifest] = {}
        now = self._clock.now()
        for pod in pods:
            made = parse_time(pod["metadata"].get("creationTimestamp"))
            if made is None or (now - made).total_seconds() < _SILENT_S or not is_silent(pod):
                continue
            known = oldest.get(owner_uid(pod))
            if known is None or _age(pod) < _age(known):
                oldest[owner_uid(pod)] = pod
        return oldest.values()

    async def _ask(self, uid: str, subject: _Subject) -> None:
        meta = subject.manifest["metadata"]
        warning, about = "", f"{subject.field}regarding.uid={uid}"
        try:
            events = await self._cluster.list_all(EVENTS, meta["namespace"], fields=about)
            warning = subject.read(event for event in events if problem_of(event) is None)
        except ClusterError as error:
            _LOG.debug("events about %s: %s", meta["name"], error)
        self._asked[uid] = _SaidOfPod(warning, self._clock.monotonic())


def _age(pod: Manifest) -> tuple[str, str]:
    return str(pod["metadata"]["creationTimestamp"]), pod["metadata"]["uid"]

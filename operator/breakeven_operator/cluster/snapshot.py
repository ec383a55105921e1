"""The input of one cycle: the cluster's objects, services that keep and that break their rules, and every Prometheus' answers."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from breakeven.errors import InputError
from breakeven_operator.case import (
    FirstAnswer,
    FleetReading,
    LatencyReading,
    LaterReading,
    PastReading,
    RollAnswer,
    RollReading,
)
from breakeven_operator.cluster.api_json import problem_of
from breakeven_operator.cluster.prometheus_answers import Lookback, Watch
from breakeven_operator.kinds import NamespacedName, Ref
from breakeven_operator.ports import Manifest
from breakeven_operator.resources import SpeculativeService
from breakeven_operator.step import ProfileEntry
from breakeven_operator.workloads.known import target_of
from breakeven_operator.workloads.target import Claim
from breakeven_operator.workloads.workload_kind import maker_of


class InvalidService(NamedTuple):
    """A SpeculativeService that breaks a rule, and the rule in one line."""

    manifest: Manifest
    problem: str


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The input of a cycle; manifests by namespace.

    Attributes:
        manifests: the services' objects as the API server returned them, by uid; invalid ones included.
        runs: unfinished, or not yet accounted for.
        targets: what services point at.
        makers: of pods, by uid of the target that owns them.
        pods: by namespace, ended ones too.
        pod_names: by namespace, of all pods: series outlive their pod for some minutes.
        pods_of: by uid of the maker or target that owns them, without ended ones.
        claims: of services, by target.
        lost_nodes: names of nodes whose kubelet does not say that it is Ready.
        readings: newest answer of each Prometheus about the present, by pod. later: about requests after rolls.
        sums: newest answer about the present by ReplicaSet, if a fleet is too large to be read pod by pod in every cycle.
        firsts: what the past says of services without a profile, by uid.
        selectors, network_policies, events: only of namespaces in which a calibration is under way.
        warnings: words of events about pods that do not come, by uid.
        volume_claims: of those namespaces, and of namespaces in which a target mounts any.
        unreadable_targets: targets that exist and could not be read, and why.
        annotated: workloads whose annotation asks for a service; none where the installation makes no services.
    """

    services: tuple[SpeculativeService, ...] = ()
    manifests: Mapping[str, Manifest] = field(default_factory=dict)
    invalid: tuple[InvalidService, ...] = ()
    targets: Mapping[Ref, Manifest] = field(default_factory=dict)
    makers: Mapping[str, Sequence[Manifest]] = field(default_factory=dict)
    pods: Mapping[str, Sequence[Manifest]] = field(default_factory=dict)
    pods_of: Mapping[str, Sequence[Manifest]] = field(default_factory=dict)
    pod_names: Mapping[str, frozenset[str]] = field(default_factory=dict)
    claims: Mapping[Ref, Sequence[Claim]] = field(default_factory=dict)
    jobs: Mapping[str, Sequence[Manifest]] = field(default_factory=dict)
    cron_jobs: Mapping[NamespacedName, Manifest] = field(default_factory=dict)
    runs: Sequence[Manifest] = ()
    node_labels: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    profiles: Mapping[NamespacedName, Sequence[ProfileEntry]] = field(default_factory=dict)
    readings: Mapping[Watch, FleetReading] = field(default_factory=dict)
    pasts: Mapping[Lookback, PastReading] = field(default_factory=dict)
    latencies: Mapping[Watch, LatencyReading] = field(default_factory=dict)
    rolls: Mapping[Watch, RollAnswer] = field(default_factory=dict)
    later: Mapping[Watch, LaterReading] = field(default_factory=dict)
    sums: Mapping[Watch, FleetReading] = field(default_factory=dict)
    arrivals: Mapping[Watch, RollReading] = field(default_factory=dict)
    firsts: Mapping[str, FirstAnswer] = field(default_factory=dict)
    selectors: Mapping[str, Sequence[Manifest]] = field(default_factory=dict)
    network_policies: Mapping[str, Sequence[Manifest]] = field(default_factory=dict)
    events: Mapping[str, Sequence[Manifest]] = field(default_factory=dict)
    warnings: Mapping[str, str] = field(default_factory=dict)
    volume_claims: Mapping[str, Sequence[Manifest]] = field(default_factory=dict)
    lost_nodes: frozenset[str] = frozenset()
    unreadable_targets: Mapping[Ref, str] = field(default_factory=dict)
    annotated: Mapping[Ref, Manifest] = field(default_factory=dict)

    def target_of(self, service: SpeculativeService) -> Manifest | None:
        """The object that a service names; None if there is none."""
        return self.targets.get(target_of(service))

    def target_objects(self, service: SpeculativeService) -> tuple[Manifest, ...]:
        """The target, and what its controller made of it or the target again; nothing if there is no target."""
        target = self.target_of(service)
        return (target, maker_of(target)) if target is not None else ()

    def makers_of(self, service: SpeculativeService) -> Sequence[Manifest]:
        """The objects that make its target's pods."""
        target = self.target_of(service)
        return self.makers.get(maker_of(target)["metadata"]["uid"], ()) if target is not None else ()

    def target_pods(self, service: SpeculativeService) -> list[Manifest]:
        """The pods of its target, old ones among them."""
        target = self.target_of(service)
        owners = (target, *self.makers_of(service)) if target is not None else ()
        return [pod for owner in owners for pod in self.pods_of.get(owner["metadata"]["uid"], ())]


class Legible(NamedTuple):
    """A world in which the pods of some services can be read.

    Attributes:
        world: with their readings.
        ready: uids of services whose readings are there, in the order that was asked for.
        awaited: uids of those whose Prometheus has not answered yet, and of those behind them; a later cycle has its answer.
        late: uids of those whose readings are older than the sums that made them due.
    """

    world: Snapshot
    ready: Sequence[str]
    awaited: frozenset[str]
    late: frozenset[str]


class Scope(NamedTuple):
    """Services that an installation takes on.

    Attributes:
        drafters: how drafters begin that services may name; a service that names another one breaks a rule. Empty: all.
        annotated: whether workloads that ask for a service by their annotation are read.
    """

    drafters: tuple[str, ...] = ()
    annotated: bool = False


def claims_of(services: Iterable[SpeculativeService]) -> dict[Ref, list[Claim]]:
    """Claims of services on targets, by target."""
    found: dict[Ref, list[Claim]] = defaultdict(list)
    for service in services:
        found[target_of(service)].append(Claim.of(service))
    return found


class ServiceReader:
    """Parses a service again only if its object has changed, which most do not between two cycles."""

    def __init__(self, scope: Scope) -> None:
        self._scope = scope
        self._known: dict[str, SpeculativeService] = {}

    def read(
        self, manifests: Sequence[Manifest]
    ) -> tuple[tuple[SpeculativeService, ...], tuple[InvalidService, ...]]:
        """The services among these objects, and those that break a rule, which an older CRD let through."""
        parsed: dict[str, SpeculativeService] = {}
        invalid = []
        for manifest in manifests:
            read = self._parsed(manifest)
            if isinstance(read, SpeculativeService):
                parsed[manifest["metadata"]["uid"]] = read
            else:
                invalid.append(InvalidService(manifest, read))
        self._known = parsed
        return tuple(parsed.values()), tuple(invalid)

    def _parsed(self, manifest: Manifest) -> SpeculativeService | str:
        meta = manifest["metadata"]
        if (problem := problem_of(manifest)) is not None:
            return problem
        known = self._known.get(meta["uid"])
        if known is not None and known.metadata.resource_version == meta["resourceVersion"]:
            return known
        try:
            service = SpeculativeService.read(
                manifest, f"SpeculativeService {meta['namespace']}/{meta['name']}"
            )
        except InputError as error:
            return str(error)
        strays = ((m.name, m.strays_from(self._scope.drafters)) for m in service.spec.candidates.methods)
        problems = (f"spec.candidates.methods {name}: {problem}" for name, problem in strays if problem)
        return next(problems, service)

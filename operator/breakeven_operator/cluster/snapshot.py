"""The input of one cycle: the cluster's objects, services that keep and that break their rules, and every Prometheus' answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

from breakeven_operator.case import FirstAnswer
from breakeven_operator.cluster.prometheus_questions import StandingQuestion, Watch
from breakeven_operator.kinds import NamespacedName, Ref, Resource
from breakeven_operator.ports import Manifest
from breakeven_operator.resources import SpeculativeService
from breakeven_operator.step import ProfileEntry
from breakeven_operator.workloads.known import target_of
from breakeven_operator.workloads.target import Claim
from breakeven_operator.workloads.workload_kind import maker_of

Reading = TypeVar("Reading")


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
        unreadable_targets: targets that exist and could not be read, and why.
        annotated: workloads whose annotation asks for a service; none where the installation makes no services.
        makers: of pods, by uid of the target that owns them.
        pods_of: by uid of the maker or target that owns them, without ended ones.
        pod_names: by namespace, of all pods: series outlive their pod for some minutes.
        claims: of services, by target.
        objects: by kind: pods, ended ones too; Jobs; network policies and events of namespaces in which a calibration is under way;
            volume claims of those namespaces, and of namespaces in which a target mounts any.
        selectors: only of namespaces in which a calibration is under way.
        warnings: words of events about pods that do not come, by uid.
        lost_nodes: names of nodes whose kubelet does not say that it is Ready.
        answers: the newest readings of each Prometheus, by question.
        firsts: what the past says of services without a profile, by uid.
        ready: uids of services whose readings are there, in the order in which they are due.
        awaited: uids of due services whose Prometheus has not answered yet, and of those behind them; a later cycle has its answer.
        late: uids of services whose readings are older than the sums that made them due.
    """

    services: tuple[SpeculativeService, ...] = ()
    manifests: Mapping[str, Manifest] = field(default_factory=dict)
    invalid: tuple[InvalidService, ...] = ()
    targets: Mapping[Ref, Manifest] = field(default_factory=dict)
    unreadable_targets: Mapping[Ref, str] = field(default_factory=dict)
    annotated: Mapping[Ref, Manifest] = field(default_factory=dict)
    makers: Mapping[str, Sequence[Manifest]] = field(default_factory=dict)
    pods_of: Mapping[str, Sequence[Manifest]] = field(default_factory=dict)
    pod_names: Mapping[str, frozenset[str]] = field(default_factory=dict)
    claims: Mapping[Ref, Sequence[Claim]] = field(default_factory=dict)
    objects: Mapping[Resource, Mapping[str, Sequence[Manifest]]] = field(default_factory=dict)
    cron_jobs: Mapping[NamespacedName, Manifest] = field(default_factory=dict)
    runs: Sequence[Manifest] = ()
    profiles: Mapping[NamespacedName, Sequence[ProfileEntry]] = field(default_factory=dict)
    selectors: Mapping[str, Sequence[Manifest]] = field(default_factory=dict)
    warnings: Mapping[str, str] = field(default_factory=dict)
    node_labels: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    lost_nodes: frozenset[str] = frozenset()
    answers: Mapping[StandingQuestion[Watch, Any], Mapping[Watch, Any]] = field(default_factory=dict)
    firsts: Mapping[str, FirstAnswer] = field(default_factory=dict)
    ready: Sequence[str] = ()
    awaited: AbstractSet[str] = frozenset()
    late: AbstractSet[str] = frozenset()

    def answer(self, question: StandingQuestion[Watch, Reading], watch: Watch | None) -> Reading | None:
        """The newest reading of a question; None if it was not asked."""
        found: Reading | None = self.answers.get(question, {}).get(watch) if watch is not None else None
        return found

    def of(self, kind: Resource, namespace: str) -> Sequence[Manifest]:
        """The objects of a kind in a namespace."""
        return self.objects.get(kind, {}).get(namespace, ())

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

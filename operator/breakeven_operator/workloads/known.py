"""The table of the kinds of workloads that the operator rolls."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Final

from breakeven_operator.kinds import NamespacedName, Ref, Resource
from breakeven_operator.ports import Manifest
from breakeven_operator.resources import SpeculativeService
from breakeven_operator.resources.speculativeservice import TargetReference
from breakeven_operator.workloads.argo_rollout import ARGO_ROLLOUT
from breakeven_operator.workloads.deployment import DEPLOYMENT
from breakeven_operator.workloads.kserve import INFERENCE_SERVICE, LLM_INFERENCE_SERVICE
from breakeven_operator.workloads.leader_worker_set import LEADER_WORKER_SET
from breakeven_operator.workloads.other_kinds import ForeignKind
from breakeven_operator.workloads.stateful_set import STATEFUL_SET
from breakeven_operator.workloads.workload_kind import WorkloadKind

KINDS: Final[Mapping[Resource, WorkloadKind]] = {
    kind.resource: kind
    for kind in (
        DEPLOYMENT,
        STATEFUL_SET,
        LEADER_WORKER_SET,
        ARGO_ROLLOUT,
        LLM_INFERENCE_SERVICE,
        INFERENCE_SERVICE,
    )
}
NAMING: Final = tuple(kind for kind in KINDS.values() if kind.pod_name)
"""The kinds whose pods' names say what they are of."""
WATCHABLE: Final = tuple(resource for resource in KINDS if not resource.optional)
"""The kinds whose annotation may ask for a service: every cluster has them."""
WATCH_ANNOTATION: Final = "breakeven.dev/watch"
POD_LABELS: Final = frozenset(label for kind in KINDS.values() for label in kind.pod_labels)
_BY_WORDS: Final = {
    (version, kind.resource.kind): kind
    for kind in KINDS.values()
    for version in (kind.resource.api_version, *kind.other_versions)
}


def asks_to_be_watched(workload: Manifest) -> bool:
    """Whether a workload's annotation asks for a service."""
    return (workload["metadata"].get("annotations") or {}).get(WATCH_ANNOTATION) == "true"


def kind_of(target: TargetReference) -> WorkloadKind:
    """The kind of a service's target."""
    known = _BY_WORDS.get((target.api_version, target.kind))
    return known if known is not None else _foreign(target.api_version, target.kind)


def kind_at(resource: Resource) -> WorkloadKind:
    """The kind of a target by its resource."""
    known = KINDS.get(resource)
    return known if known is not None else _foreign(resource.api_version, resource.kind)


@lru_cache(maxsize=256)
def _foreign(api_version: str, kind: str) -> ForeignKind:
    group, _, version = api_version.rpartition("/")
    return ForeignKind(Resource(group, version, "", kind))


def target_of(service: SpeculativeService) -> Ref:
    """The object that a service names, without a uid, whether there is one or not."""
    return Ref(
        kind_of(service.spec.target_ref).resource, service.metadata.namespace, service.spec.target_ref.name
    )


def made_of(target: Ref) -> tuple[Ref, ...]:
    """The objects that the controller of a target may make of it, and whose pods serve then; none of a kind that has its pods."""
    made_as = kind_at(target.resource).made_as
    return tuple(
        Ref(kind.resource, target.namespace, f"{target.name}{suffix}") for suffix, kind in made_as.items()
    )


def owner_words(owner: Mapping[str, str]) -> str:
    """The target to name in place of an object that this controller owns, as the end of a sentence; empty of an unknown one."""
    kind = _BY_WORDS.get((owner.get("apiVersion", ""), owner.get("kind", "")))
    if kind is None:
        return ""
    return f"apiVersion: {kind.resource.api_version}, kind: {kind.resource.kind}, name: {owner.get('name')}"


def target_name(service: SpeculativeService) -> NamespacedName:
    """The same as series of its pods name it."""
    return NamespacedName(service.metadata.namespace, service.spec.target_ref.name)

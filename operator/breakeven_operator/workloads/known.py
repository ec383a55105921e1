"""The table of the kinds of workloads that the operator rolls."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from breakeven_operator.kinds import NamespacedName, Ref, Resource
from breakeven_operator.resources import SpeculativeService
from breakeven_operator.workloads.deployment import DEPLOYMENT
from breakeven_operator.workloads.stateful_set import STATEFUL_SET
from breakeven_operator.workloads.workload_kind import WorkloadKind

KINDS: Final[Mapping[Resource, WorkloadKind]] = {kind.resource: kind for kind in (DEPLOYMENT, STATEFUL_SET)}
MAKERS: Final = frozenset(maker for kind in KINDS.values() for maker in kind.makers)
"""Kinds of the objects between workloads and their pods."""
POD_LABELS: Final = frozenset(label for kind in KINDS.values() for label in kind.pod_labels)
_BY_WORDS: Final = {(kind.resource.api_version, kind.resource.kind): kind for kind in KINDS.values()}


def kind_of(service: SpeculativeService) -> WorkloadKind:
    """The kind of a service's target."""
    target = service.spec.target_ref
    return _BY_WORDS[target.api_version, target.kind]


def target_of(service: SpeculativeService) -> Ref:
    """The object that a service names, without a uid, whether there is one or not."""
    return Ref(kind_of(service).resource, service.metadata.namespace, service.spec.target_ref.name)


def target_name(service: SpeculativeService) -> NamespacedName:
    """The same as series of its pods name it."""
    return NamespacedName(service.metadata.namespace, service.spec.target_ref.name)

"""The facts that differ from one kind of workload to another; all else is the same for every kind.

A new kind is one file beside this one, a row in `known.py`, its word in the CRD (`resources/speculativeservice.py`), and
its plural in the chart's role and admission policy.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from functools import reduce
from typing import Any, ClassVar, NamedTuple

from breakeven.serving.opt_in import ANNOTATION
from breakeven.serving.rolling import Strategy
from breakeven_operator.kinds import Resource
from breakeven_operator.ports import Manifest
from breakeven_operator.workloads.object_facts import condition, owner_uid
from breakeven_operator.workloads.trouble import Trouble, refused_pod


class PodCounts(NamedTuple):
    """Pods of a workload. A change has been rolled out when `updated`, `desired`, `available` and `total` are equal.

    Attributes:
        desired: wanted. total: existing. updated: of the newest template. ready, available: of any template.
    """

    desired: int
    total: int
    updated: int
    ready: int
    available: int


class WorkloadKind(ABC):
    """A kind of the API whose objects own vLLM's pods.

    Attributes:
        resource: the kind.
        rolled: whether the operator rolls it; it looks at every kind.
        makers: kinds of the objects between a workload and its pods; none if it makes them itself.
        pod_labels: labels of pods that tell their revision.
        pod_name: regular expression of its pods' names, whose groups joined are the workload's name.
        siblings: regular expression of its pods' names, whose group is what the pods of one template have in common.
        keeps_names: whether the pod that replaces another one has the name of that one.
        refusals_in_events: whether its status does not say that the API server refuses a pod, and its events do.
        without_loss: how it is rolled with all of its replicas serving, as a clause.
        template_at: where the pod template stands: the annotation that is written there reaches the pods.
    """

    resource: Resource
    rolled: ClassVar[bool] = True
    makers: ClassVar[tuple[Resource, ...]] = ()
    pod_labels: ClassVar[tuple[str, ...]] = ()
    pod_name: ClassVar[str]
    siblings: ClassVar[str]
    keeps_names: ClassVar[bool] = False
    refusals_in_events: ClassVar[bool] = False
    without_loss: ClassVar[str]
    template_at: ClassVar[tuple[str, ...]] = ("spec", "template")

    def template(self, manifest: Manifest) -> Manifest:
        """The pod template."""
        found: Manifest = reduce(lambda part, name: part[name], self.template_at, manifest)
        return found

    def change(self, value: str | None) -> dict[str, Any]:
        """The part of a server-side apply that sets the annotation; None gives the key up, which undoes a first write."""
        return _nested((*self._annotations_at, ANNOTATION), value) if value is not None else {}

    def value_of(self, manifest: Manifest) -> str | None:
        """The arm's annotation; None if absent."""
        annotations = reduce(lambda part, name: part.get(name) or {}, self._annotations_at, manifest)
        value: str | None = annotations.get(ANNOTATION)
        return value

    @property
    def value_field(self) -> tuple[str, ...]:
        """The annotation's place in `fieldsV1` of managedFields."""
        return tuple(f"f:{name}" for name in (*self._annotations_at, ANNOTATION))

    @property
    def written_fields(self) -> Mapping[str, Any]:
        """The fields whose writers are asked about: the annotation, and the number of replicas."""
        fields = _nested(self.value_field, {})
        fields.setdefault("f:spec", {})["f:replicas"] = {}
        return fields

    @property
    def _annotations_at(self) -> tuple[str, ...]:
        return (*self.template_at, "metadata", "annotations")

    def owners(self, manifest: Manifest, makers: Iterable[Manifest]) -> frozenset[str]:
        """Uids of what owns its pods: itself, and its makers.

        Args:
            manifest: the workload.
            makers: objects of `makers`, those of other workloads among them.
        """
        uid = str(manifest["metadata"]["uid"])
        return frozenset({uid, *(str(one["metadata"]["uid"]) for one in makers if owner_uid(one) == uid)})

    @abstractmethod
    def newest_revision(self, manifest: Manifest, makers: Iterable[Manifest]) -> str:
        """Name of the revision of its template that its controller saw last; empty before there is one.

        Args: see owners.
        """

    @abstractmethod
    def revision_of(self, pod: Manifest) -> str:
        """Name of the revision of the template that one of its pods was made of; empty if the pod does not say."""

    @abstractmethod
    def counts(self, manifest: Manifest) -> PodCounts:
        """How far its pods are."""

    def held(self, manifest: Manifest) -> str | None:
        """Why its controller would not roll a change to all pods, as a clause with the way out; None if it would."""
        return (
            "has spec.paused set: kubectl rollout resume it first" if manifest["spec"].get("paused") else None
        )

    def waits_for_ready(self, manifest: Manifest) -> bool:
        """Whether a pod that is not Ready keeps its controller from replacing any pod, that one too."""
        return bool(manifest["spec"].get("podManagementPolicy") == "OrderedReady")

    @abstractmethod
    def strategy(self, manifest: Manifest, desired: int) -> Strategy:
        """How many pods come beside, and go before, the new ones of a roll."""

    def trouble(self, manifest: Manifest, refusal: str) -> Trouble | None:
        """Why the API server takes no further pod: quota, policy or webhook; None if nobody says so.

        Args:
            manifest: the workload.
            refusal: what its events say; empty: nothing.
        """
        said = {"status": "True", "message": refusal} if refusal else condition(manifest, "ReplicaFailure")
        return refused_pod(said)


def _nested(path: tuple[str, ...], value: Any) -> dict[str, Any]:
    found = value
    for name in reversed(path):
        found = {name: found}
    return dict(found)

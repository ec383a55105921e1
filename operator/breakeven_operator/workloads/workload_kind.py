"""The facts that differ from one kind of workload to another; all else is the same for every kind.

A new kind is one file beside this one, a row in `known.py`, its word in the CRD (`resources/speculativeservice.py`) and
its rights in the chart.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from functools import reduce
from typing import Any, ClassVar, NamedTuple

from breakeven.serving.opt_in import ANNOTATION
from breakeven.serving.rolling import Strategy
from breakeven_operator.kinds import Resource
from breakeven_operator.ports import Manifest
from breakeven_operator.workloads.trouble import Trouble


class PodCounts(NamedTuple):
    """Pods of a workload. A change has been rolled out when `updated`, `desired`, `available` and `total` are equal.

    Attributes:
        desired: wanted. total: existing. updated: of the newest template. ready, available: of any template.
        paused: whether a change of the template would not be rolled.
    """

    desired: int
    total: int
    updated: int
    ready: int
    available: int
    paused: bool


class WorkloadKind(ABC):
    """A kind of the API whose objects own vLLM's pods.

    Attributes:
        resource: the kind.
        rolled: whether the operator rolls it; it looks at every kind.
        makers: kinds of the objects between a workload and its pods; none if it makes them itself.
        pod_labels: labels of pods that tell their revision.
        pod_name: regular expression of its pods' names, whose groups joined are the workload's name.
        template_at: where the pod template stands: the annotation that is written there reaches the pods.
    """

    resource: Resource
    rolled: ClassVar[bool] = True
    makers: ClassVar[tuple[Resource, ...]] = ()
    pod_labels: ClassVar[tuple[str, ...]] = ()
    pod_name: ClassVar[str]
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

    @abstractmethod
    def revisions(self, manifest: Manifest, makers: Iterable[Manifest]) -> Sequence[str]:
        """The revisions of its template, the newest one first; pods of any other revision are not its own.

        Args:
            manifest: the workload.
            makers: objects of `makers`, those of other workloads among them.
        """

    @abstractmethod
    def revision_of(self, pod: Manifest) -> str:
        """The revision of a pod, unique among all workloads."""

    @abstractmethod
    def counts(self, manifest: Manifest) -> PodCounts:
        """How far its pods are."""

    @abstractmethod
    def strategy(self, manifest: Manifest, desired: int) -> Strategy:
        """How many pods come beside, and go before, the new ones of a roll."""

    @abstractmethod
    def trouble(self, manifest: Manifest) -> Trouble | None:
        """Why a change is stuck, or was aborted, by the workload's own status; None if it does not say so."""


def _nested(path: tuple[str, ...], value: Any) -> dict[str, Any]:
    found = value
    for name in reversed(path):
        found = {name: found}
    return dict(found)

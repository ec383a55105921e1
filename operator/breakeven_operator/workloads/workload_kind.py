"""The facts that differ from one kind of workload to another; all else is the same for every kind.

`known` has the kinds that the operator rolls.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from functools import reduce
from typing import Any, ClassVar, NamedTuple

from breakeven.serving.opt_in import ANNOTATION
from breakeven.serving.rolling import Strategy
from breakeven_operator.kinds import Resource
from breakeven_operator.ports import Manifest
from breakeven_operator.workloads.object_facts import Trouble, condition, owner_of, owner_uid, refused_pod


class PodCounts(NamedTuple):
    """Pods of a workload: wanted, existing, of the newest template, and ready and available ones of any template.

    A change has been rolled out when `updated`, `desired`, `available` and `total` are equal.
    """

    desired: int
    total: int
    updated: int
    ready: int
    available: int


class Workers(NamedTuple):
    """Pods that belong to one replica beside the pod that serves, and start and end with it."""

    number: int
    pod_spec: Manifest


ALONE = Workers(0, {})
"""Of a replica that is one pod."""
MADE = "breakeven.dev/made"
"""The member of a workload that has the object that its controller made of it; no API object has such a member."""


def maker_of(manifest: Manifest) -> Manifest:
    """The object whose counts and pod template are a workload's: what its controller made of it, or itself."""
    made: Manifest = manifest.get(MADE, manifest)
    return made


_CUT = 47
"""Letters of a name from which the names of its pods may not hold all of it."""


def _paused(spec: Manifest) -> str | None:
    return "has spec.paused set: kubectl rollout resume it first" if spec.get("paused") else None


class WorkloadKind(ABC):
    """A kind of the API whose objects own vLLM's pods.

    Attributes:
        strategy_of: see `strategy`; held_by: see `held`. They are given the object's spec.
        rolled: whether the operator rolls it; it looks at every kind.
        makers: kinds of the objects between a workload and its pods; none if it makes them itself.
        pod_labels: labels of pods that tell their revision.
        pod_name: regular expression of its pods' names, whose groups joined are the workload's name; empty if its makers are
            of a kind that names pods.
        siblings: regular expression of its pods' names, whose group is what the pods of one template have in common; empty
            in the same case.
        keeps_names: whether a pod has the name of the pod that it replaces.
        refusals_in_events: whether its status does not say that the API server refuses a pod, and its events, or the events of
            its makers, do.
        own_writers: field managers of its controller, which writes it outside of its status too.
        without_loss: how it is rolled with all of its replicas serving, as a clause.
        may_borrow: whether its pod template may stand in another object.
        made_as: kinds of the objects that its controller makes of it, by the end of their names; they have the pod template.
        other_versions: versions of its API by which people name it too.
        takes_back: whether its controller removes an annotation from the pods' template when nobody asks for it any more.
        template_at: where the pod template stands: the annotation that is written there reaches the pods.
        beside_at: where further templates may stand whose pods need the same annotation.
        partition_at: where the number of pods stands that keep the template before; empty if there is none.
    """

    resource: Resource
    strategy_of: Callable[[Manifest, int], Strategy]
    held_by: Callable[[Manifest], str | None] = staticmethod(_paused)
    rolled: ClassVar[bool] = True
    makers: ClassVar[tuple[Resource, ...]] = ()
    pod_labels: ClassVar[tuple[str, ...]] = ()
    pod_name: ClassVar[str] = ""
    siblings: ClassVar[str] = ""
    keeps_names: bool = False
    refusals_in_events: bool = False
    own_writers: ClassVar[frozenset[str]] = frozenset()
    without_loss: str
    may_borrow: ClassVar[bool] = False
    made_as: ClassVar[Mapping[str, WorkloadKind]] = {}
    other_versions: ClassVar[tuple[str, ...]] = ()
    takes_back: ClassVar[bool] = True
    template_at: ClassVar[tuple[str, ...]] = ("spec", "template")
    beside_at: ClassVar[tuple[tuple[str, ...], ...]] = ()
    partition_at: ClassVar[tuple[str, ...]] = ()

    def of(self, manifest: Manifest) -> tuple[WorkloadKind, Manifest]:
        """The kind whose controller makes an object's pods, and the object that it makes them of: itself."""
        return self, manifest

    def pods_of(self, name: str) -> str:
        """Regular expression of the names of a workload's pods; of a kind that names none, of all that begin like its own."""
        own = self.pod_name.partition("|")[0]
        if not own or len(name) >= _CUT:
            return f"{re.escape(name[:_CUT])}.+"
        return own.replace("(.+)", re.escape(name))

    def template(self, manifest: Manifest) -> Manifest:
        """The pod template of the engine."""
        found: Manifest = reduce(lambda part, name: part[name], self.template_at, manifest)
        return found

    def change(self, manifest: Manifest, value: str | None) -> dict[str, Any]:
        """The part of a server-side apply that sets the annotation; None gives the key up, which undoes a first write."""
        places = self._annotations_at(manifest) if value is not None else []
        return _nested({(*path, ANNOTATION): value for path in places})

    def partition(self, manifest: Manifest) -> int:
        """The ordinal below which pods keep the template before; 0: a change reaches all."""
        if not self.partition_at:
            return 0
        *outer, last = self.partition_at
        return int(_at(manifest, outer).get(last) or 0)

    def value_managers(self, manifest: Manifest) -> tuple[str, ...]:
        """Field managers that own the annotation."""
        paths = self.value_fields(manifest)
        return tuple(
            str(entry.get("manager", ""))
            for entry in manifest["metadata"].get("managedFields") or []
            if any(has_field(entry, path) for path in paths)
        )

    def value_of(self, manifest: Manifest) -> str | None:
        """The arm's annotation; None if absent, or if it is not the same in all templates."""
        values = {_at(manifest, path).get(ANNOTATION) for path in self._annotations_at(manifest)}
        return values.pop() if len(values) == 1 else None

    def observed_generation(self, manifest: Manifest) -> int:
        """The generation that its controller has acted upon."""
        return int((manifest.get("status") or {}).get("observedGeneration") or 0)

    def value_fields(self, manifest: Manifest) -> tuple[tuple[str, ...], ...]:
        """The annotation's places in `fieldsV1` of managedFields."""
        return tuple(
            tuple(f"f:{name}" for name in (*path, ANNOTATION)) for path in self._annotations_at(manifest)
        )

    def written_fields(self, manifest: Manifest) -> Mapping[str, Any]:
        """The fields whose writers are asked about: the annotation and the number of replicas."""
        return _nested({path: {} for path in (*self.value_fields(manifest), ("f:spec", "f:replicas"))})

    def _annotations_at(self, manifest: Manifest) -> list[tuple[str, ...]]:
        there = (self.template_at, *(path for path in self.beside_at if _at(manifest, path)))
        return [(*path, "metadata", "annotations") for path in there]

    def workers(self, manifest: Manifest) -> Workers:  # noqa: ARG002 - a replica is a pod
        """The pods of a replica beside its serving pod."""
        return ALONE

    def check(self, manifest: Manifest) -> None:
        """Read everything of an object that is read later; a CRD admits texts where its controller wants numbers.

        Raises:
            ArithmeticError, AttributeError, LookupError, TypeError, ValueError: a part is not what it should be.
        """
        counts = self.counts(manifest)
        self.observed_generation(manifest)
        self.strategy(manifest, counts.desired)
        self.value_of(manifest)
        if self.borrows(manifest) is None:
            self.template(manifest)
        for fact in (self.held, self.partition, self.waits, self.aborted, self.workers, self.waits_for_ready):
            fact(manifest)

    def owners(self, manifest: Manifest, makers: Iterable[Manifest]) -> frozenset[str]:
        """Uids of what owns its pods: itself, and its makers, given all objects of the kinds `makers`."""
        uid = str(manifest["metadata"]["uid"])
        return frozenset({uid, *(str(one["metadata"]["uid"]) for one in makers if owner_uid(one) == uid)})

    @abstractmethod
    def newest_revision(self, manifest: Manifest, makers: Iterable[Manifest]) -> str:
        """Name of the revision of its template that its controller saw last; empty before there is one."""

    def returned(self, manifest: Manifest, makers: Iterable[Manifest]) -> bool:  # noqa: ARG002 - nobody says so
        """Whether it has the template of an earlier revision again, as `kubectl rollout undo` leaves it."""
        return False

    def revision_of(self, pod: Manifest) -> str:
        """Name of the revision of the template that one of its pods was made of; empty if the pod does not say."""
        return str(owner_of(pod).get("name", ""))

    def counts(self, manifest: Manifest) -> PodCounts:
        """How far its pods are."""
        status = manifest.get("status") or {}
        return PodCounts(
            desired=int(manifest["spec"].get("replicas", 1)),
            total=int(status.get("replicas", 0)),
            updated=int(status.get("updatedReplicas", 0)),
            ready=int(status.get("readyReplicas", 0)),
            available=int(status.get("availableReplicas", 0)),
        )

    def held(self, manifest: Manifest) -> str | None:
        """Why its controller would not roll a change to all pods, as a clause with the way out; None if it would."""
        return self.held_by(manifest["spec"])

    def waits(self, manifest: Manifest) -> str | None:  # noqa: ARG002 - its controller goes on by itself
        """The part of its user's strategy that holds a roll under way, as a clause; None if it goes on by itself."""
        return None

    def aborted(self, manifest: Manifest) -> str | None:  # noqa: ARG002 - its controller aborts nothing
        """A sign that its controller has given a roll up, as a clause; None if it has not."""
        return None

    def borrows(self, manifest: Manifest) -> str | None:  # noqa: ARG002 - it has a template
        """Kind and name of the object that has its pod template; None if it has the template itself."""
        return None

    def halves(self, manifest: Manifest) -> str | None:  # noqa: ARG002 - it has one engine
        """The field by which prefill and decode are apart in it; None if they are not."""
        return None

    def waits_for_ready(self, manifest: Manifest) -> bool:
        """Whether a pod that is not Ready keeps its controller from replacing any pod, that one too."""
        return bool(manifest["spec"].get("podManagementPolicy") == "OrderedReady")

    def strategy(self, manifest: Manifest, desired: int) -> Strategy:
        """How many pods come beside, and go before, the new ones of a roll."""
        return self.strategy_of(manifest["spec"], desired)

    def trouble(self, manifest: Manifest, refusal: str) -> Trouble | None:
        """Why the API server takes no further pod: quota, policy or webhook; None if neither its events nor itself say so."""
        said = {"status": "True", "message": refusal} if refusal else condition(manifest, "ReplicaFailure")
        return refused_pod(said)


def with_own_claims(template: Manifest, claims: Iterable[Mapping[str, Any]]) -> Manifest:
    """A pod template with each claim template as a volume that every pod has for itself.

    The controller puts a claim of the pod's own in its place. A copy of the template gets a new, empty one, which goes
    with the copy.
    """
    own = {str(claim["metadata"]["name"]): _volume(claim) for claim in claims}
    if not own:
        return template
    others = [one for one in template["spec"].get("volumes") or [] if one["name"] not in own]
    return {**template, "spec": {**template["spec"], "volumes": [*others, *own.values()]}}


def _volume(claim: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "name": claim["metadata"]["name"],
        "ephemeral": {"volumeClaimTemplate": {"spec": claim["spec"]}},
    }


def has_field(entry: Mapping[str, Any], path: Iterable[str]) -> bool:
    """Whether an entry of managedFields has the field at a path of `fieldsV1`."""
    fields: Any = entry.get("fieldsV1") or {}
    for step in path:
        fields = fields.get(step) if isinstance(fields, Mapping) else None
        if fields is None:
            return False
    return True


def _at(manifest: Manifest, path: Iterable[str]) -> Mapping[str, Any]:
    found: Mapping[str, Any] = reduce(lambda part, name: part.get(name) or {}, path, manifest)
    return found


def _nested(leaves: Mapping[tuple[str, ...], Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for (*outer, last), value in leaves.items():
        reduce(lambda part, name: part.setdefault(name, {}), outer, found)[last] = value
    return found

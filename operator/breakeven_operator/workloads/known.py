"""The kinds of workloads that the operator rolls, one class for each, and their table.

A new kind that is rolled is one class here, a row in `KINDS`, its word in the CRD (`resources/speculativeservice.py`), and its plural in the chart's
role and admission policy. A kind that is only looked at is `_foreign`: it needs none of that.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache
from types import MappingProxyType
from typing import Any, ClassVar, Final

from breakeven.serving.rolling import (
    group_strategy,
    groups_held_back,
    held_back,
    ordinal_strategy,
    stepwise_strategy,
    strategy,
)
from breakeven_operator.kinds import (
    ARGO_ROLLOUTS,
    DEPLOYMENTS,
    INFERENCE_SERVICES,
    LEADER_SETS,
    LEADER_WORKER_SETS,
    LLM_SERVICES,
    REPLICASETS,
    STATEFULSETS,
    NamespacedName,
    Ref,
    Resource,
)
from breakeven_operator.ports import Manifest
from breakeven_operator.resources import SpeculativeService
from breakeven_operator.resources.speculativeservice import TargetReference
from breakeven_operator.workloads.object_facts import owner_uid
from breakeven_operator.workloads.other_kinds import ForeignKind
from breakeven_operator.workloads.workload_kind import (
    ALONE,
    MADE,
    PodCounts,
    Workers,
    WorkloadKind,
    maker_of,
    with_own_claims,
)

_REPLICASET_REVISION = "deployment.kubernetes.io/revision"
_REVISIONS_BEFORE = "deployment.kubernetes.io/revision-history"
# The alphabet of names that the API server makes: without vowels, and digits that look like letters.
_LETTERS = "[bcdfghjklmnpqrstvwxz2456789]"


class DeploymentKind(WorkloadKind):
    """A ReplicaSet per template, and a roll that may surge."""

    resource = DEPLOYMENTS
    strategy_of = staticmethod(strategy)
    makers = (REPLICASETS,)
    # <name>-<hash of the ReplicaSet>-<five letters>: `chat` is not `chat-large`, and a calibration's pod (<run>-<arm>-<five
    # letters>) is neither. From 47 letters on the name is cut before the five, and with it the second dash.
    pod_name = f"(.+)-{_LETTERS}{{1,10}}-{_LETTERS}{{5}}|(.{{47,57}})-{_LETTERS}{{5,15}}"
    # The name of its ReplicaSet, cut if it would be too long, and five letters.
    siblings = "(.+).{5}"
    without_loss = "set maxUnavailable: 0 and maxSurge: 1 in the target's strategy"

    def newest_revision(self, manifest: Manifest, makers: Iterable[Manifest]) -> str:
        """Name of its newest ReplicaSet."""
        newest = _newest(manifest, makers)
        return str(newest["metadata"]["name"]) if newest is not None else ""

    def returned(self, manifest: Manifest, makers: Iterable[Manifest]) -> bool:
        """See WorkloadKind.returned; its controller notes down the revisions that a ReplicaSet had before."""
        newest = _newest(manifest, makers)
        return newest is not None and bool(
            (newest["metadata"].get("annotations") or {}).get(_REVISIONS_BEFORE)
        )


DEPLOYMENT = DeploymentKind()


def _newest(manifest: Manifest, makers: Iterable[Manifest]) -> Manifest | None:
    own = [one for one in makers if owner_uid(one) == manifest["metadata"]["uid"]]
    return max(own, key=_replica_set_revision, default=None)


def _replica_set_revision(replica_set: Manifest) -> int:
    try:
        return int((replica_set["metadata"].get("annotations") or {}).get(_REPLICASET_REVISION, "0"))
    except ValueError:
        return 0


_POD_REVISION = "controller-revision-hash"
# Of more digits it could be the five letters at the end of another kind's pod.
_ORDINAL = "[0-9]{1,4}"


class StatefulSetKind(WorkloadKind):
    """Pods keep their names, and are replaced from the highest ordinal down, each gone before the next one comes."""

    resource = STATEFULSETS
    held_by = staticmethod(held_back)
    strategy_of = staticmethod(ordinal_strategy)
    pod_labels = (_POD_REVISION,)
    # <name>-<ordinal>: `chat-0` is of `chat`, `chat-large-0` is not, nor is a calibration's pod, which ends in five letters.
    pod_name = f"(.+)-{_ORDINAL}"
    # With the dash: pods of another kind may begin in the same way.
    siblings = f"(.+-){_ORDINAL}"
    keeps_names = True
    refusals_in_events = True
    without_loss = "give the target a replica more, because a StatefulSet has no surge"
    partition_at = ("spec", "updateStrategy", "rollingUpdate", "partition")

    def template(self, manifest: Manifest) -> Manifest:
        """The pod template, each claim template as a volume that every pod has for itself."""
        return with_own_claims(super().template(manifest), manifest["spec"].get("volumeClaimTemplates") or [])

    def newest_revision(
        self,
        manifest: Manifest,
        makers: Iterable[Manifest],  # noqa: ARG002 - it makes its pods itself
    ) -> str:
        """Name of its newest ControllerRevision."""
        return str((manifest.get("status") or {}).get("updateRevision") or "")

    def revision_of(self, pod: Manifest) -> str:
        """Name of its ControllerRevision."""
        return str((pod["metadata"].get("labels") or {}).get(_POD_REVISION, ""))

    def counts(self, manifest: Manifest) -> PodCounts:
        """See WorkloadKind.counts; older API servers write some of them otherwise, or not at all."""
        status, counts = manifest.get("status") or {}, super().counts(manifest)
        # Kubernetes before 1.22 does not count available ones.
        available = int(status.get("availableReplicas", counts.ready))
        return counts._replace(updated=_updated(status), available=available)


STATEFUL_SET = StatefulSetKind()


def _updated(status: Mapping[str, Any]) -> int:
    """Pods of the newest revision. Older API servers leave their number out, or as it was, when an update has ended."""
    current, updated = status.get("currentReplicas"), status.get("updatedReplicas")
    ended = status.get("currentRevision") == status.get("updateRevision")
    known = (current, updated) if ended else (updated,)
    return int(next((number for number in known if number is not None), 0))


_GROUP_REVISION = "leaderworkerset.sigs.k8s.io/template-revision-hash"
_GROUPS = ("spec", "leaderWorkerTemplate")


class LeaderWorkerSetKind(WorkloadKind):
    """Each replica is a group of pods that restarts as one, and whose leader serves.

    Facts of its controller, version 0.9: a set of the LeaderWorkerSet's own name makes the leaders. A label has the hash of the revision:
    on a leader the hash of its template, on the set the newest one. Each leader owns a set that makes its workers. Only leaders
    have metrics, so leaders stand for the groups here; the status counts groups.
    """

    resource = LEADER_WORKER_SETS
    held_by = staticmethod(groups_held_back)
    strategy_of = staticmethod(group_strategy)
    makers = (LEADER_SETS,)
    pod_labels = (_GROUP_REVISION,)
    keeps_names = True
    refusals_in_events = True
    without_loss = "set maxUnavailable: 0 and maxSurge: 1 in its rolloutStrategy.rollingUpdateConfiguration"
    partition_at = ("spec", "rolloutStrategy", "rollingUpdateConfiguration", "partition")
    template_at = (*_GROUPS, "workerTemplate")
    beside_at = ((*_GROUPS, "leaderTemplate"),)

    def template(self, manifest: Manifest) -> Manifest:
        """The leaders' pod template, which is the workers' if there is no other, with the variables of their webhook.

        A copy leads a group of its own.
        """
        groups = manifest["spec"]["leaderWorkerTemplate"]
        leader = groups.get("leaderTemplate") or super().template(manifest)
        variables: list[dict[str, Any]] = [
            {"name": "LWS_LEADER_ADDRESS", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
            {"name": "LWS_GROUP_SIZE", "value": str(self.workers(manifest).number + 1)},
            {"name": "LWS_WORKER_INDEX", "value": "0"},
        ]
        names = {entry["name"] for entry in variables}
        containers = [
            {
                **one,
                "env": [*variables, *(env for env in one.get("env") or [] if env.get("name") not in names)],
            }
            for one in leader["spec"].get("containers") or []
        ]
        led = {**leader, "spec": {**leader["spec"], "containers": containers}}
        return with_own_claims(led, groups.get("volumeClaimTemplates") or [])

    def workers(self, manifest: Manifest) -> Workers:
        """See WorkloadKind.workers."""
        size = int(manifest["spec"]["leaderWorkerTemplate"].get("size") or 1)
        return Workers(size - 1, super().template(manifest)["spec"]) if size > 1 else ALONE

    def newest_revision(self, manifest: Manifest, makers: Iterable[Manifest]) -> str:
        """Hash of its newest revision."""
        found = (_group_revision(one) for one in makers if _leads(one, manifest))
        return next(found, "")

    def owners(self, manifest: Manifest, makers: Iterable[Manifest]) -> frozenset[str]:
        """Uids of what owns its leaders: the set of its own name."""
        return frozenset(str(one["metadata"]["uid"]) for one in makers if _leads(one, manifest))

    def revision_of(self, pod: Manifest) -> str:
        """Hash of its group's revision."""
        return _group_revision(pod)

    def counts(self, manifest: Manifest) -> PodCounts:
        """Groups; the status has no count of available ones apart from the ready ones."""
        counts = super().counts(manifest)
        return counts._replace(available=counts.ready)

    def waits_for_ready(self, manifest: Manifest) -> bool:
        """Whether a group that is not Ready uses up the only one that may be missing, and its restarts do not recreate it."""
        surge, unavailable = self.strategy(manifest, self.counts(manifest).desired)
        policy = manifest["spec"]["leaderWorkerTemplate"].get("restartPolicy")
        return surge + unavailable <= 1 and policy in {"None", "Default"}


LEADER_WORKER_SET = LeaderWorkerSetKind()


def _group_revision(manifest: Manifest) -> str:
    return str((manifest["metadata"].get("labels") or {}).get(_GROUP_REVISION, ""))


def _leads(maker: Manifest, manifest: Manifest) -> bool:
    meta = manifest["metadata"]
    return (str(maker["metadata"]["name"]), owner_uid(maker)) == (meta["name"], meta["uid"])


_HASH = "rollouts-pod-template-hash"
_UNDECIDED = frozenset({"", "Pending", "Running"})


class ArgoRolloutKind(WorkloadKind):
    """A ReplicaSet per template, and a roll whose steps, pauses and analyses its user chooses.

    Facts of its controller, version 1.10: `status.currentPodHash` is the label of the ReplicaSet of the template that is asked for,
    `status.abort` stays until somebody retries or changes the template, and a template that comes back skips the steps.
    """

    resource = ARGO_ROLLOUTS
    strategy_of = staticmethod(stepwise_strategy)
    makers = (REPLICASETS,)
    may_borrow = True
    own_writers = frozenset({"rollouts-controller"})
    without_loss = "set maxUnavailable: 0 and maxSurge: 1 in its strategy.canary"

    def newest_revision(self, manifest: Manifest, makers: Iterable[Manifest]) -> str:
        """Name of the ReplicaSet of the template that its controller saw last."""
        newest = (manifest.get("status") or {}).get("currentPodHash")
        own = (one for one in makers if owner_uid(one) == manifest["metadata"]["uid"])
        for one in own:
            if newest and str((one["metadata"].get("labels") or {}).get(_HASH, "")) == newest:
                return str(one["metadata"]["name"])
        return ""

    def held(self, manifest: Manifest) -> str | None:
        """See WorkloadKind.held."""
        if manifest["spec"].get("paused"):
            return "has spec.paused set: kubectl argo rollouts resume it first"
        aborted = self.aborted(manifest)
        return f"{aborted}: kubectl argo rollouts retry or undo it first" if aborted is not None else None

    def waits(self, manifest: Manifest) -> str | None:
        """See WorkloadKind.waits."""
        status = manifest.get("status") or {}
        canary, blue_green = status.get("canary") or {}, status.get("blueGreen") or {}
        if manifest["spec"].get("paused") or status.get("pauseConditions"):
            return "its pause holds it"
        if canary.get("currentExperiment"):
            return "its experiment holds it"
        analyses = (
            canary.get("currentStepAnalysisRunStatus"),
            blue_green.get("prePromotionAnalysisRunStatus"),
            blue_green.get("postPromotionAnalysisRunStatus"),
        )
        undecided = any(one is not None and one.get("status", "") in _UNDECIDED for one in analyses)
        return "its analysis holds it" if undecided else None

    def aborted(self, manifest: Manifest) -> str | None:
        """See WorkloadKind.aborted."""
        return "has aborted its update" if (manifest.get("status") or {}).get("abort") else None

    def borrows(self, manifest: Manifest) -> str | None:
        """See WorkloadKind.borrows."""
        reference = manifest["spec"].get("workloadRef")
        return f"{reference.get('kind')} {reference.get('name')}" if reference else None


ARGO_ROLLOUT = ArgoRolloutKind()


_LONGEST_NAME = 63


class OwningKind(WorkloadKind):
    """The controller makes a workload of another kind: the annotation goes to the parent, all else is read of the child.

    A controller like KServe's writes its child from the parent whenever something else changes. An annotation that is written into
    the child stays until then, and is gone after it. So the parent is written, and the child rolls. Of an object without its child
    no more is known than its annotation.

    Attributes:
        annotated: path of the annotations that the controller copies into the pod template.
    """

    annotated: ClassVar[tuple[str, ...]]
    own_writers = frozenset({"manager"})
    takes_back = False

    def of(self, manifest: Manifest) -> tuple[WorkloadKind, Manifest]:
        """See WorkloadKind.of."""
        child = maker_of(manifest)
        return next(one for one in self.made_as.values() if one.resource.kind == child["kind"]), child

    def made_of(self, parent: Manifest, found: Mapping[Ref, Manifest]) -> Manifest | None:
        """The parent with the child that its controller made, if that is found; None before there is one."""
        meta = parent["metadata"]
        for suffix, kind in self.made_as.items():
            child = found.get(Ref(kind.resource, meta["namespace"], f"{meta['name']}{suffix}"))
            if child is not None and owner_uid(child) == meta["uid"]:
                return {**parent, MADE: {**child, "kind": kind.resource.kind}}
        return None

    def unmade(self, parent: Manifest) -> str:
        """Why there is no child, with the way out, as the end of a sentence."""
        longest = _LONGEST_NAME - max(map(len, self.made_as))
        if len(parent["metadata"]["name"]) > longest:
            return f"its controller shortens names of more than {longest} characters, by which the pods are looked for"
        wanted = " and no ".join(kind.resource.kind for kind in self.made_as.values())
        return f"its controller has made no {wanted} of it: kubectl describe it, its conditions say why"

    def check(self, manifest: Manifest) -> None:
        """See WorkloadKind.check; its child is checked as an object of its own kind."""
        self.value_of(manifest)
        self.halves(manifest)

    def _annotations_at(self, manifest: Manifest) -> list[tuple[str, ...]]:  # noqa: ARG002 - there is one place
        return [self.annotated]

    def observed_generation(self, manifest: Manifest) -> int:
        """See WorkloadKind.observed_generation; its own status does not say it of every change."""
        own, wanted = int(manifest["metadata"].get("generation") or 0), self.value_of(manifest)
        kind, child = self.of(manifest)
        copied = wanted is None or kind.value_of(child) == wanted
        acted = kind.observed_generation(child) >= int(child["metadata"].get("generation") or 0)
        return own if copied and acted else own - 1

    def newest_revision(self, manifest: Manifest, makers: Iterable[Manifest]) -> str:
        """See WorkloadKind.newest_revision."""
        kind, child = self.of(manifest)
        return kind.newest_revision(child, makers)

    def held(self, manifest: Manifest) -> str | None:
        """See WorkloadKind.held."""
        kind, child = self.of(manifest)
        why = kind.held(child)
        return f"is served by {child['kind']} {child['metadata']['name']}, which {why}" if why else None


_MODE = "serving.kserve.io/deploymentMode"
_MODES_OF_REVISIONS = frozenset({"Knative", "Serverless"})


class InferenceServiceKind(OwningKind):
    """KServe's: in Standard mode it makes a Deployment `<name>-predictor`.

    Facts of KServe's documentation and source, version 0.20: `spec.predictor.annotations` (`spec.annotations` of an
    LLMInferenceService) become annotations of the pod template, whose presets start vLLM and drain it. In Knative mode a change
    makes a new Revision with a Deployment of its own, which is no rolling update. The child is compared with what the controller
    would make of the parent by the fields that the parent has. So a key that is removed from the parent stays in the child.
    """

    resource = INFERENCE_SERVICES
    made_as = MappingProxyType({"-predictor": DEPLOYMENT})
    annotated = ("spec", "predictor", "annotations")

    def held(self, manifest: Manifest) -> str | None:
        """See WorkloadKind.held."""
        if manifest["spec"]["predictor"].get("workerSpec") is not None:
            return "has spec.predictor.workerSpec, with which each engine runs in pods of two Deployments: use mode Recommend"
        return super().held(manifest)

    def unmade(self, parent: Manifest) -> str:
        """See OwningKind.unmade."""
        asked = (parent["metadata"].get("annotations") or {}).get(_MODE)
        mode = asked or (parent.get("status") or {}).get("deploymentMode")
        if mode in _MODES_OF_REVISIONS:
            return (
                f"its deployment mode is {mode}, in which each change makes a new Revision: name the newest Revision's Deployment as "
                f"the target, in mode Recommend, or set the annotation {_MODE}: Standard"
            )
        return super().unmade(parent)


INFERENCE_SERVICE = InferenceServiceKind()
_STOPPED = "serving.kserve.io/stop"
# Proposed in kserve pull request 5687; 0.20 has no such field.
_SPECULATOR = "speculator"


class LlmInferenceServiceKind(OwningKind):
    """KServe's: it makes a Deployment on single nodes, a LeaderWorkerSet with `spec.worker`."""

    resource = LLM_SERVICES
    other_versions = ("serving.kserve.io/v1alpha1",)
    made_as = MappingProxyType({"-kserve": DEPLOYMENT, "-kserve-mn": LEADER_WORKER_SET})
    annotated = ("spec", "annotations")

    def held(self, manifest: Manifest) -> str | None:
        """See WorkloadKind.held; KServe writes the flag from its own field, so that two would choose the arm."""
        if manifest["spec"].get(_SPECULATOR) is not None:
            return f"has spec.{_SPECULATOR}, from which KServe writes --speculative-config: take it out, or use mode Recommend"
        return super().held(manifest)

    def unmade(self, parent: Manifest) -> str:
        """See OwningKind.unmade."""
        if (parent["metadata"].get("annotations") or {}).get(_STOPPED) == "true":
            return f"it is stopped by the annotation {_STOPPED}"
        return super().unmade(parent)

    def halves(self, manifest: Manifest) -> str | None:
        """See WorkloadKind.halves."""
        return "spec.prefill" if manifest["spec"].get("prefill") is not None else None


LLM_INFERENCE_SERVICE = LlmInferenceServiceKind()


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


# LLMKube's field is in its InferenceService (pull request 1533), KAITO's annotation is proposed (2303).
_KAITOS: Final = "its annotation kaito.sh/enable-speculative-decoding"
_PLATFORM_FIELDS: Final = {
    ("inference.llmkube.dev", "InferenceService"): "its spec.speculativeDecoding",
    ("kaito.sh", "Workspace"): _KAITOS,
    ("kaito.sh", "InferenceSet"): _KAITOS,
}


def set_there(api_version: str, kind: str) -> str:
    """What to do about speculation that another platform sets, as the end of a sentence; its own field is named if it is known."""
    field = _PLATFORM_FIELDS.get((api_version.partition("/")[0], kind), "")
    return f"use mode Recommend, and set the arm there{f' ({field})' if field else ''}"


def owner_words(owner: Mapping[str, str]) -> str:
    """The target to name in place of an object that this controller owns, as the end of a sentence; empty of an unknown one."""
    kind = _BY_WORDS.get((owner.get("apiVersion", ""), owner.get("kind", "")))
    if kind is None:
        return ""
    return f"apiVersion: {kind.resource.api_version}, kind: {kind.resource.kind}, name: {owner.get('name')}"


def target_name(service: SpeculativeService) -> NamespacedName:
    """The same as series of its pods name it."""
    return NamespacedName(service.metadata.namespace, service.spec.target_ref.name)

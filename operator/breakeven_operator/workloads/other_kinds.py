"""Workloads of kinds that the operator does not know: put together from their pods, looked at and never rolled.

CloneSets, Models of KubeAI and the like own their pods directly or by ReplicaSets. Their objects need not be read: pods
name their owner, and a running pod shows its template.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from breakeven.serving.rolling import Strategy
from breakeven_operator.kinds import REPLICASETS, Ref, Resource
from breakeven_operator.ports import Manifest
from breakeven_operator.workloads.object_facts import deletion, is_finished, owner_of, owner_uid, true_since
from breakeven_operator.workloads.workload_kind import PodCounts, WorkloadKind

# Fields that the API server, the scheduler and controllers put into a pod, and volumes of its account's token.
_PLACED = (
    "nodeName",
    "hostname",
    "subdomain",
    "priority",
    "preemptionPolicy",
    "ephemeralContainers",
    "serviceAccount",
)
_TOKEN_VOLUME = "kube-api-access-"  # noqa: S105 - the name of a volume
_DEFAULT_TOLERATIONS = ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")


class ForeignKind(WorkloadKind):
    """See WorkloadKind; its collection has no address here."""

    rolled = False
    makers = (REPLICASETS,)
    without_loss = "ask for that at its own controller"

    def __init__(self, resource: Resource) -> None:
        self.resource = resource

    def newest_revision(self, manifest: Manifest, makers: Iterable[Manifest]) -> str:
        """Name of the newest maker; the workload's own if it makes its pods itself."""
        own = [one for one in makers if owner_uid(one) == manifest["metadata"]["uid"]]
        return str(max(own, key=_created, default=manifest)["metadata"]["name"])

    def counts(self, manifest: Manifest) -> PodCounts:
        """The pods that are there: nobody says how many are wanted."""
        status = manifest["status"]
        total, ready = int(status["replicas"]), int(status["readyReplicas"])
        return PodCounts(total, total, total, ready, ready)

    def strategy(self, manifest: Manifest, desired: int) -> Strategy:  # noqa: ARG002 - as WorkloadKind has it
        """A strategy that takes one pod away at a time: no better one is known."""
        return Strategy(0, min(1, desired))


class OwnedPods(NamedTuple):
    """The uid of a foreign workload, and its pods, the newest first."""

    uid: str
    living: Sequence[Manifest]


def owned_pods(
    wanted: Iterable[Ref], pods: Iterable[Manifest], makers: Iterable[Manifest]
) -> dict[Ref, OwnedPods]:
    """The pods of foreign workloads, found by who owns them, directly or through a maker."""
    asked = {(ref.resource.kind, ref.namespace, ref.name): ref for ref in wanted}
    above = {one["metadata"]["uid"]: owner_of(one) for one in makers} if asked else {}
    found: dict[Ref, tuple[str, list[Manifest]]] = {}
    for pod in pods if asked else ():
        owner = owner_of(pod)
        for one in (owner, above.get(str(owner.get("uid", "")), {})):
            ref = asked.get((str(one.get("kind")), pod["metadata"]["namespace"], str(one.get("name"))))
            if ref is not None and not is_finished(pod) and deletion(pod) is None:
                found.setdefault(ref, (str(one["uid"]), []))[1].append(pod)
    return {
        ref: OwnedPods(uid, sorted(living, key=_created, reverse=True))
        for ref, (uid, living) in found.items()
    }


def manifest_of(ref: Ref, owned: OwnedPods, pod: Manifest) -> Manifest:
    """The workload as an object, put together from its pods; the template of one pod with all fields stands for all."""
    meta = pod["metadata"]
    ready = sum(true_since(one, "Ready") is not None for one in owned.living)
    labels = dict(meta.get("labels") or {})
    return {
        "apiVersion": ref.resource.api_version,
        "kind": ref.resource.kind,
        "metadata": {
            "namespace": ref.namespace,
            "name": ref.name,
            "uid": owned.uid,
            "resourceVersion": f"{meta['uid']}-{len(owned.living)}-{ready}",
            "generation": 1,
            "creationTimestamp": min(
                str(one["metadata"].get("creationTimestamp", "")) for one in owned.living
            ),
        },
        "spec": {
            "replicas": len(owned.living),
            # Nobody tells by which of the labels the workload, or a service, selects its pods.
            "selector": {"matchLabels": labels},
            "template": {
                "metadata": {"labels": labels, "annotations": dict(meta.get("annotations") or {})},
                "spec": _template_spec(pod["spec"]),
            },
        },
        "status": {"observedGeneration": 1, "replicas": len(owned.living), "readyReplicas": ready},
    }


def _template_spec(spec: Mapping[str, Any]) -> Manifest:
    """A pod's spec without what was put into it when it was made and placed."""
    kept = {name: value for name, value in spec.items() if name not in _PLACED}
    kept["volumes"] = [one for one in spec.get("volumes") or [] if not _is_token(one)]
    kept["tolerations"] = [
        one
        for one in spec.get("tolerations") or []
        if one.get("key") not in _DEFAULT_TOLERATIONS or "tolerationSeconds" not in one
    ]
    for part in ("containers", "initContainers"):
        if part in spec:
            kept[part] = [
                {
                    **one,
                    "volumeMounts": [
                        mount for mount in one.get("volumeMounts") or [] if not _is_token(mount)
                    ],
                }
                for one in spec[part]
            ]
    return kept


def _is_token(named: Mapping[str, Any]) -> bool:
    return str(named.get("name", "")).startswith(_TOKEN_VOLUME)


def _created(manifest: Manifest) -> tuple[str, str]:
    meta = manifest["metadata"]
    return str(meta.get("creationTimestamp", "")), str(meta["name"])

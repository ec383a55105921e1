"""The StatefulSet controller: pods by ordinal, one after another, from revisions of the template.

It does what `syncStatefulSet` of Kubernetes does with partition, OnDelete and podManagementPolicy. With OrderedReady it creates
and replaces nothing beyond a pod that is not Ready, whatever template that pod has.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

from breakeven_operator.kinds import CLAIMS, EVENTS, PODS
from breakeven_operator.workloads.object_facts import is_finished
from fakes.api_server import FakeCluster
from fakes.manual_clock import FakeClock

LABEL = "controller-revision-hash"


class StatefulSetController:
    """Moves a StatefulSet one step at a time.

    Args:
        cluster: holds the objects. clock: dates events.
        admit: makes a pod; the API server's words where it refuses.
        stop: deletes a pod gracefully.
    """

    def __init__(
        self,
        cluster: FakeCluster,
        clock: FakeClock,
        admit: Callable[[dict[str, Any]], str | None],
        stop: Callable[[dict[str, Any]], None],
    ) -> None:
        self._cluster = cluster
        self._clock = clock
        self._admit = admit
        self._stop = stop
        self._revisions: dict[str, list[dict[str, Any]]] = {}

    def step(self, stateful_set: dict[str, Any]) -> None:
        status = stateful_set.setdefault("status", {})
        template = stateful_set["spec"]["template"]
        revisions = self._revisions.setdefault(stateful_set["metadata"]["uid"], [])
        # A template that comes back is the revision that it was.
        if template not in revisions:
            revisions.append(copy.deepcopy(template))
        name = f"{stateful_set['metadata']['name']}-rev{revisions.index(template)}"
        status["updateRevision"] = name
        status.setdefault("currentRevision", name)
        self._act(stateful_set)
        self._count(stateful_set)

    def _act(self, stateful_set: dict[str, Any]) -> None:
        """At most one pod is made or deleted."""
        spec, status = stateful_set["spec"], stateful_set["status"]
        ordered = spec.get("podManagementPolicy", "OrderedReady") == "OrderedReady"
        pods = self._pods_of(stateful_set)
        for ordinal in range(spec["replicas"]):
            pod = pods.get(ordinal)
            if pod is not None and is_finished(pod):
                self._cluster.remove(PODS, pod["metadata"]["namespace"], pod["metadata"]["name"])
                pod = None
            if pod is None:
                self._make(stateful_set, ordinal)
                return
            if ordered and not _healthy(pod):
                return
        surplus = max(pods, default=-1)
        if surplus >= spec["replicas"]:
            if "deletionTimestamp" not in pods[surplus]["metadata"]:
                self._stop(pods[surplus])
        elif (spec.get("updateStrategy") or {}).get("type") != "OnDelete":
            self._replace(spec, status, pods)

    def _replace(self, spec: dict[str, Any], status: dict[str, Any], pods: dict[int, dict[str, Any]]) -> None:
        """The highest pod that is not of the newest revision; a pod above that is not healthy is waited for."""
        strategy = spec.get("updateStrategy") or {}
        partition = (strategy.get("rollingUpdate") or {}).get("partition", 0)
        for ordinal in reversed(range(partition, spec["replicas"])):
            pod = pods[ordinal]
            if _revision(pod) != status["updateRevision"] and "deletionTimestamp" not in pod["metadata"]:
                self._stop(pod)
                return
            if not _healthy(pod):
                return

    def _make(self, stateful_set: dict[str, Any], ordinal: int) -> None:
        meta, spec, status = stateful_set["metadata"], stateful_set["spec"], stateful_set["status"]
        partition = ((spec.get("updateStrategy") or {}).get("rollingUpdate") or {}).get("partition", 0)
        revision = status["currentRevision" if ordinal < partition else "updateRevision"]
        template = self._revisions[meta["uid"]][int(revision.rpartition("rev")[2])]
        name, pod_spec = f"{meta['name']}-{ordinal}", copy.deepcopy(template["spec"])
        for claim in spec.get("volumeClaimTemplates") or []:
            kept = f"{claim['metadata']['name']}-{name}"
            self._cluster.put(
                CLAIMS,
                {"metadata": {"namespace": meta["namespace"], "name": kept}, "spec": claim["spec"]},
            )
            volume = {"name": claim["metadata"]["name"], "persistentVolumeClaim": {"claimName": kept}}
            pod_spec.setdefault("volumes", []).append(volume)
        owner = {"kind": "StatefulSet", "name": meta["name"], "uid": meta["uid"], "controller": True}
        refused = self._admit(
            {
                "metadata": {
                    "namespace": meta["namespace"],
                    "name": name,
                    "labels": {**(template["metadata"].get("labels") or {}), LABEL: revision},
                    "annotations": dict(template["metadata"].get("annotations") or {}),
                    "ownerReferences": [owner],
                },
                "spec": pod_spec,
                "status": {"phase": "Pending", "conditions": []},
            }
        )
        self._say(stateful_set, name, refused)

    def _say(self, stateful_set: dict[str, Any], pod: str, refused: str | None) -> None:
        meta = stateful_set["metadata"]
        reason = "SuccessfulCreate" if refused is None else "FailedCreate"
        made = f"create Pod {pod} in StatefulSet {meta['name']}"
        self._cluster.put(
            EVENTS,
            {
                "metadata": {"namespace": meta["namespace"], "name": f"{meta['name']}.{reason}"},
                "regarding": {"kind": "StatefulSet", "name": meta["name"], "uid": meta["uid"]},
                "type": "Normal" if refused is None else "Warning",
                "reason": reason,
                "note": f"{made} successful" if refused is None else f"{made} failed error: {refused}",
                "deprecatedLastTimestamp": self._clock.now().isoformat(),
            },
        )

    def _count(self, stateful_set: dict[str, Any]) -> None:
        spec, status = stateful_set["spec"], stateful_set["status"]
        pods = [pod for pod in self._pods_of(stateful_set).values() if not is_finished(pod)]
        there = [pod for pod in pods if "deletionTimestamp" not in pod["metadata"]]
        ready = sum(map(_ready, pods))
        status |= {
            "observedGeneration": stateful_set["metadata"]["generation"],
            "replicas": len(pods),
            "readyReplicas": ready,
            "availableReplicas": ready,
            **{
                field: sum(_revision(pod) == status[name] for pod in there)
                for field, name in (
                    ("currentReplicas", "currentRevision"),
                    ("updatedReplicas", "updateRevision"),
                )
            },
        }
        if status["updatedReplicas"] == spec["replicas"] == status["replicas"] == ready:
            status["currentRevision"] = status["updateRevision"]
            status["currentReplicas"] = status["updatedReplicas"]

    def _pods_of(self, stateful_set: dict[str, Any]) -> dict[int, dict[str, Any]]:
        uid = stateful_set["metadata"]["uid"]
        return {
            int(pod["metadata"]["name"].rpartition("-")[2]): pod
            for pod in self._cluster.of(PODS)
            if any(owner["uid"] == uid for owner in pod["metadata"].get("ownerReferences") or [])
        }


def _revision(pod: dict[str, Any]) -> str:
    return str(pod["metadata"]["labels"][LABEL])


def _ready(pod: dict[str, Any]) -> bool:
    return any(one["type"] == "Ready" and one["status"] == "True" for one in pod["status"]["conditions"])


def _healthy(pod: dict[str, Any]) -> bool:
    return _ready(pod) and "deletionTimestamp" not in pod["metadata"]

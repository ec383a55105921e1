"""Deployment controller and kubelet in one step function: rolls ReplicaSets by surge, starts pods, lets them end."""

from __future__ import annotations

import copy
import json
from datetime import datetime
from typing import Any

from breakeven_operator.kinds import DEPLOYMENTS, PODS, REPLICASETS
from fakes.api_server import FakeCluster
from fakes.manual_clock import FakeClock

DIGEST = "docker.io/vllm/vllm-openai@sha256:" + "ab" * 32


class FakeKubelet:
    """Moves every Deployment one step towards its template at each `step`.

    Attributes:
        startup_s: from scheduled to Ready.
        stop_s: from deletion to gone.
        schedulable: False: new pods stay Unschedulable.
        crash: values of the arm's annotation with which the engine dies at start.
    """

    def __init__(
        self, cluster: FakeCluster, clock: FakeClock, *, startup_s: float = 20.0, stop_s: float = 5.0
    ) -> None:
        self._cluster = cluster
        self._clock = clock
        self.startup_s = startup_s
        self.stop_s = stop_s
        self.schedulable = True
        self.crash: set[str] = set()
        self._serial = 0

    def step(self) -> None:
        for deployment in self._cluster.of(DEPLOYMENTS):
            self._roll(deployment)

    def settle(self) -> None:
        """Until nothing moves any more."""
        for _ in range(200):
            before = json.dumps(self._cluster.of(PODS), default=str)
            self.step()
            self._clock.advance(1.0)
            if json.dumps(self._cluster.of(PODS), default=str) == before and not self._starting():
                return

    def _starting(self) -> bool:
        return any(
            not _ready(pod) or "deletionTimestamp" in pod["metadata"] for pod in self._cluster.of(PODS)
        )

    def _roll(self, deployment: dict[str, Any]) -> None:
        meta, spec = deployment["metadata"], deployment["spec"]
        newest = self._replica_set(deployment)
        uid = newest["metadata"]["uid"]
        self._run_pods(deployment)
        pods = [p for p in self._cluster.of(PODS) if _set_of(p) in self._sets_of(meta["uid"])]
        live = [p for p in pods if "deletionTimestamp" not in p["metadata"]]
        new, old = [p for p in live if _set_of(p) == uid], [p for p in live if _set_of(p) != uid]
        desired = spec["replicas"]
        # maxSurge 1, maxUnavailable 0.
        broken = [pod for pod in old if not _ready(pod)]
        if broken:
            # As the Deployment controller: old pods that do not serve anyway go first.
            self._stop_pod(broken[0])
        elif len(new) < desired and len(live) <= desired:
            self._start_pod(deployment, newest)
        elif old and sum(map(_ready, live)) > desired:
            self._stop_pod(old[0])
        elif len(new) > desired:
            self._stop_pod(new[-1])
        live = [
            p
            for p in self._cluster.of(PODS)
            if _set_of(p) in self._sets_of(meta["uid"]) and "deletionTimestamp" not in p["metadata"]
        ]
        new = [p for p in live if _set_of(p) == uid]
        deployment["status"] = {
            "observedGeneration": meta["generation"],
            "replicas": len(live),
            "updatedReplicas": len(new),
            "readyReplicas": sum(map(_ready, live)),
            "availableReplicas": sum(map(_ready, live)),
        }

    def _sets_of(self, deployment_uid: str) -> set[str]:
        return {
            s["metadata"]["uid"]
            for s in self._cluster.of(REPLICASETS)
            if s["metadata"]["ownerReferences"][0]["uid"] == deployment_uid
        }

    def _replica_set(self, deployment: dict[str, Any]) -> dict[str, Any]:
        """The one of this template, made or brought back; it becomes the highest revision, as in Kubernetes."""
        meta, template = deployment["metadata"], deployment["spec"]["template"]
        own = [
            s
            for s in self._cluster.of(REPLICASETS)
            if s["metadata"]["ownerReferences"][0]["uid"] == meta["uid"]
        ]
        highest = max((_revision(s) for s in own), default=0)
        found = next((s for s in own if s["spec"]["template"] == template), None)
        if found is None:
            self._serial += 1
            found = self._cluster.put(
                REPLICASETS,
                {
                    "metadata": {
                        "namespace": meta["namespace"],
                        "name": f"{meta['name']}-{self._serial}",
                        "annotations": {"deployment.kubernetes.io/revision": str(highest + 1)},
                        "ownerReferences": [_owner("Deployment", deployment)],
                    },
                    "spec": {"template": copy.deepcopy(template)},
                },
            )
        elif _revision(found) < highest:
            found["metadata"]["annotations"]["deployment.kubernetes.io/revision"] = str(highest + 1)
        return found

    def _start_pod(self, deployment: dict[str, Any], replica_set: dict[str, Any]) -> None:
        self._serial += 1
        template = deployment["spec"]["template"]
        now = self._clock.now().isoformat()
        scheduled = (
            {"type": "PodScheduled", "status": "True", "lastTransitionTime": now}
            if self.schedulable
            else {
                "type": "PodScheduled",
                "status": "False",
                "reason": "Unschedulable",
                "lastTransitionTime": now,
            }
        )
        self._cluster.put(
            PODS,
            {
                "metadata": {
                    "namespace": deployment["metadata"]["namespace"],
                    "name": f"{replica_set['metadata']['name']}-{self._serial}",
                    "labels": dict(template["metadata"].get("labels") or {}),
                    "annotations": dict(template["metadata"].get("annotations") or {}),
                    "ownerReferences": [_owner("ReplicaSet", replica_set)],
                },
                "spec": {"nodeName": "a100-0"} if self.schedulable else {},
                "status": {"conditions": [scheduled]},
            },
        )

    def _stop_pod(self, pod: dict[str, Any]) -> None:
        pod["metadata"]["deletionTimestamp"] = self._clock.now().isoformat()
        pod["metadata"]["_gone"] = self._clock.monotonic() + (self.stop_s if _ready(pod) else 0.0)

    def _run_pods(self, deployment: dict[str, Any]) -> None:
        sets = self._sets_of(deployment["metadata"]["uid"])
        name = deployment["spec"]["template"]["spec"]["containers"][0]["name"]
        for pod in self._cluster.of(PODS):
            if _set_of(pod) not in sets:
                continue
            meta, status = pod["metadata"], pod["status"]
            if meta.get("_gone") is not None and self._clock.monotonic() >= meta["_gone"]:
                self._cluster.remove(PODS, meta["namespace"], meta["name"])
                continue
            scheduled = next(c for c in status["conditions"] if c["type"] == "PodScheduled")
            if scheduled["status"] != "True" or _ready(pod):
                continue
            since = (self._clock.now() - _time(scheduled["lastTransitionTime"])).total_seconds()
            value = (meta.get("annotations") or {}).get("breakeven.dev/speculative-config", "")
            container = {"name": name, "imageID": DIGEST, "restartCount": 0, "state": {"running": {}}}
            if value in self.crash:
                container |= {"restartCount": 3, "state": {"waiting": {"reason": "CrashLoopBackOff"}}}
            elif since >= self.startup_s:
                status["conditions"] = [
                    scheduled,
                    {"type": "Ready", "status": "True", "lastTransitionTime": self._clock.now().isoformat()},
                ]
            status["containerStatuses"] = [container]


def _owner(kind: str, manifest: dict[str, Any]) -> dict[str, Any]:
    meta = manifest["metadata"]
    return {"kind": kind, "name": meta["name"], "uid": meta["uid"], "controller": True}


def _revision(replica_set: dict[str, Any]) -> int:
    return int(replica_set["metadata"]["annotations"]["deployment.kubernetes.io/revision"])


def _set_of(pod: dict[str, Any]) -> str:
    owners = pod["metadata"].get("ownerReferences") or [{}]
    return str(owners[0].get("uid", ""))


def _ready(pod: dict[str, Any]) -> bool:
    return any(c["type"] == "Ready" and c["status"] == "True" for c in pod["status"]["conditions"])


def _time(text: str) -> datetime:
    return datetime.fromisoformat(text)

"""The LeaderWorkerSet controller, played after the source of version 0.9: a set of leaders by revision, and a status in groups.

Groups have one pod, and there is no surge. Workers and surge are tried on the real controller
(`tests/cluster/test_operator_lws.py`).
"""

from __future__ import annotations

import copy
import hashlib
import json
from typing import Any

from breakeven_operator.kinds import PODS, STATEFULSETS
from fakes.api_server import FakeCluster

LABEL = "leaderworkerset.sigs.k8s.io/template-revision-hash"


class LeaderWorkerSetController:
    """Keeps the leaders' StatefulSet of a LeaderWorkerSet, and counts its groups.

    Args:
        cluster: holds the objects.
    """

    def __init__(self, cluster: FakeCluster) -> None:
        self._cluster = cluster

    def step(self, target: dict[str, Any]) -> None:
        meta, groups = target["metadata"], target["spec"]["leaderWorkerTemplate"]
        revision = hashlib.sha256(json.dumps(groups, sort_keys=True).encode()).hexdigest()[:10]
        template = copy.deepcopy(groups["workerTemplate"])
        template["metadata"].setdefault("labels", {})[LABEL] = revision
        rolling = (target["spec"].get("rolloutStrategy") or {}).get("rollingUpdateConfiguration") or {}
        strategy = {"rollingUpdate": {"partition": rolling.get("partition", 0)}}
        leaders = {
            "metadata": {
                "namespace": meta["namespace"],
                "name": meta["name"],
                "labels": {LABEL: revision},
                "ownerReferences": [
                    {"kind": "LeaderWorkerSet", "name": meta["name"], "uid": meta["uid"], "controller": True}
                ],
            },
            "spec": {
                "replicas": target["spec"]["replicas"],
                "podManagementPolicy": "Parallel",
                "updateStrategy": strategy,
                "template": template,
            },
        }
        there = self._cluster.objects.get((STATEFULSETS.plural, meta["namespace"], meta["name"]))
        if (
            there is None
            or there["metadata"]["labels"][LABEL] != revision
            or there["spec"]["updateStrategy"] != strategy
        ):
            self._cluster.put(
                STATEFULSETS, {**leaders, "status": (there or {}).get("status", {})}, manager="lws"
            )
        self._count(target, revision)

    def _count(self, target: dict[str, Any], revision: str) -> None:
        meta = target["metadata"]
        leaders = self._cluster.objects[STATEFULSETS.plural, meta["namespace"], meta["name"]]
        uid = leaders["metadata"]["uid"]
        pods = [
            pod
            for pod in self._cluster.of(PODS)
            if any(owner["uid"] == uid for owner in pod["metadata"].get("ownerReferences") or [])
        ]
        ready = [
            pod
            for pod in pods
            if any(one["type"] == "Ready" and one["status"] == "True" for one in pod["status"]["conditions"])
        ]
        target["status"] = {
            "observedGeneration": meta["generation"],
            "replicas": len(pods),
            "readyReplicas": len(ready),
            "updatedReplicas": sum(pod["metadata"]["labels"][LABEL] == revision for pod in pods),
        }

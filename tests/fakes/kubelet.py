"""The controllers, the scheduler and the kubelets in one step function: rolls, starts, evictions, lost nodes.

Each part does what Kubernetes' own does with the objects that lie in the API server: the Deployment controller rolls by the
target's strategy and counts active pods alone, ReplicaSets replace pods that ended, a quota refuses pods with the API
server's words, and a pod of a node that answers no more is deleted after five minutes and stays.
"""

from __future__ import annotations

import copy
import hashlib
import json
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

from breakeven_operator.kinds import (
    CLAIMS,
    CONFIG_MAPS,
    DEPLOYMENTS,
    EVENTS,
    LEADER_WORKER_SETS,
    NODES,
    PODS,
    REPLICASETS,
    SECRETS,
    STATEFULSETS,
    Resource,
)
from breakeven_operator.workloads.object_facts import is_finished
from fakes.api_server import FakeCluster
from fakes.leader_worker_sets import LeaderWorkerSetController
from fakes.manual_clock import FakeClock
from fakes.played_kserve import KserveControllers
from fakes.scheduling import claims_of, place, refused_by_quota
from fakes.stateful_sets import StatefulSetController

DIGEST = "docker.io/vllm/vllm-openai@sha256:" + "ab" * 32
# Of the node lifecycle controller, and of the toleration that every pod has.
_NODE_GRACE_S = 40.0
_TOLERATED_S = 300.0
_HISTORY = "deployment.kubernetes.io/revision-history"


class FakeKubelet:
    """Moves every Deployment, StatefulSet and LeaderWorkerSet one step towards its template at each `step`.

    Attributes:
        startup_s: from scheduled to Ready.
        stop_s: from deletion to gone; no longer than the grace period.
        schedulable: False: other workloads hold all GPUs.
        crash: values of the arm's annotation with which the engine dies at start.
        missing_images: images that no registry has.
        follows_parents: False: KServe's controllers do nothing.
        silent: nodes whose kubelet answers no more, and since when (monotonic, s).
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
        self.missing_images: set[str] = set()
        self.follows_parents = True
        self.silent: dict[str, float] = {}
        self._serial = 0
        self._kserve = KserveControllers(cluster)
        self._groups = LeaderWorkerSetController(cluster)
        self._stateful_sets = StatefulSetController(cluster, clock, self._admit, self._stop_pod)

    def step(self) -> None:
        self._watch_nodes()
        if self.follows_parents:
            self._kserve.step()
        for deployment in self._cluster.of(DEPLOYMENTS):
            self._roll(deployment)
        for target in self._cluster.of(LEADER_WORKER_SETS):
            self._groups.step(target)
        for stateful_set in self._cluster.of(STATEFULSETS):
            self._run_pods({stateful_set["metadata"]["uid"]})
            self._stateful_sets.step(stateful_set)

    def settle(self) -> None:
        """Until nothing moves any more."""
        for _ in range(200):
            before = json.dumps(self._cluster.of(PODS), default=str)
            self.step()
            self._clock.advance(1.0)
            if json.dumps(self._cluster.of(PODS), default=str) == before and not self._starting():
                return

    # Misfortunes of pods and nodes.

    def end(self, name: str, reason: str = "Evicted", phase: str = "Failed") -> None:
        """A pod ends for good and stays listed: evicted, refused by its node, past its deadline."""
        pod = self._pod(name)
        now = self._clock.now().isoformat()
        pod["status"] |= {"phase": phase, "reason": reason}
        for one in pod["status"]["conditions"]:
            if one["type"] == "Ready":
                one |= {"status": "False", "reason": "PodFailed", "lastTransitionTime": now}

    def miss_probe(self, name: str) -> None:
        """A readiness probe fails once, and is good again; nothing restarts."""
        for one in self._pod(name)["status"]["conditions"]:
            if one["type"] == "Ready":
                one["lastTransitionTime"] = self._clock.now().isoformat()

    def restart(self, name: str, away_s: float = 0.0) -> None:
        """The engine's container ended so long ago and has begun again now; the pod stays."""
        now = self._clock.now()
        ended = (now - timedelta(seconds=away_s)).isoformat()
        self._pod(name)["status"]["containerStatuses"][0] |= {
            "restartCount": 1,
            "state": {"running": {"startedAt": now.isoformat()}},
            "lastState": {"terminated": {"reason": "Error", "exitCode": 1, "finishedAt": ended}},
        }
        self.miss_probe(name)

    def lose(self, node: str) -> None:
        """A node answers no more."""
        self.silent[node] = self._clock.monotonic()

    def _watch_nodes(self) -> None:
        """The node lifecycle controller, and the eviction of what does not tolerate a lost node for longer."""
        for node, since_s in self.silent.items():
            silent_s = self._clock.monotonic() - since_s
            if silent_s < _NODE_GRACE_S:
                continue
            manifest = self._node(node)
            manifest.setdefault("status", {})["conditions"] = [{"type": "Ready", "status": "Unknown"}]
            for pod in self._cluster.of(PODS):
                if pod["spec"].get("nodeName") != node or is_finished(pod):
                    continue
                for one in pod["status"]["conditions"]:
                    if one["type"] == "Ready" and one["status"] == "True":
                        one |= {"status": "False", "lastTransitionTime": self._clock.now().isoformat()}
                if silent_s >= _NODE_GRACE_S + _TOLERATED_S and "deletionTimestamp" not in pod["metadata"]:
                    self._stop_pod(pod)

    def _node(self, name: str) -> dict[str, Any]:
        return next(node for node in self._cluster.of(NODES) if node["metadata"]["name"] == name)

    def _pod(self, name: str) -> dict[str, Any]:
        return next(pod for pod in self._cluster.of(PODS) if pod["metadata"]["name"] == name)

    def _starting(self) -> bool:
        return any(
            not is_finished(pod) and (not _ready(pod) or "deletionTimestamp" in pod["metadata"])
            for pod in self._cluster.of(PODS)
        )

    # The controllers of Deployments and ReplicaSets.

    def _roll(self, deployment: dict[str, Any]) -> None:
        meta, spec = deployment["metadata"], deployment["spec"]
        newest = self._replica_set(deployment)
        uid = newest["metadata"]["uid"]
        self._run_pods(self._sets_of(meta["uid"]))
        live = self._active(meta["uid"])
        new, old = [p for p in live if _set_of(p) == uid], [p for p in live if _set_of(p) != uid]
        desired = spec["replicas"]
        surge, unavailable, recreate = _strategy(spec)
        broken = [pod for pod in old if not _ready(pod)]
        made, refused = False, None
        if recreate and old:
            for pod in old:
                self._stop_pod(pod)
        elif broken:
            # Like the Deployment controller: old pods that do not serve anyway go first.
            self._stop_pod(broken[0])
        elif len(new) < desired and len(live) < desired + surge:
            if not recreate or not self._old_pods_exist(meta["uid"], uid):
                refused = self._start_pod(deployment, newest)
                made = refused is None
        elif old and sum(map(_ready, live)) > desired - unavailable:
            self._stop_pod(old[0])
        elif len(new) > desired:
            self._stop_pod(new[-1])
        live = self._active(meta["uid"])
        new = [p for p in live if _set_of(p) == uid]
        deployment["status"] = {
            "observedGeneration": meta["generation"],
            "replicas": len(live),
            "updatedReplicas": len(new),
            "readyReplicas": sum(map(_ready, live)),
            "availableReplicas": sum(map(_ready, live)),
            "conditions": _conditions(deployment, refused, made=made),
        }

    def _active(self, deployment_uid: str) -> list[dict[str, Any]]:
        sets = self._sets_of(deployment_uid)
        return [
            pod
            for pod in self._cluster.of(PODS)
            if _set_of(pod) in sets and "deletionTimestamp" not in pod["metadata"] and not is_finished(pod)
        ]

    def _old_pods_exist(self, deployment_uid: str, newest: str) -> bool:
        """Whether strategy Recreate has to wait: for pods that still end, too."""
        sets = self._sets_of(deployment_uid) - {newest}
        return any(_set_of(pod) in sets and not is_finished(pod) for pod in self._cluster.of(PODS))

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
            noted = found["metadata"].setdefault("annotations", {})
            before = [noted.get(_HISTORY), str(_revision(found))]
            noted[_HISTORY] = ",".join(filter(None, before))
            noted["deployment.kubernetes.io/revision"] = str(highest + 1)
        return found

    def _start_pod(self, deployment: dict[str, Any], replica_set: dict[str, Any]) -> str | None:
        """Make a pod; the API server's words where it refuses."""
        self._serial += 1
        template = deployment["spec"]["template"]
        pod = {
            "metadata": {
                "namespace": deployment["metadata"]["namespace"],
                # Five letters, by which the pods of one ReplicaSet differ.
                "name": f"{replica_set['metadata']['name']}-{self._serial:05}",
                "labels": dict(template["metadata"].get("labels") or {}),
                "annotations": dict(template["metadata"].get("annotations") or {}),
                "ownerReferences": [_owner("ReplicaSet", replica_set)],
            },
            "spec": copy.deepcopy(template["spec"]),
            "status": {"phase": "Pending", "conditions": []},
        }
        return self._admit(pod)

    def _admit(self, pod: dict[str, Any]) -> str | None:
        refused = refused_by_quota(self._cluster, pod)
        if refused is None:
            self._schedule(self._cluster.put(PODS, pod))
        return refused

    def _schedule(self, pod: dict[str, Any]) -> None:
        node, said = place(self._cluster, pod)
        if not self.schedulable:
            node, said = None, "0/1 nodes are available: 1 Insufficient nvidia.com/gpu."
        was = _condition(pod, "PodScheduled")
        changed = was.get("status") != ("True" if node else "False")
        since = self._clock.now().isoformat() if changed else was["lastTransitionTime"]
        told = {"type": "PodScheduled", "status": "True", "lastTransitionTime": since}
        if node is None:
            told |= {"status": "False", "reason": "Unschedulable", "message": said}
        else:
            pod["spec"]["nodeName"] = node
        pod.setdefault("status", {"phase": "Pending"})["conditions"] = [told]

    def _stop_pod(self, pod: dict[str, Any]) -> None:
        grace_s = float(pod["spec"].get("terminationGracePeriodSeconds", 30))
        if not pod["spec"].get("nodeName"):
            grace_s = 0.0
        pod["metadata"]["deletionTimestamp"] = (self._clock.now() + timedelta(seconds=grace_s)).isoformat()
        stop_s = min(self.stop_s, grace_s) if _ready(pod) else 0.0
        pod["metadata"]["_gone"] = self._clock.monotonic() + stop_s

    # Kubelets.

    def _run_pods(self, sets: set[str]) -> None:
        for pod in self._cluster.of(PODS):
            if _set_of(pod) not in sets or is_finished(pod) or pod["spec"].get("nodeName") in self.silent:
                continue
            meta = pod["metadata"]
            if meta.get("_gone") is not None and self._clock.monotonic() >= meta["_gone"]:
                self._cluster.remove(PODS, meta["namespace"], meta["name"])
            elif "deletionTimestamp" in meta or _ready(pod):
                continue
            elif not pod["spec"].get("nodeName") or "status" not in pod:
                self._schedule(pod)
            else:
                self._start_container(pod)

    def _start_container(self, pod: dict[str, Any]) -> None:
        status, spec = pod["status"], pod["spec"]
        scheduled = _condition(pod, "PodScheduled")
        engine = spec["containers"][0]
        container = {
            "name": engine["name"],
            "image": engine.get("image", ""),
            "imageID": _digest(engine.get("image", "")),
            "restartCount": 0,
        }
        waiting = self._waits_for(pod)
        since = (self._clock.now() - _time(scheduled["lastTransitionTime"])).total_seconds()
        value = (pod["metadata"].get("annotations") or {}).get("breakeven.dev/speculative-config", "")
        if waiting is not None:
            container |= {"imageID": "", "state": {"waiting": waiting}}
        elif value in self.crash:
            container |= {
                "restartCount": 3,
                "state": {
                    "waiting": {"reason": "CrashLoopBackOff", "message": "back-off 40s restarting failed container"}
                },
                "lastState": {
                    "terminated": {"reason": "Error", "exitCode": 1, "finishedAt": self._clock.now().isoformat()}
                },
            }  # fmt: skip
        else:
            container["state"] = {"running": {"startedAt": scheduled["lastTransitionTime"]}}
            status["phase"] = "Running"
            if since >= self.startup_s:
                ready = {
                    "type": "Ready",
                    "status": "True",
                    "lastTransitionTime": self._clock.now().isoformat(),
                }
                status["conditions"] = [scheduled, ready]
        status["containerStatuses"] = [container]

    def _waits_for(self, pod: Mapping[str, Any]) -> dict[str, str] | None:
        """The reason why the engine's container cannot be made, in the kubelet's words; None if it can."""
        (engine, *_), namespace = pod["spec"]["containers"], pod["metadata"]["namespace"]
        if self._held_elsewhere(pod):
            note = 'Multi-Attach error for volume "pv-model" Volume is already used by pod(s) of another node'
            self._say(pod, "FailedAttachVolume", note)
            return {"reason": "ContainerCreating"}
        for name in _files_of(pod["spec"]) - self._names(CONFIG_MAPS, namespace):
            note = f'MountVolume.SetUp failed for volume "{name}" : configmap "{name}" not found'
            self._say(pod, "FailedMount", note)
            return {"reason": "ContainerCreating"}
        if engine.get("image") in self.missing_images:
            message = f'Back-off pulling image "{engine["image"]}": not found'
            return {"reason": "ImagePullBackOff", "message": message}
        for entry in engine.get("env") or []:
            for key, resource in (("secretKeyRef", SECRETS), ("configMapKeyRef", CONFIG_MAPS)):
                named = (entry.get("valueFrom") or {}).get(key)
                there = self._names(resource, namespace)
                if named and not named.get("optional") and named["name"] not in there:
                    message = f'{resource.kind.lower()} "{named["name"]}" not found'
                    return {"reason": "CreateContainerConfigError", "message": message}
        return None

    def _names(self, resource: Resource, namespace: str) -> set[str]:
        return {
            one["metadata"]["name"]
            for one in self._cluster.of(resource)
            if one["metadata"]["namespace"] == namespace
        }

    def _say(self, pod: Mapping[str, Any], reason: str, note: str) -> None:
        """A warning about a pod; said again, it is the same event of a later time."""
        meta, now = pod["metadata"], self._clock.now().isoformat()
        self._cluster.put(
            EVENTS,
            {
                "metadata": {"namespace": meta["namespace"], "name": f"{meta['name']}.{reason}"},
                "regarding": {"kind": "Pod", "name": meta["name"], "uid": meta["uid"]},
                "type": "Warning",
                "reason": reason,
                "note": note,
                "deprecatedLastTimestamp": now,
            },
        )

    def _held_elsewhere(self, pod: Mapping[str, Any]) -> bool:
        """Whether a volume that one node may have is attached to another one."""
        meta, spec = pod["metadata"], pod["spec"]
        single = {
            claim["metadata"]["name"]
            for claim in self._cluster.of(CLAIMS)
            if claim["metadata"]["namespace"] == meta["namespace"]
            and not {"ReadOnlyMany", "ReadWriteMany"} & set(claim["spec"]["accessModes"])
        }
        mounted = claims_of(spec) & single
        return bool(mounted) and any(
            other["metadata"]["namespace"] == meta["namespace"]
            and other["spec"].get("nodeName") not in {None, spec["nodeName"]}
            and mounted & claims_of(other["spec"])
            and other.get("status", {}).get("phase") == "Running"
            for other in self._cluster.of(PODS)
        )


def _files_of(spec: Mapping[str, Any]) -> set[str]:
    """ConfigMaps that a pod mounts, and cannot start without."""
    named = (volume.get("configMap") or {} for volume in spec.get("volumes") or [])
    return {one["name"] for one in named if one and not one.get("optional")}


def _conditions(deployment: dict[str, Any], refused: str | None, *, made: bool) -> list[dict[str, Any]]:
    """Those of a Deployment: its ReplicaSet's failure to make a pod stands there until it has made one."""
    if refused is not None:
        return [{"type": "ReplicaFailure", "status": "True", "reason": "FailedCreate", "message": refused}]
    before = (deployment.get("status") or {}).get("conditions") or []
    wanted = deployment["spec"]["replicas"] > (deployment.get("status") or {}).get("updatedReplicas", 0)
    return [one for one in before if one["type"] != "ReplicaFailure" or (wanted and not made)]


def _digest(image: str) -> str:
    """The name that a node gives to an image: another one for another version."""
    version = image.rpartition(":v")[2]
    return (
        DIGEST
        if version in {"0.32.0", image}
        else DIGEST[:-2] + hashlib.sha256(image.encode()).hexdigest()[:2]
    )


def _strategy(spec: Mapping[str, Any]) -> tuple[int, int, bool]:
    """Surge, unavailable, and whether it is Recreate; whole numbers of pods."""
    strategy = spec.get("strategy") or {}
    if strategy.get("type") == "Recreate":
        return 0, spec["replicas"], True
    rolling = strategy.get("rollingUpdate") or {}
    surge, unavailable = rolling.get("maxSurge", 1), rolling.get("maxUnavailable", 0)
    return int(surge), int(unavailable), False


def _owner(kind: str, manifest: dict[str, Any]) -> dict[str, Any]:
    meta = manifest["metadata"]
    return {"kind": kind, "name": meta["name"], "uid": meta["uid"], "controller": True}


def _revision(replica_set: dict[str, Any]) -> int:
    said = (replica_set["metadata"].get("annotations") or {}).get("deployment.kubernetes.io/revision", "")
    return int(said) if said.isdigit() else 0


def _set_of(pod: dict[str, Any]) -> str:
    owners = pod["metadata"].get("ownerReferences") or [{}]
    return str(owners[0].get("uid", ""))


def _condition(pod: Mapping[str, Any], kind: str) -> dict[str, Any]:
    found = pod.get("status", {}).get("conditions") or []
    return next((one for one in found if one["type"] == kind), {})


def _ready(pod: dict[str, Any]) -> bool:
    return _condition(pod, "Ready").get("status") == "True"


def _time(text: str) -> datetime:
    return datetime.fromisoformat(text)

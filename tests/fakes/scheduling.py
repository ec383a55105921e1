"""Scheduler and quota admission: which node has a place for a pod, and what is said where none has."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from breakeven_operator.kinds import CLAIMS, NODES, PODS, Resource
from breakeven_operator.workloads.object_facts import is_finished
from fakes.api_server import FakeCluster

QUOTAS = Resource("", "v1", "resourcequotas", "ResourceQuota")
VOLUMES = Resource("", "v1", "persistentvolumes", "PersistentVolume", namespaced=False)
_ZONE = "topology.kubernetes.io/zone"


def amounts_of(pod_spec: Mapping[str, Any]) -> Counter[str]:
    """Thousandths of a unit of every resource that a pod asks for."""
    asked: Counter[str] = Counter()
    for container in pod_spec.get("containers") or []:
        resources = container.get("resources") or {}
        for name, amount in {
            **(resources.get("limits") or {}),
            **(resources.get("requests") or {}),
        }.items():
            asked[name] += whole(amount)
    return asked


def whole(quantity: object) -> int:
    """Thousandths of a quantity."""
    text = str(quantity)
    for suffix, factor in (("Gi", 2**30), ("Mi", 2**20), ("G", 10**9), ("M", 10**6), ("m", 1e-3)):
        if text.endswith(suffix):
            return round(1000 * factor * float(text.removesuffix(suffix)))
    return round(1000 * float(text))


def refused_by_quota(cluster: FakeCluster, pod: Mapping[str, Any]) -> str | None:
    """The API server's refusal of a pod that no quota of its namespace has room for; None if it is admitted."""
    meta = pod["metadata"]
    namespace = meta["namespace"]
    wanted = _counted(pod)
    members = [other for other in cluster.of(PODS) if other["metadata"]["namespace"] == namespace]
    used: Counter[str] = Counter()
    for other in members:
        if not is_finished(other):
            used += _counted(other)
    for quota in cluster.of(QUOTAS):
        if quota["metadata"]["namespace"] != namespace:
            continue
        for name, hard in quota["spec"]["hard"].items():
            if wanted[name] and used[name] + wanted[name] > whole(hard):
                return (
                    f'pods "{meta["name"]}" is forbidden: exceeded quota: {quota["metadata"]["name"]}, '
                    f"requested: {name}={wanted[name] / 1000:g}, used: {name}={used[name] / 1000:g}, limited: {name}={hard}"
                )
    return None


def place(cluster: FakeCluster, pod: Mapping[str, Any]) -> tuple[str | None, str]:
    """The node that a pod is bound to, or None and the scheduler's sentence."""
    nodes = cluster.of(NODES)
    running = [
        other for other in cluster.of(PODS) if (other.get("spec") or {}).get("nodeName") and not is_finished(other)
    ]  # fmt: skip
    reasons: Counter[str] = Counter()
    for node in nodes:
        found = list(_against(cluster, pod, node, running))
        if not found:
            return node["metadata"]["name"], ""
        reasons.update(found)
    said = ", ".join(f"{count} {reason}" for reason, count in sorted(reasons.items()))
    return (
        None,
        f"0/{len(nodes)} nodes are available: {said}. preemption: 0/{len(nodes)} nodes are available.",
    )


def _against(
    cluster: FakeCluster,
    pod: Mapping[str, Any],
    node: Mapping[str, Any],
    running: Iterable[Mapping[str, Any]],
) -> Iterable[str]:
    """Reasons against a node, in the scheduler's words; it stops at the first kind of reason."""
    spec, meta = pod["spec"], node["metadata"]
    labels = meta.get("labels") or {}
    taints = (node.get("spec") or {}).get("taints") or []
    tolerated = {one.get("key") for one in spec.get("tolerations") or []}
    bad = next((taint for taint in taints if taint["key"] not in tolerated), None)
    if bad is not None:
        return [f"node(s) had untolerated taint {{{bad['key']}: {bad.get('value', '')}}}"]
    if any(labels.get(key) != value for key, value in (spec.get("nodeSelector") or {}).items()):
        return ["node(s) didn't match Pod's node affinity/selector"]
    zones = _zones(cluster, pod)
    if zones and labels.get(_ZONE) not in zones:
        return ["node(s) had volume node affinity conflict"]
    here = [other for other in running if other["spec"]["nodeName"] == meta["name"]]
    if _ports(spec) & {port for other in here for port in _ports(other["spec"])}:
        return ["node(s) didn't have free ports for the requested pod ports"]
    room = (node.get("status") or {}).get("allocatable")
    if room is None:
        return []
    used: Counter[str] = Counter()
    for other in here:
        used += amounts_of(other["spec"])
    wanted = amounts_of(spec)
    return [f"Insufficient {name}" for name in wanted if used[name] + wanted[name] > whole(room.get(name, 0))]


def _counted(pod: Mapping[str, Any]) -> Counter[str]:
    return Counter({f"requests.{name}": n for name, n in amounts_of(pod["spec"]).items()}) + Counter(
        pods=1000
    )


def claims_of(pod_spec: Mapping[str, Any]) -> set[str]:
    """Names of the PersistentVolumeClaims that a pod mounts."""
    return {
        volume["persistentVolumeClaim"]["claimName"]
        for volume in pod_spec.get("volumes") or []
        if "persistentVolumeClaim" in volume
    }


def _zones(cluster: FakeCluster, pod: Mapping[str, Any]) -> set[str]:
    names, zones = claims_of(pod["spec"]), set()
    for claim in cluster.of(CLAIMS):
        meta = claim["metadata"]
        if meta["namespace"] == pod["metadata"]["namespace"] and meta["name"] in names:
            bound = claim["spec"].get("volumeName")
            zones |= {
                v["metadata"]["labels"][_ZONE] for v in cluster.of(VOLUMES) if v["metadata"]["name"] == bound
            }
    return zones


def _ports(pod_spec: Mapping[str, Any]) -> set[int]:
    return {
        port["hostPort"]
        for container in pod_spec.get("containers") or []
        for port in container.get("ports") or []
        if "hostPort" in port
    }

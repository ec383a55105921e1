"""The downward API: a pod's own fields as values of env (`fieldRef`, `resourceFieldRef`) and as files of volumes."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass

from localcluster.nodeagent import quantities
from localcluster.nodeagent.podspec import ContainerSpec, Json, PodSpec

_SUBSCRIPT = re.compile(r"metadata\.(?P<map>labels|annotations)\['(?P<key>[^']*)'\]")


@dataclass(frozen=True)
class Placement:
    """Where a pod runs: what its status and its downward API say."""

    node: str
    host_ip: str
    pod_ip: str
    allocatable: Mapping[str, str]


def field(path: str, pod: PodSpec, where: Placement) -> str:
    """The value of one field; a missing label or annotation is the empty string, as in a kubelet.

    Raises:
        ValueError: Kubernetes has no such field reference, or this agent does not know it.
    """
    meta = pod.raw["metadata"]
    if match := _SUBSCRIPT.fullmatch(path):
        return str((meta.get(match["map"]) or {}).get(match["key"], ""))
    values = {
        "metadata.name": pod.name,
        "metadata.namespace": pod.namespace,
        "metadata.uid": pod.uid,
        "spec.nodeName": where.node,
        "spec.serviceAccountName": pod.service_account,
        "status.hostIP": where.host_ip,
        "status.hostIPs": where.host_ip,
        "status.podIP": where.pod_ip,
        "status.podIPs": where.pod_ip,
    }
    if path in values:
        return values[path]
    if path in {"metadata.labels", "metadata.annotations"}:
        return _lines(meta.get(path.removeprefix("metadata.")) or {})
    raise ValueError(f"unsupported fieldPath {path!r}")


def resource(reference: Json, pod: PodSpec, container: ContainerSpec | None, where: Placement) -> str:
    """The value of a `resourceFieldRef`; a limit that is not set is what the node can give.

    Raises:
        ValueError: the resource is unknown or the container named does not exist.
    """
    named = reference.get("containerName")
    try:
        source = pod.container(named) if named else container
    except KeyError:
        source = None
    if source is None:
        raise ValueError(f"container {named!r} of a resourceFieldRef not found")
    kind, _, name = str(reference["resource"]).partition(".")
    if kind not in {"limits", "requests"} or not name:
        raise ValueError(f"unsupported resource {reference['resource']!r}")
    amounts = source.raw.get("resources", {}).get(kind, {})
    quantity = amounts.get(name, where.allocatable.get(name, "0") if kind == "limits" else "0")
    return quantities.divided(quantity, reference.get("divisor") or "1")


def _lines(values: Mapping[str, str]) -> str:
    """One `key="value"` line each, sorted, quoted as a downwardAPI file has it."""
    return "\n".join(
        f"{key}={json.dumps(value, ensure_ascii=False)}" for key, value in sorted(values.items())
    )

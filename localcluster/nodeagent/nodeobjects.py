"""The Node and Lease objects of one simulated GPU node."""

from __future__ import annotations

import datetime as dt
import platform
from dataclasses import dataclass
from typing import Any

from localcluster.nodeagent import gpus
from localcluster.nodeagent.status import timestamp

LEASE_S = 40
_PODS = 250


class NodeFlagError(ValueError):
    """A `--node` value that cannot be read."""


@dataclass(frozen=True)
class NodeSpec:
    """One node to simulate: what its hardware claims to be."""

    name: str
    gpu_product: str
    gpu_count: int
    cpus: str = "96"
    memory: str = "1000Gi"

    @classmethod
    def parse(cls, text: str) -> NodeSpec:
        """Reads `NAME`, or `NAME=GPU_PRODUCT:COUNT`.

        Raises:
            NodeFlagError: anything else.
        """
        name, equals, hardware = text.partition("=")
        if name and not equals:
            return cls(name, "", 0)
        product, _, count = hardware.rpartition(":")
        if not name or not product or not count.isdigit() or int(count) == 0:
            raise NodeFlagError(
                f"--node {text!r}: expected NAME=GPU_PRODUCT:COUNT, for example a100=NVIDIA-A100-SXM4-80GB:8"
            )
        return cls(name, product, int(count))

    def allocatable(self) -> dict[str, str]:
        """The resources that the scheduler may give away."""
        found = {"cpu": self.cpus, "memory": self.memory, "ephemeral-storage": "1000Gi", "pods": str(_PODS)}
        return found | ({gpus.RESOURCE: str(self.gpu_count)} if self.gpu_count else {})

    def labels(self) -> dict[str, str]:
        """The labels of a kubelet and of GPU Feature Discovery."""
        arch = {"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine(), platform.machine())
        found = {"kubernetes.io/hostname": self.name, "kubernetes.io/os": "linux", "kubernetes.io/arch": arch}
        return found | (gpus.labels(self.gpu_product, self.gpu_count) if self.gpu_count else {})


def node(spec: NodeSpec, annotations: dict[str, str]) -> dict[str, Any]:
    """The Node to create; its status is written apart."""
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": spec.name, "labels": spec.labels(), "annotations": annotations},
    }


def node_status(
    spec: NodeSpec, address: str, port: int, boot_id: str, version: str, ready_since: float, now: float
) -> dict[str, Any]:
    """The Node's status while the agent lives. `port` 0 means that logs are not served."""
    allocatable = spec.allocatable()
    heartbeat = {"lastHeartbeatTime": timestamp(now), "lastTransitionTime": timestamp(ready_since)}
    calm = [
        ("MemoryPressure", "KubeletHasSufficientMemory", "kubelet has sufficient memory available"),
        ("DiskPressure", "KubeletHasNoDiskPressure", "kubelet has no disk pressure"),
        ("PIDPressure", "KubeletHasSufficientPID", "kubelet has sufficient PID available"),
    ]
    return {
        "capacity": allocatable,
        "allocatable": allocatable,
        "conditions": [
            *({"type": t, "status": "False", "reason": r, "message": m, **heartbeat} for t, r, m in calm),
            {
                "type": "Ready",
                "status": "True",
                "reason": "KubeletReady",
                "message": "the node agent runs pods as local processes",
                **heartbeat,
            },
        ],
        # No Hostname address: the API server would prefer it for logs, and no resolver here knows it.
        "addresses": [{"type": "InternalIP", "address": address}],
        "daemonEndpoints": {"kubeletEndpoint": {"Port": port}},
        "nodeInfo": {
            "architecture": spec.labels()["kubernetes.io/arch"],
            "bootID": boot_id,
            "containerRuntimeVersion": "process://1",
            "kernelVersion": platform.release(),
            "kubeProxyVersion": "",
            "kubeletVersion": version,
            "machineID": boot_id,
            "operatingSystem": "linux",
            "osImage": "processes of this machine (breakeven node agent)",
            "systemUUID": boot_id,
        },
    }


def lease(name: str, uid: str, version: str | None, now: float) -> dict[str, Any]:
    """The node's Lease, renewed at `now`; `version` is the resourceVersion to replace, None to create it."""
    moment = dt.datetime.fromtimestamp(now, tz=dt.UTC)
    return {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {
            "name": name,
            "namespace": "kube-node-lease",
            "ownerReferences": [{"apiVersion": "v1", "kind": "Node", "name": name, "uid": uid}],
            **({"resourceVersion": version} if version else {}),
        },
        "spec": {
            "holderIdentity": name,
            "leaseDurationSeconds": LEASE_S,
            "renewTime": moment.strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
        },
    }

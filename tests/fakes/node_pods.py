"""Pods as the API server hands them to a node agent."""

from __future__ import annotations

from typing import Any

from localcluster.nodeagent import podspec
from localcluster.nodeagent.fieldrefs import Placement
from localcluster.nodeagent.podspec import PodSpec

WHERE = Placement("a100", "127.64.0.1", "127.64.0.2", {"cpu": "96", "memory": "10Gi"})


def make_pod(**spec: Any) -> PodSpec:
    """A pod with one container `main` by default; `labels` and `annotations` go to its metadata."""
    metadata: dict[str, Any] = {"uid": "u-1", "namespace": "shop", "name": "chat-0", "generation": 3}
    metadata |= {name: spec.pop(name) for name in ("labels", "annotations") if name in spec}
    body = {"containers": [{"name": "main", "image": "busybox"}], "serviceAccountName": "robot", **spec}
    return podspec.parse({"metadata": metadata, "spec": body})

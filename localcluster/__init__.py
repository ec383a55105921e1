"""A real Kubernetes cluster on one machine, without root and without containers; see README.md.

with LocalCluster() as cluster:
    cluster.start_nodes()
    cluster.kubectl("get", "nodes")
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from localcluster.cluster import LocalCluster
    from localcluster.failure import LocalClusterError
    from localcluster.nodes import GpuNode

__all__ = ["GpuNode", "LocalCluster", "LocalClusterError"]

_HOMES = {
    "LocalCluster": "localcluster.cluster",
    "LocalClusterError": "localcluster.failure",
    "GpuNode": "localcluster.nodes",
}


def __getattr__(name: str) -> Any:
    """Imports what is asked for: the supervisor and the node agent live long, and share the package's name only."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)

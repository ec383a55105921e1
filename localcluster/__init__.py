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
    from localcluster.errors import LocalClusterError
    from localcluster.nodes import Node

__all__ = ["LocalCluster", "LocalClusterError", "Node"]

_HOMES = {
    "LocalCluster": "localcluster.cluster",
    "LocalClusterError": "localcluster.errors",
    "Node": "localcluster.nodes",
}


def __getattr__(name: str) -> Any:
    """Imports what is asked for: the supervisor and the node agent live long, and share the package's name only."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)

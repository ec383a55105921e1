"""A real Kubernetes cluster on one machine, without root and without containers; see README.md.

with LocalCluster() as cluster:
    cluster.start_nodes()
    cluster.kubectl("get", "nodes")
"""

from localcluster.cluster import LocalCluster
from localcluster.errors import LocalClusterError
from localcluster.nodes import Node

__all__ = ["LocalCluster", "LocalClusterError", "Node"]

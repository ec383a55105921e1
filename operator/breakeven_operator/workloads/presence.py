"""Which listed pods exist: Kubernetes keeps the objects of pods that have ended, and of pods whose node is gone.

A pod of phase Failed or Succeeded stays listed until a collector takes it, often for days; the ReplicaSet has replaced it
long before. A pod of a lost node stays Terminating until a person removes the node. The controllers count neither.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import datetime, timedelta
from typing import Any

from breakeven_operator.workloads.object_facts import parse_time

_FINISHED = frozenset({"Succeeded", "Failed"})
# The deletion's time stands at the end of the grace period. Past it the kubelet kills; a live one then needs seconds, and
# the clocks of API server and operator may differ by some.
_OVERDUE = timedelta(seconds=60)


def is_finished(pod: Mapping[str, Any]) -> bool:
    """Whether all containers of a pod have ended for good (Evicted, DeadlineExceeded, UnexpectedAdmissionError, ...)."""
    return str((pod.get("status") or {}).get("phase", "")) in _FINISHED


def is_lost(pod: Mapping[str, Any], lost_nodes: Collection[str], now: datetime) -> bool:
    """Whether nobody answers for a pod: its node is lost, or its deletion is overdue."""
    status = pod.get("status") or {}
    if status.get("phase") == "Unknown" or status.get("reason") == "NodeLost":
        return True
    node = (pod.get("spec") or {}).get("nodeName")
    return node in lost_nodes or is_overdue(pod, now)


def is_overdue(pod: Mapping[str, Any], now: datetime) -> bool:
    """Whether a pod should have been gone for a while, and is still listed."""
    deleted = deletion(pod)
    return deleted is not None and now - deleted > _OVERDUE


def deletion(pod: Mapping[str, Any]) -> datetime | None:
    """End of the grace period of a pod that is being deleted; None while nobody deletes it."""
    return parse_time(pod["metadata"].get("deletionTimestamp"))


def node_is_lost(node: Mapping[str, Any]) -> bool:
    """Whether a node's kubelet does not say that it is Ready; a node without that condition has just come."""
    conditions = (node.get("status") or {}).get("conditions") or []
    return any(one.get("type") == "Ready" and one.get("status") != "True" for one in conditions)

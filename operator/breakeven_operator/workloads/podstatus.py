"""Container states from a pod's status; init containers, sidecars and main containers are read in the same way."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from breakeven_operator.ports import Manifest
from breakeven_operator.workloads.object_facts import parse_time, true_since
from breakeven_operator.workloads.presence import deletion, is_finished


def containers(pod: Manifest) -> list[Mapping[str, Any]]:
    """Statuses of all containers, init containers and native sidecars first."""
    status = pod.get("status") or {}
    return [*(status.get("initContainerStatuses") or []), *(status.get("containerStatuses") or [])]


def container(pod: Manifest, name: str) -> Mapping[str, Any]:
    """Status of one container; empty before there is one."""
    return next((status for status in containers(pod) if status.get("name") == name), {})


def ended(status: Mapping[str, Any], before: datetime | None = None) -> Mapping[str, Any] | None:
    """How a container ended, now or before its last restart; None while its first run goes on.

    An end at the time `before` or later does not count.
    """
    for state in (status.get("lastState") or {}, status.get("state") or {}):
        end: Mapping[str, Any] | None = state.get("terminated")
        if end is None:
            continue
        finished = parse_time(end.get("finishedAt"))
        if before is None or (finished is not None and finished < before):
            return end
    return None


def scheduled(pod: Manifest) -> datetime | None:
    """When the pod got its node, and with it its GPUs."""
    return true_since(pod, "PodScheduled")


def started(pod: Manifest, name: str) -> datetime | None:
    """When a container's present run began; None while it waits."""
    state = container(pod, name).get("state") or {}
    return parse_time((state.get("running") or state.get("terminated") or {}).get("startedAt"))


def ended_at(pod: Manifest) -> datetime | None:
    """When the pod's last container ended; None while the pod lives."""
    if not is_finished(pod):
        return None
    ends = [
        parse_time(((status.get("state") or {}).get("terminated") or {}).get("finishedAt"))
        for status in containers(pod)
    ]
    return max((end for end in ends if end is not None), default=None)


def held_s(pod: Manifest, now: datetime) -> float:
    """Seconds between getting a node and ending. A pod that does not go, on a node that is lost, holds nothing any more."""
    start = scheduled(pod)
    end = ended_at(pod) or min(now, deletion(pod) or now)
    return max(0.0, (end - start).total_seconds()) if start else 0.0

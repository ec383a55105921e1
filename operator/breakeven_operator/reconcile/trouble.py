"""The cluster's words about a pod that does not come, and how long waiting may help."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import IntEnum
from typing import Any

from breakeven_operator.cluster_reasons import ClusterReason

# A registry or a webhook that is away for a moment.
_SHORT = timedelta(seconds=120)
# A readiness that is late shows in restarts, too: the first of them may be chance.
_CRASHES = 2
_LONGEST = 600
_BAD_IMAGE = frozenset({"InvalidImageName", "ErrImageNeverPull"})
_PULL_TROUBLE = frozenset({"ImagePullBackOff", "ErrImagePull", "RegistryUnavailable", "ImageInspectError"})
_BAD_POD = frozenset(
    {"CreateContainerConfigError", "CreateContainerError", "RunContainerError", "PreCreateHookError"}
)


class Patience(IntEnum):
    """The end that a trouble may have: none, an outage that is over soon, or room that somebody makes."""

    NONE = 0
    SHORT = 1
    PLACE = 2


@dataclass(frozen=True, slots=True)
class Trouble:
    """Why a pod does not come.

    Attributes:
        reason: the word.
        message: a clause in the cluster's words.
        patience: what may end it.
        since: when it began; None when nobody says.
    """

    reason: ClusterReason
    message: str
    patience: Patience
    since: datetime | None = None

    def waited(self, began: datetime | None, now: datetime) -> timedelta:
        """How long it has lasted, as far as it concerns what began then."""
        times = [time for time in (self.since, began) if time is not None]
        return now - max(times, default=now)

    def is_over(self, waited: timedelta, place_s: float) -> bool:
        """Whether waiting longer would be in vain.

        Args:
            waited: for so long already.
            place_s: how long a pod may wait for room, s.
        """
        match self.patience:
            case Patience.NONE:
                return True
            case Patience.SHORT:
                return waited > _SHORT
            case _:
                return waited.total_seconds() > place_s


def worst(troubles: Iterable[Trouble]) -> Trouble | None:
    """The trouble that is least likely to end, of equal ones the oldest; None if there is none."""
    return min(
        troubles, key=lambda one: (one.patience, one.since.timestamp() if one.since else 0.0), default=None
    )


def refused_pod(deployment: Mapping[str, Any]) -> Trouble | None:
    """Why the API server takes no further pod of a Deployment: quota, policy, webhook; None when it takes them."""
    for found in (deployment.get("status") or {}).get("conditions") or []:
        if found.get("type") == "ReplicaFailure" and found.get("status") == "True":
            said = str(found.get("message") or found.get("reason") or "it does not say why")
            quota = "exceeded quota" in said
            return Trouble(
                ClusterReason.QUOTA_EXCEEDED if quota else ClusterReason.ADMISSION_DENIED,
                f"the API server refuses a pod: {_clause(said)}",
                Patience.PLACE if quota else Patience.SHORT,
                _time(found.get("lastTransitionTime")),
            )
    return None


def trouble_of(pod: Mapping[str, Any], devices: Collection[str], warning: str = "") -> Trouble | None:
    """Why a pod is not Ready yet; None where it is on its way.

    Args:
        pod: as the API server lists it.
        devices: names of the resources that the engine's container asks for.
        warning: what an event says of a pod that has its node and no container.
    """
    meta, status = pod["metadata"], pod.get("status") or {}
    conditions = {one.get("type"): one for one in status.get("conditions") or []}
    scheduled = conditions.get("PodScheduled") or {}
    if scheduled.get("status") == "False":
        return _without_node(meta["name"], scheduled, devices)
    placed = _time(scheduled.get("lastTransitionTime"))
    found = list(_of_containers(meta["name"], status, placed))
    if not found and warning:
        multi = "Multi-Attach" in warning
        reason = ClusterReason.VOLUME_NOT_SHAREABLE if multi else ClusterReason.ENGINE_NOT_STARTING
        found = [Trouble(reason, f"pod {meta['name']}: {_clause(warning)}", Patience.PLACE, placed)]
    return worst(found)


def _without_node(name: str, scheduled: Mapping[str, Any], devices: Collection[str]) -> Trouble:
    said = str(scheduled.get("message") or scheduled.get("reason") or "the scheduler does not say why")
    lacking = any(f"Insufficient {device}" in said for device in devices) or "allocate all claims" in said
    return Trouble(
        ClusterReason.INSUFFICIENT_GPU if lacking else ClusterReason.UNSCHEDULABLE,
        f"pod {name} has no node: {_clause(said)}",
        Patience.PLACE,
        _time(scheduled.get("lastTransitionTime")),
    )


def _of_containers(name: str, status: Mapping[str, Any], placed: datetime | None) -> Iterator[Trouble]:
    """Of every container: a sidecar that does not start keeps the pod from being Ready, too."""
    for one in [*(status.get("initContainerStatuses") or []), *(status.get("containerStatuses") or [])]:
        state = one.get("state") or {}
        waiting = state.get("waiting") or {}
        word = str(waiting.get("reason", ""))
        said = ": ".join(filter(None, (word, _clause(str(waiting.get("message") or "")))))
        where = f"pod {name}, container {one.get('name', '')}"
        if word in _BAD_IMAGE or word in _PULL_TROUBLE:
            patience = Patience.NONE if word in _BAD_IMAGE else Patience.SHORT
            yield Trouble(ClusterReason.IMAGE_PULL_FAILED, f"{where}: {said}", patience, placed)
        elif word in _BAD_POD:
            yield Trouble(ClusterReason.ENGINE_NOT_STARTING, f"{where}: {said}", Patience.NONE, placed)
        elif word == "CrashLoopBackOff" or int(one.get("restartCount", 0)) >= _CRASHES:
            message = f"{where} does not start ({_end(one) or said or 'restarted'})"
            yield Trouble(ClusterReason.ENGINE_NOT_STARTING, message, Patience.NONE, placed)


def _end(status: Mapping[str, Any]) -> str:
    """How a container's last run ended: `OOMKilled, exit code 137, 3 restarts`."""
    for state in (status.get("lastState") or {}, status.get("state") or {}):
        end = state.get("terminated")
        if end:
            restarts = int(status.get("restartCount", 0))
            said = [
                str(end.get("reason") or "ended"),
                f"exit code {end.get('exitCode')}",
                f"{restarts} restarts",
            ]
            words = _clause(str(end.get("message") or ""))
            return ", ".join(said) + (f": {words}" if words else "")
    return ""


def _clause(text: str) -> str:
    """One line without the full stop, shortened."""
    return " ".join(text.split())[:_LONGEST].rstrip(". ")


def _time(text: str | None) -> datetime | None:
    return datetime.fromisoformat(text) if text else None

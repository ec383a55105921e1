"""Facts of objects and pods that every kind writes in the same way: owner, times, presence, containers, and what keeps a pod away.

A pod of phase Failed or Succeeded stays listed until a collector takes it, often for days; the ReplicaSet has replaced it
long before. A pod of a lost node stays Terminating until a person removes the node. The controllers count neither.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import IntEnum
from typing import Any

from breakeven_operator.cluster_reasons import ClusterReason
from breakeven_operator.ports import Manifest
from breakeven_operator.resources.base import computable


def owner_of(manifest: Manifest) -> Mapping[str, Any]:
    """The controller that owns an object, as its reference says; empty if none does."""
    owners = manifest["metadata"].get("ownerReferences") or []
    return next((owner for owner in owners if owner.get("controller")), {})


def owner_uid(manifest: Manifest) -> str:
    """Uid of the controller that owns an object; empty if none does."""
    return str(owner_of(manifest).get("uid", ""))


def parse_time(text: object) -> datetime | None:
    """A time of the API, RFC 3339, moved to where `computable` says; None if there is none, or none that Python has.

    The API server takes the year 0, and a small t or z in the objects of a CRD.
    """
    if not isinstance(text, str):
        return None
    try:
        return computable(datetime.fromisoformat(text.upper()))
    except (ValueError, TypeError):
        return None


def condition(manifest: Manifest, kind: str) -> Mapping[str, Any]:
    """One condition of an object's status as JSON; empty before there is one."""
    conditions = (manifest.get("status") or {}).get("conditions") or []
    return next((found for found in conditions if found.get("type") == kind), {})


def true_since(manifest: Manifest, kind: str) -> datetime | None:
    """Since when a condition is True; None while it is not."""
    found = condition(manifest, kind)
    return parse_time(found.get("lastTransitionTime")) if found.get("status") == "True" else None


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
# Events about a pod before its node, and before its containers; containers state later trouble themselves.
_BEFORE_NODES = frozenset({"FailedScheduling"})
_AT_IMAGES = frozenset({"Pulling", "Pulled", "Created", "Started"})
_BEFORE_IMAGES = frozenset(
    {
        "FailedMount",
        "FailedAttachVolume",
        "FailedMapVolume",
        "FailedCreatePodSandBox",
        "NetworkNotReady",
        "FailedPrepareDynamicResources",
    }
)
_LONG_AGO = datetime.min.replace(tzinfo=UTC)


class Patience(IntEnum):
    """The end that a trouble may have: none, an outage that is over soon, or room that somebody makes."""

    NONE = 0
    SHORT = 1
    PLACE = 2


@dataclass(frozen=True, slots=True)
class Trouble:
    """Why a pod does not come, as a clause in the cluster's words; `since` is None if nobody says when it began."""

    reason: ClusterReason
    message: str
    patience: Patience
    since: datetime | None = None

    def waited(self, began: datetime | None, now: datetime) -> timedelta:
        """How long it has lasted, as far as it concerns what began then."""
        times = [time for time in (self.since, began) if time is not None]
        return now - max(times, default=now)

    def is_over(self, waited: timedelta, place_s: float) -> bool:
        """Whether waiting longer would be in vain, if a pod may wait `place_s` for room."""
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


def refused_pod(failure: Mapping[str, Any]) -> Trouble | None:
    """Why the API server takes no further pod, by a condition that says so: quota, policy, webhook; None if it takes them."""
    if failure.get("status") != "True":
        return None
    said = str(failure.get("message") or failure.get("reason") or "it does not say why")
    quota = "exceeded quota" in said
    return Trouble(
        ClusterReason.QUOTA_EXCEEDED if quota else ClusterReason.ADMISSION_DENIED,
        f"the API server refuses a pod: {_clause(said)}",
        Patience.PLACE if quota else Patience.SHORT,
        parse_time(failure.get("lastTransitionTime")),
    )


def trouble_of(pod: Mapping[str, Any], devices: Collection[str], warning: str = "") -> Trouble | None:
    """Why a pod is not Ready yet; None if it is on its way.

    Args:
        pod: as the API server lists it.
        devices: names of the resources that the engine's container asks for.
        warning: words of the newest event about a pod that has no container yet; empty without one.
    """
    meta = pod["metadata"]
    scheduled = _scheduled(pod)
    if scheduled.get("status") == "False":
        return _without_node(meta["name"], scheduled, devices)
    if not scheduled and warning:
        # A scheduler of the cluster's own may say it in events alone.
        said = {"message": warning, "lastTransitionTime": meta.get("creationTimestamp")}
        return _without_node(meta["name"], said, devices)
    placed = parse_time(scheduled.get("lastTransitionTime"))
    crashed = _crashes(pod, placed)
    return worst(filter(None, (not_started(pod, warning), *crashed)))


def not_started(pod: Mapping[str, Any], warning: str = "") -> Trouble | None:
    """Why a pod that has its node has a container that never began: image, configuration, volume; None if none has."""
    name = pod["metadata"]["name"]
    placed = parse_time(_scheduled(pod).get("lastTransitionTime"))
    found = list(_unmade(pod, placed))
    if not found and warning and not has_begun(pod):
        held = _holds_volume(warning)
        reason = ClusterReason.VOLUME_NOT_SHAREABLE if held else ClusterReason.ENGINE_NOT_STARTING
        found = [Trouble(reason, f"pod {name}: {_clause(warning)}", Patience.PLACE, placed)]
    return worst(found)


def is_silent(pod: Mapping[str, Any]) -> bool:
    """Whether neither the scheduler's condition nor a container says why a pod does not come: its events may."""
    return (
        "deletionTimestamp" not in pod["metadata"]
        and _scheduled(pod).get("status") != "False"
        and not has_begun(pod)
        and not_started(pod) is None
    )


def has_begun(pod: Mapping[str, Any]) -> bool:
    """Whether a container of a pod was ever made, so that its node and its volumes are there."""
    return any(one.get("imageID") or one.get("restartCount") for one in containers(pod))


def warning_of(pod: Mapping[str, Any], events: Iterable[Mapping[str, Any]]) -> str:
    """The events' words about a silent pod; empty if no event names what keeps it from coming.

    A warning before the kubelet came to the images is over: a volume that was attached late leaves its warning for an hour.
    """
    events = list(events)
    placed = _scheduled(pod).get("status") == "True"
    words = _BEFORE_IMAGES if placed else _BEFORE_NODES
    over = max((_event_time(one) for one in events if one.get("reason") in _AT_IMAGES), default=_LONG_AGO)
    left = [one for one in events if one.get("reason") in words and _event_time(one) >= over]
    newest = max(left, key=lambda one: (_holds_volume(_note(one)), _event_time(one)), default=None)
    return f"{newest['reason']}: {_note(newest)}" if newest is not None else ""


def refusal_of(events: Iterable[Mapping[str, Any]]) -> str:
    """The words of a controller's own events about a pod that the API server refuses; empty if it has made one since."""
    failed = [one for one in events if one.get("reason") in {"FailedCreate", "SuccessfulCreate"}]
    newest = max(failed, key=_event_time, default={})
    return _note(newest) if newest.get("reason") == "FailedCreate" else ""


def _note(event: Mapping[str, Any]) -> str:
    return str(event.get("note") or event.get("message") or "it does not say why")


def _holds_volume(text: str) -> bool:
    """Whether another pod holds a volume. The attacher says so once, and the kubelet's later words only that it waits."""
    return "Multi-Attach" in text or "already used by pod" in text


def _event_time(event: Mapping[str, Any]) -> datetime:
    """When an event was last seen, in whole seconds: some writers know no more, and a part of one would make them earlier."""
    times = (
        (event.get("series") or {}).get("lastObservedTime"),
        event.get("deprecatedLastTimestamp") or event.get("lastTimestamp"),
        event.get("eventTime"),
        event["metadata"].get("creationTimestamp"),
    )
    newest = max((time for text in times if (time := parse_time(text)) is not None), default=_LONG_AGO)
    return newest.replace(microsecond=0)


def _scheduled(pod: Mapping[str, Any]) -> Mapping[str, Any]:
    return condition(pod, "PodScheduled")


def _without_node(name: str, scheduled: Mapping[str, Any], devices: Collection[str]) -> Trouble:
    said = str(scheduled.get("message") or scheduled.get("reason") or "the scheduler does not say why")
    lacking = any(f"Insufficient {device}" in said for device in devices) or "allocate all claims" in said
    return Trouble(
        ClusterReason.INSUFFICIENT_GPU if lacking else ClusterReason.UNSCHEDULABLE,
        f"pod {name} has no node: {_clause(said)}",
        Patience.PLACE,
        parse_time(scheduled.get("lastTransitionTime")),
    )


def _unmade(pod: Mapping[str, Any], placed: datetime | None) -> Iterator[Trouble]:
    """Containers that the kubelet cannot make."""
    for one in containers(pod):
        word, said = _waits(one)
        where = f"pod {pod['metadata']['name']}, container {one.get('name', '')}"
        if word in _BAD_IMAGE or word in _PULL_TROUBLE:
            patience = Patience.NONE if word in _BAD_IMAGE else Patience.SHORT
            message = f"image {one.get('image') or ''} of {where}: {said}"
            yield Trouble(ClusterReason.IMAGE_PULL_FAILED, message, patience, placed)
        elif word in _BAD_POD:
            yield Trouble(ClusterReason.ENGINE_NOT_STARTING, f"{where}: {said}", Patience.NONE, placed)


def _crashes(pod: Mapping[str, Any], placed: datetime | None) -> Iterator[Trouble]:
    """Containers that began, and end again and again."""
    for one in containers(pod):
        word, said = _waits(one)
        unmade = word in _BAD_IMAGE or word in _PULL_TROUBLE or word in _BAD_POD
        if word == "CrashLoopBackOff" or (int(one.get("restartCount", 0)) >= _CRASHES and not unmade):
            where = f"pod {pod['metadata']['name']}, container {one.get('name', '')}"
            message = f"{where} does not start ({_end(one) or said or 'restarted'})"
            yield Trouble(ClusterReason.ENGINE_NOT_STARTING, message, Patience.NONE, placed)


def _waits(status: Mapping[str, Any]) -> tuple[str, str]:
    """The word for which a container waits, and the same with the kubelet's sentence."""
    waiting = (status.get("state") or {}).get("waiting") or {}
    word = str(waiting.get("reason", ""))
    return word, ": ".join(filter(None, (word, _clause(str(waiting.get("message") or "")))))


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

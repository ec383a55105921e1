"""A pod's status as the API server stores it, computed from its containers' states."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from localcluster.nodeagent.fieldrefs import Placement
from localcluster.nodeagent.pod_lifecycle import LifecycleStep
from localcluster.nodeagent.podspec import ContainerSpec, Json, PodSpec, Role
from localcluster.nodeagent.states import Activity, ContainerState, Running, Terminated, Waiting

_OVER = {
    "Succeeded": "PodCompleted",
    "Failed": "PodFailed",
}  # terminal phases and the reason their conditions carry


@dataclass(frozen=True)
class PodVerdict:
    """A state that the agent gives to a whole pod, whatever its containers do (`status.reason`, `status.message`)."""

    reason: str
    message: str
    failed: bool


def pod_status(
    pod: PodSpec,
    states: Mapping[str, ContainerState],
    step: LifecycleStep,
    where: Placement,
    started_at: float,
    now: float,
    *,
    previous: Iterable[Json] = (),
    verdict: PodVerdict | None = None,
    sandbox_ready: bool = True,
) -> dict[str, Any]:
    """The status to write: everything a kubelet owns, nothing the scheduler owns.

    Null values remove a field in a strategic merge patch; a condition keeps the transition time it has in `previous` while
    it keeps its value.
    """
    phase = _phase(pod, states, step, verdict)
    old = {c["type"]: c for c in previous}
    sandbox = {"type": "PodReadyToStartContainers", "status": str(sandbox_ready and phase not in _OVER)}
    conditions = [
        _dated(c, old.get(c["type"]), now) for c in (sandbox, *_conditions(pod, states, step, phase))
    ]
    return {
        "observedGeneration": pod.raw["metadata"].get("generation"),
        "phase": phase,
        "reason": verdict.reason if verdict else None,
        "message": verdict.message if verdict else None,
        "hostIP": where.host_ip,
        "hostIPs": [{"ip": where.host_ip}],
        "podIP": where.pod_ip or None,
        "podIPs": [{"ip": where.pod_ip}] if where.pod_ip else None,
        "startTime": timestamp(started_at),
        "conditions": conditions,
        "initContainerStatuses": [_container(c, states[c.name]) for c in pod.inits] or None,
        "containerStatuses": [_container(c, states[c.name]) for c in pod.mains],
    }


def changed_since(written: Json, version: int, pod: Json) -> bool:
    """Whether somebody has changed a condition of a pod after it was written, as the node lifecycle controller does.

    Args:
        written: the status as this agent wrote it.
        version: the pod's resourceVersion since then.
        pod: as the watch last brought it, which may be older.
    """
    shown = {one["type"]: one["status"] for one in pod.get("status", {}).get("conditions", [])}
    newer = int(pod["metadata"].get("resourceVersion") or 0) > version
    return newer and any(shown.get(one["type"]) != one["status"] for one in written["conditions"])


def restored(status: Json, name: str) -> ContainerState | None:
    """The state a container had when the agent last wrote its status; None if it has none there."""
    statuses = [*(status.get("initContainerStatuses") or []), *(status.get("containerStatuses") or [])]
    for entry in statuses:
        if entry["name"] == name:
            return ContainerState(
                activity=_activity(entry.get("state", {})),
                restarts=entry.get("restartCount", 0),
                last=_terminated(entry.get("lastState", {})),
                started=bool(entry.get("started")),
                image=entry.get("image", ""),
                image_id=entry.get("imageID", ""),
                container_id=entry.get("containerID", ""),
            )
    return None


def timestamp(seconds: float) -> str:
    """RFC 3339 with whole seconds, as Kubernetes' metav1.Time."""
    moment = dt.datetime.fromtimestamp(int(seconds), tz=dt.UTC)
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")


def seconds(text: str | None) -> float:
    """The inverse of `timestamp`; 0 when there is none."""
    return dt.datetime.fromisoformat(text).timestamp() if text else 0.0


def _phase(
    pod: PodSpec, states: Mapping[str, ContainerState], step: LifecycleStep, verdict: PodVerdict | None
) -> str:
    if verdict and verdict.failed:
        return "Failed" if step.finished else "Running"
    ends = [states[c.name].ended for c in pod.mains if not states[c.name].running]
    if step.finished and not verdict:
        done = all(end is not None and end.exit_code == 0 for end in ends)
        return "Succeeded" if done and not step.failed_init else "Failed"
    if not step.initialized or any(end is None for end in ends):
        return "Pending"
    return "Running"


def _conditions(
    pod: PodSpec, states: Mapping[str, ContainerState], step: LifecycleStep, phase: str
) -> Iterable[dict[str, Any]]:
    over = _OVER.get(phase)
    waiting = [c.name for c in pod.inits if not _init_done(c, states[c.name])]
    if step.initialized:
        yield {"type": "Initialized", "status": "True", **({"reason": over} if phase == "Succeeded" else {})}
    else:
        yield _unmet("Initialized", "ContainersNotInitialized", "incomplete", waiting)
    serving = [c for c in pod.containers if c.role is not Role.INIT]
    unready = [c.name for c in serving if not states[c.name].ready]
    if over:
        yield {"type": "ContainersReady", "status": "False", "reason": over}
        yield {"type": "Ready", "status": "False", "reason": over}
    elif unready:
        yield _unmet("ContainersReady", "ContainersNotReady", "unready", unready)
        yield _unmet("Ready", "ContainersNotReady", "unready", unready)
    else:
        yield {"type": "ContainersReady", "status": "True"}
        yield _gated(pod)


def _gated(pod: PodSpec) -> dict[str, Any]:
    """The condition Ready when all containers are, subject to the pod's readiness gates."""
    true = {c["type"] for c in pod.raw.get("status", {}).get("conditions", []) if c["status"] == "True"}
    gates = [gate["conditionType"] for gate in pod.raw["spec"].get("readinessGates", [])]
    missing = [gate for gate in gates if gate not in true]
    if not missing:
        return {"type": "Ready", "status": "True"}
    message = "\n".join(
        f'corresponding condition of pod readiness gate "{gate}" does not exist.' for gate in missing
    )
    return {"type": "Ready", "status": "False", "reason": "ReadinessGatesNotReady", "message": message}


def _unmet(kind: str, reason: str, adjective: str, names: list[str]) -> dict[str, Any]:
    message = f"containers with {adjective} status: [{' '.join(names)}]"
    return {"type": kind, "status": "False", "reason": reason, "message": message}


def _dated(condition: dict[str, Any], old: Json | None, now: float) -> dict[str, Any]:
    same = old is not None and old["status"] == condition["status"]
    since = old["lastTransitionTime"] if old is not None and same else timestamp(now)
    return {"reason": None, "message": None, "lastProbeTime": None, "lastTransitionTime": since, **condition}


def _init_done(container: ContainerSpec, state: ContainerState) -> bool:
    if container.role is Role.SIDECAR:
        return state.running and state.started
    return isinstance(state.activity, Terminated) and state.activity.exit_code == 0


def _container(container: ContainerSpec, state: ContainerState) -> dict[str, Any]:
    done = isinstance(state.activity, Terminated) and state.activity.exit_code == 0
    return {
        "name": container.name,
        "state": _state(state.activity),
        "lastState": _state(state.last) if state.last else {},
        "ready": state.ready or (container.role is Role.INIT and done),
        "started": state.started,
        "restartCount": state.restarts,
        "image": state.image or container.image,
        "imageID": state.image_id,
        **({"containerID": state.container_id} if state.container_id else {}),
    }


def _state(activity: Activity) -> dict[str, Any]:
    if isinstance(activity, Waiting):
        body = {"reason": activity.reason, **({"message": activity.message} if activity.message else {})}
        return {"waiting": body}
    if isinstance(activity, Running):
        return {"running": {"startedAt": timestamp(activity.started_at)}}
    ended: dict[str, Any] = {
        "exitCode": activity.exit_code,
        "reason": activity.reason,
        "startedAt": timestamp(activity.started_at),
        "finishedAt": timestamp(activity.finished_at),
    }
    if activity.message:
        ended["message"] = activity.message
    if activity.container_id:
        ended["containerID"] = activity.container_id
    return {"terminated": ended}


def _activity(state: Json) -> Activity:
    if "running" in state:
        return Running(seconds(state["running"].get("startedAt")))
    if ended := _terminated(state):
        return ended
    waiting = state.get("waiting", {})
    return Waiting(waiting.get("reason", "ContainerCreating"), waiting.get("message", ""))


def _terminated(state: Json) -> Terminated | None:
    if not (body := state.get("terminated")):
        return None
    return Terminated(
        exit_code=body["exitCode"],
        reason=body.get("reason", ""),
        started_at=seconds(body.get("startedAt")),
        finished_at=seconds(body.get("finishedAt")),
        message=body.get("message", ""),
        container_id=body.get("containerID", ""),
    )

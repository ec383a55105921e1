"""The fields of a Pod that the agent reads, as frozen data.

The API server has validated and defaulted the object, so readers here trust its shape. `refusals` finds the fields that
the agent cannot honour before anything here is acted on.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

Json: TypeAlias = Mapping[str, Any]
RestartPolicy: TypeAlias = Literal["Always", "OnFailure", "Never"]


class Role(enum.Enum):
    """Kind of a container; decides when it starts, restarts and stops."""

    INIT = "init"
    SIDECAR = "sidecar"  # an init container with restartPolicy Always
    MAIN = "main"


@dataclass(frozen=True)
class ExecAction:
    """Run a command inside the container."""

    command: tuple[str, ...]


@dataclass(frozen=True)
class HttpAction:
    """Ask a URL; host None means the pod's address."""

    host: str | None
    port: int
    path: str
    scheme: Literal["http", "https"]
    headers: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class TcpAction:
    """Open a connection; host None means the pod's address."""

    host: str | None
    port: int


@dataclass(frozen=True)
class SleepAction:
    """Wait (lifecycle hooks only)."""

    seconds: float


Action: TypeAlias = ExecAction | HttpAction | TcpAction | SleepAction


@dataclass(frozen=True)
class ProbeSpec:
    """One probe with Kubernetes' defaults filled in; times in seconds."""

    action: Action
    initial_delay_s: float
    period_s: float
    timeout_s: float
    success_threshold: int
    failure_threshold: int
    termination_grace_s: float | None  # overrides the pod's when this probe kills the container


@dataclass(frozen=True)
class ContainerSpec:
    """One container of a pod; `raw` is the API's own object for what is resolved later (env, mounts, resources)."""

    name: str
    role: Role
    image: str
    startup: ProbeSpec | None
    readiness: ProbeSpec | None
    liveness: ProbeSpec | None
    post_start: Action | None
    pre_stop: Action | None
    raw: Json

    @property
    def field_path(self) -> str:
        """The path Kubernetes events carry for this container."""
        group = "containers" if self.role is Role.MAIN else "initContainers"
        return f"spec.{group}{{{self.name}}}"

    def extended_resource(self, name: str) -> int:
        """How many units of a countable resource the container asks for (limits equal requests for these)."""
        return int(self.raw.get("resources", {}).get("limits", {}).get(name, 0))


@dataclass(frozen=True)
class PodSpec:
    """One pod bound to a node of this agent."""

    uid: str
    namespace: str
    name: str
    restart_policy: RestartPolicy
    grace_s: float
    active_deadline_s: float | None
    containers: tuple[ContainerSpec, ...]  # init containers and sidecars in their order, then main containers
    deleting: bool
    deletion_grace_s: float
    raw: Json

    @property
    def key(self) -> str:
        """namespace/name."""
        return f"{self.namespace}/{self.name}"

    @property
    def service_account(self) -> str:
        """The ServiceAccount the pod runs as."""
        return str(self.raw["spec"].get("serviceAccountName") or "default")

    @property
    def inits(self) -> tuple[ContainerSpec, ...]:
        """Init containers and sidecars, in order."""
        return tuple(c for c in self.containers if c.role is not Role.MAIN)

    @property
    def mains(self) -> tuple[ContainerSpec, ...]:
        """The main containers, in order."""
        return tuple(c for c in self.containers if c.role is Role.MAIN)

    def container(self, name: str) -> ContainerSpec:
        """The container of that name; KeyError if the pod has none."""
        for container in self.containers:
            if container.name == name:
                return container
        raise KeyError(name)


def parse(pod: Json) -> PodSpec:
    """Reads a Pod as the API server returns it."""
    meta, spec = pod["metadata"], pod["spec"]
    grace = float(spec.get("terminationGracePeriodSeconds", 30))
    deadline = spec.get("activeDeadlineSeconds")
    return PodSpec(
        uid=meta["uid"],
        namespace=meta["namespace"],
        name=meta["name"],
        restart_policy=spec.get("restartPolicy", "Always"),
        grace_s=grace,
        active_deadline_s=None if deadline is None else float(deadline),
        containers=(
            *(
                _container(c, Role.SIDECAR if c.get("restartPolicy") == "Always" else Role.INIT)
                for c in spec.get("initContainers", [])
            ),
            *(_container(c, Role.MAIN) for c in spec["containers"]),
        ),
        deleting="deletionTimestamp" in meta,
        deletion_grace_s=float(meta.get("deletionGracePeriodSeconds", grace)),
        raw=pod,
    )


def _container(raw: Json, role: Role) -> ContainerSpec:
    ports = raw.get("ports", [])
    lifecycle = raw.get("lifecycle", {})
    return ContainerSpec(
        name=raw["name"],
        role=role,
        image=raw.get("image", ""),
        startup=_probe(raw.get("startupProbe"), ports),
        readiness=_probe(raw.get("readinessProbe"), ports),
        liveness=_probe(raw.get("livenessProbe"), ports),
        post_start=_action(lifecycle.get("postStart"), ports),
        pre_stop=_action(lifecycle.get("preStop"), ports),
        raw=raw,
    )


def _probe(raw: Json | None, ports: Sequence[Json]) -> ProbeSpec | None:
    action = _action(raw, ports)
    if raw is None or action is None:
        return None
    grace = raw.get("terminationGracePeriodSeconds")
    return ProbeSpec(
        action=action,
        initial_delay_s=float(raw.get("initialDelaySeconds", 0)),
        period_s=float(raw.get("periodSeconds", 10)),
        timeout_s=float(raw.get("timeoutSeconds", 1)),
        success_threshold=int(raw.get("successThreshold", 1)),
        failure_threshold=int(raw.get("failureThreshold", 3)),
        termination_grace_s=None if grace is None else float(grace),
    )


def _action(raw: Json | None, ports: Sequence[Json]) -> Action | None:
    """Reads the one handler of a probe or a hook; None if there is none that the agent knows (`refusals` says so)."""
    if not raw:
        return None
    if "exec" in raw:
        return ExecAction(tuple(raw["exec"].get("command", ())))
    if "httpGet" in raw:
        get = raw["httpGet"]
        return HttpAction(
            host=get.get("host"),
            port=_port(get["port"], ports),
            path=get.get("path", "/"),
            scheme="https" if get.get("scheme", "HTTP").upper() == "HTTPS" else "http",
            headers=tuple((h["name"], h.get("value", "")) for h in get.get("httpHeaders", [])),
        )
    if "tcpSocket" in raw:
        return TcpAction(raw["tcpSocket"].get("host"), _port(raw["tcpSocket"]["port"], ports))
    if "sleep" in raw:
        return SleepAction(float(raw["sleep"]["seconds"]))
    return None


def _port(port: int | str, ports: Sequence[Json]) -> int:
    """Resolves a named port among the container's own; 0 (which nothing listens on) when no port has that name."""
    if isinstance(port, int):
        return port
    named = (int(p["containerPort"]) for p in ports if p.get("name") == port)
    return next(named, int(port) if port.isdigit() else 0)

"""Fields of a pod that this agent cannot honour.

Refusing is the rule: a field that is silently dropped makes a test pass for the wrong reason. Fields whose effect cannot be
seen by the process (resource limits, seccomp, SELinux, dropped capabilities, fsGroup, priorities) are accepted; the README
lists them.
"""

from __future__ import annotations

from collections.abc import Iterator

from localcluster.nodeagent.podspec import Json

REASON = "UnsupportedByNodeAgent"
UNENFORCED = "NotEnforcedByNodeAgent"

VOLUMES = frozenset({"configMap", "secret", "emptyDir", "projected", "downwardAPI"})
PROJECTIONS = frozenset({"serviceAccountToken", "configMap", "downwardAPI", "secret"})
_POD_FLAGS = ("hostNetwork", "hostPID", "hostIPC", "shareProcessNamespace")
_HANDLERS = frozenset({"exec", "httpGet", "tcpSocket", "sleep"})
_PROBES = ("startupProbe", "readinessProbe", "livenessProbe")
_SOURCES = frozenset({"fieldRef", "resourceFieldRef", "configMapKeyRef", "secretKeyRef"})


def unsupported(pod: Json, *, isolated: bool) -> tuple[str, ...]:
    """The fields of a Pod that the agent refuses, each with its reason; empty when it can run it.

    Args:
        pod: the Pod as the API server returns it.
        isolated: whether containers get mount namespaces on this machine; some fields need them.
    """
    spec = pod["spec"]
    return (*_pod(spec, isolated=isolated), *_volumes(spec), *_containers(spec))


def unenforced(pod: Json, *, isolated: bool) -> tuple[str, ...]:
    """Fields that only restrict and that this machine cannot enforce: the pod runs, and its events say so."""
    containers = (c for group in ("initContainers", "containers") for c in pod["spec"].get(group, []))
    return tuple(
        f"container {c['name']}: securityContext.readOnlyRootFilesystem needs user namespaces, which this machine does not allow"
        for c in containers
        if not isolated and (c.get("securityContext") or {}).get("readOnlyRootFilesystem")
    )


def _pod(spec: Json, *, isolated: bool) -> Iterator[str]:
    for flag in _POD_FLAGS:
        if spec.get(flag):
            yield f"spec.{flag}: pods here have no namespace of that kind to share"
    if spec.get("ephemeralContainers"):
        yield "spec.ephemeralContainers: not implemented"
    if spec.get("hostAliases") and not isolated:
        yield "spec.hostAliases: needs user namespaces, which this machine does not allow"
    if (spec.get("os") or {}).get("name", "linux") != "linux":
        yield "spec.os.name: only linux"
    if spec.get("resourceClaims"):
        yield "spec.resourceClaims: devices are only given as the extended resource nvidia.com/gpu"
    for number, sysctl in enumerate((spec.get("securityContext") or {}).get("sysctls", [])):
        yield f"spec.securityContext.sysctls[{number}] ({sysctl['name']}): the kernel is shared"


def _volumes(spec: Json) -> Iterator[str]:
    for number, volume in enumerate(spec.get("volumes", [])):
        where = f"spec.volumes[{number}] ({volume['name']})"
        kinds = volume.keys() - {"name"}
        for kind in sorted(kinds - VOLUMES):
            yield f"{where}.{kind}: volumes of this kind are not available; known are {', '.join(sorted(VOLUMES))}"
        for at, source in enumerate((volume.get("projected") or {}).get("sources", [])):
            for kind in sorted(source.keys() - PROJECTIONS):
                yield f"{where}.projected.sources[{at}].{kind}: not available"


def _containers(spec: Json) -> Iterator[str]:
    for group in ("initContainers", "containers"):
        for number, container in enumerate(spec.get(group, [])):
            where = f"spec.{group}[{number}] ({container['name']})"
            yield from (f"{where}.{problem}" for problem in _container(container))
            if container.get("restartPolicy") not in {None, "Always"} or container.get("restartPolicyRules"):
                yield f"{where}.restartPolicy: only the pod's policy, or Always on an init container"


def _container(container: Json) -> Iterator[str]:
    security = container.get("securityContext") or {}
    if security.get("privileged"):
        yield "securityContext.privileged: containers here are processes without privileges"
    if added := (security.get("capabilities") or {}).get("add"):
        yield f"securityContext.capabilities.add ({', '.join(added)}): containers here have no capabilities"
    if container.get("volumeDevices"):
        yield "volumeDevices: there are no block devices"
    if container.get("stdin") or container.get("tty"):
        yield "stdin/tty: attaching is not implemented"
    for port in container.get("ports", []):
        if port.get("hostPort"):
            yield f"ports.hostPort ({port['hostPort']}): a pod only has its own address"
    yield from _handlers(container)
    yield from _references(container)


def _handlers(container: Json) -> Iterator[str]:
    for probe in _PROBES:
        yield from _handler(probe, container.get(probe))
    lifecycle = container.get("lifecycle") or {}
    for hook in ("postStart", "preStop"):
        yield from _handler(f"lifecycle.{hook}", lifecycle.get(hook))
    if lifecycle.get("stopSignal", "SIGTERM") != "SIGTERM":
        yield f"lifecycle.stopSignal ({lifecycle['stopSignal']}): only SIGTERM"


def _references(container: Json) -> Iterator[str]:
    for variable in container.get("env", []):
        for kind in (variable.get("valueFrom") or {}).keys() - _SOURCES:
            yield f"env ({variable['name']}).valueFrom.{kind}: not available"
    for mount in container.get("volumeMounts", []):
        if mount.get("mountPropagation", "None") != "None":
            yield f"volumeMounts ({mount['name']}).mountPropagation: only None"


def _handler(name: str, handler: Json | None) -> Iterator[str]:
    if handler and not handler.keys() & _HANDLERS:
        kinds = sorted(key for key, value in handler.items() if isinstance(value, dict))
        yield f"{name}.{'/'.join(kinds) or '?'}: known handlers are {', '.join(sorted(_HANDLERS))}"

"""A container's environment, assembled with a kubelet's rules.

`envFrom` comes first and `env` replaces it; a `$(VAR)` in an env value sees only what stands before it; an optional reference
whose source is missing leaves the variable unset; what the image defines loses against all of them.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping

from localcluster.nodeagent import fieldrefs, variables
from localcluster.nodeagent.fieldrefs import Placement
from localcluster.nodeagent.podspec import ContainerSpec, Json, PodSpec

# (kind, name) -> data as text, or None if there is no such object in the pod's namespace.
Lookup = Callable[[str, str], Awaitable[Mapping[str, str] | None]]


class ConfigError(Exception):
    """The container cannot be made until the user changes something: a kubelet's CreateContainerConfigError."""


async def assemble(
    pod: PodSpec, container: ContainerSpec, where: Placement, services: Mapping[str, str], lookup: Lookup
) -> dict[str, str]:
    """The container's own environment with every reference resolved.

    Args:
        pod: the pod.
        container: one of its containers.
        where: the pod's placement, which answers field references.
        services: variables a kubelet adds for Services; `$(VAR)` may name them and `env` may replace them.
        lookup: reads ConfigMaps ("configmap") and Secrets ("secret").

    Raises:
        ConfigError: a ConfigMap, a Secret or a key that is not optional does not exist, or a field is unknown.
    """
    own: dict[str, str] = {}
    for source in container.raw.get("envFrom", []):
        own.update(await _whole(source, lookup))
    for item in container.raw.get("env", []):
        name, text = item["name"], item.get("value", "")
        if text or not item.get("valueFrom"):
            own[name] = variables.expand(text, {**services, **own})
            continue
        value = await _referenced(item["valueFrom"], pod, container, where, lookup)
        if value is not None:
            own[name] = value
    return {**services, **own}


async def _whole(source: Json, lookup: Lookup) -> dict[str, str]:
    """All keys of one `envFrom` source, prefixed."""
    kind, reference = _kind(source, "configMapRef", "secretRef")
    data = await lookup(kind, reference["name"])
    if data is None:
        if reference.get("optional"):
            return {}
        raise ConfigError(f'{kind} "{reference["name"]}" not found')
    prefix = source.get("prefix", "")
    return {f"{prefix}{key}": value for key, value in data.items()}


async def _referenced(
    source: Json, pod: PodSpec, container: ContainerSpec, where: Placement, lookup: Lookup
) -> str | None:
    """The value of one `valueFrom`; None if it is optional and missing."""
    try:
        if "fieldRef" in source:
            return fieldrefs.field(source["fieldRef"]["fieldPath"], pod, where)
        if "resourceFieldRef" in source:
            return fieldrefs.resource(source["resourceFieldRef"], pod, container, where)
    except ValueError as error:
        raise ConfigError(str(error)) from error
    kind, reference = _kind(source, "configMapKeyRef", "secretKeyRef")
    data = await lookup(kind, reference["name"])
    if data is not None and reference["key"] in data:
        return data[reference["key"]]
    if reference.get("optional"):
        return None
    if data is None:
        raise ConfigError(f'{kind} "{reference["name"]}" not found')
    raise ConfigError(f"couldn't find key {reference['key']} in {kind} {pod.namespace}/{reference['name']}")


def _kind(source: Json, config_map: str, secret: str) -> tuple[str, Json]:
    if config_map in source:
        return "configmap", source[config_map]
    if secret in source:
        return "secret", source[secret]
    raise ConfigError(f"unsupported source of an environment variable: {', '.join(source)}")

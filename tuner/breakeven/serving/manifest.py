"""Manifests from a file, which no API server has checked: the parts that lint reads have the types they must have."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import yaml

from breakeven.errors import InputError
from breakeven.intake import kind_of

_WORDS = [str]
CONTAINER: dict[str, Any] = {
    "name": str,
    "image": str,
    "command": _WORDS,
    "args": _WORDS,
    "env": [{"name": str, "valueFrom": {"fieldRef": {"fieldPath": str}}}],
    "lifecycle": {"preStop": {"sleep": {"seconds": (int, float)}, "exec": {"command": _WORDS}}},
}
"""The types of a container's parts that are read."""
POD_SPEC: dict[str, Any] = {
    "terminationGracePeriodSeconds": (int, float),
    "containers": [CONTAINER],
    "volumes": [{"name": str, "persistentVolumeClaim": {"claimName": str}}],
    "resourceClaims": [{"name": str, "resourceClaimName": str}],
}
"""The types of a pod spec's parts that are read."""
ROLLING: dict[str, Any] = {
    "replicas": (int, float),
    "strategy": {
        "type": str,
        "rollingUpdate": {"maxSurge": (int, str), "maxUnavailable": (int, str)},
        "canary": {"maxSurge": (int, str), "maxUnavailable": (int, str)},
    },
    "updateStrategy": {"type": str, "rollingUpdate": {"partition": int, "maxUnavailable": (int, str)}},
    "rolloutStrategy": {
        "rollingUpdateConfiguration": {"partition": int, "maxSurge": (int, str), "maxUnavailable": (int, str)}
    },
    "prefill": {},
    "worker": {},
    "predictor": {
        "deploymentStrategy": {
            "type": str,
            "rollingUpdate": {"maxSurge": (int, str), "maxUnavailable": (int, str)},
        }
    },
    "volumeClaimTemplates": [{"metadata": {"name": str}}],
    "leaderWorkerTemplate": {"volumeClaimTemplates": [{"metadata": {"name": str}}]},
}
"""The types of what the spec of a kind that is rolled says about rolls."""
_CLAIM = {"metadata": {"name": str, "namespace": str}, "spec": {"accessModes": _WORDS}}


def as_written(item: Any) -> list[str]:
    """The lines of an item of a list: as its file writes it, or as YAML would."""
    source = getattr(item, "source", None)
    if source is None:
        plain = yaml.safe_dump([item], width=2**31, allow_unicode=True, sort_keys=False)
        return str(plain).splitlines()
    return f"- {source}".splitlines()


def checked_claim(document: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Return the PersistentVolumeClaim without its nulls; raises what `checked` raises."""
    found = dict(checked(document, _CLAIM, where, ""))
    return {"metadata": {"name": "", **(found.get("metadata") or {})}, "spec": found.get("spec") or {}}


def checked(value: Any, shape: Any, where: str, path: str) -> Any:
    """Return a part of a manifest without its nulls, which Kubernetes takes for absent.

    A shape gives types by name: an object, a list of one shape, or a Python type. `path` is empty for the whole document.

    Raises:
        InputError: naming the first field of another type than Kubernetes gives it.
    """
    if isinstance(shape, dict):
        if not isinstance(value, Mapping):
            raise _refusal(value, where, path, "an object")
        return {
            key: checked(item, shape[key], where, f"{path}.{key}".lstrip(".")) if key in shape else item
            for key, item in value.items()
            if item is not None
        }
    if isinstance(shape, list):
        if not isinstance(value, list):
            raise _refusal(value, where, path, "a list")
        return [checked(item, shape[0], where, f"{path}[{index}]") for index, item in enumerate(value)]
    if not isinstance(value, shape):
        kinds = {(int, float): "a number", (int, str): "a number of pods or a percentage"}
        raise _refusal(value, where, path, kinds.get(shape, "a text"))
    return value


def _refusal(value: Any, where: str, path: str, expected: str) -> InputError:
    return InputError(f"{where}: {path or 'the document'}", kind_of(value), expected)

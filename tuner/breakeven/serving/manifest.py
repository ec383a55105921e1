"""A Deployment from a file, which no API server has checked: the parts that lint reads have the types they must have."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from breakeven.errors import InputError
from breakeven.intake import kind_of

_WORDS = [str]
_CONTAINER = {
    "name": str,
    "image": str,
    "command": _WORDS,
    "args": _WORDS,
    "env": [{"name": str, "valueFrom": {"fieldRef": {"fieldPath": str}}}],
    "lifecycle": {"preStop": {"sleep": {"seconds": (int, float)}, "exec": {"command": _WORDS}}},
}
_DEPLOYMENT = {
    "metadata": {"name": str},
    "spec": {
        "replicas": (int, float),
        "strategy": {"type": str, "rollingUpdate": {"maxSurge": (int, str), "maxUnavailable": (int, str)}},
        "template": {
            "metadata": {"annotations": {}},
            "spec": {
                "terminationGracePeriodSeconds": (int, float),
                "containers": [_CONTAINER],
                "volumes": [{"name": str, "persistentVolumeClaim": {"claimName": str}}],
                "resourceClaims": [{"name": str, "resourceClaimName": str}],
            },
        },
    },
}
_CLAIM = {"metadata": {"name": str, "namespace": str}, "spec": {"accessModes": _WORDS}}


def checked_deployment(document: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Return the Deployment without its nulls, which Kubernetes takes for absent.

    Raises:
        InputError: naming the first field of another type than Kubernetes gives it.
    """
    cleaned = _checked(document, _DEPLOYMENT, where, "")
    return dict(cleaned)


def checked_claim(document: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Return the PersistentVolumeClaim without its nulls.

    Raises:
        InputError: see checked_deployment.
    """
    found = dict(_checked(document, _CLAIM, where, ""))
    return {"metadata": {"name": "", **(found.get("metadata") or {})}, "spec": found.get("spec") or {}}


def _checked(value: Any, shape: Any, where: str, path: str) -> Any:
    if isinstance(shape, dict):
        if not isinstance(value, Mapping):
            raise _refusal(value, where, path, "an object")
        return {
            key: _checked(item, shape[key], where, f"{path}.{key}".lstrip(".")) if key in shape else item
            for key, item in value.items()
            if item is not None
        }
    if isinstance(shape, list):
        if not isinstance(value, list):
            raise _refusal(value, where, path, "a list")
        return [_checked(item, shape[0], where, f"{path}[{index}]") for index, item in enumerate(value)]
    if not isinstance(value, shape):
        kinds = {(int, float): "a number", (int, str): "a number of pods or a percentage"}
        raise _refusal(value, where, path, kinds.get(shape, "a text"))
    return value


def _refusal(value: Any, where: str, path: str, expected: str) -> InputError:
    return InputError(f"{where}: {path or 'Deployment'}", kind_of(value), expected)

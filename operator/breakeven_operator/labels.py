"""Marks of objects: labels to find the operator's own by, the owner they go with, and the annotations by which people ask."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from breakeven_operator.kinds import Resource

SERVICE_LABEL = "breakeven.dev/service"
RUN_LABEL = "breakeven.dev/run"
ARM_LABEL = "breakeven.dev/arm"
FINISHED_LABEL = "breakeven.dev/finished"
"""On runs that are accounted for; the others are the cycle's list."""

WATCHED_LABEL = "breakeven.dev/watched"
"""On services that were made for a workload's annotation; whoever takes it off keeps the service."""
RESUME_ANNOTATION = "breakeven.dev/resume"
"""On services: a new value hands the target back, ends a back-off and lets barred arms try again."""
RECALIBRATE_ANNOTATION = "breakeven.dev/recalibrate"
"""On services: a new value asks for a calibration."""

MANAGED_BY = {"app.kubernetes.io/managed-by": "breakeven"}
MANAGED_SELECTOR = ",".join(f"{key}={value}" for key, value in MANAGED_BY.items())


def owner_reference(owner: Resource, name: str, uid: str) -> dict[str, Any]:
    """Makes the dependent go with its owner; it does not block the owner's deletion, which would need a right on it."""
    return {
        "apiVersion": owner.api_version,
        "kind": owner.kind,
        "name": name,
        "uid": uid,
        "controller": True,
        "blockOwnerDeletion": False,
    }


def service_of(run: Mapping[str, Any]) -> str:
    """Name of the service a CalibrationRun belongs to; by its spec, because people make runs without labels."""
    return str(((run.get("spec") or {}).get("serviceRef") or {}).get("name", ""))


def matches(selector: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    """Whether a label selector picks an object with these labels."""
    if any(labels.get(key) != value for key, value in (selector.get("matchLabels") or {}).items()):
        return False
    for expression in selector.get("matchExpressions") or []:
        key, values = expression["key"], expression.get("values") or []
        holds = {
            "In": labels.get(key) in values and key in labels,
            "NotIn": labels.get(key) not in values,
            "Exists": key in labels,
            "DoesNotExist": key not in labels,
        }[expression["operator"]]
        if not holds:
            return False
    return True

"""Owner, conditions and times of an object of the API, which every kind of object writes in the same way."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

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

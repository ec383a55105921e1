"""The parts of a pod template that only one pod, or one node, can have: a second pod beside it never starts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

_MANY = frozenset({"ReadOnlyMany", "ReadWriteMany"})


WITHOUT_SURGE = "maxSurge: 0 and maxUnavailable: 1"
"""The lines with which a pod is gone before the next one comes."""


def mounted_claims(pod_spec: Mapping[str, Any]) -> frozenset[str]:
    """Names of the PersistentVolumeClaims that a pod mounts."""
    claims = (volume.get("persistentVolumeClaim") or {} for volume in pod_spec.get("volumes") or [])
    return frozenset(str(claim["claimName"]) for claim in claims if claim.get("claimName"))


def unshareable(pod_spec: Mapping[str, Any], claims: Iterable[Mapping[str, Any]]) -> str | None:
    """The part that a second pod cannot have, as a sentence with the way out; claims are known as far as they may be read."""
    for claim in pod_spec.get("resourceClaims") or []:
        if claim.get("resourceClaimName"):
            return (
                f"the target uses ResourceClaim {claim['resourceClaimName']} by name, which a second pod cannot have:"
                " use a ResourceClaimTemplate"
            )
    mounted = mounted_claims(pod_spec)
    for claim in claims:
        name, modes = claim["metadata"]["name"], set(claim["spec"].get("accessModes") or [])
        if name in mounted and modes and not modes & _MANY:
            return (
                f"PersistentVolumeClaim {name} is {'/'.join(sorted(modes))}: a second pod cannot mount it beside the"
                " target's; use ReadOnlyMany or ReadWriteMany for the model"
            )
    return None

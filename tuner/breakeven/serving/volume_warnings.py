"""Volumes that a pod which a roll adds cannot share with the pods that are there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce
from typing import Any

from breakeven.errors import InputError
from breakeven.serving.rolling import ROLLED
from breakeven.serving.shareable import WITHOUT_SURGE, mounted_claims, unshareable
from breakeven.serving.template import PodTemplate


def volume_warnings(
    template: PodTemplate, claims: Sequence[Mapping[str, Any]]
) -> tuple[Sequence[str], Sequence[str]]:
    """The claims that a pod which a roll adds would wait for in vain; where they are not known, the claims to look at."""
    spec, pod_spec = template.rolling, template.pod_spec
    if not template.managed or template.kind not in ROLLED:
        return (), ()
    kind = ROLLED[template.kind]
    try:
        desired = int(spec.get("replicas", 1))
    except (ValueError, OverflowError):
        raise InputError(
            f"{template.where}: spec.replicas", str(spec["replicas"]), "a number of pods"
        ) from None
    place = ".".join(("spec", *kind.rolls_at))
    try:
        surge = kind.strategy(spec, desired).max_surge
    except (ValueError, OverflowError):
        raise InputError(
            f"{template.where}: {place}",
            str(reduce(lambda part, name: part[name], kind.rolls_at, spec)),
            "numbers of pods or percentages",
        ) from None
    if surge == 0:
        return (), ()
    own = template.namespace or "default"
    known_claims = [claim for claim in claims if claim["metadata"].get("namespace", own) == own]
    alone = unshareable(pod_spec, known_claims)
    unknown = sorted(mounted_claims(pod_spec) - {claim["metadata"]["name"] for claim in known_claims})
    pods = f"{surge} pod{'s' if surge > 1 else ''}"
    without_surge = f"{WITHOUT_SURGE} under {place}"
    way_out, here = (
        (f"; or write {without_surge}", f", or {without_surge} here") if kind.rolls_at else ("", "")
    )
    return (
        [f"a roll adds {pods}: {alone}{way_out}"] if alone else [],
        [
            f"the pod mounts PersistentVolumeClaim {claim}, which is not in this file: if its accessModes are ReadWriteOnce, a "
            f"pod that a roll adds waits for it in vain; then write accessModes: [ReadOnlyMany] there{here}"
            for claim in unknown
        ],
    )

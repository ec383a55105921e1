"""Services that are made for annotated workloads: which to make, and which of them to take back.

A made service only looks: mode Recommend, and paused, so that it starts no calibration. People alone change it, and keep it by
that. This module decides; `cycle.py` has it carried out.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from breakeven_operator.actions import ActionPlan, Create, Delete
from breakeven_operator.cluster.observer import grouped
from breakeven_operator.cluster.snapshot import Snapshot
from breakeven_operator.kinds import MANAGED_BY, SERVICES, WATCHED_LABEL, Ref, owner_reference
from breakeven_operator.ports import Manifest
from breakeven_operator.resources import API_VERSION, SpeculativeService
from breakeven_operator.resources.candidates import Candidates
from breakeven_operator.resources.speculativeservice import MAX_SERVICE_NAME
from breakeven_operator.resources.updatepolicy import Mode
from breakeven_operator.settings import Settings
from breakeven_operator.workloads.known import WATCH_ANNOTATION, asks_to_be_watched, target_of

_SUFFIX = "-watched"
# Of a manifest that nobody has changed.
_FIRST_GENERATION = 1


class Watched(NamedTuple):
    """Services to make and to delete, one plan each, and workloads for which there is no room, the oldest first."""

    plans: Sequence[ActionPlan]
    left: Sequence[Ref]

    def sentence(self, settings: Settings) -> str:
        """The message about workloads for which there is no room."""
        return (
            f"workloads with the annotation {WATCH_ANNOTATION} get no SpeculativeService: {len(self.left)}, the oldest "
            f"{self.left[0]}; made are at most {settings.most_watched} (operator.mostWatched), and {settings.most_watched_per_namespace} in a "
            "namespace (operator.mostWatchedPerNamespace)"
        )


def watched(world: Snapshot, settings: Settings) -> Watched:
    """Services to make for the annotated workloads that have none, and made ones that nobody wants any more."""
    of_target = grouped(world.services, target_of)
    unwanted = [*_unwanted(world, of_target)]
    served = [ref for ref in world.annotated if any(map(_is_made, of_target.get(ref, ())))]
    taken = {(one["metadata"]["namespace"], one["metadata"]["name"]) for one in world.manifests.values()}
    # A broken service names its target all the same: whoever repairs it shall not find another one there.
    claimed = {
        (manifest["metadata"]["namespace"], ((manifest.get("spec") or {}).get("targetRef") or {}).get("name"))
        for manifest, _ in world.invalid
    }
    asking = [
        ref
        for ref in sorted(world.annotated, key=lambda ref: _age(ref, world.annotated[ref]))
        if ref not in of_target
        and (ref.namespace, ref.name) not in claimed
        and not world.annotated[ref]["metadata"].get("deletionTimestamp")
    ]
    plans, left = list(unwanted), []
    in_namespace = Counter(ref.namespace for ref in served)
    in_all = sum(min(number, settings.most_watched_per_namespace) for number in in_namespace.values())
    for ref in asking:
        uid = world.annotated[ref]["metadata"]["uid"]
        free = (name for name in _names(ref.name, uid) if (ref.namespace, name) not in taken)
        name = next(free, None)
        if (
            name is None
            or in_all >= settings.most_watched
            or in_namespace[ref.namespace] >= settings.most_watched_per_namespace
        ):
            left.append(ref)
            continue
        in_all += 1
        in_namespace[ref.namespace] += 1
        taken.add((ref.namespace, name))
        owner = Ref(ref.resource, ref.namespace, ref.name, uid)
        plans.append(
            ActionPlan(owner, (Create(SERVICES, _service(owner, name, settings.default_candidates)),))
        )
    return Watched(plans, left)


def _unwanted(world: Snapshot, of_target: Mapping[Ref, Iterable[SpeculativeService]]) -> Iterator[ActionPlan]:
    """Deletions of made services as they were made, if the annotation is gone or a person wrote a service for the target."""
    for target, services in of_target.items():
        workload = world.targets.get(target)
        if workload is None:
            # Its services go with it; one that could not be read is no reason for anything.
            continue
        by_people = any(not _is_made(service) for service in services)
        for service in filter(_is_made, services):
            manifest = world.manifests[service.metadata.uid]
            if _is_as_made(manifest, workload) and (by_people or not asks_to_be_watched(workload)):
                ref = service.ref
                yield ActionPlan(ref, (Delete(ref, service.metadata.resource_version),))


def _is_made(service: SpeculativeService) -> bool:
    return service.metadata.labels.get(WATCHED_LABEL) == "true"


def _is_as_made(manifest: Manifest, workload: Manifest) -> bool:
    """Whether a made service is the workload's own, and nobody has changed its spec since."""
    meta = manifest["metadata"]
    owners = {owner.get("uid") for owner in meta.get("ownerReferences") or ()}
    return (
        workload["metadata"]["uid"] in owners
        and meta.get("generation") == _FIRST_GENERATION
        and not meta.get("annotations")
        and not meta.get("deletionTimestamp")
    )


def _age(ref: Ref, workload: Manifest) -> tuple[str, str]:
    return str(workload["metadata"].get("creationTimestamp") or ""), str(ref)


def _names(workload: str, uid: str) -> Iterator[str]:
    """Names for a workload's service, the best one first; the second tells workloads of one name or beginning apart."""
    plain = workload.replace(".", "-")
    if len(plain) <= MAX_SERVICE_NAME - len(_SUFFIX):
        yield f"{plain}{_SUFFIX}"
    mark = f"-{hashlib.sha256(uid.encode()).hexdigest()[:5]}{_SUFFIX}"
    yield f"{plain[: MAX_SERVICE_NAME - len(mark)]}{mark}"


def _service(workload: Ref, name: str, candidates: Candidates | None) -> Manifest:
    return {
        "apiVersion": API_VERSION,
        "kind": SERVICES.kind,
        "metadata": {
            "name": name,
            "namespace": workload.namespace,
            "labels": {**MANAGED_BY, WATCHED_LABEL: "true"},
            "ownerReferences": [owner_reference(workload.resource, workload.name, workload.uid)],
        },
        "spec": {
            "targetRef": {
                "apiVersion": workload.resource.api_version,
                "kind": workload.resource.kind,
                "name": workload.name,
            },
            # Who may annotate a workload may not thereby have pods started on GPUs.
            "paused": True,
            "updatePolicy": {"mode": str(Mode.RECOMMEND)},
            "candidates": candidates.to_json_object() if candidates is not None else {},
        },
    }

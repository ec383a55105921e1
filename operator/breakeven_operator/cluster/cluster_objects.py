"""The objects that decisions rest on, as one cycle lists them; an operator that goes on watches them (`watched_objects`).

SpeculationProfiles are parsed once, because their spec never changes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from breakeven.errors import BreakevenError, InputError
from breakeven.profile import Profile
from breakeven.profile.document import with_usable_rows
from breakeven_operator.cluster.api_json import LABELS, is_selected, trimmed
from breakeven_operator.kinds import PROFILES, NamespacedName, Ref, Resource
from breakeven_operator.ports import ClusterReader, Manifest
from breakeven_operator.resources import SpeculationProfile
from breakeven_operator.step import ProfileEntry
from breakeven_operator.workloads.known import KINDS, WATCHABLE, asks_to_be_watched
from breakeven_operator.workloads.object_facts import owner_of, parse_time


def file_profile(manifest: Manifest) -> ProfileEntry:
    """Parse a SpeculationProfile; one that cannot be read is an entry with its problem."""
    meta = manifest["metadata"]
    where = f"SpeculationProfile {meta['namespace']}/{meta['name']}"
    try:
        parsed = SpeculationProfile.read(
            {
                key: manifest[key]
                for key in ("apiVersion", "kind", "metadata", "spec", "status")
                if key in manifest
            },
            where,
        )
    except InputError as error:
        spec = manifest.get("spec") or {}
        return ProfileEntry(
            name=meta["name"],
            uid=meta["uid"],
            service=NamespacedName(meta["namespace"], str((spec.get("serviceRef") or {}).get("name", ""))),
            fingerprint=str(spec.get("fingerprint", "")),
            gpu_product=str(spec.get("gpuProduct", "")),
            created=_creation(manifest),
            arms=frozenset(),
            profile=None,
            problem=str(error),
        )
    # An arm without a point has no law, and is listed with the reason why.
    failed = {arm.arm: arm.reason or "" for arm in parsed.spec.arms if not arm.points}
    profile, problem = None, None
    try:
        profile = with_usable_rows(Profile.from_json(parsed.spec.profile, where), where)
    except BreakevenError as error:
        problem = str(error)
    return ProfileEntry(
        name=parsed.metadata.name,
        uid=parsed.metadata.uid,
        service=NamespacedName(meta["namespace"], parsed.spec.service_ref.name),
        fingerprint=parsed.spec.fingerprint,
        gpu_product=parsed.spec.gpu_product,
        # Whoever may write a profile can date it: none was measured after its object was made.
        created=min(parsed.spec.created_time or _creation(manifest), _creation(manifest)),
        arms=frozenset(fit.arm.name for fit in profile.arms) | frozenset(failed) if profile else frozenset(),
        profile=profile,
        problem=problem,
        in_force=parsed.status.in_force,
        failed=dict(sorted(failed.items())),
        model=parsed.spec.model,
        image=parsed.spec.image,
        drafters={arm.arm: arm.drafter for arm in parsed.spec.arms if arm.drafter},
    )


def _creation(manifest: Manifest) -> datetime:
    return parse_time(manifest["metadata"].get("creationTimestamp")) or datetime.fromtimestamp(0, UTC)


@dataclass(frozen=True, slots=True)
class Interest:
    """The part of the cluster that belongs to the services; no other object is kept.

    Attributes:
        namespaces: of the services.
        targets: the objects that they point at, and what controllers may make of these, without uids.
        annotated: whether workloads that ask for a service by their annotation are kept too, wherever they are.
    """

    namespaces: frozenset[str]
    targets: frozenset[Ref]
    annotated: bool = False

    def covers(self, resource: Resource, manifest: Manifest) -> bool:
        """Whether an object belongs to a service: of the kinds of workloads only the targets do, and what targets own."""
        meta = manifest["metadata"]
        if resource not in KINDS:
            return meta["namespace"] in self.namespaces
        if Ref(resource, meta["namespace"], meta["name"]) in self.targets:
            return True
        if self.everywhere(resource) and asks_to_be_watched(manifest):
            return True
        owner = owner_of(manifest)
        return any(
            Ref(kind.resource, meta["namespace"], str(owner["name"])) in self.targets
            for kind in KINDS.values()
            if resource in kind.makers and kind.resource.kind == owner.get("kind")
        )

    def everywhere(self, resource: Resource) -> bool:
        """Whether objects of a kind are looked for outside of the services' namespaces too."""
        return self.annotated and resource in WATCHABLE

    def within(self, namespace: str) -> Interest:
        """The part of it that lies in one namespace."""
        targets = frozenset(target for target in self.targets if target.namespace == namespace)
        return replace(self, namespaces=self.namespaces & {namespace}, targets=targets)


class ClusterObjects:
    """The objects of the cluster, trimmed to the fields that are read; all readings raise ClusterError.

    They come by one LIST per kind at every reading: for a single cycle, which a watch would not pay for. `WatchedObjects` follows
    them instead. An object is given only if the API server has confirmed it recently.

    Args:
        namespaces: that are read; everywhere if there are none.
    """

    def __init__(self, cluster: ClusterReader, namespaces: Sequence[str]) -> None:
        self._reader = cluster
        self._namespaces = tuple(namespaces)

    async def read(self, resource: Resource, interest: Interest | None = None) -> list[Manifest]:
        """All objects of a kind that the operator looks at, of interest to services; all of them if that is None."""

        def trim(manifest: Manifest) -> Manifest | None:
            unwanted = interest is not None and not interest.covers(resource, manifest)
            return None if unwanted or not is_selected(resource, manifest) else trimmed(resource, manifest)

        scope: Sequence[str | None] = self._namespaces or (None,)
        if not resource.namespaced:
            scope = (None,)
        elif interest is not None and len(interest.namespaces) == 1 and not interest.everywhere(resource):
            scope = tuple(interest.namespaces)
        lists = await asyncio.gather(
            *(self._reader.list_all(resource, name, LABELS.get(resource, ""), trim) for name in scope)
        )
        return [manifest for found in lists for manifest in found]

    async def profiles(self) -> list[ProfileEntry]:
        """All SpeculationProfiles."""
        return [file_profile(manifest) for manifest in await self.read(PROFILES)]

    def adopt(self, resource: Resource, manifest: Manifest) -> None:
        """Take the API server's answer to a write: the next decision sees at least that state, as the next list does."""

    def forget(self, ref: Ref) -> None:
        """The API server has deleted an object; the next list does not have it."""

    def age_s(self) -> float:
        """Seconds since the API server was last heard of, for the kind with the longest silence; a list is as new as its request."""
        return 0.0

    async def rest(self) -> None:
        """Nothing is read for a while: stop following the cluster, and forget it."""

"""The cluster's objects by one LIST per kind at every reading: for a single cycle, which a watch would not pay for."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from breakeven_operator.adapters.cluster_objects import Interest
from breakeven_operator.adapters.profile_entries import FiledProfile, file_profile
from breakeven_operator.adapters.trimming import LABELS, is_selected, trimmed
from breakeven_operator.kinds import PROFILES, Ref, Resource
from breakeven_operator.ports import ClusterReader, Manifest


class ListedObjects:
    """The `ClusterObjects` port.

    Args:
        cluster: port.
        namespaces: to read; empty: everywhere.
    """

    def __init__(self, cluster: ClusterReader, namespaces: Sequence[str]) -> None:
        self._cluster = cluster
        self._namespaces = tuple(namespaces)

    async def read(self, resource: Resource, interest: Interest | None = None) -> list[Manifest]:
        """See `ClusterObjects.read`."""

        def trim(manifest: Manifest) -> Manifest | None:
            unwanted = interest is not None and not interest.covers(resource, manifest)
            return None if unwanted or not is_selected(resource, manifest) else trimmed(resource, manifest)

        scope: Sequence[str | None] = self._namespaces or (None,)
        if not resource.namespaced:
            scope = (None,)
        elif interest is not None and len(interest.namespaces) == 1 and not interest.everywhere(resource):
            scope = tuple(interest.namespaces)
        lists = await asyncio.gather(
            *(self._cluster.list_all(resource, name, LABELS.get(resource, ""), trim) for name in scope)
        )
        return [manifest for found in lists for manifest in found]

    async def profiles(self) -> list[FiledProfile]:
        """See `ClusterObjects.profiles`."""
        return [file_profile(manifest) for manifest in await self.read(PROFILES)]

    def adopt(self, resource: Resource, manifest: Manifest) -> None:
        """See `ClusterObjects.adopt`: the next list has it."""

    def forget(self, ref: Ref) -> None:
        """See `ClusterObjects.forget`: the next list does not have it."""

    def age_s(self) -> float:
        """See `ClusterObjects.age_s`: a list is as new as its request."""
        return 0.0

    async def rest(self) -> None:
        """See `ClusterObjects.rest`: there is nothing to stop."""

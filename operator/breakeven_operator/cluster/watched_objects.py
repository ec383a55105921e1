"""The cluster's objects by watches: the API server pays for changes, not for objects that merely exist.

kopf's handlers file the product's own kinds (`own_objects`); each other kind has watches of its own here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from breakeven_operator.cluster.api_json import trimmed
from breakeven_operator.cluster.cluster_objects import ClusterObjects, Interest
from breakeven_operator.cluster.informer import Informer, WatchScope
from breakeven_operator.cluster.own_objects import OWN_KINDS, OwnObjects
from breakeven_operator.kinds import PROFILES, Ref, Resource
from breakeven_operator.ports import Clock, ClusterError, Manifest, WatchedCluster
from breakeven_operator.step import ProfileEntry
from breakeven_operator.workloads.known import KINDS, kind_at

# Up to so many namespaces are watched one by one; services in more are found among all objects of the cluster. Each watch
# is a connection, and each object of others on it is parsed and dropped.
_NAMESPACES_APART = 4
# A silent watch begins again after 5 minutes. If that fails for two more minutes, its objects are too old.
_OLDEST_S = 420.0
# Until the objects of a kind are there for the first time; thirty thousand pods take some seconds.
_FIRST_READING_S = 60.0
# Requests at a time when services come up.
_ABREAST = 8


class _Followed:
    def __init__(
        self,
        cluster: WatchedCluster,
        clock: Clock,
        scope: WatchScope,
        interest: Interest | None,
        relist_s: float,
        wake: Callable[[], None],
    ) -> None:
        self.resource = scope.resource
        self.interest = interest
        # Objects that are fetched existed before anybody asked for them: that is no news.
        self.joining = False
        self._wake = wake
        self.informer: Informer[Manifest] = Informer(
            cluster, clock, scope, trim=self._kept_of, changed=self._compare, relist_s=relist_s
        )
        self.task = asyncio.create_task(self.informer.run(), name=f"watch {self.informer}")

    def _kept_of(self, manifest: Manifest) -> Manifest | None:
        if self.interest is not None and not self.interest.covers(self.resource, manifest):
            return None
        return trimmed(self.resource, manifest)

    def _compare(self, before: Manifest | None, after: Manifest | None) -> None:
        """Wake the loop if a target's spec changed; pods change with each step of a roll, and wait for the next cycle."""
        if self.resource not in KINDS or self.joining:
            return
        if before is None or after is None or _generation(before) != _generation(after):
            self._wake()


def _generation(target: Manifest) -> object:
    return target["metadata"].get("generation")


class WatchedObjects(ClusterObjects):
    """The objects by watches, which `rest` ends.

    Args:
        own: objects of the product's own kinds; other kinds are read in the same namespaces.
        relist_s: all objects of a kind are read again after so long.
        oldest_s: older objects are not given.
        wake: is called when what people ask of a target changed.
    """

    def __init__(
        self,
        cluster: WatchedCluster,
        clock: Clock,
        own: OwnObjects,
        *,
        relist_s: float,
        oldest_s: float = _OLDEST_S,
        wake: Callable[[], None] = lambda: None,
    ) -> None:
        super().__init__(cluster, own.namespaces)
        self._cluster = cluster
        self._clock = clock
        self._relist_s = relist_s
        self._oldest_s = oldest_s
        self._wake = wake
        self._own = own
        # Whether cycles read at all: a server that is away takes the Lease along, and is then nobody's fault here.
        self._reading = False
        self._followed: dict[WatchScope, _Followed] = {}
        # The services were in too many namespaces for one watch each, at least once.
        self._everywhere = False

    async def read(self, resource: Resource, interest: Interest | None = None) -> list[Manifest]:
        """See `ClusterObjects.read`."""
        self._reading = True
        if resource in OWN_KINDS:
            return await self._read_own(resource)
        return await self._read(resource, interest)

    async def profiles(self) -> list[ProfileEntry]:
        """See `ClusterObjects.profiles`."""
        return await self._read_own(PROFILES)

    def adopt(self, resource: Resource, manifest: Manifest) -> None:
        """See `ClusterObjects.adopt`."""
        if resource in OWN_KINDS:
            self._own.adopt(resource, manifest)
        namespace = manifest["metadata"].get("namespace")
        for scope in (WatchScope(resource, None), WatchScope(resource, namespace)):
            if scope in self._followed:
                self._followed[scope].informer.adopt((manifest,))

    def forget(self, ref: Ref) -> None:
        """See `ClusterObjects.forget`."""
        if ref.resource in OWN_KINDS:
            self._own.forget(ref)
        for scope in (WatchScope(ref.resource, None), WatchScope(ref.resource, ref.namespace)):
            if scope in self._followed and ref.uid:
                self._followed[scope].informer.forget(ref.uid)

    def age_s(self) -> float:
        """See `ClusterObjects.age_s`."""
        informers = [followed.informer for followed in self._followed.values()]
        ages_s = [informer.age_s() for informer in informers if not informer.refused]
        return max([*ages_s, self._own.age_s()]) if self._reading else 0.0

    async def rest(self) -> None:
        """See `ClusterObjects.rest`."""
        self._reading = False
        await self._end(set(self._followed))

    async def _read_own(self, resource: Resource) -> list[Any]:
        return await self._own.read(resource, oldest_s=self._oldest_s, longest_s=_FIRST_READING_S)

    async def _read(self, resource: Resource, interest: Interest | None) -> list[Manifest]:
        scopes = {WatchScope(resource, namespace) for namespace in self._namespaces_of(resource, interest)}
        for scope in scopes:
            wanted = interest.within(scope.namespace) if interest and scope.namespace else interest
            if scope in self._followed:
                await self._concern(self._followed[scope], wanted)
            else:
                self._followed[scope] = _Followed(
                    self._cluster, self._clock, scope, wanted, self._relist_s, self._wake
                )
        followed = [self._followed[scope] for scope in scopes]
        await asyncio.gather(*(each.informer.settled(_FIRST_READING_S) for each in followed))
        await self._end({s for s in self._followed if s.resource == resource} - scopes)
        for scope in scopes:
            await self._check(scope)
        return [kept for each in followed for kept in each.informer.objects()]

    def _namespaces_of(self, resource: Resource, interest: Interest | None) -> Sequence[str | None]:
        if not resource.namespaced:
            return (None,)
        if self._namespaces:
            return self._namespaces
        if interest is None or interest.everywhere(resource):
            return (None,)
        # The switch is never undone: a namespace that comes and goes would have everything read again each time.
        self._everywhere = self._everywhere or len(interest.namespaces) > _NAMESPACES_APART
        return (None,) if self._everywhere else sorted(interest.namespaces)

    async def _concern(self, followed: _Followed, interest: Interest | None) -> None:
        """Let an informer keep objects of new services too, and fetch objects that it passed over until now."""
        before = followed.interest
        if interest is None or before is None or interest == before:
            return
        # From here on the watch keeps what changes, so that nothing is missed between the answers and it.
        followed.interest = interest
        try:
            fetched = await self._joining(followed.resource, before, interest)
        except ClusterError:
            followed.interest = before
            raise
        followed.joining = True
        followed.informer.adopt(fetched)
        followed.joining = False
        if before.namespaces - interest.namespaces or before.targets - interest.targets:
            resource = followed.resource
            followed.informer.drop(lambda manifest: interest.covers(resource, manifest))

    async def _joining(self, resource: Resource, before: Interest, now: Interest) -> list[Manifest]:
        gate = asyncio.Semaphore(_ABREAST)

        async def target(ref: Ref) -> list[Manifest]:
            async with gate:
                found = await self._cluster.get(resource, ref.namespace, ref.name)
                return [found] if found is not None else []

        async def members(namespace: str) -> list[Manifest]:
            async with gate:
                return await self._cluster.list_all(resource, namespace)

        new = now.targets - before.targets
        if resource in KINDS:
            asked = [target(ref) for ref in sorted(new, key=str) if ref.resource == resource]
            made = {ref.namespace for ref in new if resource in kind_at(ref.resource).makers}
            asked += map(members, sorted(made))
        else:
            asked = [members(name) for name in sorted(now.namespaces - before.namespaces)]
        return [manifest for answer in await asyncio.gather(*asked) for manifest in answer]

    async def _check(self, scope: WatchScope) -> None:
        """Refuse objects that are old, or that no informer keeps up to date.

        Raises:
            ClusterError: the API server has not been heard of for too long.
            Exception: a defect ended the informer; the next reading begins it again.
        """
        followed = self._followed[scope]
        if followed.task.done():
            del self._followed[scope]
            followed.task.result()
        informer = followed.informer
        if informer.synced:
            scope.check_age(informer.age_s(), self._oldest_s, informer.problem)

    async def _end(self, scopes: set[WatchScope]) -> None:
        tasks = [self._followed.pop(scope).task for scope in scopes]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

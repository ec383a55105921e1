"""Follows the objects of one kind: reads all of them once, and then each change.

The official client's `SharedInformer` builds typed models in a thread and lists without pages. Its asynchronous `Watch`
goes on at an expired version after a 410, and breaks on a line longer than 128 KiB. kopf, which brings the product's own
kinds, selects no objects of a namespace and trims none. ADR 0014 has the figures.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections.abc import Callable, Iterable
from contextlib import aclosing
from http import HTTPStatus
from typing import Generic, NamedTuple, TypeVar

from breakeven_operator.cluster.api_json import LABELS
from breakeven_operator.kinds import Resource
from breakeven_operator.ports import Clock, ClusterError, EventKind, Manifest, WatchedCluster, WatchEvent

Kept = TypeVar("Kept")
_LOG = logging.getLogger(__name__)
_FIRST_DELAY_S, _LONGEST_DELAY_S = 0.2, 30.0
# A kind that is not installed, or that the operator may not read, seldom comes between two cycles.
REFUSED = frozenset({HTTPStatus.FORBIDDEN, HTTPStatus.NOT_FOUND})
_LONGESTREFUSED_S = 300.0
# A connection that held for so long was a good one: the next attempt comes at once.
_LASTING_S = 10.0


class _ContradictionError(Exception):
    """A watch contradicts the API's contract: its order is lost, so that missing events are unknown too."""


class WatchScope(NamedTuple):
    """Objects of one kind in one namespace; in all of them if that is None."""

    resource: Resource
    namespace: str | None

    def __str__(self) -> str:
        return f"{self.resource.kind}s of {self.namespace or 'all namespaces'}"

    def check_age(self, age_s: float, oldest_s: float, problem: ClusterError | None) -> None:
        """Refuse objects that are too old to decide on.

        Raises:
            ClusterError: the API server has not been heard of for too long, perhaps because of `problem`.
        """
        if age_s > oldest_s:
            why = f": {problem}" if problem else ""
            status = problem.status if problem else 0
            raise ClusterError(f"{self}: nothing heard for {age_s:.0f} s{why}", status)


class Informer(Generic[Kept]):
    """Objects of one kind, kept up to date by one connection.

    A broken connection is continued at its last place. All objects are read again in three cases: the API server does not
    know that place any more (410), the connection contradicts itself, or `relist_s` has passed.

    Args:
        trim: returns the part of an object to keep; None if the object concerns nobody.
        changed: is called with the part that was kept and the part that is kept now, None if nothing; not for the first
            objects.
        relist_s: longest time for which lost events could stay unnoticed.

    Attributes:
        synced: whether all objects were read once.
        problem: why the last connection failed; None if it ended normally, or objects were read since.
    """

    def __init__(
        self,
        cluster: WatchedCluster,
        clock: Clock,
        scope: WatchScope,
        *,
        trim: Callable[[Manifest], Kept | None],
        changed: Callable[[Kept | None, Kept | None], None] = lambda _before, _after: None,
        relist_s: float,
    ) -> None:
        self._cluster = cluster
        self._clock = clock
        self._scope = scope
        self._trim = trim
        self._changed = changed
        self._relist_s = relist_s
        # By uid, each with its resourceVersion.
        self._kept: dict[str, tuple[int, Kept]] = {}
        # The objects so far of a list that is under way.
        self._listed: dict[str, tuple[int, Kept]] | None = None
        # Objects that the API server said were deleted, before the watch did.
        self._deleted: set[str] = set()
        self._version = ""
        self._position = 0
        self._listed_at_s = self._heard_at_s = clock.monotonic()
        self.problem: ClusterError | None = None
        # Set when all objects are there, or when it turned out why they are not.
        self._settled = asyncio.Event()
        self.synced = False

    def objects(self) -> list[Kept]:
        """All objects, trimmed.

        Raises:
            ClusterError: the objects were never read.
        """
        if not self.synced:
            raise self.problem or ClusterError(f"{self}: not read yet")
        return [kept for _, kept in self._kept.values()]

    def age_s(self) -> float:
        """Seconds since the API server was last heard of; since the start of listening if it never was."""
        return self._clock.monotonic() - self._heard_at_s

    @property
    def refused(self) -> bool:
        """Whether the API server gives none of these objects: the kind is not installed, or not allowed to be read."""
        return not self.synced and self.problem is not None and self.problem.status in REFUSED

    async def settled(self, timeout_s: float) -> None:
        """Wait for the first objects, or for the reason why there are none."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._settled.wait(), timeout_s)

    def adopt(self, manifests: Iterable[Manifest]) -> None:
        """Take an object from the answer to another request; of two states the newer one counts."""
        for manifest in manifests:
            self._keep(manifest)

    def forget(self, uid: str) -> None:
        """The API server has deleted an object; the watch will say so too, and says older things of it before."""
        self._deleted.add(uid)
        if self._listed is not None:
            self._listed.pop(uid, None)
        self._let_go(uid)

    def drop(self, concerns: Callable[[Kept], bool]) -> None:
        """Keep only objects that still concern a service."""
        for kept in filter(None, (self._kept, self._listed)):
            for uid in [uid for uid, (_, item) in kept.items() if not concerns(item)]:
                del kept[uid]

    async def run(self) -> None:
        """Follow for ever; nothing that a server does ends it."""
        delay_s = _FIRST_DELAY_S
        while True:
            began_s, longest_s = self._clock.monotonic(), _LONGEST_DELAY_S
            try:
                await self._follow(began_s)
            except ClusterError as error:
                if error.status == HTTPStatus.GONE:
                    self._version = ""
                if error.status in REFUSED:
                    longest_s = _LONGESTREFUSED_S
                self.problem = error
                self._settled.set()
                _LOG.info("%s: %s", self, error)
            except _ContradictionError as error:
                self._version = ""
                _LOG.warning("%s: %s; all objects are read again", self, error)
            lasted = self._clock.monotonic() - began_s > _LASTING_S
            delay_s = _FIRST_DELAY_S if lasted else min(2 * delay_s, longest_s)
            # Watches that broke together do not come back together.
            await asyncio.sleep(delay_s * random.uniform(0.5, 1.0))  # noqa: S311 - no secret

    def __str__(self) -> str:
        return str(self._scope)

    async def _follow(self, began_s: float) -> None:
        if self._version and began_s - self._listed_at_s > self._relist_s:
            self._version = ""
        if not self._version:
            self._listed, self._listed_at_s = {}, began_s
        events = self._cluster.watch(*self._scope, LABELS.get(self._scope.resource, ""), self._version)
        async with aclosing(events) as stream:
            async for event in stream:
                self._take(event, began_s)
                if self._listed is None and self._clock.monotonic() - self._listed_at_s > self._relist_s:
                    return

    def _take(self, event: WatchEvent, began_s: float) -> None:
        version = version_of(event.manifest)
        if self._listed is not None:
            self._take_listed(event, version, self._listed, began_s)
            return
        match event.kind:
            case EventKind.ADDED | EventKind.MODIFIED:
                if version <= self._position and not self._is_known(event.manifest, version):
                    raise _ContradictionError("an object came after something newer")
                self._keep(event.manifest)
            case EventKind.DELETED:
                uid = event.manifest["metadata"]["uid"]
                self._let_go(uid)
                self._deleted.discard(uid)
            case EventKind.BOOKMARK | EventKind.SYNCED:
                if version < self._position:
                    raise _ContradictionError("a bookmark lies before what came")
        if version > self._position:
            self._position, self._version = version, str(version)
        self._heard_at_s, self.problem = self._clock.monotonic(), None

    def _take_listed(
        self, event: WatchEvent, version: int, listed: dict[str, tuple[int, Kept]], began_s: float
    ) -> None:
        match event.kind:
            case EventKind.ADDED | EventKind.MODIFIED:
                self._keep(event.manifest)
            case EventKind.DELETED:
                listed.pop(event.manifest["metadata"]["uid"], None)
            case EventKind.SYNCED:
                for uid in self._kept.keys() - listed.keys():
                    self._let_go(uid)
                self._kept, self._listed, self._deleted = listed, None, set()
                self._position, self._version = version, str(version)
                # The objects are at least as new as the request; the time until the answer does not count towards their age.
                self._heard_at_s = began_s
                self.synced, self.problem = True, None
                self._settled.set()

    def _is_known(self, manifest: Manifest, version: int) -> bool:
        """Whether an event that comes too late changes nothing."""
        uid = manifest["metadata"]["uid"]
        held = self._kept.get(uid)
        if held is not None:
            return version <= held[0]
        return uid in self._deleted or self._trim(manifest) is None

    def _keep(self, manifest: Manifest) -> None:
        uid, version = manifest["metadata"]["uid"], version_of(manifest)
        if uid in self._deleted:
            return
        trimmed = self._trim(manifest)
        before = self._kept.get(uid)
        for kept in (self._kept, self._listed):
            if kept is None:
                continue
            if trimmed is None:
                kept.pop(uid, None)
            elif uid not in kept or kept[uid][0] <= version:
                kept[uid] = version, trimmed
        self._tell(before, self._kept.get(uid))

    def _let_go(self, uid: str) -> None:
        self._tell(self._kept.pop(uid, None), None)

    def _tell(self, before: tuple[int, Kept] | None, after: tuple[int, Kept] | None) -> None:
        if self.synced and before is not after:
            self._changed(before[1] if before else None, after[1] if after else None)


def version_of(manifest: Manifest) -> int:
    """A resourceVersion; API servers give numbers that rise with every change (KEP-5504).

    Raises:
        ClusterError: it is not a number.
    """
    text = manifest["metadata"].get("resourceVersion")
    try:
        return int(text)
    except (TypeError, ValueError) as error:
        raise ClusterError(f"an object's resourceVersion is {text!r}, expected a number") from error

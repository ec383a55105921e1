"""The objects of the product's own kinds: kopf watches them, its handlers file them here, and cycles read them.

kopf asks the API server through `KopfSession`, over the operator's own connection. It would read a line by recursion, keep an
object that vanished while its place in the history was forgotten, and end at an answer it did not expect. Nor does it tell how
old its knowledge is. ADR 0016 has the runs.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from http import HTTPStatus
from typing import Any, Final, NamedTuple, Protocol, Self
from urllib.parse import parse_qs, urlsplit

import aiohttp
import pydantic_core

from breakeven_operator.cluster.api_json import is_selected, trimmed
from breakeven_operator.cluster.cluster_objects import file_profile
from breakeven_operator.cluster.informer import REFUSED, WatchScope, version_of
from breakeven_operator.kinds import PROFILES, RUNS, SERVICES, Ref, Resource
from breakeven_operator.ports import Clock, ClusterError, EventKind, Manifest, WatchedCluster, WatchEvent

OWN_KINDS: Final = (SERVICES, PROFILES, RUNS)
# kopf goes on at its last place without a pause: a server that ends each watch at once is asked once a second.
_SHORTEST_WATCH_S = 1.0
_GONE = b'{"type": "ERROR", "object": {"code": 410}}\n'


def asked_of(manifest: Manifest) -> tuple[Any, ...]:
    """The part of an object by which people ask for something: spec, annotations, deletion."""
    meta = manifest["metadata"]
    return meta.get("generation"), meta.get("deletionTimestamp"), meta.get("annotations") or {}


def _progress_of(run: Manifest) -> tuple[Any, ...]:
    status = run.get("status") or {}
    return status.get("phase"), len(status.get("points") or ())


# The rest changes by the operator's own writes, and waits for the next cycle.
_WORTH_A_CYCLE: Mapping[Resource, Callable[[Manifest], tuple[Any, ...]]] = {
    SERVICES: asked_of,
    # Nobody asks for anything by a profile's annotations.
    PROFILES: lambda profile: asked_of(profile)[:2],
    RUNS: _progress_of,
}


class _Filed(NamedTuple):
    """An object as cycles read it: a ProfileEntry, or a trimmed manifest. A change of its `worth` wakes the loop."""

    version: int
    namespace: str
    item: Any
    worth: tuple[Any, ...]


class _OwnScope:
    """A kind in one namespace or in all, as kopf follows it."""

    def __init__(self, heard_at_s: float) -> None:
        self.heard_at_s = heard_at_s
        self.problem: ClusterError | None = None
        # Set when all objects are filed, or when it turned out why they are not.
        self.settled = asyncio.Event()
        self.synced = False
        # Before the end of the first list: objects that handlers filed, whether they were kept or not.
        self.filed: set[str] = set()
        # After it: objects of that list that are not filed yet.
        self.awaited: set[str] | None = None

    @property
    def refused(self) -> bool:
        """Whether the API server gives none of these objects."""
        return not self.synced and self.problem is not None and self.problem.status in REFUSED


class OwnObjects:
    """Services, profiles and runs, as the handlers file them.

    Attributes:
        namespaces: that are watched; empty: all.
    """

    def __init__(
        self, clock: Clock, *, namespaces: Sequence[str] = (), wake: Callable[[], None] = lambda: None
    ) -> None:
        self.namespaces = tuple(namespaces)
        self._clock = clock
        self._wake = wake
        now_s = clock.monotonic()
        self._followed = {
            WatchScope(kind, namespace): _OwnScope(now_s)
            for kind in OWN_KINDS
            for namespace in namespaces or (None,)
        }
        self._kept: dict[Resource, dict[str, _Filed]] = {kind: {} for kind in OWN_KINDS}
        # Objects that the API server said were deleted, before the watch did.
        self._deleted: set[str] = set()

    # Called by the handlers, and by whoever writes.

    def take(self, resource: Resource, word: EventKind, manifest: Manifest) -> None:
        """File an object that kopf brings."""
        uid = manifest["metadata"]["uid"]
        try:
            if word is EventKind.DELETED:
                self._deleted.discard(uid)
                self._put(resource, uid, None)
            else:
                self.adopt(resource, _compact(manifest))
        except Exception:
            # kopf logs it and goes on. An older state of the object would be decided on for ever.
            self._put(resource, uid, None)
            raise
        finally:
            for scope, one in self._followed.items():
                if scope.resource == resource and not one.synced:
                    one.filed.add(uid)
                    self._settle(one)

    def adopt(self, resource: Resource, manifest: Manifest) -> None:
        """Take an object from any answer; of two states the newer one counts."""
        uid, version = manifest["metadata"]["uid"], version_of(manifest)
        held = self._kept[resource].get(uid)
        if uid in self._deleted or (held is not None and held.version > version):
            return
        kept = trimmed(resource, manifest) if is_selected(resource, manifest) else None
        if kept is None:
            self._put(resource, uid, None)
            return
        item = file_profile(kept) if resource == PROFILES else kept
        worth = _WORTH_A_CYCLE[resource](kept)
        self._put(resource, uid, _Filed(version, kept["metadata"]["namespace"], item, worth))

    def forget(self, ref: Ref) -> None:
        """The API server has deleted an object; the watch will say so too, and says older things of it before."""
        if ref.uid:
            self._deleted.add(ref.uid)
            self._put(ref.resource, ref.uid, None)

    # Called by kopf's session.

    def heard(self, scope: WatchScope) -> None:
        """The API server confirmed the scope now."""
        self._followed[scope].heard_at_s = self._clock.monotonic()
        self._followed[scope].problem = None

    def failed(self, scope: WatchScope, problem: ClusterError) -> None:
        """A connection failed."""
        self._followed[scope].problem = problem
        self._followed[scope].settled.set()

    def listed(self, scope: WatchScope, uids: frozenset[str], version: int, began_s: float) -> None:
        """These are all objects of the scope at a version; kopf brings them, and nothing that vanished before."""
        followed, kept = self._followed[scope], self._kept[scope.resource]
        for uid in kept.keys() - uids:
            if kept[uid].version <= version and scope.namespace in {None, kept[uid].namespace}:
                self._put(scope.resource, uid, None)
        # The objects are at least as new as the request; the time until the answer does not count towards their age.
        followed.heard_at_s, followed.problem = began_s, None
        if not followed.synced:
            followed.awaited = set(uids)
            self._settle(followed)

    # Called by cycles.

    async def read(self, resource: Resource, *, oldest_s: float, longest_s: float) -> list[Any]:
        """All objects of a kind; the first ones are waited for `longest_s`.

        Raises:
            ClusterError: they were never read, or the API server has not been heard of for `oldest_s`.
        """
        scopes = {scope: one for scope, one in self._followed.items() if scope.resource == resource}
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(longest_s):
                await asyncio.gather(*(one.settled.wait() for one in scopes.values()))
        for scope, one in scopes.items():
            if not one.synced:
                raise one.problem or ClusterError(f"{scope}: not read yet")
            scope.check_age(self._clock.monotonic() - one.heard_at_s, oldest_s, one.problem)
        return [kept.item for kept in self._kept[resource].values()]

    def age_s(self) -> float:
        """Seconds since the API server was last heard of, about the kind with the longest silence; refused kinds have no age."""
        heard_at_s = [one.heard_at_s for one in self._followed.values() if not one.refused]
        return self._clock.monotonic() - min(heard_at_s, default=self._clock.monotonic())

    def _settle(self, followed: _OwnScope) -> None:
        if followed.awaited is None:
            return
        followed.awaited -= followed.filed
        followed.filed.clear()
        if not followed.awaited:
            followed.synced = True
            followed.settled.set()

    def _put(self, resource: Resource, uid: str, new: _Filed | None) -> None:
        kept = self._kept[resource]
        old = kept.pop(uid, None)
        if new is not None:
            kept[uid] = new
        synced = all(one.synced for scope, one in self._followed.items() if scope.resource == resource)
        if synced and (old.worth if old else None) != (new.worth if new else None):
            self._wake()


def _compact(manifest: Manifest) -> Manifest:
    """The same object in a third of the memory: kopf's parser makes each text as often as it comes, and ours once."""
    try:
        found: Manifest = pydantic_core.from_json(pydantic_core.to_json(manifest))
    except ValueError:
        # Its parts were just readable, each for itself.
        return manifest
    return found


class _ToldCluster(WatchedCluster, Protocol):
    async def document(self, path: str) -> dict[str, Any]: ...


class _KopfAnswer:
    """The part of an HTTP answer that kopf reads: a document, or lines that do not end."""

    status = HTTPStatus.OK

    def __init__(
        self, *, document: Mapping[str, Any] | None = None, lines: AsyncGenerator[bytes] | None = None
    ) -> None:
        self._document = document
        self._lines = lines or _nothing()

    @property
    def content(self) -> Self:
        return self

    def iter_chunked(self, _size: int) -> AsyncGenerator[bytes]:
        return self._lines

    async def json(self) -> Mapping[str, Any] | None:
        return self._document

    def close(self) -> None:
        """Nothing: the lines end with the context."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._lines.aclose()


async def _nothing() -> AsyncGenerator[bytes]:
    for line in tuple[bytes, ...]():
        yield line


class KopfSession:
    """Answers kopf's requests over the operator's own connection.

    Objects come as `KubernetesCluster` reads them, so that an unreadable object affects no other. Each failure looks like a lost
    connection: kopf tries again after a lost connection, and ends the process after other failures.

    Args:
        own: learns about each scope as a whole: its age, its problem, all its objects.
        relist_s: all objects are read again after so long, in case a watch has lost something.
    """

    closed = False

    def __init__(self, cluster: _ToldCluster, clock: Clock, own: OwnObjects, *, relist_s: float) -> None:
        self.headers: dict[str, str] = {}
        self._cluster = cluster
        self._clock = clock
        self._own = own
        self._relist_s = relist_s
        self._listed_at_s: dict[WatchScope, float] = {}

    async def request(self, *, method: str, url: str, **_: object) -> _KopfAnswer:
        """A document about kinds, or a watch of one of OWN_KINDS.

        Raises:
            aiohttp.ClientConnectionError: there is no answer to use.
        """
        address = urlsplit(url)
        query = parse_qs(address.query)
        if "watch" not in query:
            try:
                return _KopfAnswer(document=await self._cluster.document(address.path))
            except ClusterError as error:
                raise aiohttp.ClientConnectionError(f"{method} {error}") from error
        lines = self._lines(_scope_of(address.path), query.get("resourceVersion", [""])[0])
        # A watch that cannot begin has to fail here: kopf waits between requests, and never between watches.
        first = await anext(lines, b"")
        return _KopfAnswer(lines=_resumed(first, lines))

    async def close(self) -> None:
        """The operator closes the connection."""

    async def _lines(self, scope: WatchScope, version: str) -> AsyncGenerator[bytes]:
        began_s = self._clock.monotonic()
        listed: set[str] | None = None if version else set()
        if not version:
            self._listed_at_s[scope] = began_s
        try:
            async with contextlib.aclosing(self._cluster.watch(*scope, "", version)) as events:
                async for event in events:
                    if listed is None:
                        self._own.heard(scope)
                    elif event.kind is EventKind.SYNCED:
                        self._own.listed(scope, frozenset(listed), version_of(event.manifest), began_s)
                        listed = None
                    elif event.kind is EventKind.DELETED:
                        listed.discard(event.manifest["metadata"]["uid"])
                    else:
                        listed.add(event.manifest["metadata"]["uid"])
                    yield _line(event)
                    # kopf takes lines without a pause: handlers would begin after the last, with all objects in memory twice.
                    await asyncio.sleep(0)
                    if self._clock.monotonic() - self._listed_at_s[scope] > self._relist_s:
                        yield _GONE
                        return
        except ClusterError as error:
            if error.status == HTTPStatus.GONE:
                yield _GONE
                return
            self._own.failed(scope, error)
            raise aiohttp.ClientConnectionError(str(error)) from error
        finally:
            lasted_s = self._clock.monotonic() - began_s
        await asyncio.sleep(max(0.0, _SHORTEST_WATCH_S - lasted_s))


async def _resumed(first: bytes, lines: AsyncGenerator[bytes]) -> AsyncGenerator[bytes]:
    async with contextlib.aclosing(lines):
        yield first
        async for line in lines:
            yield line


def _line(event: WatchEvent) -> bytes:
    word = EventKind.BOOKMARK if event.kind is EventKind.SYNCED else event.kind
    # Of our own kinds nobody reads who wrote what, and that may be most of an object.
    meta = {name: value for name, value in event.manifest["metadata"].items() if name != "managedFields"}
    shown = {"type": str(word), "object": {**event.manifest, "metadata": meta}}
    return pydantic_core.to_json(shown) + b"\n"


def _scope_of(path: str) -> WatchScope:
    """The scope of a collection's address: `.../PLURAL` or `.../namespaces/NAME/PLURAL`."""
    parts = path.rsplit("/", 3)
    resource = next(kind for kind in OWN_KINDS if kind.plural == parts[-1])
    return WatchScope(resource, parts[-2] if parts[-3] == "namespaces" else None)

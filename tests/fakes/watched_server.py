"""An API server as its watches show it: a history of changes, connections that begin somewhere in it, and a wire that may be bad.

What it stands for is tested against the real one, behind a proxy, in tests/cluster/test_watch_faults.py.
"""

from __future__ import annotations

import asyncio
import copy
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Iterable
from typing import Any

from breakeven_operator.kinds import Resource
from breakeven_operator.ports import ClusterError, EventKind, WatchEvent

Wire = Callable[[list[WatchEvent]], Iterable[WatchEvent]]
BOOKMARK_S = 60.0


class WatchedServer:
    """The reading half of the `Cluster` port.

    Attributes:
        requests: how often each verb was asked.
        wire: what becomes of the events that are sent together.
        refuse: raised by the next requests, first one first.
        silent: connections bring nothing more, and do not end.
    """

    def __init__(self) -> None:
        self.objects: dict[str, dict[str, Any]] = {}
        self.requests: Counter[str] = Counter()
        self.wire: Wire = lambda events: events
        self.refuse: list[Exception] = []
        self.silent = False
        self._version = 0
        self._oldest = 0
        self._history: list[tuple[int, WatchEvent]] = []
        self._news = asyncio.Event()
        self._era = 0

    # Events in the cluster.

    def put(
        self,
        name: str,
        *,
        namespace: str = "llm",
        labels: dict[str, str] | None = None,
        generation: int = 1,
        annotations: dict[str, str] | None = None,
        owner: tuple[str, str] | None = None,
        **content: Any,
    ) -> None:
        """Create an object, or change it."""
        old = self.objects.get(f"{namespace}/{name}")
        uid = old["metadata"]["uid"] if old else f"{name}-{self._version + 1}"
        kind = EventKind.MODIFIED if old else EventKind.ADDED
        meta: dict[str, Any] = {
            "name": name,
            "namespace": namespace,
            "uid": uid,
            "labels": labels or {},
            "generation": generation,
            "annotations": annotations or {},
        }
        if owner is not None:
            meta["ownerReferences"] = [{"kind": owner[0], "name": owner[1], "uid": "u", "controller": True}]
        self._happens(kind, {"metadata": meta, **content})

    def delete(self, name: str, *, namespace: str = "llm") -> None:
        """Delete an object, if there is one."""
        old = self.objects.pop(f"{namespace}/{name}", None)
        if old is not None:
            self._happens(EventKind.DELETED, old)

    def bookmark(self) -> None:
        """Tell all connections where the history has come to."""
        self._record(WatchEvent(EventKind.BOOKMARK, _at(self._version)))

    def compact(self) -> None:
        """Forget the history: nobody may begin in it any more."""
        self._oldest = self._version

    def cut(self) -> None:
        """End all connections."""
        self._era += 1
        self._tell()

    # The port.

    async def list_all(
        self,
        resource: Resource,
        namespace: str | None = None,
        labels: str = "",
        trim: Callable[[Any], Any] | None = None,
        fields: str = "",
    ) -> list[Any]:
        self._asked("list")
        found = [copy.deepcopy(o) for o in self._present(namespace)]
        return found if trim is None else [kept for o in found if (kept := trim(o)) is not None]

    async def get(self, resource: Resource, namespace: str, name: str) -> Any:
        self._asked("get")
        return copy.deepcopy(self.objects.get(f"{namespace}/{name}"))

    async def watch(
        self, resource: Resource, namespace: str | None = None, labels: str = "", version: str = ""
    ) -> AsyncGenerator[WatchEvent]:
        self._asked("watch" if version else "list and watch")
        era = self._era
        if version:
            if int(version) < self._oldest:
                raise ClusterError("WATCH: 410 too old", 410)
            sent = sum(at <= int(version) for at, _ in self._history)
            yield WatchEvent(EventKind.BOOKMARK, _at(int(version)))
        else:
            sent = len(self._history)
            present = [WatchEvent(EventKind.ADDED, copy.deepcopy(o)) for o in self._present(namespace)]
            present.append(WatchEvent(EventKind.SYNCED, _at(self._version)))
            for event in present:
                yield event
        while era == self._era:
            batch = [event for _, event in self._history[sent:] if _is_in(namespace, event)]
            sent = len(self._history)
            if not self.silent:
                for event in self.wire(batch):
                    yield copy.deepcopy(event)
                    if era != self._era:
                        return
            news = self._news
            if sent == len(self._history) and era == self._era:
                await news.wait()

    def _happens(self, kind: EventKind, manifest: dict[str, Any]) -> None:
        self._version += 1
        manifest["metadata"]["resourceVersion"] = str(self._version)
        meta = manifest["metadata"]
        if kind is not EventKind.DELETED:
            self.objects[f"{meta['namespace']}/{meta['name']}"] = manifest
        self._record(WatchEvent(kind, copy.deepcopy(manifest)))

    def _record(self, event: WatchEvent) -> None:
        self._history.append((self._version, event))
        self._tell()

    def _tell(self) -> None:
        self._news.set()
        self._news = asyncio.Event()

    def _present(self, namespace: str | None) -> list[dict[str, Any]]:
        return [o for o in self.objects.values() if namespace in {None, o["metadata"]["namespace"]}]

    def _asked(self, verb: str) -> None:
        self.requests[verb] += 1
        if self.refuse:
            raise self.refuse.pop(0)


def _at(version: int) -> dict[str, Any]:
    return {"metadata": {"resourceVersion": str(version)}}


def _is_in(namespace: str | None, event: WatchEvent) -> bool:
    return "uid" not in event.manifest["metadata"] or namespace in {
        None,
        event.manifest["metadata"]["namespace"],
    }

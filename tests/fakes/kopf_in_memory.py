"""The product's own kinds as kopf brings them: its session is asked, each line becomes an event, and a lost connection another."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Callable, Sequence
from typing import Any
from urllib.parse import urlencode

import aiohttp

from breakeven_operator.cluster.informer import WatchScope
from breakeven_operator.cluster.own_objects import OWN_KINDS, KopfSession, OwnObjects
from breakeven_operator.ports import Clock, EventKind

_PAUSE_S = 0.2


class FedObjects(OwnObjects):
    """Own objects whose kinds begin to be fed when they are first read; kopf itself runs in tests/cluster."""

    def __init__(
        self,
        cluster: Any,
        clock: Clock,
        *,
        namespaces: Sequence[str] = (),
        relist_s: float = 3600.0,
        wake: Callable[[], None] = lambda: None,
    ) -> None:
        super().__init__(clock, namespaces=namespaces, wake=wake)
        self._session = KopfSession(cluster, clock, self, relist_s=relist_s)
        self._scopes = [WatchScope(kind, space) for kind in OWN_KINDS for space in namespaces or (None,)]
        self._tasks: dict[WatchScope, asyncio.Task[None]] = {}

    async def read(self, resource: Any, **limits: Any) -> list[Any]:
        for scope in self._scopes:
            if scope.resource == resource and scope not in self._tasks:
                self._tasks[scope] = asyncio.create_task(self._follow(scope))
        return await super().read(resource, **limits)

    def age_s(self) -> float:
        return super().age_s() if self._tasks else 0.0

    def stop(self) -> None:
        for task in self._tasks.values():
            task.cancel()

    async def _follow(self, scope: WatchScope) -> None:
        version = ""
        while True:
            query = {"watch": "true", **({"resourceVersion": version} if version else {})}
            url = f"{scope.resource.path(scope.namespace)}?{urlencode(query)}"
            with contextlib.suppress(aiohttp.ClientConnectionError):
                async with await self._session.request(method="get", url=url) as answer:
                    async for line in answer.content.iter_chunked(1024):
                        event = json.loads(line)
                        if event["type"] == "ERROR":
                            version = ""
                            break
                        version = event["object"]["metadata"]["resourceVersion"]
                        if event["type"] != "BOOKMARK":
                            self.take(scope.resource, EventKind(event["type"]), event["object"])
            await asyncio.sleep(_PAUSE_S)

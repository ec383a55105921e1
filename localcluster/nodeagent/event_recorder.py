"""Kubernetes Events about pods and nodes: the same thing again counts up instead of piling up."""

from __future__ import annotations

import asyncio
import logging
import time
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, TypeAlias

from localcluster.nodeagent.api_client import FAILURES, MERGE, ApiClient, ApiError, describe
from localcluster.nodeagent.status import timestamp

_log = logging.getLogger(__name__)

Severity: TypeAlias = Literal["Normal", "Warning"]
_MESSAGE_LIMIT = 1024  # the API's own
_KNOWN_LIMIT = 4096
_QUEUE_LIMIT = 1024
# A probe that fails every few seconds would be a write every few seconds.
_REPEAT_S = 60.0


@dataclass(frozen=True)
class About:
    """The object an event is about."""

    kind: str
    namespace: str
    name: str
    uid: str
    node: str
    api_version: str = "v1"


@dataclass
class _Known:
    path: str
    count: int
    written_count: int
    written_at: float


class _Said(NamedTuple):
    """The text and object of one series of equal events."""

    about: About
    reason: str
    message: str
    field_path: str


class _Noted(NamedTuple):
    """One event that is still to be written."""

    severity: Severity
    said: _Said


class Recorder:
    """Writes events in the background and in order; when the server cannot take them they are dropped and logged."""

    def __init__(self, api: ApiClient) -> None:
        self._api = api
        self._queue: asyncio.Queue[_Noted] = asyncio.Queue(_QUEUE_LIMIT)
        self._known: dict[_Said, _Known] = {}

    def record(
        self, about: About, severity: Severity, reason: str, message: str, field_path: str = ""
    ) -> None:
        """Notes one event; returns at once."""
        _log.info("%s %s/%s: %s: %s", about.kind, about.namespace, about.name, reason, message)
        try:
            said = _Said(about, reason, message[:_MESSAGE_LIMIT], field_path)
            self._queue.put_nowait(_Noted(severity, said))
        except asyncio.QueueFull:
            _log.warning("event queue is full; dropped %s", reason)

    async def run(self) -> None:
        """Writes what is noted, until cancelled."""
        while True:
            item = await self._queue.get()
            try:
                await self._write(item)
            except FAILURES as error:
                _log.warning("event %s not written: %s", item.said.reason, describe(error))
            finally:
                self._queue.task_done()

    async def flush(self) -> None:
        """Waits until everything noted so far is written or given up."""
        await self._queue.join()

    async def _write(self, noted: _Noted) -> None:
        key = noted.said
        known = self._known.get(key)
        if known is None:
            await self._create(noted)
            return
        known.count += 1
        due = time.monotonic() - known.written_at >= _REPEAT_S
        if not due and known.count < 2 * known.written_count:
            return
        body = {"count": known.count, "lastTimestamp": timestamp(time.time())}
        try:
            await self._api.patch(known.path, body, MERGE)
        except ApiError as error:
            if error.status != 404:
                raise
            # Events live for an hour; the next one starts a new series.
            del self._known[key]
            return
        known.written_count, known.written_at = known.count, time.monotonic()

    async def _create(self, noted: _Noted) -> None:
        about = noted.said.about
        namespace = about.namespace or "default"
        name = f"{about.name}.{time.time_ns():x}"
        path = f"/api/v1/namespaces/{namespace}/events"
        await self._api.create(path, _event(noted, namespace, name))
        while len(self._known) >= _KNOWN_LIMIT:
            self._known.pop(next(iter(self._known)))
        self._known[noted.said] = _Known(f"{path}/{name}", 1, 1, time.monotonic())


def _event(noted: _Noted, namespace: str, name: str) -> dict[str, Any]:
    about, reason, message, field_path = noted.said
    now = timestamp(time.time())
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"namespace": namespace, "name": name},
        "involvedObject": {
            "apiVersion": about.api_version,
            "kind": about.kind,
            "namespace": about.namespace,
            "name": about.name,
            "uid": about.uid,
            **({"fieldPath": field_path} if field_path else {}),
        },
        "type": noted.severity,
        "reason": reason,
        "message": message,
        "source": {"component": "kubelet", "host": about.node},
        "reportingComponent": "kubelet",
        "reportingInstance": about.node,
        "firstTimestamp": now,
        "lastTimestamp": now,
        "count": 1,
    }

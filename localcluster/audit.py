"""The API server's audit log as data: who wrote what, when, and what came of it."""

from __future__ import annotations

import contextlib
import datetime as dt
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Self


@dataclass(frozen=True)
class AuditEvent:
    """One write request, complete.

    Attributes:
        at: when the API server received it.
        user: for a pod, `system:serviceaccount:NAMESPACE:NAME`.
        user_agent: as the client names itself.
        verb: create, update, patch, delete or deletecollection.
        group: API group, empty for the core.
        resource: plural, for example `deployments`.
        subresource: for example `status`, or empty.
        namespace: empty for cluster-wide objects.
        name: empty if the server chose it or the request named none.
        code: HTTP status of the answer.
        dry_run: the server was asked to change nothing.
        body: object or patch as sent; None if the audit policy keeps it out (secrets, events, leases).
    """

    at: dt.datetime
    user: str
    user_agent: str
    verb: str
    group: str
    resource: str
    subresource: str
    namespace: str
    name: str
    code: int
    dry_run: bool
    body: Any

    @classmethod
    def of(cls, event: Mapping[str, Any]) -> Self:
        """From an event of `audit.k8s.io/v1` at stage ResponseComplete."""
        target = event.get("objectRef", {})
        return cls(
            at=dt.datetime.fromisoformat(event["requestReceivedTimestamp"]),
            user=event["user"]["username"],
            user_agent=event.get("userAgent", ""),
            verb=event["verb"],
            group=target.get("apiGroup", ""),
            resource=target.get("resource", ""),
            subresource=target.get("subresource", ""),
            namespace=target.get("namespace", ""),
            name=target.get("name", ""),
            code=event.get("responseStatus", {}).get("code", 0),
            dry_run="dryRun=All" in event.get("requestURI", ""),
            body=event.get("requestObject"),
        )

    @property
    def wrote(self) -> bool:
        """Whether it changed the cluster: neither refused nor a rehearsal."""
        return 200 <= self.code < 300 and not self.dry_run


class AuditLog:
    """The events of one API server; each line is parsed once, however often somebody asks.

    Args:
        log: file that the API server writes, there or not yet.
    """

    def __init__(self, log: Path) -> None:
        self._log = log
        self._events: list[AuditEvent] = []
        # By inode, because a file that is rotated gets another name.
        self._read_bytes: dict[int, int] = {}

    def events(self) -> Sequence[AuditEvent]:
        """All events so far, oldest first, through rotated files too.

        The API server writes an event before it sends its answer: after an answer its event is always here. What
        another client's write has changed can be read a moment before.
        A last line that is still being written is left for the next reading.
        """
        # Rotated files carry their time in the name (audit-2026-01-31T...), which sorts; the current one comes last.
        log = self._log
        for path in [*sorted(log.parent.glob(f"{log.stem}-*{log.suffix}")), log]:
            with contextlib.suppress(FileNotFoundError), path.open("rb") as lines:
                self._read_on(lines)
        return tuple(self._events)

    def _read_on(self, lines: BinaryIO) -> None:
        inode = os.fstat(lines.fileno()).st_ino
        lines.seek(self._read_bytes.get(inode, 0))
        for line in lines:
            if line.endswith(b"\n"):
                self._read_bytes[inode] = self._read_bytes.get(inode, 0) + len(line)
                event = json.loads(line)
                if event["stage"] == "ResponseComplete":
                    self._events.append(AuditEvent.of(event))

"""A Lease decides which replica acts (coordination.k8s.io, as every Kubernetes controller uses it).

Safety comes from clocks that only run forward: a holder stops acting `lease_s` after its last successful renewal
*began*, by its own monotonic clock; a candidate takes over only after it has itself watched the same record unchanged
for `lease_s`. Wall clocks of two machines are never compared. The one short cut is a record under one's own identity:
its holder is dead (`LeaseIdentity` says how that is known), so it is taken at once.
"""

from __future__ import annotations

import asyncio
import fcntl
import logging
import os
import secrets
import tempfile
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from breakeven_operator.kinds import LEASES, NamespacedName
from breakeven_operator.ports import Clock, Cluster, ClusterError, Manifest

_LOG = logging.getLogger(__name__)
# A holder stops so long before the others may begin, s.
_MARGIN_S = 5.0
_TOKEN_BYTES = 8
LONGEST_LEASE_S = 600.0
"""The longest duration that an operator accepts: no operator writes a record with more."""


class _SeenLease(NamedTuple):
    """Another's Lease: its version, and when that was first seen (s, monotonic)."""

    version: str
    at_s: float


class Lease:
    """Leadership over one Lease object. Call `step` every `retry_s`; act only while `held`.

    Args:
        identity: of this replica; no other living process has it (`LeaseIdentity`).
        lease_s: how long a silent holder keeps it.
    """

    def __init__(
        self,
        cluster: Cluster,
        clock: Clock,
        place: NamespacedName,
        identity: str,
        *,
        lease_s: float = 30.0,
    ) -> None:
        self._cluster = cluster
        self._clock = clock
        self._place = place
        self._identity = identity
        self._lease_s = lease_s
        self._held_until = float("-inf")
        self._seen: _SeenLease | None = None
        self.changed = asyncio.Event()

    @property
    def held(self) -> bool:
        """Whether this replica may act now."""
        return self._clock.monotonic() < self._held_until

    @property
    def others(self) -> bool:
        """Whether another replica was seen to hold it."""
        return not self.held and self._seen is not None

    @property
    def retry_s(self) -> float:
        """How often `step` is due."""
        return self._lease_s / 5

    async def step(self) -> bool:
        """Try to take or renew the Lease; returns `held`. Never raises for a server that does not answer."""
        before = self.held
        try:
            await self._try()
        except ClusterError as error:
            _LOG.warning("lease %s/%s: %s", *self._place, error)
        if self.held != before:
            _LOG.info("lease %s/%s %s", *self._place, "taken" if self.held else "lost")
            self.changed.set()
        return self.held

    async def release(self) -> None:
        """Give it up, so that a successor need not wait for it to run out."""
        if not self.held:
            return
        self._held_until = float("-inf")
        try:
            lease = await self._cluster.get(LEASES, *self._place)
            if lease is not None and _holder(lease) == self._identity:
                await self._cluster.replace(LEASES, self._body(lease, "", released=True))
        except ClusterError as error:
            _LOG.info("lease %s/%s not released: %s", *self._place, error)

    async def _try(self) -> None:
        began = self._clock.monotonic()
        lease = await self._cluster.get(LEASES, *self._place)
        if lease is None:
            fresh = {"metadata": self._place._asdict()}
            await self._cluster.create(LEASES, self._body(fresh, self._identity))
            self._held_until = began + self._lease_s - _MARGIN_S
            return
        if not self._may_take(lease, began):
            self._held_until = float("-inf")
            return
        # The resourceVersion in the body makes two takers collide: one of them gets a conflict.
        await self._cluster.replace(LEASES, self._body(lease, self._identity))
        self._held_until = began + self._lease_s - _MARGIN_S

    def _may_take(self, lease: Manifest, now: float) -> bool:
        holder = _holder(lease)
        if holder in {"", self._identity}:
            return True
        version = str(lease["metadata"].get("resourceVersion", ""))
        if self._seen is None or self._seen.version != version:
            self._seen = _SeenLease(version, now)
            return False
        # The other operator's duration counts if it is longer than ours, up to the longest that one accepts.
        said_s = float((lease.get("spec") or {}).get("leaseDurationSeconds") or 0)
        silent_s = max(self._lease_s, min(said_s, LONGEST_LEASE_S))
        return now - self._seen.at_s > silent_s

    def _body(self, lease: Manifest, identity: str, *, released: bool = False) -> dict[str, Any]:
        spec = dict(lease.get("spec") or {})
        now = datetime.now(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
        changed_hands = identity and spec.get("holderIdentity") not in {None, identity}
        return {
            "apiVersion": LEASES.api_version,
            "kind": LEASES.kind,
            "metadata": {
                key: lease["metadata"][key]
                for key in ("namespace", "name", "resourceVersion", "uid")
                if key in lease["metadata"]
            },
            "spec": {
                "holderIdentity": identity,
                "leaseDurationSeconds": 1 if released else round(self._lease_s),
                "acquireTime": spec.get("acquireTime", now)
                if spec.get("holderIdentity") == identity
                else now,
                "renewTime": now,
                "leaseTransitions": int(spec.get("leaseTransitions", 0)) + (1 if changed_hands else 0),
            },
        }


def _holder(lease: Manifest) -> str:
    return str((lease.get("spec") or {}).get("holderIdentity") or "")


class LeaseIdentity:
    """The name under which this process holds the Lease; a successor in the same pod can prove that the name is free.

    A process that was killed cannot give its Lease up. Its successor must wait until the Lease has run out, unless it
    knows that the holder is dead. The kernel knows: a file lock ends with the process that holds it, however that ends.
    So the identity is a token in a locked file. The process with the lock is the only living one of that identity. A
    record under that identity is its own, or a record of a dead process. The file lies in the pod's own emptyDir, which a
    restarted container finds again and no other pod sees. Keep the object as long as the process acts.

    Args:
        name: of this replica, shown to people: the pod's name.
        lease: namespace and name of the Lease; each has a lock of its own.
        folder: where the lock lies; TMPDIR if it is None.

    Attributes:
        text: the Lease's holderIdentity; no other living process has it.
    """

    def __init__(self, name: str, lease: str, folder: Path | None = None) -> None:
        self._file: int | None = None
        token = secrets.token_hex(_TOKEN_BYTES)
        path = (folder or Path(tempfile.gettempdir())) / f"breakeven-{lease.replace('/', '.')}.lock"
        try:
            # Python opens files close-on-exec, so a child that outlives this process does not keep the lock.
            self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            known = os.pread(self._file, 2 * _TOKEN_BYTES, 0).decode("ascii", "replace")
            if len(known) == 2 * _TOKEN_BYTES and known.isalnum():
                token = known
            else:
                os.pwrite(self._file, token.encode("ascii"), 0)
        except OSError as error:
            # Another process lives under that token, or there is nowhere to write: a token of our own, and no short cut.
            _LOG.info(
                "lock %s: %s; a Lease held from here must run out before a successor takes it", path, error
            )
            self.release()
        self.text = f"{name}_{token}"

    def release(self) -> None:
        """Let a successor have the token; only after the last action under it."""
        if self._file is not None:
            os.close(self._file)
            self._file = None

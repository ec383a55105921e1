"""Which replica acts: the Lease, and the name it is held under."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from breakeven_operator.adapters.lease import Lease, LeaseIdentity
from breakeven_operator.kinds import NamespacedName
from breakeven_operator.ports import Clock, Cluster
from breakeven_operator.settings import Settings


@dataclass(frozen=True, slots=True)
class Leadership:
    """A process's part in the fleet of replicas.

    Attributes:
        identity: kept as long as the process acts.
        lease: held under that name.
    """

    identity: LeaseIdentity
    lease: Lease

    @classmethod
    def of(cls, settings: Settings, cluster: Cluster, clock: Clock) -> Leadership:
        """The part that the settings give it."""
        name = NamespacedName(settings.namespace, settings.lease_name)
        identity = LeaseIdentity(settings.identity, f"{settings.namespace}/{settings.lease_name}")
        return cls(identity, Lease(cluster, clock, name, identity.text, lease_s=settings.lease_s))


class NoLease:
    """A dry run writes nothing, so it needs nobody's leave."""

    held = True
    others = False
    retry_s = 3600.0

    def __init__(self) -> None:
        self.changed = asyncio.Event()

    async def step(self) -> bool:
        """Nothing to renew."""
        return True

    async def release(self) -> None:
        """Nothing to give up."""
        return

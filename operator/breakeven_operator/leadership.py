"""Which replica acts, and on which services: the Lease, the name it is held under, and the shard that it stands for."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from breakeven_operator.adapters.identity import LeaseIdentity
from breakeven_operator.adapters.lease import Lease
from breakeven_operator.adapters.shards import Shards
from breakeven_operator.kinds import NamespacedName
from breakeven_operator.ports import Clock, Cluster
from breakeven_operator.resources.labelselector import LabelSelector
from breakeven_operator.settings import Settings


@dataclass(frozen=True, slots=True)
class Leadership:
    """A process's part in the fleet of replicas.

    Attributes:
        identity: kept as long as the process acts.
        lease: held under that name. shards: the services that are this Lease's.
    """

    identity: LeaseIdentity
    lease: Lease
    shards: Shards

    @classmethod
    def of(cls, settings: Settings, cluster: Cluster, clock: Clock, *, once: bool) -> Leadership:
        """The part that the settings give it; with `once` there is one cycle only."""
        name = NamespacedName(settings.namespace, settings.lease_name)
        # The other one looks once per cycle.
        settle_s = 0.0 if once else 2 * settings.cycle_s
        selector = settings.service_selector or LabelSelector()
        shards = Shards(cluster, clock, name, selector, settle_s=settle_s)
        identity = LeaseIdentity(settings.identity, f"{settings.namespace}/{settings.lease_name}")
        lease = Lease(
            cluster,
            clock,
            name,
            identity.text,
            lease_s=settings.lease_s,
            annotations=shards.annotations,
        )
        return cls(identity, lease, shards)


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

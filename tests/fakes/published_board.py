"""Services as a cycle of the operator leaves them for the board."""

from __future__ import annotations

from breakeven_operator.board.publication import Publication
from breakeven_operator.cluster.cluster_objects import file_profile
from breakeven_operator.kinds import PROFILES, SERVICES, NamespacedName
from breakeven_operator.resources import SpeculativeService
from breakeven_operator.step import ProfileEntry
from fakes.fleet_world import FleetWorld

CHAT = NamespacedName("llm", "chat")
_PARTS = ("metadata", "spec", "status")


def published_of(world: FleetWorld) -> Publication:
    """The statuses and profiles that an operator wrote."""
    services = [
        SpeculativeService.read({name: one[name] for name in _PARTS}, "service")
        for one in world.cluster.of(SERVICES)
    ]
    profiles: dict[NamespacedName, list[ProfileEntry]] = {}
    for manifest in world.cluster.of(PROFILES):
        entry = file_profile(manifest)
        profiles.setdefault(entry.service, []).append(entry)
    return Publication(
        world.clock.now(),
        {NamespacedName(one.metadata.namespace, one.metadata.name): one for one in services},
        {},
        profiles,
        {},
    )

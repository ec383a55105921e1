"""What the operator leaves after a cycle, played once by a whole operator in memory."""

from __future__ import annotations

import asyncio
import functools

import pytest

from breakeven_operator.adapters.profile_entries import file_profile
from breakeven_operator.board.publication import Publication
from breakeven_operator.kinds import PROFILES, SERVICES, NamespacedName
from breakeven_operator.resources import SpeculativeService
from fakes.fleet_world import FleetWorld

CHAT = NamespacedName("llm", "chat")


def published_of(world):
    """The statuses and profiles that an operator wrote."""
    parts = ("metadata", "spec", "status")
    services = [
        SpeculativeService.read({name: one[name] for name in parts}, "service")
        for one in world.cluster.of(SERVICES)
    ]
    profiles = {}
    for manifest in world.cluster.of(PROFILES):
        filed = file_profile(manifest)
        profiles.setdefault(filed.service, []).append(filed.entry)
    return Publication(
        world.clock.now(),
        {NamespacedName(one.metadata.namespace, one.metadata.name): one for one in services},
        {},
        profiles,
        {},
    )


async def _settled():
    world = FleetWorld()
    await world.speculate()
    return published_of(world)


async def _fresh():
    world = FleetWorld()
    await world.cycle()
    return published_of(world)


@functools.cache
def _played(play):
    return asyncio.run(play())


@pytest.fixture
def settled():
    """A service whose roll to speculation was measured."""
    return _played(_settled)


@pytest.fixture
def fresh():
    """A service after its first cycle, without a profile."""
    return _played(_fresh)

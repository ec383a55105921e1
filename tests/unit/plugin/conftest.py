"""Services as the operator writes them, each played once by a whole operator in memory."""

from __future__ import annotations

import asyncio
import functools

import pytest

from fakes.fleet_world import FleetWorld


def recommend(spec):
    spec["updatePolicy"]["mode"] = "Recommend"


async def _settled():
    """A roll to speculation that was measured."""
    world = FleetWorld()
    await world.speculate()
    return world


async def _recommending():
    """Speculation would pay, and the mode changes nothing."""
    world = FleetWorld(recommend)
    world.calibrate()
    world.load(3.0)
    await world.until(lambda: world.decision.get("action") == "Recommend")
    return world


async def _fresh():
    """One cycle after the service was made."""
    world = FleetWorld()
    await world.cycle()
    return world


@functools.cache
def _played(play):
    return asyncio.run(play())


@pytest.fixture
def settled():
    return _played(_settled).copied()


@pytest.fixture
def recommending():
    return _played(_recommending).copied()


@pytest.fixture
def fresh():
    return _played(_fresh).copied()

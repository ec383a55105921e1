"""Fleets as an operator in memory leaves them, each played once in a process; a copy for whoever changes one."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Callable
from typing import Any

from fakes.fleet_world import FleetWorld


def _played_once(play: Callable[[], Awaitable[FleetWorld]]) -> Callable[[], FleetWorld]:
    @functools.cache
    def world() -> FleetWorld:
        async def whole() -> FleetWorld:
            return await play()

        return asyncio.run(whole())

    return world


@_played_once
async def after_a_measured_roll() -> FleetWorld:
    """A roll to speculation that was measured."""
    world = FleetWorld()
    await world.speculate()
    return world


def _recommend(spec: dict[str, Any]) -> None:
    spec["updatePolicy"]["mode"] = "Recommend"


@_played_once
async def while_it_recommends() -> FleetWorld:
    """Speculation would pay, and the mode changes nothing."""
    world = FleetWorld(_recommend)
    world.calibrate()
    world.load(3.0)
    await world.until(lambda: world.decision.get("action") == "Recommend")
    return world


@_played_once
async def after_the_first_cycle() -> FleetWorld:
    """One cycle after the service was made."""
    world = FleetWorld()
    await world.cycle()
    return world

"""One replica and no spare GPU: an outage at a time that somebody chose, or no roll."""

from __future__ import annotations

from typing import Any

import pytest

from fakes.fleet_world import VALUE, FleetWorld

# The world's clock begins on a Saturday, 2026-11-21, at 12:00 UTC, and FleetWorld takes twenty minutes to come up.
RECREATE: dict[str, Any] = {"type": "Recreate"}
IN_PLACE = {"rollingUpdate": {"maxSurge": 0, "maxUnavailable": 1}}


def single(strategy: dict[str, Any], **policy: Any) -> FleetWorld:
    def edit(spec: dict[str, Any]) -> None:
        spec["updatePolicy"] |= {"cooldownSeconds": 0, "stabilizationWindowSeconds": 0, **policy}

    world = FleetWorld(edit, lambda target: target["spec"].update(replicas=1, strategy=strategy))
    world.calibrate()
    world.load(3.0)
    return world


@pytest.mark.parametrize("strategy", [RECREATE, IN_PLACE])
async def test_without_a_window_nothing_is_rolled_and_the_advice_is_true(strategy: dict[str, Any]) -> None:
    world = single(strategy)
    for _ in range(4):
        await world.cycle()
    assert (world.phase, world.reason) == (None, "OutageNotAllowed")
    assert "wait for less load" not in world.decision["message"]
    assert "updatePolicy.allowOutage Window" in world.decision["message"]


@pytest.mark.parametrize("strategy", [RECREATE, IN_PLACE])
async def test_within_a_window_it_is_rolled_and_outside_the_next_one_is_named(
    strategy: dict[str, Any],
) -> None:
    window = {"days": ["Sat"], "start": "14:00", "durationSeconds": 3600, "timeZone": "Europe/Berlin"}
    world = single(strategy, allowOutage="Window", outageWindows=[window])
    for _ in range(3):
        await world.cycle()
    assert (world.phase, world.reason) == (None, "OutageNotAllowed")
    assert "2026-11-21T13:00Z" in world.decision["message"]
    until = world.clock.now().replace(hour=13, minute=0, second=0)
    world.prometheus.count()
    world.clock.advance((until - world.clock.now()).total_seconds())
    await world.until(lambda: world.value == VALUE, cycles=20)
    await world.until(lambda: world.phase == "Confirming", cycles=20)

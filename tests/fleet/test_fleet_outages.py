"""When a roll may come: windows for ordinary rolls, and an outage at a time that somebody chose, or no roll."""

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
    assert "updatePolicy.windows, with allowOutage: true" in world.decision["message"]


@pytest.mark.parametrize("strategy", [RECREATE, IN_PLACE])
async def test_within_a_window_it_is_rolled_and_outside_the_next_one_is_named(
    strategy: dict[str, Any],
) -> None:
    # Rolls may come at any time, and take the only pod away at two o'clock alone.
    always = {"start": "00:00", "durationSeconds": 86400}
    window = {"days": ["Sat"], "start": "14:00", "durationSeconds": 3600, "timeZone": "Europe/Berlin"}
    world = single(strategy, windows=[always, {**window, "allowOutage": True}])
    for _ in range(3):
        await world.cycle()
    assert (world.phase, world.reason) == (None, "OutageNotAllowed")
    assert "2026-11-21T13:00Z" in world.decision["message"]
    until = world.clock.now().replace(hour=13, minute=0, second=0)
    world.prometheus.count()
    world.clock.advance((until - world.clock.now()).total_seconds())
    await world.until(lambda: world.value == VALUE, cycles=20)
    await world.until(lambda: world.phase == "Confirming", cycles=20)


AFTER_LUNCH = {"days": ["Sat"], "start": "12:25", "durationSeconds": 600}


def fleet(**policy: Any) -> FleetWorld:
    world = FleetWorld(lambda spec: spec["updatePolicy"].update(cooldownSeconds=0, **policy))
    world.calibrate()
    world.load(3.0)
    return world


async def test_an_ordinary_roll_waits_for_its_window() -> None:
    world = fleet(windows=[AFTER_LUNCH])
    await world.until(lambda: world.reason == "OutsideWindows", cycles=20)
    assert "2026-11-21T12:25Z" in world.decision["message"]
    assert world.value is None
    await world.until(lambda: world.value == VALUE)
    assert world.clock.now().strftime("%H:%M") >= "12:25"


async def test_a_break_even_passed_by_much_waits_for_no_window() -> None:
    world = fleet(windows=[AFTER_LUNCH])
    await world.until(lambda: world.value == VALUE)
    await world.until(lambda: world.phase is None)
    world.load(12.0)
    await world.until(lambda: world.value == "null", cycles=30)
    assert world.clock.now().strftime("%H:%M") >= "12:35", "the window is over"


async def test_an_arm_that_follows_changes_is_left_beyond_the_break_even_and_entered_again_by_a_new_profile() -> (
    None
):
    world = fleet(follow="Changes")
    await world.until(lambda: world.value == VALUE)
    await world.until(lambda: world.phase is None)
    world.load(12.0)
    await world.until(lambda: world.value == "null", cycles=30)
    await world.until(lambda: world.phase is None)
    world.load(3.0)
    await world.until(lambda: world.reason == "FollowsChanges", cycles=60)
    assert "it is chosen again by the next profile" in world.decision["message"]
    for _ in range(60):
        await world.cycle()
    assert (world.value, len(world.rolls)) == ("null", 2)
    world.calibrate(name="chat-p2")
    await world.until(lambda: world.value == VALUE)

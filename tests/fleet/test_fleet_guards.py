"""A user's own guards: what is above its bound undoes a roll by its name, and keeps the arm out."""

from __future__ import annotations

from typing import Any

from breakeven_operator.kinds import EVENTS
from fakes.fleet_world import VALUE, FleetWorld

QUERY = "sum(rate(errors_total[1m]))"


def guarded(**policy: Any) -> FleetWorld:
    def edit(spec: dict[str, Any]) -> None:
        guard = {"name": "ErrorRate", "query": QUERY, "max": "0.5"}
        spec["updatePolicy"].update(cooldownSeconds=0, guards=[guard], **policy)
        spec["metricsSource"] = {"prometheus": {"address": "http://prometheus:9090"}}

    world = FleetWorld(edit)
    world.calibrate()
    world.load(3.0)
    return world


async def test_a_roll_that_exceeds_a_guard_is_undone_with_its_name_as_reason() -> None:
    world = guarded()
    world.prometheus.guarded[QUERY] = [0.5]
    await world.until(lambda: world.phase == "Rolling")
    world.prometheus.guarded[QUERY] = [0.75]
    await world.until(lambda: world.value is None, cycles=10)
    await world.until(lambda: world.phase is None)
    entry = world.whole["history"][0]
    assert (entry["result"], entry["reason"]) == ("Undone", "ErrorRate")
    (undone,) = [one for one in world.cluster.of(EVENTS) if one["reason"] == "RollUndone"]
    assert "ErrorRate: 0.75 is above its max of 0.5" in (undone.get("note") or undone["message"])
    assert world.memory["barred"][0]["reason"] == "GuardExceeded"


async def test_an_arm_is_left_for_a_guard_after_its_roll_and_not_a_day_later() -> None:
    world = guarded()
    world.prometheus.guarded[QUERY] = [0.0]
    await world.until(lambda: world.value == VALUE)
    await world.until(lambda: world.phase is None)
    late = world.copied()
    for _ in range(30):
        await world.cycle()
    assert world.value == VALUE
    # At once, and not when the decision that stands has its moment in five minutes.
    world.prometheus.guarded[QUERY] = []
    await world.until(lambda: "no protection, by guard" in str(world.whole["conditions"]), cycles=3)
    world.prometheus.guarded[QUERY] = [2.0]
    await world.until(lambda: world.value == "null", cycles=3)
    assert world.whole["history"][0]["reason"] == "GainAboveThreshold"
    assert world.whole["rollout"]["reason"] == "GuardExceeded"
    late.clock.advance(86400.0)
    late.load(3.0)
    late.prometheus.guarded[QUERY] = [2.0]
    for _ in range(30):
        await late.cycle()
    assert late.value == VALUE


async def test_nothing_is_entered_while_a_guard_is_exceeded_and_a_missing_value_says_nothing() -> None:
    world = guarded()
    world.prometheus.guarded[QUERY] = [0.75]
    await world.until(lambda: world.reason == "GuardExceeded", cycles=20)
    assert world.decision["message"].endswith("ErrorRate: 0.75 is above its max of 0.5")
    # No value, two values, and no number.
    for values in ([], [9.0, 9.0], [float("nan")]):
        another = world.copied()
        another.prometheus.guarded[QUERY] = values
        await another.until(lambda another=another: another.value == VALUE, cycles=40)
        said = another.condition("MetricsAvailable")["message"]
        assert said.endswith("; no value, so no protection, by guard ErrorRate")

"""Worth of a roll in the status of a whole operator: added up window by window, written now and then, carried over a restart."""

from __future__ import annotations

import pytest

from fakes.fleet_world import FleetWorld


def published(world):
    _, (service,) = world.left
    return service.status


async def test_a_steady_gain_adds_up_in_few_writes_and_survives_a_restart():
    world = FleetWorld()
    await world.speculate()
    (roll,) = world.whole["history"]
    gain = float(roll["measuredSpeedup"]) - 1.0
    await world.cycle()
    before = published(world)
    for _ in range(60):
        await world.cycle(60.0)
    after = published(world)
    passed_s = (after.decision.evidence_time - before.decision.evidence_time).total_seconds()
    inflight = after.decision.inflight * after.target.ready_replicas
    gained = after.savings.request_saved_seconds - (before.savings.request_saved_seconds or 0.0)
    assert gained == pytest.approx(inflight * passed_s * gain, rel=0.1)
    assert after.savings.against == "none"
    assert after.savings.request_saved_lower_seconds < after.savings.request_saved_seconds
    written = float(world.whole["savings"]["requestSavedSeconds"])
    assert written >= 0.75 * after.savings.request_saved_seconds
    world.restart()
    await world.cycle()
    assert published(world).savings.request_saved_seconds >= written


async def test_metrics_repeat_what_the_status_says():
    world = FleetWorld()
    await world.speculate()
    for _ in range(5):
        await world.cycle(60.0)
    status = published(world)
    labels = {"specsvc_namespace": "llm", "specsvc": "chat", "against": "none", "bound": "lower"}
    shown = world.registry.get_sample_value("breakeven_request_saved_seconds", labels)
    assert shown == pytest.approx(status.savings.request_saved_lower_seconds)
    assert world.registry.get_sample_value(
        "breakeven_rolls_listed_seconds", {"specsvc_namespace": "llm", "specsvc": "chat"}
    ) == pytest.approx(status.savings.rolls_seconds)

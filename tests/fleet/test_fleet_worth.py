"""Worth of a roll in the status of a whole operator: added up window by window, written now and then, carried over a restart."""

from __future__ import annotations

import math
from collections import defaultdict

import pytest

from breakeven.past.courses import TimeGrid
from breakeven.past.receipts import METRICS, PREFIX, receipts
from breakeven.readers.prometheus import Samples, TimedValue
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


async def test_receipts_of_its_metrics_say_what_the_operator_itself_adds_up_also_over_a_restart():
    world = FleetWorld()
    await world.speculate()
    scraped = defaultdict(list)
    names = {f"{PREFIX}{metric}" for metric in METRICS}
    saved, step_s = [], 300
    for pod in ("operator-a", "operator-b"):
        for _ in range(60):
            await world.cycle(60.0)
            now_s = world.clock.now().timestamp()
            end_s = math.ceil(now_s / step_s) * step_s
            for family in world.registry.collect():
                for one in family.samples:
                    if one.name in names:
                        key = (("__name__", one.name), ("pod", pod), *sorted(one.labels.items()))
                        scraped[key].append((end_s, one.value))
            saved.append((end_s, published(world).savings.request_saved_seconds))
        # The new operator begins with the next window.
        while math.ceil(world.clock.now().timestamp() / step_s) * step_s == end_s:
            world.clock.advance(5.0)
        world.restart()
    first_s, last_s = saved[0][0], saved[-1][0]
    samples = [
        Samples(dict(key), tuple(TimedValue(float(at), value) for at, value in dict(values).items()))
        for key, values in scraped.items()
    ]
    found = receipts(samples, TimeGrid(first_s, step_s, (last_s - first_s) // step_s + 1))
    assert {one.service[1:] for one in found} == {("llm", "chat")}
    assert {word for one in found for word in one.unclaimed_hours} == set()
    own = saved[-1][1] - next(value for at, value in saved if at > first_s)
    assert sum(one.request_saved_s.value for one in found) == pytest.approx(own, rel=0.1)
    assert all(one.request_saved_s.lower < one.request_saved_s.value for one in found)
    assert found[0].against == ("none",)

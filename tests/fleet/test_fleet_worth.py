"""Worth of a roll by the metrics of a whole operator, over a restart."""

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


async def test_receipts_say_what_requests_in_flight_and_the_measured_roll_add_up_to_also_over_a_restart():
    world = FleetWorld()
    await world.speculate()
    scraped = defaultdict(list)
    names = {f"{PREFIX}{metric}" for metric in METRICS}
    gain = float(world.whole["history"][0]["measuredSpeedup"]) - 1.0
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
            status = published(world)
            saved.append((end_s, 60.0 * gain * status.decision.inflight * status.target.ready_replicas))
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
    truth = sum(value for at, value in saved if at > first_s)
    assert sum(one.request_saved_s.value for one in found) == pytest.approx(truth, rel=0.1)
    assert all(one.request_saved_s.lower < one.request_saved_s.value for one in found)
    assert found[0].against == ("none",)
    await world.cycle(60.0)
    shown = world.registry.get_sample_value(
        "breakeven_rolls_listed_seconds", {"specsvc_namespace": "llm", "specsvc": "chat"}
    )
    assert shown == pytest.approx(published(world).savings.rolls_seconds)

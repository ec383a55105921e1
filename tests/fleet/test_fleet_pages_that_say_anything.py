"""Engines whose pages say anything: a cycle has a word about their service, and never a fault of the operator's own."""

import asyncio
import json
import math

import numpy as np
import pytest

from breakeven.readers.prometheus import InstantSample, Samples, TimedValue
from fakes.fleet_world import FleetWorld


@pytest.fixture(scope="module")
def speculating() -> FleetWorld:
    """A service with objectives that has rolled once, so that all of its figures are asked for."""
    world = FleetWorld()
    world.service["spec"]["slo"] = {"e2eP95Milliseconds": 3000, "ttftP95Milliseconds": 500}
    asyncio.run(world.speculate())
    return world


class LyingPages:
    """Values that pages may show in place of the true ones.

    Args:
        rng: draws them.
        share: of the values, or of the statistics, that are false.
        always: a false statistic is false in every answer; else each value is drawn by itself.
    """

    def __init__(self, rng: np.random.Generator, share: float, *, always: bool) -> None:
        self.rng, self.share, self.always = rng, share, always
        self.lies: dict[str, bool] = {}

    def about(self, stat: str) -> bool:
        drawn = bool(self.rng.random() < self.share)
        return self.lies.setdefault(stat, drawn) if self.always else drawn

    def value(self, true: float) -> float:
        wild = true * 10.0 ** self.rng.uniform(-30.0, 30.0)
        mild = true * 10.0 ** self.rng.uniform(-3.0, 3.0)
        found = (math.nan, math.inf, -math.inf, -abs(true), 0.0, wild, mild)
        return float(found[self.rng.integers(len(found))])

    def instant(self, one: InstantSample) -> InstantSample:
        lies = self.about(one.labels.get("stat", ""))
        return InstantSample(one.labels, self.value(one.value)) if lies else one

    def past(self, one: Samples) -> Samples:
        stat = one.labels.get("stat", "")
        values = (
            TimedValue(at.time_s, self.value(at.value)) if self.about(stat) else at for at in one.values
        )
        return Samples(one.labels, tuple(values))


def lying(world: FleetWorld, pages: LyingPages) -> None:
    """Prometheus answers with what the pages say from now on."""
    true, true_past = world.prometheus.query, world.prometheus.query_past

    async def query(source, promql):
        return [pages.instant(one) for one in await true(source, promql)]

    async def query_past(source, promql):
        return [pages.past(one) for one in await true_past(source, promql)]

    world.prometheus.query, world.prometheus.query_past = query, query_past


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("seed", range(24))
async def test_no_page_ends_a_cycle(speculating, seed, caplog):
    rng = np.random.default_rng(seed)
    world = speculating.copied()
    lying(world, LyingPages(rng, float(rng.choice([0.02, 0.1, 0.5])), always=bool(rng.integers(2))))
    for _ in range(8):
        world.load(float(rng.choice([0.0, 1.0, 3.0, 6.0, 9.3, 15.0])))
        report = await world.cycle(float(rng.choice([15.0, 60.0, 300.0])))
        assert report.errors == []
    assert not [record for record in caplog.records if record.exc_info]
    assert " nan" not in json.dumps(world.status).lower()

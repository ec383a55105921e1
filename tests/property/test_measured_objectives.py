"""Whatever Prometheus answers about latencies, a cycle ends in a status that the API server takes and in the right word."""

from __future__ import annotations

import asyncio
import math

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from breakeven_operator.resources import SpeculativeServiceStatus
from draws import draws
from fakes.fleet_world import FleetWorld

EDGES = ("0.001", "0.25", "0.5", "1.0", "2560.0", "+Inf")
counts = st.one_of(
    st.floats(), st.sampled_from([0.0, -0.0, -1.0, 1e13, 1e25, math.nan, math.inf, -math.inf, 5e-324])
)


@pytest.fixture(scope="module")
def world() -> FleetWorld:
    def edit(spec):
        spec["slo"] = {"ttftP95Milliseconds": 500, "e2eP95Milliseconds": 3000, "tpotP95Milliseconds": 30}
        spec["updatePolicy"]["mode"] = "Recommend"

    world = FleetWorld(edit)
    world.calibrate()
    world.load(3.0)
    world.prometheus.traffic.latencies = {"ttft": [0.2, 0.4, 3.0] * 40, "e2e": [2.0] * 120}
    return world


@draws(100)
@given(wrong=st.dictionaries(st.sampled_from(EDGES), counts, min_size=1, max_size=4))
@example(wrong={"0.5": math.nan})
@example(wrong={"+Inf": 1e25})
@example(wrong={"+Inf": 0.0})
@example(wrong={"0.001": 1e13})
@example(wrong=dict.fromkeys(EDGES, 1e25))
@example(wrong=dict.fromkeys(EDGES, 0.0))
def test_any_buckets_leave_a_status_that_can_be_written(world, wrong):
    world.prometheus.wrong_buckets = wrong
    report = asyncio.run(world.cycle())
    assert report.errors == []
    assert not world.reason.startswith("Metrics")
    status = SpeculativeServiceStatus.read(world.status, "status")
    kept = status.condition("ObjectivesKept")
    words = {"ObjectivesKept", "SloViolated", "ObjectiveUncertain", "MetricsNaN", "MetricsImpossible"}
    assert kept is not None
    assert kept.reason in words
    if any(not math.isfinite(value) for value in wrong.values()):
        assert kept.reason in {"MetricsNaN", "MetricsImpossible"}
    for one in status.objectives:
        shares = (one.attainment_lower_percent, one.attainment_percent, one.attainment_upper_percent)
        found = [share for share in shares if share is not None]
        assert found == sorted(found)
        assert all(0.0 <= share <= 100.0 for share in found)


def test_a_histogram_of_one_bucket_says_nothing_of_any_limit(world):
    """All requests above the last finite edge: +Inf alone grew."""
    world.prometheus.wrong_buckets = {}
    before = world.prometheus.traffic.latencies
    world.prometheus.traffic.latencies = {"ttft": [3000.0] * 50}
    asyncio.run(world.cycle())
    world.prometheus.traffic.latencies = before
    (ttft,) = [one for one in world.whole["objectives"] if one["figure"] == "ttft"]
    assert (ttft["finding"], "p95Seconds" in ttft, ttft["p95LowerSeconds"]) == ("Missed", False, "2560")

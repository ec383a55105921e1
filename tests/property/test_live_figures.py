"""Whatever Prometheus answers, a cycle ends in a status that the API server takes, and nothing unusable is remembered."""

from __future__ import annotations

import asyncio
import math

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from breakeven_operator.resources import SpeculativeServiceStatus
from draws import draws
from fakes.fleet_world import VALUE, FleetWorld

COUNTERS = (
    *("completed", "started", "ttft_s", "e2e_s", "e2e_n", "generated", "steps", "drafts"),
    *("prompt_tokens", "output_tokens", "output_n"),
)
GAUGES = ("running", "waiting", "waiting_min", "running_growth", "waiting_growth")
TIMES = ("first_seen_s", "last_seen_s")

# Floats of every size, with what a reset leaves (0) and what attacks were made with.
figures = st.one_of(
    st.floats(), st.sampled_from([0.0, -0.0, 1e13, 1e25, -1.0, math.nan, math.inf, -math.inf, 1e308, 5e-324])
)


def speculating() -> FleetWorld:
    """A target that runs the speculative arm by a person's hand."""

    def runs_eagle(target):
        target["spec"]["template"]["metadata"]["annotations"]["breakeven.dev/speculative-config"] = VALUE

    world = FleetWorld(lambda spec: spec["updatePolicy"].update(mode="Recommend"), runs_eagle)
    world.calibrate()
    return world


async def looked_at(world: FleetWorld, wrong: dict[str, float]) -> None:
    world.prometheus.wrong = wrong
    world.load(3.0)
    report = await world.cycle()
    assert report.errors == []
    assert world.registry.get_sample_value("breakeven_errors_total", {"reason": "InternalError"}) in {
        None,
        0.0,
    }


@pytest.fixture(scope="module")
def world() -> FleetWorld:
    return speculating()


@draws(150)
@given(wrong=st.dictionaries(st.sampled_from(COUNTERS + GAUGES + TIMES), figures, min_size=1, max_size=4))
@example(wrong={"steps": 1e13})
@example(wrong=dict.fromkeys(COUNTERS, 1e25))
@example(wrong=dict.fromkeys(COUNTERS + GAUGES, 1e13))
@example(wrong=dict.fromkeys(COUNTERS, 0.0))
@example(wrong={"generated": 1e308, "steps": 1e308})
@example(wrong={"last_seen_s": 1e25})
def test_any_answer_leaves_a_status_that_can_be_written(world, wrong):
    asyncio.run(looked_at(world, {}))
    assert world.reason == "BelowBreakEven"
    seen = world.memory["seen"]
    asyncio.run(looked_at(world, wrong))
    status = SpeculativeServiceStatus.read(world.whole, "status")
    (remembered,) = status.memory.seen
    assert 1.0 <= remembered.tokens_per_step <= 4.0
    if world.reason.startswith("Metrics"):
        assert world.decision["action"] == "Hold"
        # The last sound window may be written with the word; an impossible one would move it to 1 or 4.
        assert remembered.tokens_per_step == pytest.approx(float(seen[0]["tokensPerStep"]), rel=0.01)
        assert "candidateArm" not in world.memory
        assert "loadRps" not in world.decision
    for figure in (
        status.decision.load_rps,
        status.decision.inflight,
        status.decision.observed_latency_seconds,
    ):
        assert figure is None or 0 <= figure < 1e8

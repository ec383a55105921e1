"""An arm that was calibrated at one acceptance and one length, predicted at others, against the engine on the event clock."""

from __future__ import annotations

import numpy as np
import pytest

from breakeven.arm import NO_SPECULATION
from breakeven.laws.step_law import Tier, step_s
from breakeven_sim.engine.costs import default_document
from breakeven_sim.replay.fleet_arms import CostArms
from validation.conversions import ENGINES, Elsewhere, calibrated, judge

pytestmark = pytest.mark.engine

LONG_PROMPTS = next(engine for engine in ENGINES if engine.name == "long prompts")


@pytest.mark.parametrize(
    "condition",
    [Elsewhere(1.0, 1.0, 0.6, 0.35), Elsewhere(2.0, 0.5, 0.6, 0.5), Elsewhere(0.5, 2.0, 0.8, 0.35)],
    ids=["other acceptance", "longer prompts", "longer answers"],
)
def test_latency_and_speedup_at_other_acceptance_and_lengths_are_what_the_engine_does(condition):
    """A rule that scaled all of C2 with 1/E was off by a quarter where prompts are long, and rolled away from a faster arm."""
    found = judge(LONG_PROMPTS, [condition], 1)
    assert found.latency == pytest.approx([0.0, 0.0], abs=0.08)
    assert found.speedup == pytest.approx([0.0], abs=0.05)
    assert found.wrong == [False]


@pytest.mark.parametrize("seed", [1, 7])
@pytest.mark.parametrize("arm", [NO_SPECULATION, LONG_PROMPTS.arm], ids=str)
def test_a_calibration_finds_what_the_steps_of_an_engine_cost(arm, seed):
    arms = CostArms(default_document().for_gpu("NVIDIA-H100-80GB-HBM3", "costs"), seed)
    times = arms.config(arm).times
    found = calibrated(LONG_PROMPTS, arms, seed).steps
    assert found is not None
    costs, one = found.costs(arm), np.ones(())
    context = LONG_PROMPTS.prompt_tokens + LONG_PROMPTS.output_tokens / 2
    tier = Tier(1, one * arm.k, one)
    for requests in (1, 2, 8):
        true_s = float(times.seconds(arm.k, requests, requests * arm.k, requests * context, 0))
        assert float(step_s(costs, tier, one * context, one * requests)) == pytest.approx(true_s, rel=0.08)
    prompt_s = float(times.seconds(arm.k, 0, 0, 0, 10**4) - times.seconds(arm.k, 0, 0, 0, 0)) / 10**4
    assert float(costs.prompt_s) == pytest.approx(prompt_s, rel=0.15)

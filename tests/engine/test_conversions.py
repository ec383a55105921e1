"""An arm that was calibrated at one acceptance and one length, predicted at others, against the engine on the event clock."""

from __future__ import annotations

import numpy as np
import pytest

from breakeven.arm import NO_SPECULATION
from breakeven.fitting import fit_points
from breakeven.laws.conversion import RequestCosts, Work, latency_parts
from breakeven_sim.engine.costs import default_document
from breakeven_sim.replay.fleet_arms import CostArms
from breakeven_sim.replay.measured import measured_points
from validation.conversions import ENGINES, Elsewhere, calibrated, judge

pytestmark = [pytest.mark.engine, pytest.mark.timeout(240)]

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


def test_what_a_newcomer_waits_for_is_in_the_law_that_is_fitted_over_loads():
    """Long prompts hold up whoever arrives among them: a request's fair share of the work is less than C2."""
    arms = CostArms(default_document().for_gpu("NVIDIA-H100-80GB-HBM3", "costs"), 3)
    prompt, output = 4096, 32
    points = measured_points(arms, (NO_SPECULATION,), np.array([prompt]), np.array([output]), 3)
    fit = fit_points(points).arm(NO_SPECULATION)

    context = prompt + output / 2

    def step_s(requests: int, prompt_tokens: int = 0) -> float:
        times = arms.config(NO_SPECULATION).times
        return float(times.seconds(0, requests, 0, requests * context, prompt_tokens))

    costs = RequestCosts(
        first_s=step_s(0),
        lone_step_s=step_s(1),
        other_step_s=step_s(2) - step_s(1),
        prefill_token_s=(step_s(0, prompt) - step_s(0)) / prompt,
        kv_token_s=0.0,
        context_tokens=context,
    )
    parts = latency_parts(costs, Work(1.0, prompt, output, context))
    assert fit.c1_s == pytest.approx(parts.alone_s, rel=0.01)
    assert fit.c2_s == pytest.approx(parts.company_s, rel=0.02)
    assert fit.c2_s > 1.08 * parts.each_s


@pytest.mark.parametrize("seed", [1, 7])
@pytest.mark.parametrize("arm", [NO_SPECULATION, LONG_PROMPTS.arm], ids=str)
def test_a_calibration_finds_what_the_steps_of_an_engine_cost(arm, seed):
    """With seed 7 the five lone requests accept 8 % less than the arm does: taken as they came, s1 was 3 % too large and s2 11 % too small."""
    arms = CostArms(default_document().for_gpu("NVIDIA-H100-80GB-HBM3", "costs"), seed)
    times = arms.config(arm).times
    found = calibrated(LONG_PROMPTS, arms, seed).arm(arm).steps
    assert found is not None
    context = LONG_PROMPTS.prompt_tokens + LONG_PROMPTS.output_tokens / 2
    empty_s, alone_s, two_s = (float(times.seconds(arm.k, n, n * arm.k, n * context, 0)) for n in (0, 1, 2))
    kv_s = float(times.seconds(arm.k, 1, 0, 10**6, 0) - times.seconds(arm.k, 1, 0, 0, 0)) / 10**6
    prompt_s = float(times.seconds(arm.k, 0, 0, 0, 10**4)) - empty_s
    assert found.prefill_token is not None
    assert found.kv_token is not None
    assert found.prefill_token.value_s == pytest.approx(prompt_s / 10**4, rel=0.01)
    assert found.kv_token.value_s == pytest.approx(kv_s, rel=0.1)
    assert found.lone_step.value_s == pytest.approx(alone_s, rel=0.01)
    assert found.other_step.value_s == pytest.approx(two_s - alone_s, rel=0.05)

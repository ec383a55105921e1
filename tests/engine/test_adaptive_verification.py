"""Adaptive verification: what the simulated engine does and counts, and what a fit makes of its points."""

from __future__ import annotations

import json
import math
from functools import cache

import numpy as np
import pytest

from breakeven.arm import NO_SPECULATION, Arm
from breakeven.errors import InputError
from breakeven.fitting import fit_points
from breakeven.points.point import Point
from breakeven.profile import Profile
from breakeven_sim.engine.configuration import DraftLengths, EngineConfig, engine_config
from breakeven_sim.engine.core import Engine
from breakeven_sim.engine.costs import default_document
from breakeven_sim.engine.drafting import mean_tokens_per_step
from breakeven_sim.engine.requests import Request
from breakeven_sim.engine.serve_arguments import parse
from breakeven_sim.engine.server import prepare
from breakeven_sim.engine.speculative_config import speculation
from breakeven_sim.replay.fleet_arms import CostArms
from breakeven_sim.replay.measured import measured_points

TWO, SEVEN = Arm("eagle3", 2), Arm("eagle3", 7)
ADAPTIVE = Arm("eagle3", 7, scheduled=True, adaptive=True)
COSTS = next(iter(default_document().gpus.values()))
CONFIG = {
    "method": "eagle3",
    "model": "org/head",
    "num_speculative_tokens": 7,
    "enable_adaptive_verification": True,
}


@cache
def measured(seed: int) -> tuple[Point, ...]:
    random = np.random.default_rng(3)
    prompts, outputs = random.integers(200, 600, 400), random.integers(100, 300, 400)
    return tuple(
        measured_points(CostArms(COSTS), (NO_SPECULATION, TWO, SEVEN, ADAPTIVE), prompts, outputs, seed)
    )


@cache
def profile() -> Profile:
    return fit_points(measured(1))


def test_the_fuller_the_batch_the_fewer_drafts_are_verified():
    drafts = speculation(CONFIG).drafts
    tiers = engine_config(COSTS, "eagle3", drafts).drafts.tiers
    lengths = [k for _, k in tiers]
    assert lengths == sorted(lengths, reverse=True)
    assert lengths[0] > lengths[-1]


@pytest.mark.parametrize("batch", [1, 40])
def test_a_step_costs_the_whole_draft_and_the_verification_of_a_part_of_it(batch):
    whole = engine_config(COSTS, "eagle3", DraftLengths(7)).times
    adaptive = engine_config(COSTS, "eagle3", DraftLengths(7, adaptive=True)).times
    assert adaptive.seconds(7, batch, 7 * batch, 0, 0) == pytest.approx(
        whole.seconds(7, batch, 7 * batch, 0, 0)
    )
    spared_s = adaptive.seconds(7, batch, 7 * batch, 0, 0) - adaptive.seconds(3, batch, 3 * batch, 0, 0)
    assert spared_s == pytest.approx(4 * batch * COSTS.step.per_token_s * COSTS.time_scale)


def long_contexts(profiled: int) -> EngineConfig:
    """An engine whose step costs depend on the context, with a table of costs at so many tokens of it."""
    step = COSTS.step.model_copy(update={"per_kv_token_s": 20 * COSTS.step.per_kv_token_s})
    costs = COSTS.model_copy(update={"step": step})
    return engine_config(costs, "eagle3", DraftLengths(7, adaptive=True, profiled_context=profiled))


def token_s(config: EngineConfig, batch: int, context: int) -> float:
    """Time of a token in steps of a batch that verify as the engine's table has it."""
    k = config.drafts.at(batch)
    text = COSTS.method("eagle3").text
    return config.times.seconds(k, batch, k * batch, batch * context, 0) / mean_tokens_per_step(text, k)


def test_a_table_of_longer_contexts_than_live_ones_verifies_too_much_and_one_of_shorter_too_little():
    right, long, short = (long_contexts(profiled) for profiled in (1000, 60_000, 0))
    batches = range(1, 200)
    assert all(short.drafts.at(n) <= right.drafts.at(n) <= long.drafts.at(n) for n in batches)
    assert any(short.drafts.at(n) < right.drafts.at(n) < long.drafts.at(n) for n in batches)


def test_a_stale_table_costs_time_and_the_right_one_costs_none():
    at = {profiled: long_contexts(profiled) for profiled in (0, 1000, 8192, 60_000)}
    lost = {
        profiled: max(token_s(config, n, 1000) / token_s(at[1000], n, 1000) - 1.0 for n in range(1, 200))
        for profiled, config in at.items()
    }
    assert lost[1000] == 0.0
    assert lost[0] > 0.01
    assert lost[60_000] >= lost[8192] > 0.01


@pytest.mark.parametrize(("value", "tokens"), [(None, 8192), ("900", 900)])
def test_the_context_of_the_table_is_read_from_the_variable_as_vllm_does(value, tokens):
    environment = {} if value is None else {"VLLM_ADAPTIVE_VERIFICATION_PROFILE_CONTEXT_LEN": value}
    arguments = parse(["m", "--speculative-config", json.dumps(CONFIG)], environment)
    assert prepare(arguments).config.drafts.profiled_context == tokens


def test_a_context_that_is_no_number_is_refused_by_name():
    with pytest.raises(InputError, match="PROFILE_CONTEXT_LEN: 'long'; expected a number of tokens"):
        parse(["m"], {"VLLM_ADAPTIVE_VERIFICATION_PROFILE_CONTEXT_LEN": "long"})


def test_ranks_that_share_requests_keep_it_because_vllm_takes_only_tables_away():
    arguments = parse(["m", "--speculative-config", json.dumps(CONFIG), "--data-parallel-size", "2"], {})
    assert prepare(arguments).config.drafts.adaptive


def test_drafts_that_are_not_verified_are_counted_as_drafted_all_the_same():
    arms = CostArms(COSTS)
    engine, texts = Engine(arms.config(ADAPTIVE)), arms.texts(ADAPTIVE)
    requests = [Request(i, 0.0, 50, 100, texts.draw(i, 100, 50)) for i in range(60)]
    for request in requests:
        engine.submit(request)
    engine.advance(1e6)
    verified = arms.config(ADAPTIVE).drafts.at(60)
    assert verified < 7
    assert all(request.drafted == 7 * request.steps == 7 * request.drafts for request in requests)
    assert max(request.accepted / request.drafts for request in requests) <= 7
    assert sum(r.accepted for r in requests) / sum(r.drafts for r in requests) <= verified


def test_accepted_over_drafted_falls_with_the_load_and_the_tokens_per_step_tell_why():
    own = [point for point in measured(1) if point.arm == ADAPTIVE]
    assert all(point.drafted_per_step == pytest.approx(7.0) for point in own)
    assert own[-1].tokens_per_step < own[0].tokens_per_step - 0.05


def test_the_law_of_steps_predicts_it_as_well_as_the_arms_of_one_length():
    fitted = profile()
    missed = {
        arm: [
            abs(fitted.curve(arm).at_rps(one.request_rate_rps) / one.mean_latency_s - 1.0)
            for one in measured(7)
            if one.arm == arm
        ]
        for arm in (SEVEN, ADAPTIVE)
    }
    assert np.mean(missed[ADAPTIVE]) < np.mean(missed[SEVEN]) + 0.01


def test_its_rows_are_no_noise_for_the_law_of_the_others():
    without = fit_points([one for one in measured(1) if one.arm != ADAPTIVE])
    scatter, alone = (math.hypot(one.steps.form.sd, one.steps.noise) for one in (profile(), without))
    assert scatter < 1.3 * alone


def test_its_acceptance_is_none_of_the_family_s_and_no_other_one_is_converted_to_it():
    (family,) = profile().drafters
    assert family.draft_lengths == (0, 2, 7)
    assert profile().arm(ADAPTIVE).tokens_per_step is None
    again = Profile.from_json(profile().to_json())
    assert again.curve(ADAPTIVE).at_rps(5.0) == profile().curve(ADAPTIVE).at_rps(5.0)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"method": "ngram", "model": None}, "a method that runs a drafter"),
        ({"use_local_argmax_reduction": True}, "one of the two"),
    ],
)
def test_a_configuration_that_vllm_refuses_is_refused(change, words):
    with pytest.raises(InputError, match=words):
        speculation(CONFIG | change)


@pytest.mark.parametrize("flag", [["--enable-lora"], ["--enforce-eager"], ["--pipeline-parallel-size", "2"]])
def test_flags_that_vllm_refuses_beside_it_are_refused(flag):
    argv = ["m", "--speculative-config", json.dumps(CONFIG), *flag]
    with pytest.raises(InputError, match=flag[0]):
        parse(argv, {})
    parse(
        ["m", "--speculative-config", json.dumps(CONFIG | {"enable_adaptive_verification": False}), *flag], {}
    )

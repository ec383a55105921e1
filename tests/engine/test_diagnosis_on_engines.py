"""For each cause an engine on the event clock that has it: calibrated as a calibration does it, then looked at under load."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from breakeven.arm import NO_SPECULATION, Arm
from breakeven.profile import Profile
from breakeven.serving.counted_window import Load
from breakeven.serving.diagnosis import Diagnosis, diagnose
from breakeven.serving.findings import Cause
from breakeven.serving.model_watch import ModelSnapshot
from breakeven_sim.engine.core import Engine
from breakeven_sim.engine.costs import EngineCosts, default_document
from breakeven_sim.engine.requests import Request
from breakeven_sim.replay.fleet_arms import CostArms
from validation.conversions import CalibratedEngine, calibrated

pytestmark = pytest.mark.engine

EAGLE = Arm("eagle3", 5)
PROMPT, OUTPUT = 512, 128
REQUESTS, WARM_UP = 500, 100


def engine(**changes: dict[str, Any]) -> EngineCosts:
    """The H100 of the default costs with other figures: `step`, `memory`, or `draft`, `text`, `method` of eagle3."""
    costs = default_document().for_gpu("NVIDIA-H100-80GB-HBM3", "test")
    method = costs.methods["eagle3"]
    method = method.model_copy(
        update={
            "draft": method.draft.model_copy(update=changes.get("draft", {})),
            "text": method.text.model_copy(update=changes.get("text", {})),
            **changes.get("method", {}),
        }
    )
    return costs.model_copy(
        update={
            "step": costs.step.model_copy(update=changes.get("step", {})),
            "memory": costs.memory.model_copy(update=changes.get("memory", {})),
            "methods": {**costs.methods, "eagle3": method},
        }
    )


def looked_at(
    costs: EngineCosts, rps: float, arm: Arm = EAGLE, *, prompt: int = PROMPT, output: int = OUTPUT
) -> ModelSnapshot:
    """Figures in Prometheus of one replica under Poisson arrivals."""
    arms, random = CostArms(costs, 2), np.random.default_rng(3)
    one, texts = Engine(arms.config(arm)), arms.texts(arm)
    arrivals = np.cumsum(random.exponential(1.0 / rps, REQUESTS)).tolist()
    requests = [Request(i, arrived, prompt, output) for i, arrived in enumerate(arrivals)]
    survived, drafts, used = [0] * arm.k, 0, 0.0

    def until(time_s: float) -> None:
        nonlocal drafts, used
        while one.next_end_s() <= time_s and one.outstanding:
            for gained in one.step().progress:
                drafts += gained.drafted > 0
                for place in range(gained.accepted):
                    survived[place] += 1
            used = max(used, one.kv_usage)
        one.advance(time_s)

    for request in requests:
        request.text = texts.draw(request.number, request.output_tokens) if texts is not None else None
        until(request.arrival_s)
        one.submit(request)
    until(math.inf)
    counted = requests[WARM_UP:-WARM_UP]
    latency_s = float(np.mean([r.finished_s - r.arrival_s for r in counted]))
    ttft_s = float(np.mean([r.first_token_s - r.arrival_s for r in counted]))
    steps = sum(r.steps for r in counted)
    span_s = counted[-1].arrival_s - counted[0].arrival_s
    return ModelSnapshot(
        pods=1,
        window=Load(
            window_s=span_s,
            rps=len(counted) / span_s,
            total_rps=len(counted) / span_s,
            requests=len(counted),
            latency_s=latency_s,
            ttft_s=ttft_s,
            tpot_s=(latency_s - ttft_s) / (output - 1),
            step_s=(latency_s - ttft_s) * len(counted) / steps,
            tokens_per_step=sum(r.output_tokens - 1 for r in counted) / steps,
            survival=tuple(count / drafts for count in survived),
            preemptions=float(one.preemptions),
            prompt_tokens=float(prompt),
            output_tokens=float(output),
        ),
        speculating=True,
        waiting_min=0.0,
        kv_usage=used,
    )


@functools.cache
def sound() -> Profile:
    """The H100 as it is, with what it accepted."""
    return profile_of(engine())


def profile_of(costs: EngineCosts, prompt: int = PROMPT, output: int = OUTPUT) -> Profile:
    """A calibration of the engine; survival by position as a lone replica shows it."""
    profile = calibrated(CalibratedEngine("one", prompt, output, EAGLE), CostArms(costs, 1), 1)
    accepted = looked_at(costs, 1.0, prompt=prompt, output=output).window.survival
    return replace(
        profile,
        arms=tuple(
            replace(fit, acceptance=replace(fit.acceptance, survival=accepted)) if fit.k else fit
            for fit in profile.arms
        ),
    )


def causes(found: Diagnosis) -> Sequence[Cause]:
    return [finding.cause for finding in found.findings]


def saturation_rps(profile: Profile) -> float:
    return min(float(fit.saturation_rps or math.inf) for fit in profile.arms)


def test_a_sound_engine_pays_and_only_its_time_between_outputs_looks_like_a_loss():
    """A step of five drafts takes longer than one without, and makes more than one token."""
    found = diagnose(looked_at(engine(), 2.0), sound(), EAGLE)
    assert found.pays is True
    assert causes(found) == [Cause.ITL_IS_NOT_TPOT]
    assert "time per output token" in found.findings[0].remedy


def test_a_head_of_another_model_fails_at_the_first_position():
    """Accepted are a quarter at position 1: the tokens that follow are as likely as before, once there is a first."""
    wrong = engine(text={"easy_rate": 0.35, "hard_rate": 0.3})
    found = diagnose(looked_at(wrong, 2.0), sound(), EAGLE)
    assert causes(found)[0] is Cause.DRAFTER_MISMATCH
    assert "tokenizer" in found.findings[0].remedy
    assert "calibrated" in found.findings[0].evidence


def test_a_slow_drafter_is_told_by_what_it_adds_to_a_step():
    slow = engine(draft={"flat_s": 0.004, "per_position_s": 0.004})
    found = diagnose(looked_at(slow, 1.0), profile_of(slow), EAGLE)
    assert found.pays is False
    assert causes(found)[0] is Cause.SLOW_DRAFTER
    assert "replicas" not in found.findings[0].remedy
    # 24 ms of drafting; verifying five drafts takes 0.13 ms.
    assert "drafting adds 2" in found.findings[0].evidence


def test_on_a_step_that_is_computed_and_not_read_no_draft_pays_and_replicas_do_not_help():
    computed = engine(
        step={"base_s": 0.0005, "per_token_s": 0.002}, draft={"flat_s": 0.0, "per_position_s": 0.0005}
    )
    found = diagnose(looked_at(computed, 0.3), profile_of(computed), EAGLE)
    assert found.pays is False
    assert causes(found)[0] is Cause.NEVER_PAYS
    assert "another drafter, n-gram or none" in found.findings[0].remedy
    assert "replicas" not in found.findings[0].remedy


def test_a_drafter_that_takes_the_pool_is_told_before_the_pool_is_full():
    tight = engine(memory={"device_gib": 21.5}, method={"kv_pool_share": 0.3})
    profile = profile_of(tight)
    rps = 0.85 * saturation_rps(profile)
    seen = looked_at(tight, rps)
    assert seen.kv_usage > 0.95
    # A calibration reads how many requests fit from the use of the pool at each point.
    fits = {
        arm: float(CostArms(tight, 1).config(arm).kv_pool_tokens / (PROMPT + OUTPUT / 2))
        for arm in (EAGLE, NO_SPECULATION)
    }
    profile = replace(profile, arms=tuple(replace(fit, kv_requests=fits[fit.arm]) for fit in profile.arms))
    found = causes(diagnose(seen, profile, EAGLE))
    assert found[0] is Cause.DRAFTER_IN_KV_POOL
    assert Cause.KV_CACHE_FULL in found


def test_prompts_that_grew_are_told_before_what_they_do():
    profile = sound()
    seen = looked_at(engine(), 1.2, prompt=12 * PROMPT, output=8)
    found = diagnose(seen, profile, EAGLE)
    assert causes(found)[0] is Cause.PROMPTS_SHIFTED
    assert "prompts of 6144 tokens where 512 were calibrated" in found.findings[0].evidence


@pytest.mark.parametrize(
    ("without", "own", "live", "expected"),
    [
        (0.6, 0.1, 0.1, Cause.PREFIX_HITS_LOST),
        (0.1, 0.1, 0.7, Cause.PREFIX_HITS_SHIFTED),
        (0.6, 0.55, 0.5, None),
        (None, None, 0.9, None),
    ],
)
def test_prefixes_that_an_arm_does_not_find_are_a_cause_where_they_were_counted(without, own, live, expected):
    profile, seen = sound(), looked_at(engine(), 2.0)
    hits = {NO_SPECULATION: without, EAGLE: own}
    arms = tuple(replace(fit, prefix_hit_ratio=hits[fit.arm]) for fit in profile.arms)
    seen = replace(seen, window=replace(seen.window, prefix_hit_ratio=live))
    found = causes(diagnose(seen, replace(profile, arms=arms), EAGLE))
    of_prefixes = [one for one in found if one in {Cause.PREFIX_HITS_LOST, Cause.PREFIX_HITS_SHIFTED}]
    assert of_prefixes == ([expected] if expected else [])


def test_positions_that_nothing_survives_to_name_the_shorter_length_and_what_it_gains():
    short = Arm("eagle3", 2)
    costs = engine(text={"easy_rate": 0.5, "hard_rate": 0.3, "depth_decay": 0.4})
    both = profile_of(costs)
    other = calibrated(CalibratedEngine("short", PROMPT, OUTPUT, short), CostArms(costs, 1), 1).arm(short)
    seen = looked_at(costs, 1.0)
    dead = next(place for place, share in enumerate(seen.window.survival) if share < 0.05)
    assert dead == 2
    profile = replace(
        both, arms=(*both.arms, replace(other, acceptance=replace(other.acceptance, survival=())))
    )
    told = next(one for one in diagnose(seen, profile, EAGLE).findings if one.cause is Cause.DRAFT_TOO_LONG)
    assert told.remedy.startswith("try num_speculative_tokens 2: ")
    assert "x against no speculation, where eagle3/5 is" in told.remedy


def test_prompts_that_were_always_long_are_told_before_the_drafter():
    """Nothing has shifted: most of a request passes before its first token, where no draft helps."""
    slow, lengths = engine(draft={"flat_s": 0.004, "per_position_s": 0.004}), {"prompt": 6144, "output": 8}
    found = diagnose(looked_at(slow, 0.7, **lengths), profile_of(slow, **lengths), EAGLE)
    assert found.pays is False
    assert causes(found)[0] is Cause.PREFILL_DOMINATES
    assert "prefix caching" in found.findings[0].remedy


def test_an_arm_that_pays_in_company_only_is_told_to_rest_at_low_load_not_for_good():
    """Context is read once per step: drafts of several requests share that cost, and a lone request pays for the drafter by itself."""
    dear = engine(step={"base_s": 0.002, "per_kv_token_s": 4e-6}, draft={"flat_s": 0.012})
    found = diagnose(looked_at(dear, 0.3), profile_of(dear), EAGLE)
    assert found.pays is False
    assert causes(found)[0] is Cause.TOO_LITTLE_LOAD
    assert "pays at higher loads only" in found.findings[0].remedy

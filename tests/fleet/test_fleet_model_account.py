"""Live latency against the profile: the account, the doubt, the calibration that is asked for, and the arm that stays."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from datetime import datetime
from typing import Any

import pytest

from breakeven_operator.kinds import RUNS
from fakes.fleet_world import BREAK_EVEN_RPS, VALUE, FleetWorld

LABELS = {"specsvc_namespace": "llm", "specsvc": "chat"}


async def speculating(rps: float = 3.0, **policy: object) -> FleetWorld:
    """A world in which eagle/3 runs by a confirmed roll and its account has begun."""
    world = FleetWorld(lambda spec: spec["updatePolicy"].update(policy))
    world.calibrate()
    world.load(rps)
    await world.until(lambda: world.phase == "Confirming")
    world.load(rps)
    await world.until(lambda: world.phase is None)
    await world.until(lambda: "model" in world.whole)
    return world


async def minutes(
    world: FleetWorld, count: int, until: Callable[[], bool] = lambda: False, *, step_s: float = 60.0
) -> None:
    """Cycles for so many minutes, or until something holds."""
    for _ in range(round(count * 60 / step_s)):
        if until():
            return
        await world.cycle(step_s)


def metric(world: FleetWorld, name: str, **labels: str) -> float | None:
    return world.registry.get_sample_value(name, {**LABELS, **labels})


async def test_an_engine_that_keeps_the_promise_agrees_with_its_profile():
    world = await speculating()
    await minutes(world, 45)
    model = world.whole["model"]
    assert (model["arm"], model["profile"]) == ("eagle/3", "chat-p1")
    assert float(model["latencyRatio"]) == pytest.approx(1.0, abs=0.03)
    assert float(model["latencyRatioLower"]) < 1 < float(model["latencyRatioUpper"])
    # 3 rps: 1/(1 - 3 * 0.05) s without speculation, 0.5/(1 - 3 * 0.08) s with it.
    true = (1.0 / 0.85) / (0.5 / 0.76)
    assert float(model["measuredSpeedup"]) == pytest.approx(true, rel=0.05)
    assert float(model["speedupLower"]) < true < float(model["speedupUpper"])
    assert world.condition("ModelAgrees")["status"] == "True"
    assert metric(world, "breakeven_model_error_ratio", arm="eagle/3", bound="estimate") == pytest.approx(
        1, abs=0.03
    )
    assert metric(world, "breakeven_doubt", reason="ModelDisagrees") == 0
    assert world.memory["account"]["windows"]
    ends = [one["time"] for one in world.memory["account"]["windows"]]
    assert ends == sorted(set(ends))
    assert not world.cluster.of(RUNS)


async def test_windows_of_an_account_do_not_overlap_and_are_few():
    world = await speculating()
    await minutes(world, 75)
    ends = [datetime.fromisoformat(one["time"]) for one in world.memory["account"]["windows"]]
    apart = [(b - a).total_seconds() for a, b in itertools.pairwise(ends)]
    # Six make half an hour, and from then on two an hour are enough.
    assert len(ends) in {7, 8}
    assert min(apart) >= 300
    assert max(apart) >= 1800


@pytest.mark.claim("docs/numbers.md", "the condition `ModelAgrees` is False")
async def test_latency_outside_of_the_bounds_for_long_makes_the_profile_suspect_and_asks_for_one_calibration():
    world = await speculating()
    await minutes(world, 35)
    rolls = len(world.rolls)
    world.prometheus.traffic.latency_s *= 1.4
    await minutes(world, 10)
    assert world.condition("ModelAgrees")["status"] == "True", "a few windows are no disagreement"
    await minutes(world, 50)
    condition = world.condition("ModelAgrees")
    assert (condition["status"], condition["reason"]) == ("False", "ModelDisagrees")
    assert "chat-p1 predicts for eagle/3" in condition["message"]
    assert "no arm is entered on its word" in condition["message"]
    assert world.memory["suspicion"]["profile"] == "chat-p1"
    assert world.events.count("ModelDisagrees") == 1
    assert metric(world, "breakeven_doubt", reason="ModelDisagrees") == 1
    (run,) = world.cluster.of(RUNS)
    assert run["spec"]["trigger"] == "ModelDisagrees"
    assert len(world.rolls) == rolls, "1.4 times as long is still faster than no speculation"
    assert world.value == VALUE


async def test_a_new_profile_ends_the_suspicion():
    world = await speculating()
    world.prometheus.traffic.latency_s *= 1.4
    await minutes(world, 120, lambda: "suspicion" in world.memory)
    world.clock.advance(60.0)
    world.calibrate(name="chat-p2")
    await minutes(world, 1)
    assert "suspicion" not in world.memory
    assert world.condition("ModelAgrees")["status"] == "Unknown"


@pytest.mark.parametrize("mode", ["RollingUpdate", "Recommend"])
async def test_a_suspect_profile_takes_the_fleet_nowhere_it_has_not_been(mode):
    """No speculation is slower than predicted; that eagle/3 would be entered at a lower load is the profile's word alone."""
    world = FleetWorld(lambda spec: spec["updatePolicy"].update(mode=mode))
    world.calibrate()
    world.load(BREAK_EVEN_RPS * 1.1)
    world.prometheus.traffic.latency_s *= 1.4
    await minutes(world, 120, lambda: "suspicion" in world.memory)
    world.load(1.0)
    await minutes(world, 20)
    assert world.value is None
    assert world.decision["reason"] == "ProfileSuspect"
    assert "chat-p1 alone speaks for it" in world.decision["message"]
    assert world.decision["arm"] == "eagle/3"


async def test_an_arm_whose_acceptance_fell_stays_while_its_requests_are_fast_and_says_both():
    """A text that drifts: noticed, reported, measured again once, and the arm kept on its measured latency."""
    world = await speculating()
    await minutes(world, 60)
    rolls = len(world.rolls)
    world.prometheus.traffic.tokens_per_step = 1.3
    world.prometheus.traffic.prompt_tokens = 5000.0
    await minutes(world, 90)
    assert (world.value, len(world.rolls)) == (VALUE, rolls)
    for name, word in (
        ("AcceptanceAsCalibrated", "AcceptanceDrifted"),
        ("LengthsAsCalibrated", "LengthsDrifted"),
    ):
        assert (world.condition(name)["status"], world.condition(name)["reason"]) == ("False", word)
        assert world.events.count(word) == 1
        assert metric(world, "breakeven_doubt", reason=word) == 1
    assert (
        "tokens per step where 2.50 were calibrated" in world.condition("AcceptanceAsCalibrated")["message"]
    )
    assert (
        "prompts of 5000 tokens where 200 were calibrated"
        in world.condition("LengthsAsCalibrated")["message"]
    )
    (run,) = world.cluster.of(RUNS)
    assert run["spec"]["trigger"] in {"AcceptanceDrifted", "LengthsDrifted", "ModelDisagrees"}
    # Another profile that is no better: within the pause there is no other calibration.
    world.cluster.objects.pop(("calibrationruns", "llm", run["metadata"]["name"]))
    assert world.whole["calibration"]["doubts"] == 1


async def test_a_profile_that_is_doubted_again_is_not_measured_again_within_the_pause():
    world = await speculating()
    world.prometheus.traffic.latency_s *= 1.4
    await minutes(world, 150, lambda: bool(world.cluster.of(RUNS)))
    (run,) = world.cluster.of(RUNS)
    started = world.clock.now()
    run["status"] = {
        "phase": "Succeeded",
        "finishedTime": started.strftime("%Y-%m-%dT%H:%M:%SZ"),
        "reason": "CalibrationSucceeded",
    }
    world.cluster.put(RUNS, run)
    world.calibrate(name="chat-p2")
    await minutes(world, 100)
    assert world.memory["suspicion"]["profile"] == "chat-p2"
    assert len(world.cluster.of(RUNS)) == 1, "twice the pause of an hour"
    await minutes(world, 40)
    assert len(world.cluster.of(RUNS)) == 2


async def test_where_speculation_does_not_pay_the_status_says_why_and_what_to_do():
    def speculates(target: dict[str, Any]) -> None:
        target["spec"]["template"]["metadata"]["annotations"]["breakeven.dev/speculative-config"] = VALUE

    world = FleetWorld(lambda spec: spec["updatePolicy"].update(mode="Recommend"), speculates)
    world.calibrate()
    world.load(BREAK_EVEN_RPS * 1.15)
    await minutes(world, 15, lambda: "cause" in world.whole.get("model", {}))
    model = world.whole["model"]
    assert model["cause"] == "BeyondBreakEven"
    assert "it pays until 9." in model["causeEvidence"]
    assert "run without speculation" in model["remedy"]
    world.load(2.0)
    await minutes(world, 15, lambda: "cause" not in world.whole["model"])
    assert "cause" not in world.whole["model"]


async def test_an_adaptive_engine_s_table_of_other_contexts_is_said_with_the_figure_to_set():
    """vLLM times its steps with 8,192 tokens of context; these requests hold some 330."""

    def by_hand(target: dict[str, Any]) -> None:
        config = {**json.loads(VALUE), "enable_adaptive_verification": True}
        annotations = target["spec"]["template"]["metadata"]["annotations"]
        annotations["breakeven.dev/speculative-config"] = json.dumps(config)

    world = FleetWorld(lambda spec: spec["updatePolicy"].update(mode="Recommend"), by_hand)
    world.calibrate()
    world.load(1.0)
    await minutes(world, 5)
    condition = world.condition("CostTableFits")
    assert (condition["status"], condition["reason"]) == ("False", "CostTableStale")
    assert "set VLLM_ADAPTIVE_VERIFICATION_PROFILE_CONTEXT_LEN=" in condition["message"]
    assert world.events.count("CostTableStale") == 1
    assert metric(world, "breakeven_doubt", reason="CostTableStale") == 1
    world.prometheus.traffic.prompt_tokens = 8000.0
    await minutes(world, 5)
    assert world.condition("CostTableFits")["status"] == "True"


async def test_of_a_table_nothing_is_said_while_no_adaptive_engine_runs():
    world = await speculating()
    await minutes(world, 5)
    assert "CostTableFits" not in {one["type"] for one in world.status["conditions"]}

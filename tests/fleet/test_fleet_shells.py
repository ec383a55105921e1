"""Targets that start vLLM by a shell: looked at and calibrated if the text can be read, rolled if it takes the arm."""

from __future__ import annotations

from typing import Any

import pytest

from breakeven_operator.kinds import JOBS
from fakes.fleet_world import VALUE, FleetWorld

FLAGS = "org/chat-8b --served-model-name chat --port 8000 --shutdown-timeout 120"
TAKES_THE_ARM = f'exec vllm serve {FLAGS} --speculative-config "$BREAKEVEN_SPECULATIVE_CONFIG"'
HAS_ITS_OWN = f"exec vllm serve {FLAGS} --spec-method ngram --spec-tokens 3"


def world_of(text: str, mode: str = "RollingUpdate") -> FleetWorld:
    def shell(target: dict[str, Any]) -> None:
        engine = target["spec"]["template"]["spec"]["containers"][0]
        engine |= {"command": ["/bin/sh", "-c"], "args": [text]}

    return FleetWorld(
        lambda spec: spec["updatePolicy"].update(stabilizationWindowSeconds=0, mode=mode), target=shell
    )


async def test_a_text_that_takes_the_arm_is_rolled_like_any_other():
    world = world_of(TAKES_THE_ARM)
    world.calibrate()
    world.load(3.0)
    await world.until(lambda: world.value == VALUE, cycles=5)
    assert world.whole["target"]["optedIn"] is True


@pytest.mark.parametrize("text", [f"exec vllm serve {FLAGS}", f"pip list && exec vllm serve {FLAGS}"])
async def test_a_text_that_does_not_take_the_arm_is_looked_at_and_told_the_line(text):
    world = world_of(text)
    world.calibrate()
    world.load(3.0)
    await world.until(lambda: world.decision.get("arm") is not None, cycles=5)
    assert (world.decision["action"], world.reason) == ("Hold", "NotOptedIn")
    assert "eagle/3" in world.decision["message"]
    assert 'write --speculative-config "$BREAKEVEN_SPECULATIVE_CONFIG"' in world.decision["message"]
    assert world.rolls == []


async def test_a_text_that_cannot_be_read_to_its_end_is_looked_at_and_named():
    world = world_of(f"[ -f /models/x ] && exec vllm serve {FLAGS}\nsleep infinity")
    world.calibrate()
    world.load(3.0)
    await world.until(lambda: world.reason == "EngineUnclear", cycles=5)
    assert "shell" in world.decision["message"]
    assert world.status["decision"]["arm"], "what should run is said all the same"
    assert world.rolls == []


async def test_a_text_that_starts_no_vllm_is_no_target():
    world = world_of("/start.sh")
    await world.until(lambda: world.reason == "EngineUnclear", cycles=3)
    assert world.condition("Ready")["reason"] == "EngineUnclear"
    assert "vLLM" in world.condition("Ready")["message"]


async def test_a_calibration_runs_the_text_with_the_arm_of_its_pod():
    world = world_of(HAS_ITS_OWN, mode="Recommend")
    world.load(3.0)
    await world.until(lambda: bool(world.cluster.of(JOBS)), cycles=5)
    (job,) = world.cluster.of(JOBS)
    (engine,) = (one for one in job["spec"]["template"]["spec"]["initContainers"] if one["name"] == "engine")
    assert engine["command"] == ["/bin/sh", "-c"]
    assert engine["args"] == [f"exec vllm serve {FLAGS} --speculative-config=null"]

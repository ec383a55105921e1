"""No profile is in force: by the one of before an arm that loses is left, and none is entered."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from breakeven.serving import vllm_versions
from breakeven_operator.kinds import DEPLOYMENTS, NODES, PROFILES
from fakes.fleet_world import FleetWorld

pytestmark = pytest.mark.asyncio
Event = Callable[[FleetWorld], None]


def template(change: Callable[[dict[str, Any]], None]) -> Event:
    """A person rolls the target with another container; no GPU is spare for a calibration."""

    def edit(one: dict[str, Any]) -> None:
        change(one["spec"]["template"]["spec"]["containers"][0])

    return lambda world: world.cluster.change(DEPLOYMENTS, "llm", "chat-vllm", edit)


def lose_labels(world: FleetWorld) -> None:
    for node in world.cluster.of(NODES):
        node["metadata"]["labels"] = {}
        world.cluster.put(NODES, node)


def expire(world: FleetWorld) -> None:
    world.service["spec"]["calibration"] = {"profileMaxAgeSeconds": 3600}
    world.clock.advance(3700.0)


EVENTS = {
    "a flag": (template(lambda one: one["args"].append("--max-num-batched-tokens=8192")), "FingerprintChanged"),
    "a variable": (template(lambda one: one["env"].append({"name": "VLLM_USE_DEEP_GEMM", "value": "1"})), "FingerprintChanged"),
    "an image": (template(lambda one: one.update(image="vllm/vllm-openai:v0.32.1")), "FingerprintChanged"),
    "a shared GPU": (template(lambda one: one.update(resources={"limits": {"nvidia.com/gpu": 1, "nvidia.com/gpumem": 3000}})), "FingerprintChanged"),
    "a lost label": (lose_labels, "GpuClassUnknown"),
    "an expired profile": (expire, "ProfileExpired"),
}  # fmt: skip


async def cycles(world: FleetWorld, rps: float, number: int) -> None:
    world.load(rps)
    for _ in range(number):
        await world.cycle()


@pytest.mark.parametrize("name", EVENTS)
async def test_an_arm_that_loses_by_the_profile_of_before_is_left_and_none_is_entered(name: str) -> None:
    event, word = EVENTS[name]
    world = FleetWorld()
    await world.speculate()
    event(world)
    await cycles(world, 3.0, 30)
    assert world.whole["current"]["arm"] == "eagle/3", "it pays at this load by the profile of before"
    assert (world.decision["action"], world.decision["basis"]) == ("Hold", "Former")
    assert float(world.decision["speedup"]) > 1.5, "what the alert goes by"
    assert str(world.status["workings"]["display"]["pays"]).startswith("Yes")
    assert "chat-p1, which is not in force" in world.condition("Profitable")["message"]
    assert world.condition("Ready")["status"] == ("False" if word == "GpuClassUnknown" else "True")
    await cycles(world, 13.0, 30)
    assert world.value == "null", "it is saturated, and no speculation is not"
    await cycles(world, 3.0, 12)
    assert world.value == "null", "an old profile enters no arm"


async def test_an_arm_is_not_judged_by_a_profile_of_an_engine_that_counts_its_drafts_otherwise(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # The arm of these tests stands for suffixes, whose drafts are counted otherwise since 0.34.
    monkeypatch.setitem(vllm_versions.FILLED_SINCE, "eagle3", vllm_versions.VllmVersion(0, 33))
    world = FleetWorld()
    await world.speculate()
    template(lambda one: one.update(image="vllm/vllm-openai:v0.33.0"))(world)
    await cycles(world, 3.0, 30)
    await cycles(world, 13.0, 30)
    assert world.value != "null"
    assert world.decision.get("basis") != "Former"
    assert "E and acceptance of eagle3 are not compared between" in world.decision["message"]


async def test_in_mode_recommend_it_is_said_and_nothing_is_changed() -> None:
    world = FleetWorld()
    await world.speculate()
    world.service["spec"]["updatePolicy"]["mode"] = "Recommend"
    EVENTS["a flag"][0](world)
    await cycles(world, 3.0, 30)
    await cycles(world, 13.0, 30)
    assert world.value != "null"
    assert (world.decision["action"], world.decision["arm"]) == ("Recommend", "none")
    assert world.status["workings"]["display"]["pays"] == "No (old)"
    assert float(world.decision["loadRps"]) > float(world.decision["breakEvenRps"]), "the alert goes by it"


@pytest.mark.parametrize("changes", [{"gpuProduct": "NVIDIA-H100-80GB-HBM3"}, {"profile": "{}"}], ids=str)
async def test_a_profile_of_another_gpu_says_nothing(changes: dict[str, str]) -> None:
    world = FleetWorld()
    await world.speculate()
    (profile,) = world.cluster.of(PROFILES)
    profile["spec"] |= {"fingerprint": "000000000000", **changes}
    world.cluster.put(PROFILES, profile)
    await cycles(world, 3.0, 5)
    assert world.decision.get("basis") is None
    await cycles(world, 13.0, 25)
    assert world.value != "null"

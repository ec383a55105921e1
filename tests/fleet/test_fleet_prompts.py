"""A service's answer says for which prompts it holds, where vLLM's histogram of lengths tells them apart."""

from __future__ import annotations

import functools
import re
from typing import Any

import pytest

from breakeven.arm import NO_SPECULATION
from breakeven.fitting import fit_points
from breakeven_operator.plugin.explanation import explanation
from breakeven_operator.plugin.service_view import ServiceView
from fakes.fleet_world import EAGLE, GPU, FleetWorld
from fakes.long_contexts import OUTPUT, PROMPT, long_context_points, true_latency_s

pytestmark = pytest.mark.asyncio
CLIENTS = 96


@functools.cache
def profile_json() -> str:
    return fit_points(long_context_points(EAGLE), provenance={"gpu": GPU}).to_json()


def recommending(spec: dict[str, Any]) -> None:
    spec["updatePolicy"]["mode"] = "Recommend"


async def serving(lengths: tuple[int, ...]) -> FleetWorld:
    """No speculation under the load of so many requests in flight, with prompts of these lengths."""
    took_s = true_latency_s(NO_SPECULATION, CLIENTS, PROMPT)
    world = FleetWorld(recommending)
    world.laws = {NO_SPECULATION: (took_s / 2.0, took_s / 2.0 / CLIENTS), EAGLE: (took_s / 3.0, 0.01)}
    world.calibrate(profile=profile_json())
    traffic = world.prometheus.traffic
    traffic.prompt_tokens, traffic.output_tokens = float(PROMPT), float(OUTPUT)
    traffic.latencies = {"prompt": lengths}
    world.load(CLIENTS / took_s)
    for _ in range(6):
        await world.cycle()
    return world


def parts(world: FleetWorld) -> list[tuple[float, float]]:
    """Upper edge and speedup of each part."""
    found = re.findall(r"up to (\d+) tokens \(\d+ %\) ([\d.]+)x", world.decision["byPrompt"])
    return [(float(edge), float(speedup)) for edge, speedup in found]


async def test_the_sign_of_the_gain_changes_with_the_prompt_and_the_losing_share_is_said() -> None:
    world = await serving((400,) * 50 + (900,) * 50 + (1900,) * 50 + (4000,) * 50)
    said = parts(world)
    assert [edge for edge, _ in said] == [500, 1000, 2000, 5000]
    assert [speedup for _, speedup in said] == sorted(speedup for _, speedup in said)
    for (_, speedup), prompt in zip(said, (400, 900, 1900, 4000), strict=True):
        plain, drafted = (true_latency_s(arm, CLIENTS, prompt) for arm in (NO_SPECULATION, EAGLE))
        assert speedup == pytest.approx(plain / drafted, rel=0.2)
    assert said[0][1] < 0.95
    assert said[-1][1] > 1.05
    assert world.decision["byPrompt"].startswith("LosesAtLengths: 25 % of requests; ")
    view = ServiceView.of({**world.service, "status": world.whole})
    text = " ".join(explanation(view, (), world.clock.now()).split())
    assert "The prompts: eagle/3 by their length: LosesAtLengths: 25 %" in text
    assert "the arm loses more than 5 % with prompts of some length" in text


async def test_prompts_of_one_length_are_one_part_and_lose_nowhere() -> None:
    world = await serving((1500,) * 200)
    assert parts(world) == [(2000.0, pytest.approx(1.12, abs=0.1))]
    assert "LosesAtLengths" not in world.decision["byPrompt"]


async def test_without_a_histogram_nothing_is_said_and_the_question_is_put_once_a_window() -> None:
    world = await serving(())
    assert "byPrompt" not in world.decision
    assert world.decision["speedup"], "the decision itself needs no histogram"
    assert len(world.prometheus.prompt_queries) == 1
    world.clock.advance(300.0)
    await world.cycle()
    assert len(world.prometheus.prompt_queries) == 2

"""A sweep's few points at other lengths, against the simulated engine: they show the costs of its steps."""

from __future__ import annotations

import pytest

from breakeven.arm import NO_SPECULATION
from breakeven.fitting import fit_points
from breakeven.load_driver.client import Endpoint, EngineClient
from breakeven.load_driver.course import Sweep
from breakeven.load_driver.design import SweepSettings, of_the_sweep
from breakeven.load_driver.sent_workload import SentWorkload
from breakeven.load_driver.sweep import run_sweep
from breakeven.points.point import Point
from fakes.simulated_engine import simulated
from fakes.virtual_time import in_virtual_time

pytestmark = pytest.mark.engine

PREFILL_S, KV_S = 2e-4, 4e-6
WORKLOAD = SentWorkload(64, 16)
SETTINGS = SweepSettings(
    loads=3,
    point_seconds=2.0,
    min_point_seconds=1.0,
    warmup_seconds=0.5,
    max_concurrency=6,
    relative_error=0.05,
)


async def measured(url: str, before: list[Point], workload: SentWorkload = WORKLOAD) -> list[Point]:
    """The points that a sweep still measures."""
    found: list[Point] = []

    async def keep(point: Point) -> None:
        found.append(point)

    async with EngineClient(Endpoint(url)) as client:
        sweep = Sweep((NO_SPECULATION,), workload, SETTINGS, lengths=True)
        await run_sweep({NO_SPECULATION: client}, sweep, before, on_point=keep)
    return found


@in_virtual_time
async def test_two_points_at_other_lengths_tell_prefill_and_context(document):
    costs = document(
        step={"base_s": 0.01, "per_token_s": 2e-4, "per_prefill_token_s": PREFILL_S, "per_kv_token_s": KV_S}
    )
    async with simulated(costs) as url:
        points = await measured(url, [])
        assert len(of_the_sweep(points)) == len(points) - 2
        assert await measured(url, points) == []
    law = fit_points(points).steps
    assert law is not None
    costs = law.costs(NO_SPECULATION)
    assert float(costs.prompt_s) == pytest.approx(PREFILL_S, rel=0.1)
    assert float(costs.context_s) == pytest.approx(KV_S, rel=0.6)


@in_virtual_time
async def test_an_engine_too_short_for_longer_prompts_is_swept_as_before(document):
    """The engine takes 4096 tokens: prompts of 1100 are fine, of 4400 refused."""
    step = {"base_s": 0.01, "per_token_s": 2e-4, "per_prefill_token_s": 1e-5, "per_kv_token_s": 1e-7}
    async with simulated(document(step=step)) as url:
        points = await measured(url, [], SentWorkload(1100, 16))
    assert len(points) == SETTINGS.loads + 1


@in_virtual_time
async def test_a_sweep_tells_what_steps_with_prompts_take_more_beside_decodes(document):
    """The costs of one H200: a step of 4.5 ms, a prompt of 17 ms alone and 26 beside others that decode."""
    step = {"base_s": 0.0045, "per_token_s": 4e-6, "per_prefill_token_s": 3.4e-5, "beside_s": 0.009}
    async with simulated(document(step=step)) as url:
        points = await measured(url, [], SentWorkload(512, 64))
    (found,) = (one for one in fit_points(points).step_costs if one.name == "beside_s")
    assert not found.prior
    assert found.value == pytest.approx(0.009, rel=0.25)

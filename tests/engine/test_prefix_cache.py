"""The simulated prefix cache: what it finds, what that spares, and what the load driver reads of it."""

from __future__ import annotations

import asyncio

import pytest
from aiohttp.test_utils import TestClient, TestServer

from breakeven.load_driver.counters import between, read_counters
from breakeven_sim.engine.core import Engine
from breakeven_sim.engine.exposition import CacheInfo, EngineMetrics
from breakeven_sim.engine.prefix_cache import PrefixCache
from breakeven_sim.engine.realtime import PacedEngine
from breakeven_sim.engine.requests import Request
from breakeven_sim.engine.vllm_api import AnswerSource, NamedModel, VllmApi

CACHE = CacheInfo(16, 10_000, 1024.0, 0.92, 1024, None)
PROMPT = [*range(100)]


def test_whole_blocks_from_the_begin_on_are_found():
    cache = PrefixCache(100, 16)
    assert cache.look_up(PROMPT) == 0
    assert cache.look_up([*PROMPT[:50], *range(500, 550)]) == 48
    assert cache.look_up([7, *PROMPT[1:]]) == 0


def test_at_least_one_token_is_left_to_compute():
    cache = PrefixCache(100, 16)
    cache.look_up(PROMPT[:96])
    assert cache.look_up(PROMPT[:96]) == 80


def test_a_drafter_that_reads_hidden_states_loses_the_last_block_that_is_found():
    cache = PrefixCache(100, 16, drops_last=True)
    assert cache.look_up(PROMPT) == 0
    assert cache.look_up(PROMPT) == 80


def test_the_least_recently_used_block_goes_first():
    cache = PrefixCache(4, 16)
    first, second, third = ([*range(start, start + 33)] for start in (0, 100, 200))
    cache.look_up(first)
    cache.look_up(second)
    assert cache.look_up(first) == 32
    cache.look_up(third)
    assert cache.look_up(first) == 32
    assert cache.look_up(second) == 0


def test_what_is_cached_is_not_computed(make_config):
    def first_token_s(cached: int) -> float:
        engine = Engine(make_config(step__per_prefill_token_s=1e-3))
        request = Request(0, 0.0, 400, 2, cached_tokens=cached)
        engine.submit(request)
        engine.advance(1e3)
        return request.first_token_s

    assert first_token_s(0) - first_token_s(320) == pytest.approx(0.32)


@pytest.mark.parametrize(("prefixes", "expected"), [(PrefixCache(1000, 16), 2 * 80 / 450), (None, 0.0)])
async def test_the_load_driver_reads_the_share_of_prompts_that_was_found(make_config, prefixes, expected):
    engine = Engine(make_config(step__base_s=1e-4, step__per_token_s=1e-6))
    metrics = EngineMetrics(engine, "tiny", CACHE, created_s=1.0)
    paced = PacedEngine(engine, metrics.record_step)
    api = VllmApi(paced, metrics, NamedModel(("tiny",), "tiny", 1024), AnswerSource())
    api.prefixes = prefixes
    running = asyncio.create_task(paced.run())
    async with TestClient(TestServer(api.application())) as client:

        async def page() -> str:
            return await (await client.get("/metrics")).text()

        before = read_counters(await page())
        for tail in range(3):
            ids = [*range(80), *range(1000 * (tail + 1), 1000 * (tail + 1) + 70)]
            await client.post("/v1/completions", json={"prompt": ids, "max_tokens": 4})
        window = between(before, read_counters(await page()))
    running.cancel()
    # The first prompt fills the cache, and the other two find its five blocks of 80 tokens.
    assert window.prefix_hit_ratio == pytest.approx(expected)

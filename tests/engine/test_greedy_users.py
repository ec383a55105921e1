"""Users of `make real` against the simulated engine: both sides count the same requests."""

from __future__ import annotations

import pytest

from demo.traffic import Endpoints, RequestShape
from fakes.simulated_engine import simulated
from real.greedy_users import SteadyLoad, Users

_STEP_S = 0.01


@pytest.fixture
async def served(document):
    async with simulated(document(step__base_s=_STEP_S, step__per_token_s=1e-6), model="chat") as url:
        yield url


async def test_users_and_engine_count_the_same_requests(served):
    shape = RequestShape(prompt_tokens=12, output_tokens=8)
    users = Users("chat", shape, Endpoints.fixed({"pod": served}), seed=1)
    offered = await users.offer(SteadyLoad(rps=15.0, shape=shape, seconds=2.0, warmup_s=0.4))
    account = offered.account
    assert account.asked == account.answered == account.engine_requests == 30
    assert account.client_tokens == account.engine_tokens == 30 * 8
    assert account.tokens_per_step == pytest.approx(1.0, abs=0.01)
    assert account.client_latency_s >= account.engine_latency_s * 0.9
    assert 0 < offered.counted < 30
    assert offered.latency_s >= 8 * _STEP_S * 0.9


async def test_a_second_load_has_prompts_of_its_own(served):
    shape = RequestShape(prompt_tokens=12, output_tokens=2)
    users = Users("chat", shape, Endpoints.fixed({"pod": served}), seed=1)
    bodies = [users.body() for _ in range(20)]
    assert len({str(body["prompt"]) for body in bodies}) == 20
    assert all(body["temperature"] == 0 and len(str(body["prompt"]).split()) == 12 for body in bodies)

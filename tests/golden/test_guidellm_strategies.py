"""GuideLLM's other strategies on the simulated engine: what it says of its load is read, and the law holds there.

data/guidellm_0.8.1_concurrent_4.json and guidellm_0.8.1_poisson_6.json were written as test_tools_on_engine_sim tells,
by Python 3.12 with torch 2.13.0, with `--profile kind=concurrent,streams=4,warmup.percent=0.2` for 15 s and
`--profile kind=poisson,rate=6,warmup.percent=0.2` for 25 s. (`throughput` must be given a max_concurrency in 0.8.1.)
"""

from __future__ import annotations

from pathlib import Path

import pytest

from breakeven.arm import NO_SPECULATION
from breakeven.points.point import LoadMode, Point
from breakeven.readers.reading import read_file
from breakeven_sim.engine.costs import parse_costs
from golden.documents import DATA

COSTS = Path(__file__).parents[2] / "examples" / "engine-costs" / "demo.json"
STEP = parse_costs(COSTS.read_text(encoding="utf-8"), "NVIDIA-H100-80GB-HBM3", COSTS.name).step


def point(name: str) -> Point:
    (one,) = read_file(DATA / f"guidellm_0.8.1_{name}.json", NO_SPECULATION)
    assert (one.flags, one.output_tokens) == ((), 32)
    return one


def latency_s(others: float, prompt_tokens: float) -> float:
    """By the engine's costs: a request of 32 output tokens beside `others`."""
    prompt_s = prompt_tokens * STEP.per_prefill_token_s
    return 32 * STEP.base_s + (1 + others) * (32 * STEP.per_token_s + prompt_s)


def test_concurrent_is_a_closed_loop_of_its_streams() -> None:
    one = point("concurrent_4")
    assert (one.load_mode, one.concurrency, one.requests) == (LoadMode.CLOSED, 4, 60)
    assert one.mean_latency_s == pytest.approx(latency_s(one.mean_inflight - 1, one.prompt_tokens), rel=0.02)


def test_poisson_is_an_open_loop_at_its_rate() -> None:
    one = point("poisson_6")
    assert (one.load_mode, one.request_rate_rps, one.requests) == (LoadMode.POISSON, 6, 118)
    # Little's law over the window, and the law at what Poisson arrivals meet: everybody who is there.
    assert one.achieved_rps * one.mean_latency_s == pytest.approx(one.mean_inflight, rel=0.03)
    assert one.mean_latency_s == pytest.approx(latency_s(one.mean_inflight, one.prompt_tokens), rel=0.05)

"""Latencies as vLLM's page counts them, by the simulated engine's own histograms."""

from __future__ import annotations

import json
from collections.abc import Iterable
from functools import cache
from importlib.resources import files
from itertools import accumulate

from breakeven_sim.engine.exposition import Distribution, edges_up_to

_CONTEXT = 40_960

_NAMES = {
    "e2e": "e2e_request_latency_seconds",
    "ttft": "time_to_first_token_seconds",
    "tpot": "request_time_per_output_token_seconds",
    "prompt": "request_prompt_tokens",
}


@cache
def edges(figure: str) -> tuple[float, ...]:
    """Finite upper edges (s, or tokens) of a figure's histogram: e2e, ttft, tpot or prompt."""
    page = json.loads(files("breakeven_sim.engine").joinpath("vllm_0_32_families.json").read_text())
    (family,) = [row for row in page["families"] if row["name"] == _NAMES[figure]]
    return tuple(map(float, page["buckets"].get(family["buckets"]) or edges_up_to(_CONTEXT)))


def vllm_buckets(figure: str, took_s: Iterable[float]) -> dict[str, float]:
    """Requests that took at most so long, by the text of the edge."""
    counted = Distribution(edges(figure))
    for seconds in took_s:
        counted.observe(seconds)
    texts = [*map(repr, edges(figure)), "+Inf"]
    return dict(zip(texts, map(float, accumulate(counted.counts)), strict=True))

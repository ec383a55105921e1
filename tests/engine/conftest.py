"""Small engines whose behaviour has a closed form."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from breakeven_sim.engine.configuration import DraftLengths, EngineConfig, engine_config
from breakeven_sim.engine.costs import DefaultLimits, parse_costs
from breakeven_sim.engine.drafting import TextSource


def costs_document(**changes: Any) -> dict[str, Any]:
    """20 ms per step and 1 ms per token in it; an eagle3 drafter and an n-gram lookup."""
    document: dict[str, Any] = {
        "step": {"base_s": 0.02, "per_token_s": 0.001},
        "memory": {"device_gib": 2.0, "resident_gib": 1.0, "kv_bytes_per_token": 1024},
        "limits": {"max_num_seqs": 256, "max_num_batched_tokens": 8192, "max_model_len": 4096},
        "startup": {"base_s": 0.0},
        "methods": {
            "eagle3": {
                "draft": {"flat_s": 0.002, "per_position_s": 0.003, "per_draft_token_s": 0.0001},
                "text": {
                    "easy_rate": 0.9,
                    "hard_rate": 0.4,
                    "easy_share": 0.5,
                    "mean_easy_stretch_tokens": 100,
                },
                "kv_pool_share": 0.1,
            },
            "ngram": {
                "text": {"easy_rate": 0.8, "hard_rate": 0.01, "easy_share": 0.5, "hard_match": 0.1},
            },
        },
        "zero_drafts_overhead": 0.1,
    }
    for path, value in changes.items():
        target = document
        *parents, last = path.split("__")
        for parent in parents:
            target = target.setdefault(parent, {})
        target[last] = value
    return document


@pytest.fixture
def document() -> Callable[..., dict[str, Any]]:
    return costs_document


@pytest.fixture
def make_config() -> Callable[..., EngineConfig]:
    def make(
        method: str | None = None,
        k: int = 0,
        tiers: tuple[tuple[int, int], ...] = (),
        pool: int = 10**7,
        seqs: int = 10**4,
        batched: int = 10**6,
        **changes: Any,
    ) -> EngineConfig:
        costs = parse_costs(json.dumps(costs_document(**changes)), "", "test")
        return engine_config(
            costs,
            method,
            DraftLengths(k, tiers),
            kv_pool_tokens=pool,
            limits=DefaultLimits(
                max_num_seqs=seqs, max_num_batched_tokens=batched, max_model_len=costs.limits.max_model_len
            ),
        )

    return make


@pytest.fixture
def text_sources() -> Callable[[str, int], TextSource]:
    costs = parse_costs(json.dumps(costs_document()), "", "test")
    return lambda method, seed: TextSource(costs.method(method).text, seed)

"""The simulated engine with costs at which the sign of the gain changes with the context: long prompts gain and short ones lose.

Published of one engine at 256 clients: 21 % less at 400 tokens, 10 % more at 4,000 (vLLM issue 49986). With short contexts a step
is bound by computing, which drafts multiply; with long ones by reading the contexts, which a step does once for all its drafts.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from breakeven.arm import NO_SPECULATION, Arm
from breakeven.points.point import Point
from breakeven_sim.engine.costs import default_document
from breakeven_sim.engine.requests import Request
from breakeven_sim.replay.fleet_arms import CostArms
from breakeven_sim.replay.loops import closed_loop
from breakeven_sim.replay.measured import measured_points

PROMPT, OUTPUT = 1500, 200
_ALPHA = 0.5


@cache
def _arms() -> CostArms:
    costs = default_document().for_gpu("NVIDIA-H100-80GB-HBM3", "test")
    changed: dict[str, Any] = {"per_token_s": 5e-5, "per_kv_token_s": 1e-7, "per_prefill_token_s": 1e-6}
    memory = costs.memory.model_copy(update={"kv_bytes_per_token": 4096})
    return CostArms(
        costs.model_copy(update={"step": costs.step.model_copy(update=changed), "memory": memory}),
        alpha=_ALPHA,
    )


@cache
def long_context_points(arm: Arm) -> tuple[Point, ...]:
    """A calibration of no speculation and of an arm, at one length."""
    lengths = np.array([PROMPT]), np.array([OUTPUT])
    return tuple(measured_points(_arms(), (NO_SPECULATION, arm), *lengths, seed=1))


def true_latency_s(arm: Arm, clients: int, prompt: int) -> float:
    """Mean latency (s) of requests of one length in a closed loop of the engine."""
    requests = [Request(number, 0.0, prompt, OUTPUT) for number in range(6 * clients)]
    closed_loop(_arms(), arm, requests, clients)
    return float(np.mean([one.finished_s - one.arrival_s for one in requests[clients:-clients]]))

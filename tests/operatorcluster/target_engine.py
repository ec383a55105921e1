"""The engine of all targets: short answers, slow steps, so that two cores carry a cluster of them.

Every draft is accepted, so that a few requests tell as much as many and a measurement of seconds can be believed. A lone
request takes 0.39 s without speculation and 0.18 s with three drafts a step; the engine saturates at 20 and 13 requests
per second; the break-even lies near 11 (docs/engine-costs.md has the formulas).
"""

from __future__ import annotations

import functools
from typing import Any

from breakeven.arm import NO_SPECULATION, Arm
from fakes.lawful_profile import lawful_profile_json

A100 = "NVIDIA-A100-SXM4-80GB"
MODEL = "chat"
PROMPT_TOKENS = 16
# One from the prompt, then four steps of four with three drafts, all accepted.
OUTPUT_TOKENS = 17
EAGLE = Arm("eagle3", 3, "eagle")
METHOD = {
    "name": "eagle",
    "method": "eagle3",
    "model": "org/eagle-head",
    "draftLengths": [3],
    "schedule": "Never",
    "adaptiveVerification": "Never",
}

_BASE_S, _PER_TOKEN_S, _FLAT_S, _PER_DRAFT_S = 0.020, 0.003, 0.001, 0.002

COSTS: dict[str, Any] = {
    "description": "made up for tests: starts at once, steps are slow, answers short",
    "step": {"base_s": _BASE_S, "per_token_s": _PER_TOKEN_S},
    "memory": {"device_gib": 80, "resident_gib": 17.5, "kv_bytes_per_token": 131072},
    "limits": {"max_num_seqs": 256, "max_num_batched_tokens": 4096, "max_model_len": 4096},
    "startup": {"base_s": 0.3, "drafter_s": 0.1},
    "methods": {
        "eagle3": {
            "draft": {"flat_s": _FLAT_S, "per_draft_token_s": _PER_DRAFT_S},
            "text": {"easy_rate": 1.0, "hard_rate": 1.0, "easy_share": 1.0},
        }
    },
}


def tokens_per_step(arm: Arm) -> float:
    """E: the drafts and the token after them."""
    return arm.k + 1.0


def law(arm: Arm) -> tuple[float, float]:
    """C1 and C2 of an arm, seconds, by the engine's own formula."""
    first_s = _BASE_S + _PER_TOKEN_S
    steps = (OUTPUT_TOKENS - 1) / tokens_per_step(arm)
    per_request_s = (arm.k + 1) * _PER_TOKEN_S + arm.k * _PER_DRAFT_S
    flat_s = _FLAT_S if arm.k else 0.0
    return first_s + steps * (_BASE_S + flat_s + per_request_s), _PER_TOKEN_S + steps * per_request_s


@functools.cache
def profile_json() -> str:
    """The fit of points on that law."""
    arms = (NO_SPECULATION, EAGLE)
    return lawful_profile_json(
        {arm: law(arm) for arm in arms},
        {arm: tokens_per_step(arm) for arm in arms},
        prompt_tokens=float(PROMPT_TOKENS),
        output_tokens=float(OUTPUT_TOKENS),
        gpu=A100,
    )

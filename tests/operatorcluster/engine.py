"""The engine of all targets: short answers, slow steps, so that two cores carry a cluster of them.

Every draft is accepted, so that a few requests tell as much as many and a measurement of seconds can be believed. A lone
request takes 0.39 s without speculation and 0.18 s with three drafts a step; the engine saturates at 20 and 13 requests
per second; the break-even lies near 11 (docs/engine-costs.md has the formulas).
"""

from __future__ import annotations

import functools
from typing import Any

from breakeven.arm import NO_SPECULATION, Arm
from breakeven.evidence.points import LoadMode, Origin, Point
from breakeven.fitting import fit_points
from breakeven.latency import open_loop_latency

A100 = "NVIDIA-A100-SXM4-80GB"
MODEL = "chat"
PROMPT_TOKENS = 16
# One from the prompt, then four steps of four with three drafts, all accepted.
OUTPUT_TOKENS = 17
EAGLE = Arm("eagle3", 3, "eagle")
METHOD = {"name": "eagle", "method": "eagle3", "model": "org/eagle-head", "draftLengths": [3]}

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
    """The fit of points on that law, with half a percent of scatter so that bounds are narrow and not absurd."""
    points = []
    for arm in (NO_SPECULATION, EAGLE):
        c1_s, c2_s = law(arm)
        for index, share in enumerate((0.02, 0.12, 0.25, 0.4, 0.55, 0.7)):
            rps = share / c2_s
            latency_s = float(open_loop_latency(c1_s, c2_s, rps)) * (1.005 if index % 2 else 0.995)
            points.append(
                Point(
                    arm=arm,
                    mode=LoadMode.POISSON,
                    mean_latency_s=latency_s,
                    origin=Origin("law", index + 2),
                    request_rate_rps=rps,
                    mean_inflight=rps * latency_s,
                    achieved_rps=rps,
                    prompt_tokens=float(PROMPT_TOKENS),
                    output_tokens=float(OUTPUT_TOKENS),
                    tokens_per_step=tokens_per_step(arm),
                    requests=1000.0,
                )
            )
    profile = fit_points(points, provenance={"gpu": A100})
    assert all(fit.believable for fit in profile.arms), [(fit.arm.name, fit.reason) for fit in profile.arms]
    return profile.to_json()

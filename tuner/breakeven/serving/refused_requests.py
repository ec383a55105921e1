"""Requests that vLLM refuses only while it speculates: a roll to speculation loses them."""

from __future__ import annotations

from breakeven.arm import Arm
from breakeven.errors import InputError
from breakeven.serving.vllm_versions import VllmVersion

SENTENCE = "The min_p and logit_bias sampling parameters are not yet supported with speculative decoding."
"""The engine's own words, with HTTP 400, or as an error in a stream that began with 200."""
LEAST_MIN_P = 1e-5
"""Up to here `min_p` counts as none."""
HTTP_REQUESTS = "http_requests_total"
"""Of prometheus-fastapi-instrumentator, on vLLM's own page: labels handler, method and status (`2xx`, `4xx`, ...)."""
GENERATES = "/v1/(chat/)?completions|/v1/responses|/v1/messages|/inference/v1/generate|/invocations"
"""The handlers of vLLM's API that generate tokens; a probe or a tokenizer's request is no user's request."""
LAST_WITH_MIN_TOKENS = VllmVersion(0, 16)
"""The last version that refuses `min_tokens` above 1 as well."""


def note(version: VllmVersion | None) -> str:
    """Say which requests a version refuses; None if it is not known."""
    also = version is not None and version <= LAST_WITH_MIN_TOKENS
    fields = "min_p above 0, min_tokens above 1 or" if also else "min_p above 0 or with"
    return (
        f"vLLM refuses requests with {fields} logit_bias while it speculates (HTTP 400): know whether your users send them, "
        "see docs/engine-refusals.md"
    )


def check_min_p(min_p: float | None, arm: Arm) -> None:
    """Refuse a sweep whose every request the engine would refuse: the arm speculates, and requests carry `min_p`."""
    if arm.k > 0 and min_p is not None and min_p > LEAST_MIN_P:
        raise InputError(
            f"min_p {min_p:g} with arm {arm}",
            f"an engine that speculates answers HTTP 400: {SENTENCE}",
            "no min_p: the arms must be measured with requests that each of them answers",
        )

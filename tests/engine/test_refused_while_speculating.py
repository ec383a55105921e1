"""Requests that vLLM 0.15 and newer refuses while it speculates; a stream has begun by then."""

from __future__ import annotations

import json

import pytest

from breakeven.serving.refused_requests import SENTENCE
from breakeven_sim.engine.protocol import RequestError, parse_generation

BODY = {"model": "org/model", "prompt": "hi", "max_tokens": 4}


def parsed(speculates: bool, **fields):
    raw = json.dumps({**BODY, **fields}).encode()
    return parse_generation(raw, chat=False, names=("org/model",), max_model_len=64, speculates=speculates)


@pytest.mark.parametrize(
    "fields", [{"min_p": 0.05}, {"logit_bias": {"50": 1}}, {"min_p": 0.05, "stream": True}]
)
def test_they_are_answered_without_speculation_and_refused_in_vllm_s_words_with_it(fields):
    assert parsed(False, **fields).refusal is None
    refusal = parsed(True, **fields).refusal
    assert (refusal.status, refusal.body["error"]) == (
        400,
        {"message": SENTENCE, "type": "BadRequestError", "param": None, "code": 400},
    )


@pytest.mark.parametrize(
    "fields", [{}, {"min_p": 0}, {"min_p": 1e-5}, {"logit_bias": {}}, {"top_p": 0.9}, {"min_p": None}]
)
def test_everything_else_is_answered_by_both(fields):
    assert parsed(True, **fields).refusal is None


def test_a_min_p_that_is_none_is_refused_by_both():
    for speculates in (True, False):
        with pytest.raises(RequestError, match=r"min_p must be in \[0, 1\], got 1.5"):
            parsed(speculates, min_p=1.5)

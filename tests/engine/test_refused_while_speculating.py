"""Requests that vLLM 0.14 and newer refuses while it speculates; a stream has begun by then."""

from __future__ import annotations

import asyncio
import json

import pytest
from aiohttp.test_utils import TestClient, TestServer
from prometheus_client.parser import text_string_to_metric_families

from breakeven.serving.promql import HTTP_REQUESTS
from breakeven.serving.vllm_versions import SENTENCE
from breakeven_sim.engine.core import Engine
from breakeven_sim.engine.exposition import CacheInfo, EngineMetrics
from breakeven_sim.engine.protocol import RequestError, parse_generation
from breakeven_sim.engine.realtime import PacedEngine
from breakeven_sim.engine.vllm_api import AnswerSource, NamedModel, VllmApi

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


@pytest.mark.parametrize(("stream", "status"), [(False, "4xx"), (True, "2xx")])
async def test_the_page_counts_them_as_vllm_s_does_and_no_engine_finishes_them(
    make_config, text_sources, stream, status
):
    engine = Engine(make_config("ngram", 3, step__base_s=1e-4, step__per_token_s=1e-6))
    metrics = EngineMetrics(engine, "tiny", CacheInfo(16, 10_000, 1024.0, 0.92, 1024, None), created_s=1.0)
    paced = PacedEngine(engine, metrics.record_step)
    api = VllmApi(paced, metrics, NamedModel(("tiny",), "tiny", 1024), AnswerSource(text_sources("ngram", 0)))
    running = asyncio.create_task(paced.run())
    body = {"prompt": "a b c", "max_tokens": 4, "stream": stream}
    async with TestClient(TestServer(api.application())) as client:
        answered = await client.post("/v1/completions", json=body)
        await answered.read()
        refused = await client.post("/v1/completions", json={**body, "min_p": 0.05})
        text = await refused.text()
        page = await (await client.get("/metrics")).text()
    running.cancel()
    assert refused.status == (200 if stream else 400)
    assert SENTENCE in text
    assert text.endswith("data: [DONE]\n\n") is stream
    counted = {
        (sample.labels["handler"], sample.labels["method"], sample.labels["status"]): sample.value
        for family in text_string_to_metric_families(page)
        for sample in family.samples
        if sample.name == HTTP_REQUESTS
    }
    posts = "/v1/completions", "POST"
    assert counted[*posts, "2xx"] == (2.0 if stream else 1.0)
    assert counted[*posts, status] == (2.0 if stream else 1.0)
    finished = sum(
        sample.value
        for family in text_string_to_metric_families(page)
        for sample in family.samples
        if sample.name == "vllm:request_success_total"
    )
    assert finished == 1.0

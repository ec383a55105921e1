"""The /metrics page against the captured one, and the counts on it."""

from __future__ import annotations

import asyncio
import json
import math
from collections import Counter, deque
from itertools import accumulate
from pathlib import Path

import pytest
from aiohttp.test_utils import TestClient, TestServer

from breakeven.serving.growths import Growths
from breakeven.serving.promql import COUNTED, RUNNING, WAITING
from breakeven_sim.engine.core import Engine
from breakeven_sim.engine.drafting import DraftedText
from breakeven_sim.engine.exposition import CacheInfo, EngineMetrics
from breakeven_sim.engine.realtime import PacedEngine
from breakeven_sim.engine.requests import Request
from breakeven_sim.engine.vllm_api import AnswerSource, NamedModel, VllmApi
from real.likeness import page_shape

CAPTURED = json.loads(Path(__file__).with_name("vllm_0_32_metrics.json").read_text())
CACHE = CacheInfo(16, 10_000, 1024.0, 0.92, 1024, None)


def value(metrics: EngineMetrics, sample: str, **labels: str) -> float:
    for family in metrics.collect():
        for found in family.samples:
            if found.name == f"vllm:{sample}" and labels.items() <= found.labels.items():
                return float(found.value)
    return math.nan


@pytest.mark.parametrize("method", [None, "ngram"])
async def test_the_page_has_the_names_labels_types_and_buckets_of_the_captured_one(
    make_config, text_sources, method
):
    config = make_config(method, 3 if method else 0, step__base_s=1e-4, step__per_token_s=1e-6)
    engine = Engine(config)
    metrics = EngineMetrics(engine, "tiny", CACHE, created_s=1.0)
    paced = PacedEngine(engine, metrics.record_step)
    texts = text_sources("ngram", 0) if method else None
    api = VllmApi(paced, metrics, NamedModel(("tiny",), "tiny", 1024), AnswerSource(texts))
    running = asyncio.create_task(paced.run())
    async with TestClient(TestServer(api.application())) as client:
        for path, body in (
            ("completions", {"prompt": "a b c", "max_tokens": 30}),
            ("completions", {"model": "nope"}),
        ):
            await client.post(f"/v1/{path}", json=body)
        await client.get("/v1/models")
        answer = await client.get("/metrics")
        page = await answer.text()
        assert answer.headers["Content-Type"].startswith("text/plain; version=")
    running.cancel()
    expected = dict(CAPTURED["without_speculation"])
    if method:
        expected |= CAPTURED["added_by_speculation"]
    assert page_shape(page) == expected


def run(config, requests, *, late=()) -> tuple[Engine, EngineMetrics]:
    engine = Engine(config)
    metrics = EngineMetrics(engine, "tiny", CACHE, created_s=1.0)
    for request in requests:
        engine.submit(request)
    while engine.outstanding:
        report = engine.step()
        metrics.record_step(report)
        for gain in report.progress:
            gain.request.last_token_s = report.end_s
        for request in report.finished:
            metrics.record_finished(request, "length", request.output_tokens)
    return engine, metrics


def test_tokens_per_request_step_from_the_page(make_config):
    requests = [Request(i, 0.1 * i, 20, 40, DraftedText([3] * 40)) for i in range(5)]
    engine, metrics = run(make_config("eagle3", 3), requests)
    gained = value(metrics, "generation_tokens_total") - value(metrics, "time_to_first_token_seconds_count")
    steps = value(metrics, "inter_token_latency_seconds_count")
    assert (gained, steps) == (5 * 39, engine.request_steps)
    assert gained / steps == 3.0


def test_without_speculation_every_request_step_gives_one_token(make_config):
    engine, metrics = run(make_config(), [Request(i, 0.0, 20, 40) for i in range(3)])
    assert value(metrics, "inter_token_latency_seconds_count") == 3 * 39 == engine.request_steps
    assert math.isnan(value(metrics, "spec_decode_num_drafts_total"))


def test_steps_without_a_match_are_no_drafts(make_config):
    matches = [i % 2 == 0 for i in range(41)]
    requests = [Request(0, 0.0, 20, 41, DraftedText([2] * 41, matches))]
    _, metrics = run(make_config("ngram", 3), requests)
    # From 1: no match, one token; from 2: a match, two tokens; and so on, always meeting even places.
    drafts = value(metrics, "spec_decode_num_drafts_total")
    assert drafts == 20
    assert value(metrics, "inter_token_latency_seconds_count") == 21
    assert value(metrics, "spec_decode_num_draft_tokens_total") == 3 * drafts
    assert value(metrics, "spec_decode_num_accepted_tokens_total") == drafts
    by_position = [
        value(metrics, "spec_decode_num_accepted_tokens_per_pos_total", position=str(i)) for i in range(3)
    ]
    assert by_position == [drafts, 0, 0]


def test_phases_of_a_request_add_up(make_config):
    requests = [Request(i, 0.0, 100, 30) for i in range(4)]
    engine, metrics = run(make_config(seqs=2), requests)
    total = value(metrics, "e2e_request_latency_seconds_sum")
    phases = [value(metrics, f"request_{phase}_time_seconds_sum") for phase in ("queue", "prefill", "decode")]
    assert (
        sum(phases)
        == pytest.approx(total)
        == pytest.approx(sum(r.finished_s - r.arrival_s for r in requests))
    )
    assert phases[0] > 0
    assert value(metrics, "request_inference_time_seconds_sum") == pytest.approx(phases[1] + phases[2])
    assert value(metrics, "request_success_total", finished_reason="length") == 4
    assert value(metrics, "prompt_tokens_total") == 400
    assert value(metrics, "iteration_tokens_total_sum") == 400 + 120
    assert value(metrics, "iteration_tokens_total_count") == engine.steps
    mean_gap = value(metrics, "request_time_per_output_token_seconds_sum") / 4
    assert mean_gap == pytest.approx(phases[2] / 4 / 29)


def test_preemptions_and_the_pool_show(make_config):
    engine, metrics = run(make_config(pool=410), [Request(i, 0.0, 100, 100) for i in range(4)])
    assert value(metrics, "num_preemptions_total") == engine.preemptions > 0
    assert value(metrics, "request_num_preemptions_sum") == engine.preemptions
    engine.submit(Request(9, engine.clock_s, 205, 10))
    engine.step()
    assert value(metrics, "kv_cache_usage_perc") == pytest.approx(206 / 410)
    assert (value(metrics, "num_requests_running"), value(metrics, "num_requests_waiting")) == (1, 0)


STATS = ("started", "ttft_s", "generated", "output_tokens", "output_n", "completed")
GAUGES = {"running": RUNNING, "waiting": WAITING}


def page_of(metrics: EngineMetrics) -> dict[str, float]:
    """Statistics by name, as one scrape shows them."""
    names = {stat: COUNTED[stat].name for stat in STATS} | GAUGES
    found = dict.fromkeys(names, 0.0)
    for sample in (one for family in metrics.collect() for one in family.samples):
        for stat, name in names.items():
            found[stat] += float(sample.value) * (sample.name == f"vllm:{name}")
    return found


def scraped_while(config, requests, leaving=frozenset()) -> list[dict[str, float]]:
    """Pages of an engine every half second, each in the middle of a step, as a scrape meets them; some clients leave."""
    engine, coming = Engine(config), deque(requests)
    pages: list[dict[str, float]] = []
    made: Counter[int] = Counter()
    metrics = EngineMetrics(engine, "tiny", CACHE, created_s=1.0)
    while engine.outstanding or coming:
        while coming and coming[0].arrival_s <= engine.clock_s:
            engine.submit(coming.popleft())
        if not engine.outstanding:
            engine.submit(coming.popleft())
        engine.next_end_s()
        if not pages or engine.clock_s >= pages[-1]["at_s"] + 0.5:
            pages.append({"at_s": engine.clock_s, **page_of(metrics)})
        report = engine.step()
        metrics.record_step(report)
        for gain in report.progress:
            gain.request.last_token_s = report.end_s
            made[gain.request.number] += gain.tokens
            if gain.request.number in leaving and made[gain.request.number] == 10:
                engine.abort(gain.request)
        for request in report.finished:
            metrics.record_finished(request, "length", request.output_tokens)
    # vLLM counts nobody who leaves either: the counter says nothing of them.
    assert value(metrics, "request_success_total", finished_reason="abort") == 0
    return pages


def windows_of(pages: list[dict[str, float]], span_s: float) -> list[Growths]:
    """Growths over windows of a time, from every page on that has as much before it."""
    found, first = [], 0
    for end in pages:
        while end["at_s"] - pages[first]["at_s"] > span_s:
            first += 1
        begin, between = pages[first], [p for p in pages if pages[first]["at_s"] <= p["at_s"] <= end["at_s"]]
        grown = {name: end[name] - begin[name] for name in STATS}
        grown |= {f"{gauge}_growth": end[gauge] - begin[gauge] for gauge in GAUGES}
        grown |= {gauge: sum(p[gauge] for p in between) / len(between) for gauge in GAUGES}
        found.append(Growths(grown, {}, end["at_s"] - begin["at_s"]))
    return found[len(found) // 10 :]


def overload(rps: float, seconds: float, usual_rps: float) -> list[Request]:
    gaps_s = [1.0 / rps] * int(rps * seconds) + [1.0 / usual_rps] * int(20 * usual_rps)
    return [Request(i, at_s, 100, 40) for i, at_s in enumerate(accumulate(gaps_s))]


@pytest.mark.parametrize(
    "limits",
    [
        {},  # everybody is in the batch
        {"seqs": 24},  # a batch of at most so many, and a queue
        {"batched": 256},  # prompts are read in pieces
        {"pool": 12_000},  # requests are thrown out, and wait again
        {"batched": 256, "pool": 12_000},
    ],
)
@pytest.mark.parametrize("span_s", [4.0, 15.0])
def test_nobody_gave_up_when_an_overload_drains(make_config, limits, span_s):
    config = make_config(step__base_s=0.02, step__per_token_s=1e-3, **limits)
    pages = scraped_while(config, overload(150.0, 2.0, 2.0))
    most = max(page["running"] - page["started"] + page["completed"] for page in pages)
    assert most > 1, "some run before their first token"
    for one in windows_of(pages, span_s):
        assert not one.clients_give_up, one
        assert one.output_tokens is None or one.output_tokens == pytest.approx(40.0)


@pytest.mark.parametrize("limits", [{}, {"seqs": 24}])
def test_clients_that_leave_an_overload_are_seen(make_config, limits):
    config = make_config(step__base_s=0.02, step__per_token_s=1e-3, **limits)
    requests = overload(60.0, 4.0, 2.0)
    leaving = frozenset(one.number for one in requests if one.number % 2)
    found = windows_of(scraped_while(config, requests, leaving), 8.0)
    seen = [one.given_up_share for one in found if one.clients_give_up]
    assert len(seen) > len(found) / 4
    assert max(seen) == pytest.approx(0.5, abs=0.15)

"""The `/metrics` page of vLLM 0.32: the same names, labels, types and buckets as a captured real page.

The families are data, `vllm_0_32_families.json`. Numbers are kept as plain counters and bucket counts and turned into
samples on a scrape: a step of a hundred requests costs a few additions, not a hundred calls into a metrics
library.
"""

from __future__ import annotations

import json
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from itertools import accumulate
from typing import Any

from prometheus_client import Metric
from prometheus_client.registry import Collector

from breakeven_sim.engine.core import Engine
from breakeven_sim.engine.requests import Request, StepReport

_INFO = "cache_config_info"


class Distribution:
    """A histogram: upper bounds, counts, sum."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = tuple(float(b) for b in bounds)
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def observe(self, value: float, times: int = 1) -> None:
        """Count a value `times` times."""
        self.counts[bisect_left(self.bounds, value)] += times
        self.total += value * times


@dataclass(frozen=True, slots=True)
class MetricFamily:
    """One family of the page, without its figures.

    Attributes:
        name: without `vllm:`. type: counter, gauge or histogram. help: as the page prints it.
        label: the label beside those that every family has; empty for none.
        values: what that label may be, one series each.
        buckets: name of a histogram's list of upper bounds; `counts` end at the longest request.
        speculating: only an engine that speculates has it; its label `position` has one value per draft.
        per_engine: has the label `engine`.
    """

    name: str
    type: str
    help: str
    label: str = ""
    values: Sequence[str] = ("",)
    buckets: str = ""
    speculating: bool = False
    per_engine: bool = True


@cache
def _table() -> Mapping[str, Any]:
    table: dict[str, Any] = json.loads(
        files("breakeven_sim.engine").joinpath("vllm_0_32_families.json").read_text(encoding="utf-8")
    )
    return table


@dataclass(frozen=True, slots=True)
class CacheInfo:
    """The labels of `vllm:cache_config_info` that differ between engines; the others are vLLM's defaults."""

    block_size: int
    kv_pool_tokens: int
    kv_bytes_per_token: float
    gpu_memory_utilization: float
    max_model_len: int
    num_gpu_blocks_override: int | None
    more: Mapping[str, str] = field(default_factory=dict)

    def labels(self) -> dict[str, str]:
        """All labels, as vLLM prints them."""
        return {
            **_table()[_INFO],
            "block_size": str(self.block_size),
            "effective_attention_block_size": str(self.block_size),
            "gpu_memory_utilization": str(self.gpu_memory_utilization),
            "kv_cache_max_concurrency": str(self.kv_pool_tokens / self.max_model_len),
            "kv_cache_memory_bytes": str(int(self.kv_pool_tokens * self.kv_bytes_per_token)),
            "kv_cache_size_tokens": str(self.kv_pool_tokens),
            "num_gpu_blocks": str(self.kv_pool_tokens // self.block_size),
            "num_gpu_blocks_override": str(self.num_gpu_blocks_override),
            **self.more,
        }


def edges_up_to(most: int) -> list[float]:
    """Upper edges of histograms of lengths: 1, 2, 5, 10, ... up to the longest request."""
    found = (float(part * 10**power) for power in range(len(str(most))) for part in (1, 2, 5))
    return [edge for edge in found if edge <= most]


class EngineMetrics(Collector):
    """Counts what the engine does and renders it on scrape.

    Args:
        engine: whose gauges are read at scrape time.
        model_name: the label on every series.
        cache_info: for `vllm:cache_config_info`.
        created_s: wall-clock time that the `_created` samples carry.
    """

    def __init__(self, engine: Engine, model_name: str, cache_info: CacheInfo, created_s: float) -> None:
        self._engine = engine
        self._model_name = model_name
        self._cache_labels = cache_info.labels()
        self._created_s = created_s
        self._seen_preemptions = 0
        k = engine.config.drafts.longest if engine.config.method else 0
        table = [MetricFamily(**row) for row in _table()["families"]]
        self._families = [family for family in table if k or not family.speculating]
        # Figures by family and by the value of its label.
        self._numbers: dict[str, dict[str, float]] = {}
        self._distributions: dict[str, Distribution] = {}
        for family in self._families:
            if family.buckets:
                known = _table()["buckets"].get(family.buckets)
                self._distributions[family.name] = Distribution(
                    known or edges_up_to(cache_info.max_model_len)
                )
            else:
                values = map(str, range(k)) if family.label == "position" else family.values
                self._numbers[family.name] = dict.fromkeys(values, 0.0)

    # Recording --------------------------------------------------------------------------------------------

    def record_step(self, report: StepReport) -> None:
        """Count one step; call it before the requests' `last_token_s` are moved on."""
        tokens = prompts = cached = drafts = drafted = accepted = 0
        gaps: dict[float, int] = {}
        per_position: list[int] = []
        for gain in report.progress:
            request = gain.request
            tokens += gain.tokens
            if gain.first:
                prompts += request.prompt_tokens
                cached += request.cached_tokens
                self._distributions["time_to_first_token_seconds"].observe(report.end_s - request.arrival_s)
            else:
                gap = report.end_s - request.last_token_s
                gaps[gap] = gaps.get(gap, 0) + 1
            if gain.drafted:
                drafts += 1
                drafted += gain.drafted
                accepted += gain.accepted
                if gain.accepted:
                    per_position.append(gain.accepted)
        for gap, times in gaps.items():
            self._distributions["inter_token_latency_seconds"].observe(gap, times)
        self._distributions["iteration_tokens_total"].observe(tokens + prompts)
        self._count("generation_tokens", tokens)
        self._count_prompts(prompts, cached)
        if drafts:
            self._count("spec_decode_num_drafts", drafts)
            self._count("spec_decode_num_draft_tokens", drafted)
            self._count("spec_decode_num_accepted_tokens", accepted)
            for count in per_position:
                for position in range(count):
                    self._count("spec_decode_num_accepted_tokens_per_pos", 1, str(position))

    def _count_prompts(self, tokens: int, cached: int) -> None:
        """Count tokens of prompts that were read, of which the prefix cache held some."""
        if tokens:
            self._count("prompt_tokens", tokens)
            self._count("prefix_cache_queries", tokens)
            self._count("prompt_tokens_by_source", tokens - cached, "local_compute")
        if cached:
            self._count("prefix_cache_hits", cached)
            self._count("prompt_tokens_by_source", cached, "local_cache_hit")
            self._count("prompt_tokens_cached_by_source", cached, "device")

    def record_finished(self, request: Request, reason: str, max_tokens: int) -> None:
        """Count a request that ended by itself or by its limit."""
        self._count("request_success", 1, reason)
        decode_s = request.last_token_s - request.first_token_s
        observed = {
            "request_prompt_tokens": request.prompt_tokens,
            "request_generation_tokens": request.generated,
            "request_max_num_generation_tokens": request.generated,
            "request_params_n": 1,
            "request_params_max_tokens": max_tokens,
            "request_time_per_output_token_seconds": decode_s / (request.generated - 1)
            if request.generated > 1
            else 0.0,
            "e2e_request_latency_seconds": request.finished_s - request.arrival_s,
            "request_queue_time_seconds": request.admitted_s - request.arrival_s,
            "request_inference_time_seconds": request.last_token_s - request.admitted_s,
            "request_prefill_time_seconds": request.first_token_s - request.admitted_s,
            "request_decode_time_seconds": decode_s,
            "request_num_preemptions": request.preemptions,
            "request_prefill_kv_computed_tokens": request.prompt_tokens,
        }
        for name, value in observed.items():
            self._distributions[name].observe(value)

    def total(self, name: str) -> float:
        """Sum of a counter over its series, 0 if it does not exist; `name` without `vllm:` and `_total`."""
        return sum(self._numbers.get(name, {}).values())

    # Rendering --------------------------------------------------------------------------------------------

    def collect(self) -> Iterator[Metric]:
        """The families in the order of vLLM's page."""
        engine = self._engine
        self._count("num_preemptions", engine.preemptions - self._seen_preemptions)
        self._seen_preemptions = engine.preemptions
        self._numbers["num_requests_running"][""] = engine.running
        self._numbers["num_requests_waiting"][""] = engine.waiting
        self._numbers["num_requests_waiting_by_reason"]["capacity"] = engine.waiting
        self._numbers["kv_cache_usage_perc"][""] = engine.kv_usage
        self._numbers["engine_sleep_state"]["awake"] = 1
        for family in self._families:
            yield self._metric(family)
        info = Metric(f"vllm:{_INFO}", "Information of the LLMEngine CacheConfig", "gauge")
        info.add_sample(info.name, {"engine": "0", **self._cache_labels}, 1.0)
        yield info

    def _metric(self, family: MetricFamily) -> Metric:
        name = f"vllm:{family.name}"
        metric = Metric(name, family.help, family.type)
        common = {"engine": "0"} if family.per_engine else {}
        common["model_name"] = self._model_name
        distribution = self._distributions.get(family.name)
        if distribution is not None:
            bounds = [*(repr(b) for b in distribution.bounds), "+Inf"]
            for bound, count in zip(bounds, accumulate(distribution.counts), strict=True):
                metric.add_sample(f"{name}_bucket", {**common, "le": bound}, count)
            metric.add_sample(f"{name}_count", common, sum(distribution.counts))
            metric.add_sample(f"{name}_sum", common, distribution.total)
            metric.add_sample(f"{name}_created", common, self._created_s)
            return metric
        for value, number in self._numbers[family.name].items():
            labels = {**common, family.label: value} if family.label else common
            metric.add_sample(f"{name}_total" if family.type == "counter" else name, labels, number)
            if family.type == "counter":
                metric.add_sample(f"{name}_created", labels, self._created_s)
        return metric

    def _count(self, name: str, by: float, label: str = "") -> None:
        self._numbers[name][label] += by

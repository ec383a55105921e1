"""The `/metrics` page of vLLM 0.32: the same names, labels, types and buckets as a captured real page.

Numbers are kept as plain counters and bucket counts and turned into samples when somebody scrapes: a step of a
hundred requests costs a few additions, not a hundred calls into a metrics library.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate

from prometheus_client import Metric
from prometheus_client.registry import Collector

from breakeven_sim.engine.core import Engine
from breakeven_sim.engine.requests import Request, StepReport

FINISH_REASONS = ("stop", "length", "abort", "error", "repetition")

_TOKENS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)
_STEP_TOKENS = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
_TTFT = (
    0.001,
    0.005,
    0.01,
    0.02,
    0.04,
    0.06,
    0.08,
    0.1,
    0.25,
    0.5,
    0.75,
    1,
    2.5,
    5,
    7.5,
    10,
    20,
    40,
    80,
    160,
    640,
    2560,
)
_GAPS = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80)
_PHASES = (.3, .5, .8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680)  # fmt: skip

_FLOPS = "(for Model Flops Utilization calculations)."
_QUERIED, _CACHED = "in terms of number of queried tokens.", "in terms of number of cached tokens."
_EXTERNAL = "from KV connector cross-instance cache sharing"


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


@dataclass(slots=True)
class _Family:
    """One family of the page; `series` maps the labels beyond the common ones to a number or a distribution."""

    kind: str
    name: str
    documentation: str
    series: dict[tuple[tuple[str, str], ...], float | Distribution]
    common: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class CacheInfo:
    """What `vllm:cache_config_info` says that differs between engines; the rest of its labels are vLLM's defaults."""

    block_size: int
    kv_pool_tokens: int
    kv_bytes_per_token: float
    gpu_memory_utilization: float
    max_model_len: int
    num_gpu_blocks_override: int | None
    more: Mapping[str, str] = field(default_factory=dict)

    def labels(self) -> dict[str, str]:
        """All labels, as vLLM prints them."""
        blocks = self.kv_pool_tokens // self.block_size
        unset = (
            "cache_hit_alignment_tokens", "hash_block_size", "kv_cache_layout", "kv_offloading_size",
            "mamba_block_size", "mamba_page_size_padded", "num_cpu_blocks", "prefix_match_unit",
            "skip_page_size_padded", "sliding_window",
        )  # fmt: skip
        off = (
            "enable_mamba_shared_prefix_checkpoint", "is_attention_free", "kv_sharing_fast_prefill",
            "use_kda_recoverssm", "use_replayssm",
        )  # fmt: skip
        return {
            **dict.fromkeys(unset, "None"),
            **dict.fromkeys(off, "False"),
            "_block_size_resolved": "True",
            "block_size": str(self.block_size),
            "cache_dtype": "auto",
            "effective_attention_block_size": str(self.block_size),
            "enable_prefix_caching": "True",
            "gpu_memory_utilization": str(self.gpu_memory_utilization),
            "kv_cache_dtype_skip_layers": "[]",
            "kv_cache_max_concurrency": str(self.kv_pool_tokens / self.max_model_len),
            "kv_cache_memory_bytes": str(int(self.kv_pool_tokens * self.kv_bytes_per_token)),
            "kv_cache_size_tokens": str(self.kv_pool_tokens),
            "kv_offloading_backend": "native",
            "mamba_cache_dtype": "auto",
            "mamba_cache_mode": "none",
            "mamba_ssm_cache_dtype": "float32",
            "num_gpu_blocks": str(blocks),
            "num_gpu_blocks_override": str(self.num_gpu_blocks_override),
            "prefix_cache_retention_interval": "0",
            "prefix_caching_hash_algo": "sha256",
            "replayssm_buffer_len": "16",
            "swa_bounded_replay": "True",
            "user_specified_block_size": "False",
            **self.more,
        }


class EngineMetrics(Collector):
    """Counts what the engine does and renders it on scrape.

    Args:
        engine: whose gauges are read at scrape time.
        model_name: the label on every series.
        cache: for `vllm:cache_config_info`.
        created_s: wall-clock time that the `_created` samples carry.
    """

    def __init__(self, engine: Engine, model_name: str, cache: CacheInfo, created_s: float) -> None:
        self._engine = engine
        self._created_s = created_s
        self._common = (("engine", "0"), ("model_name", model_name))
        self._families: dict[str, _Family] = {}
        self._seen_preemptions = 0
        k = engine.config.drafts.longest if engine.config.method else 0
        if k:
            self._speculation(k)
        self._counters_and_gauges(model_name)
        self._histograms()
        self._add(
            "gauge",
            "cache_config_info",
            "Information of the LLMEngine CacheConfig",
            [tuple(cache.labels().items())],
        )
        info = self._families["cache_config_info"]
        info.series = dict.fromkeys(info.series, 1.0)
        info.common = (("engine", "0"),)

    # Recording --------------------------------------------------------------------------------------------

    def record_step(self, report: StepReport) -> None:
        """Count one step; call it before the requests' `last_token_s` are moved on."""
        tokens = prompts = drafts = drafted = accepted = 0
        gaps: dict[float, int] = {}
        per_position: list[int] = []
        for gain in report.progress:
            request = gain.request
            tokens += gain.tokens
            if gain.first:
                prompts += request.prompt_tokens
                self._distribution("time_to_first_token_seconds").observe(report.end_s - request.arrival_s)
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
            self._distribution("inter_token_latency_seconds").observe(gap, times)
        self._distribution("iteration_tokens_total").observe(tokens + prompts)
        self._count("generation_tokens", tokens)
        if prompts:
            self._count("prompt_tokens", prompts)
            self._count("prefix_cache_queries", prompts)
            self._count("prompt_tokens_by_source", prompts, (("source", "local_compute"),))
        if drafts:
            self._count("spec_decode_num_drafts", drafts)
            self._count("spec_decode_num_draft_tokens", drafted)
            self._count("spec_decode_num_accepted_tokens", accepted)
            series = self._families["spec_decode_num_accepted_tokens_per_pos"].series
            for count in per_position:
                for position in range(count):
                    key = (("position", str(position)),)
                    series[key] = float(series[key]) + 1  # type: ignore[arg-type]

    def record_finished(self, request: Request, reason: str, max_tokens: int) -> None:
        """Count a request that ended by itself or by its limit."""
        self._count("request_success", 1, (("finished_reason", reason),))
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
            self._distribution(name).observe(value)

    def record_aborted(self) -> None:
        """Count a request whose client went away."""
        self._count("request_success", 1, (("finished_reason", "abort"),))

    def total(self, name: str) -> float:
        """Sum of a counter over its series, 0 where it does not exist; `name` without `vllm:` and `_total`."""
        family = self._families.get(name)
        return (
            sum(float(v) for v in family.series.values() if not isinstance(v, Distribution))
            if family
            else 0.0
        )

    # Rendering --------------------------------------------------------------------------------------------

    def collect(self) -> Iterator[Metric]:
        """The families in the order of vLLM's page."""
        engine = self._engine
        self._count("num_preemptions", engine.preemptions - self._seen_preemptions)
        self._seen_preemptions = engine.preemptions
        self._set("num_requests_running", engine.running)
        self._set("num_requests_waiting", engine.waiting)
        self._set("num_requests_waiting_by_reason", engine.waiting, (("reason", "capacity"),))
        self._set("kv_cache_usage_perc", engine.kv_usage)
        self._set("engine_sleep_state", 1, (("sleep_state", "awake"),))
        for family in self._families.values():
            yield self._metric(family)

    def _metric(self, family: _Family) -> Metric:
        name = f"vllm:{family.name}"
        metric = Metric(name, family.documentation, family.kind)
        for extra, value in family.series.items():
            labels = dict(family.common + extra)
            if isinstance(value, Distribution):
                bounds = [*(repr(b) for b in value.bounds), "+Inf"]
                for bound, count in zip(bounds, accumulate(value.counts), strict=True):
                    metric.add_sample(f"{name}_bucket", {**labels, "le": bound}, count)
                metric.add_sample(f"{name}_count", labels, sum(value.counts))
                metric.add_sample(f"{name}_sum", labels, value.total)
            else:
                metric.add_sample(f"{name}_total" if family.kind == "counter" else name, labels, value)
            if family.kind != "gauge":
                metric.add_sample(f"{name}_created", labels, self._created_s)
        return metric

    # The page's families ----------------------------------------------------------------------------------

    def _add(
        self, kind: str, name: str, documentation: str, series: Sequence[tuple[tuple[str, str], ...]] = ((),)
    ) -> None:
        self._families[name] = _Family(kind, name, documentation, dict.fromkeys(series, 0.0), self._common)

    def _speculation(self, k: int) -> None:
        self._add("counter", "spec_decode_num_drafts", "Number of spec decoding drafts.")
        self._add("counter", "spec_decode_num_draft_tokens", "Number of draft tokens.")
        self._add("counter", "spec_decode_num_accepted_tokens", "Number of accepted tokens.")
        positions = [(("position", str(i)),) for i in range(k)]
        self._add(
            "counter",
            "spec_decode_num_accepted_tokens_per_pos",
            "Accepted tokens per draft position.",
            positions,
        )

    def _counters_and_gauges(self, model_name: str) -> None:
        def labelled(label: str, *values: str) -> list[tuple[tuple[str, str], ...]]:
            return [((label, value),) for value in values]

        add = self._add
        add(
            "counter",
            "estimated_flops_per_gpu",
            f"Estimated number of floating point operations per GPU {_FLOPS}",
        )
        add(
            "counter",
            "estimated_read_bytes_per_gpu",
            f"Estimated number of bytes read from memory per GPU {_FLOPS}",
        )
        add(
            "counter",
            "estimated_write_bytes_per_gpu",
            f"Estimated number of bytes written to memory per GPU {_FLOPS}",
        )
        add("gauge", "num_requests_running", "Number of requests in model execution batches.")
        add("gauge", "num_requests_waiting", "Number of requests waiting to be processed.")
        add(
            "gauge",
            "num_requests_waiting_by_reason",
            "Number of waiting requests by reason. Reason labels: 'capacity' = waiting for scheduling capacity; "
            "'deferred' = deferred by transient constraints (LoRA budget, KV transfer, blocked status). "
            "Sum of all reasons equals vllm:num_requests_waiting.",
            labelled("reason", "capacity", "deferred"),
        )
        add(
            "gauge",
            "engine_sleep_state",
            "Engine sleep state; awake = 0 means engine is sleeping; awake = 1 means engine is awake; "
            "weights_offloaded = 1 means sleep level 1; discard_all = 1 means sleep level 2.",
            labelled("sleep_state", "awake", "weights_offloaded", "discard_all"),
        )
        add("gauge", "kv_cache_usage_perc", "KV-cache usage. 1 means 100 percent usage.")
        add("counter", "prefix_cache_queries", f"Prefix cache queries, {_QUERIED}")
        add("counter", "prefix_cache_hits", f"Prefix cache hits, {_CACHED}")
        add(
            "counter",
            "external_prefix_cache_queries",
            f"External prefix cache queries {_EXTERNAL}, {_QUERIED}",
        )
        add("counter", "external_prefix_cache_hits", f"External prefix cache hits {_EXTERNAL}, {_CACHED}")
        add("counter", "mm_cache_queries", "Multi-modal cache queries, in terms of number of queried items.")
        add("counter", "mm_cache_hits", "Multi-modal cache hits, in terms of number of cached items.")
        add("counter", "num_preemptions", "Cumulative number of preemption from the engine.")
        add("counter", "prompt_tokens", "Number of prefill tokens processed.")
        sources = labelled("source", "local_compute", "local_cache_hit", "external_kv_transfer")
        add("counter", "prompt_tokens_by_source", "Number of prompt tokens by source.", sources)
        add("counter", "prompt_tokens_cached", "Number of cached prompt tokens (local + external).")
        add(
            "counter",
            "prompt_tokens_cached_by_source",
            "Prefix-cache hit tokens by the cache tier that supplied them: device (local HBM), host (offloaded to DRAM), "
            "disk, p2p (transferred from another vLLM instance) or external_unspecified. Counted at admission; sums to "
            "vllm:prefix_cache_hits + vllm:external_prefix_cache_hits.",
            labelled("source", "device", "host", "p2p", "disk", "external_unspecified"),
        )
        add("counter", "generation_tokens", "Number of generation tokens processed.")
        reasons = labelled("finished_reason", *FINISH_REASONS)
        add("counter", "request_success", "Count of successfully processed requests.", reasons)
        rejections = labelled("reason", "max_num_queued_reqs", "max_num_queued_tokens")
        about = "Number of admission attempts rejected by a queue limit, by reason."
        add("counter", "admission_rejections", about, rejections)
        self._families["admission_rejections"].common = (("model_name", model_name),)

    def _histograms(self) -> None:
        phase = "Histogram of time spent in {} phase for request."
        for name, documentation, bounds in (
            ("request_prompt_tokens", "Number of prefill tokens processed.", _TOKENS),
            ("request_generation_tokens", "Number of generation tokens processed.", _TOKENS),
            ("iteration_tokens_total", "Histogram of number of tokens per engine_step.", _STEP_TOKENS),
            (
                "request_max_num_generation_tokens",
                "Histogram of maximum number of requested generation tokens.",
                _TOKENS,
            ),
            ("request_params_n", "Histogram of the n request parameter.", _TOKENS[:5]),
            ("request_params_max_tokens", "Histogram of the max_tokens request parameter.", _TOKENS),
            ("time_to_first_token_seconds", "Histogram of time to first token in seconds.", _TTFT),
            ("inter_token_latency_seconds", "Histogram of inter-token latency in seconds.", _GAPS),
            (
                "request_time_per_output_token_seconds",
                "Histogram of time_per_output_token_seconds per request.",
                _GAPS,
            ),
            ("e2e_request_latency_seconds", "Histogram of e2e request latency in seconds.", _PHASES),
            ("request_queue_time_seconds", phase.format("WAITING"), _PHASES),
            ("request_inference_time_seconds", phase.format("RUNNING"), _PHASES),
            ("request_prefill_time_seconds", phase.format("PREFILL"), _PHASES),
            ("request_decode_time_seconds", phase.format("DECODE"), _PHASES),
            (
                "request_num_preemptions",
                "Histogram of the number of times a request was preempted.",
                (1, 2, 3, 4, 5, 10, 20),
            ),
            (
                "request_prefill_kv_computed_tokens",
                "Histogram of new KV tokens computed during prefill (excluding cached tokens).",
                _TOKENS,
            ),
        ):
            self._add("histogram", name, documentation)
            self._families[name].series[()] = Distribution(bounds)

    def _distribution(self, name: str) -> Distribution:
        found = self._families[name].series[()]
        assert isinstance(found, Distribution)  # noqa: S101  # made so in _histograms
        return found

    def _count(self, name: str, by: float, labels: tuple[tuple[str, str], ...] = ()) -> None:
        series = self._families[name].series
        series[labels] = float(series[labels]) + by  # type: ignore[arg-type]

    def _set(self, name: str, value: float, labels: tuple[tuple[str, str], ...] = ()) -> None:
        self._families[name].series[labels] = float(value)

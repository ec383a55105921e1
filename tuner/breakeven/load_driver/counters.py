"""The engine's own counters: the difference of two `/metrics` pages describes the window between them.

Names are vLLM's (0.1x to 0.33). Series of several engine cores (data parallelism) are summed before anything is
divided. The `vllm:spec_decode_*` counters exist only in an engine that speculates. Their absence shows that an engine
started without the speculation that was asked for.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from itertools import zip_longest

from breakeven.serving.counted_window import Window
from breakeven.serving.growths import Growths
from breakeven.serving.plausibility import EngineLimits

_PER_POSITION = "spec_decode_num_accepted_tokens_per_pos_total"
_SERIES = (
    "generation_tokens_total",
    "time_to_first_token_seconds_count",
    "inter_token_latency_seconds_count",
    "inter_token_latency_seconds_sum",
    "request_queue_time_seconds_count",
    "request_queue_time_seconds_sum",
    "spec_decode_num_drafts_total",
    "spec_decode_num_draft_tokens_total",
    _PER_POSITION,
    "num_preemptions_total",
    "prefix_cache_queries_total",
    "prefix_cache_hits_total",
    "num_requests_running",
    "num_requests_waiting",
    "kv_cache_usage_perc",
)
_SAMPLE = re.compile(
    rf"^vllm:(?P<name>{'|'.join(_SERIES)})(?:\{{(?P<labels>.*)\}})?\s+(?P<value>[-+]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?)\s*$",
    re.MULTILINE,
)
_POSITION = re.compile(r'(?:^|,)position="(\d{1,4})"')
_STATISTICS = {
    "generated": "generation_tokens",
    "started": "first_tokens",
    "steps": "request_steps",
    "step_s": "stepping_s",
    "admitted": "admitted",
    "queued_s": "queued_s",
    "drafts": "drafts",
    "drafted": "draft_tokens",
    "preemptions": "preemptions",
    "looked_up": "prefix_queries",
    "hits": "prefix_hits",
}
"""Fields of a reading, by the statistics that a Window is made of."""
# No engine drafts so far ahead, and a list of positions is as long as the highest of them.
_MOST_POSITIONS = 64


@dataclass(frozen=True, slots=True)
class EngineCounters:
    """One reading of the counters that a measurement needs; None if the page has no such series.

    Attributes:
        generation_tokens: tokens produced.
        first_tokens: requests whose first token was produced.
        request_steps: gaps between outputs, summed over requests: one per request and decode step.
        stepping_s: seconds of those gaps.
        admitted: requests whose wait for a place in the batch is counted in `queued_s`.
        queued_s: seconds that they waited for it.
        drafts: request-steps in which something was drafted.
        draft_tokens: tokens drafted.
        accepted_at: tokens accepted at draft position 1..k.
        preemptions: requests thrown out of the KV pool.
        prefix_queries: prompt tokens looked up in the prefix cache.
        prefix_hits: those found there.
        running: requests in the batch now (gauge).
        waiting: requests queued now (gauge).
        kv_usage: share of the KV pool in use now (gauge), 0 to 1.
    """

    generation_tokens: float | None = None
    first_tokens: float | None = None
    request_steps: float | None = None
    stepping_s: float | None = None
    admitted: float | None = None
    queued_s: float | None = None
    drafts: float | None = None
    draft_tokens: float | None = None
    accepted_at: tuple[float, ...] | None = None
    preemptions: float | None = None
    prefix_queries: float | None = None
    prefix_hits: float | None = None
    running: float | None = None
    waiting: float | None = None
    kv_usage: float | None = None

    @property
    def speculates(self) -> bool:
        """The engine was started with speculation."""
        return self.drafts is not None


def read_counters(page: str) -> EngineCounters:
    """Read one page in the Prometheus text format.

    A regular expression over the samples in place of a full parser: pages are read while load is being generated,
    and a parser that builds 800 objects from 54 kB would show up as send lag.
    """
    sums: dict[str, float] = {}
    peaks: dict[str, float] = {}
    accepted: dict[int, float] = {}
    for sample in _SAMPLE.finditer(page):
        name = sample["name"]
        value = float(sample["value"])
        if not math.isfinite(value):
            # `1e999` is written as a number.
            continue
        sums[name] = sums.get(name, 0.0) + value
        peaks[name] = max(peaks.get(name, -math.inf), value)
        if name == _PER_POSITION:
            position = _POSITION.search(sample["labels"] or "")
            if position and (index := int(position[1])) < _MOST_POSITIONS:
                accepted[index] = accepted.get(index, 0.0) + value
    drafts = sums.get("spec_decode_num_drafts_total")
    positions = tuple(accepted.get(index, 0.0) for index in range(max(accepted, default=-1) + 1))
    return EngineCounters(
        generation_tokens=sums.get("generation_tokens_total"),
        first_tokens=sums.get("time_to_first_token_seconds_count"),
        request_steps=sums.get("inter_token_latency_seconds_count"),
        stepping_s=sums.get("inter_token_latency_seconds_sum"),
        admitted=sums.get("request_queue_time_seconds_count"),
        queued_s=sums.get("request_queue_time_seconds_sum"),
        drafts=drafts,
        draft_tokens=sums.get("spec_decode_num_draft_tokens_total"),
        accepted_at=positions if drafts is not None else None,
        preemptions=sums.get("num_preemptions_total"),
        prefix_queries=sums.get("prefix_cache_queries_total"),
        prefix_hits=sums.get("prefix_cache_hits_total"),
        running=sums.get("num_requests_running"),
        waiting=sums.get("num_requests_waiting"),
        kv_usage=peaks.get("kv_cache_usage_perc"),
    )


def between(before: EngineCounters, after: EngineCounters, limits: EngineLimits | None = None) -> Window:
    """What one engine did between two readings.

    A counter that is missing, or went backwards because the engine restarted in between, gives no figure.
    """
    grown = {
        stat: late - early
        for stat in _STATISTICS
        if (early := getattr(before, _STATISTICS[stat])) is not None
        and (late := getattr(after, _STATISTICS[stat])) is not None
        and late >= early
        # A sum of engines may be beyond what a number holds.
        and math.isfinite(late - early)
    }
    accepted = zip_longest(before.accepted_at or (), after.accepted_at or (), fillvalue=0.0)
    return Window.of(
        [Growths(grown, {place: late - early for place, (early, late) in enumerate(accepted)})], limits
    )

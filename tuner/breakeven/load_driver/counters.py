"""The engine's own counters: the difference of two `/metrics` pages describes the window between them.

Names are vLLM's (0.1x to 0.33). Series of several engine cores (data parallelism) are summed before anything is
divided. The `vllm:spec_decode_*` counters exist only in an engine that speculates. Their absence shows that an engine
started without the speculation that was asked for.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import zip_longest

from breakeven.serving.counted_window import Window
from breakeven.serving.growths import EngineLimits, Growths

_PER_POSITION = "spec_decode_num_accepted_tokens_per_pos_total"
_COUNTERS = {
    "generation_tokens_total": "generated",
    "time_to_first_token_seconds_count": "started",
    "inter_token_latency_seconds_count": "steps",
    "inter_token_latency_seconds_sum": "step_s",
    "request_queue_time_seconds_count": "admitted",
    "request_queue_time_seconds_sum": "queued_s",
    "spec_decode_num_drafts_total": "drafts",
    "spec_decode_num_draft_tokens_total": "drafted",
    "num_preemptions_total": "preemptions",
    "prefix_cache_queries_total": "looked_up",
    "prefix_cache_hits_total": "hits",
}
"""Statistics that a Window is made of, by series."""
_SERIES = (*_COUNTERS, _PER_POSITION, "num_requests_running", "num_requests_waiting", "kv_cache_usage_perc")
_SAMPLE = re.compile(
    rf"^vllm:(?P<name>{'|'.join(_SERIES)})(?:\{{(?P<labels>.*)\}})?\s+(?P<value>[-+]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?)\s*$",
    re.MULTILINE,
)
_POSITION = re.compile(r'(?:^|,)position="(\d{1,4})"')
# No engine drafts so far ahead, and a list of positions is as long as the highest of them.
_MOST_POSITIONS = 64


@dataclass(frozen=True, slots=True)
class EngineCounters:
    """One reading of the counters that a measurement needs; None if the page has no such series.

    Attributes:
        accepted_at: tokens accepted at draft position 1..k.
        kv_usage: share of the KV pool in use now (gauge), 0 to 1.
    """

    counted: Mapping[str, float] = field(default_factory=dict)
    accepted_at: tuple[float, ...] | None = None
    running: float | None = None
    waiting: float | None = None
    kv_usage: float | None = None

    @property
    def speculates(self) -> bool:
        """The engine was started with speculation."""
        return "drafts" in self.counted


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
    positions = tuple(accepted.get(index, 0.0) for index in range(max(accepted, default=-1) + 1))
    counted = {stat: sums[series] for series, stat in _COUNTERS.items() if series in sums}
    return EngineCounters(
        counted,
        accepted_at=positions if "drafts" in counted else None,
        running=sums.get("num_requests_running"),
        waiting=sums.get("num_requests_waiting"),
        kv_usage=peaks.get("kv_cache_usage_perc"),
    )


def between(before: EngineCounters, after: EngineCounters, limits: EngineLimits | None = None) -> Window:
    """Figures of one engine between two readings.

    A counter that is missing, or went backwards because the engine restarted in between, gives no figure.
    """
    grown = {
        stat: late - before.counted[stat]
        for stat, late in after.counted.items()
        # A sum of engines may be beyond what a number holds.
        if stat in before.counted and late >= before.counted[stat] and math.isfinite(late)
    }
    accepted = zip_longest(before.accepted_at or (), after.accepted_at or (), fillvalue=0.0)
    return Window.of(
        [Growths(grown, {place: late - early for place, (early, late) in enumerate(accepted)})], limits
    )

"""The engine's own counters: the difference of two `/metrics` pages describes the window between them.

Names are vLLM's (0.1x to 0.33). Series of several engine cores (data parallelism) are summed before anything is
divided. The `vllm:spec_decode_*` counters exist only in an engine that speculates. Their absence shows that an engine
started without the speculation that was asked for.
"""

from __future__ import annotations

import math
import re

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
_GAUGES = {"num_requests_running": "running", "num_requests_waiting": "waiting"}
_POOL = "kv_cache_usage_perc"
_NOW = {*_GAUGES.values(), "kv_usage"}
_SERIES = (*_COUNTERS, _PER_POSITION, *_GAUGES, _POOL)
_SAMPLE = re.compile(
    rf"^vllm:(?P<name>{'|'.join(_SERIES)})(?:\{{(?P<labels>.*)\}})?\s+(?P<value>[-+]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?)\s*$",
    re.MULTILINE,
)
_CACHE_INFO = re.compile(r"^vllm:cache_config_info\{(.*)\}", re.MULTILINE)
_CACHE_LABELS = tuple(
    re.compile(rf'(?:^|,){name}="(\d{{1,12}})"') for name in ("num_gpu_blocks", "block_size")
)
_POSITION = re.compile(r'(?:^|,)position="(\d{1,4})"')
# No engine drafts so far ahead.
_MOST_POSITIONS = 64


def read_counters(page: str) -> Growths:
    """Read one page in the Prometheus text format: counters as they stand, and `running`, `waiting` and `kv_usage` (a share) of now.

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
    stats = {stat: sums[series] for series, stat in (_COUNTERS | _GAUGES).items() if series in sums}
    stats |= {"kv_usage": peaks[_POOL]} if _POOL in peaks else {}
    return Growths(stats, accepted if "drafts" in stats else {})


def kv_cache_tokens(page: str) -> int | None:
    """Tokens of context that the KV caches of all engines hold, by `vllm:cache_config_info`; None if the page does not say."""
    found = 0
    for info in _CACHE_INFO.findall(page):
        sizes = [label.search(info) for label in _CACHE_LABELS]
        if None in sizes:
            return None
        found += math.prod(int(size[1]) for size in sizes if size is not None)
    return found or None


def between(before: Growths, after: Growths, limits: EngineLimits | None = None) -> Window:
    """Figures of one engine between two readings.

    A counter that is missing, or went backwards because the engine restarted in between, gives no figure.
    """
    grown = {
        stat: late - before.stats[stat]
        for stat, late in after.stats.items()
        # A sum of engines may be beyond what a number holds.
        if stat in before.stats and late >= before.stats[stat] and math.isfinite(late) and stat not in _NOW
    }
    accepted = {place: late - before.accepted.get(place, 0.0) for place, late in after.accepted.items()}
    return Window.of([Growths(grown, accepted)], limits)

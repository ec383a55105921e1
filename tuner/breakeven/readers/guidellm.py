"""GuideLLM reports: one JSON document with a list of benchmarks, each one operating point of one arm.

Where a benchmark says how requests arrived has moved: `config.strategy` in reports of version 2 and 1 (0.8 back to
0.5), `scheduler.strategy` in 0.4, `args.strategy` beside `run_stats` in 0.2 and 0.3. The metrics are alike in all:
`metrics.<name>.successful.mean`.

GuideLLM's inter_token_latency is decode time over decoded tokens, which is TPOT; its time_per_output_token divides by
all tokens and is not.
"""

from __future__ import annotations

from breakeven.arm import Arm
from breakeven.errors import InputError
from breakeven.points.point import Point
from breakeven.readers.collecting import Fields
from breakeven.readers.jsonwalk import Node

_STRATEGY_IN = ("config", "scheduler", "args")

# 0.2 wrote the common name of the open-loop strategies, which send at a constant rate by default.
_ARRIVALS = {"poisson": "poisson", "constant": "constant", "async": "constant"}

# GuideLLM's own limit where nobody lowered it: more than an engine's batch holds.
_NO_LIMIT = 512

# Metric, column and unit. Every request's one inter_token_latency is weighted with its tokens.
_QUANTILES = (
    ("request_latency", "p{}_latency_s", 1.0),
    ("time_to_first_token_ms", "ttft_p{}_s", 1e-3),
    ("inter_token_latency_ms", "tpot_p{}_s", 1e-3),
)


def recognises(document: Node) -> bool:
    """Tell whether this is a GuideLLM report."""
    return isinstance(document.value, dict) and isinstance(document.value.get("benchmarks"), list)


def read(document: Node, arm: Arm) -> tuple[Point, ...]:
    """Read every benchmark of a report; an embeddings or audio benchmark is refused.

    Args:
        document: the parsed file.
        arm: which arm the engine ran; the report does not say.

    Raises:
        InputError: naming the JSON path.
    """
    benchmarks = list(document.get("benchmarks").items())
    if not benchmarks:
        raise InputError(document.get("benchmarks").where, "an empty list", "at least one benchmark")
    return tuple(_point(benchmark, index, arm) for index, benchmark in enumerate(benchmarks))


def _point(benchmark: Node, index: int, arm: Arm) -> Point:
    metrics, fields = benchmark.get("metrics"), Fields(arm)

    def mean(name: str, group: str = "successful") -> Node:
        return metrics.at(name, group, "mean")

    latency = mean("request_latency")
    if not latency.optional_number():
        raise InputError(latency.where, "nothing there", "mean latency of the successful requests in seconds")
    fields.take("mean_latency_s", latency)
    # Requests cut off at the end of the run were in flight like all others.
    fields.take("mean_inflight", mean("request_concurrency"))
    fields.take("mean_inflight", mean("request_concurrency", "total"))
    fields.take("achieved_rps", mean("requests_per_second"))
    fields.take("ttft_mean_s", mean("time_to_first_token_ms"), scale=1e-3)
    fields.take("tpot_mean_s", mean("inter_token_latency_ms"), scale=1e-3)
    for name, column, scale in _QUANTILES:
        percentiles = metrics.at(name, "successful", "percentiles")
        for percent in (50, 95, 99):
            fields.take(column.format(percent), percentiles.at(f"p{percent}"), scale)
    fields.take("tokens_per_second", mean("output_tokens_per_second"))
    fields.take("prompt_tokens", mean("prompt_token_count"))
    fields.take("output_tokens", mean("output_token_count"))
    spread = metrics.at("output_token_count", "successful", "std_dev")
    tokens, deviation = fields.number("output_tokens"), spread.optional_number()
    if tokens is not None and deviation is not None:
        fields.put("output_tokens_sq", spread.path, tokens * tokens + deviation * deviation)
    # The older schema counts requests beside the metrics.
    counts = (metrics.get("request_totals"), benchmark.at("run_stats", "requests_made"))
    for count in counts:
        fields.take("requests", count.at("successful"))
    _load(benchmark, fields)
    fields.flag("RequestsFailed", when=any(count.at("errored").optional_number() for count in counts))
    return fields.point(benchmark.source, index + 1)


def _load(benchmark: Node, fields: Fields) -> None:
    """Fill in what was imposed, and the flag that follows from it."""
    places = [benchmark.at(outer, "strategy") for outer in _STRATEGY_IN]
    strategy = next((place for place in places if place.value is not None), places[0])
    expected = "a strategy: synchronous, concurrent, throughput, constant, poisson or async"
    kind_node = strategy.at("type_")
    kind = kind_node.text(expected)
    if kind in _ARRIVALS:
        rate = strategy.get("rate")
        fields.put("request_rate_rps", rate.path, rate.number("requests per second"))
        fields.put("load_mode", kind_node.path, _ARRIVALS[kind])
    elif kind == "throughput":
        limit = strategy.get("max_concurrency")
        clients = limit.optional_number("the number of clients, or null")
        if clients is not None and clients < _NO_LIMIT:
            # As many as the limit lets through, and the next one as soon as one is answered.
            fields.put("concurrency", limit.path, clients)
        else:
            # Everything at once: the ceiling, which says where saturation lies and nothing else.
            fields.put("concurrency", strategy.path, max(1.0, fields.number("mean_inflight") or 1.0))
            fields.flag("SaturatedPoint", when=True)
    elif kind == "synchronous":
        fields.put("concurrency", kind_node.path, 1.0)
    elif kind == "concurrent":
        streams = strategy.get("streams")
        streams = strategy.get("max_concurrency") if streams.value is None else streams
        fields.put("concurrency", streams.path, streams.number("the number of clients"))
    else:
        raise InputError(kind_node.where, repr(kind)[:40], expected)

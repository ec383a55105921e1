"""Summaries of AIPerf (`profile_export_aiperf.json`) and GenAI-Perf (`profile_export_genai_perf.json`): one operating point.

A metric is an object of unit, avg, p50, ..., at the root or, in AIPerf's first releases, under `records`. The first tool
names its load under `input_config.loadgen`, the second beside the other options. Neither says which arm ran.
"""

from __future__ import annotations

from typing import Any, Literal

from breakeven.arm import Arm
from breakeven.errors import ForeignFileError
from breakeven.points.point import Point
from breakeven.readers.foreign import (
    Counted,
    Document,
    ForeignResult,
    Milliseconds,
    at,
    mean_square,
    ratio_of_means_s,
)
from breakeven.readers.imposed import gamma_arrivals, imposed
from breakeven.reasons import Reason


def _metric(name: str, statistic: str = "avg", default: Any = None, means: str | None = None) -> Any:
    return at(f"{name}.{statistic}", f"records.{name}.{statistic}", default=default, means=means)


def _load(*names: str, means: str) -> Any:
    outer = ("input_config.loadgen", "input_config.perf_analyzer.stimulus", "input_config")
    return at(*(f"{place}.{name}" for name in names for place in outer), means=means)


class AiperfSummary(ForeignResult):
    """One summary; times in ms."""

    latency_unit: Literal["ms"] = _metric(
        "request_latency", "unit", default=..., means="`ms`; another one is refused"
    )
    mean_latency_s: Milliseconds = _metric("request_latency", default=...)
    p50_latency_s: Milliseconds = _metric("request_latency", "p50")
    p95_latency_s: Milliseconds = _metric("request_latency", "p95")
    p99_latency_s: Milliseconds = _metric("request_latency", "p99")
    ttft_mean_s: Milliseconds = _metric("time_to_first_token")
    ttft_p50_s: Milliseconds = _metric("time_to_first_token", "p50")
    ttft_p95_s: Milliseconds = _metric("time_to_first_token", "p95")
    ttft_p99_s: Milliseconds = _metric("time_to_first_token", "p99")
    tpot_p50_s: Milliseconds = _metric("inter_token_latency", "p50")
    tpot_p95_s: Milliseconds = _metric("inter_token_latency", "p95")
    tpot_p99_s: Milliseconds = _metric("inter_token_latency", "p99")
    requests: Counted = _metric("request_count")
    failed: Counted = _metric("error_request_count", means="requests that failed")
    achieved_rps: Counted = _metric("request_throughput")
    tokens_per_second: Counted = _metric("output_token_throughput")
    prompt_tokens: Counted = _metric("input_sequence_length")
    output_tokens: Counted = _metric("output_sequence_length")
    deviation: Counted = _metric("output_sequence_length", "std", means="column `output_tokens_sq`")
    cancelled: bool | None = at("was_cancelled", means="true: requests failed")
    models: tuple[str, ...] = at(
        "input_config.endpoint.model_names",
        "input_config.model_names",
        "input_config.model",
        default=(),
        means="column `model`",
    )
    rate: Counted = _load("request_rate", means="column `request_rate_rps`")
    clients: Counted = _load("concurrency", means="column `concurrency`; with a rate its upper limit")
    arrivals: str | None = _load(
        "arrival_pattern",
        "request_rate_mode",
        means="`poisson` or `constant`; `gamma` by its smoothness; else unknown",
    )
    smoothness: Counted = _load("arrival_smoothness", means="of gamma: 1 Poisson, from 10 on constant")
    ramp_s: Counted = _load(
        "request_rate_ramp_duration", "concurrency_ramp_duration", means="above 0: not steady"
    )
    per_user: Counted = _load("user_centric_rate", means="arrivals unknown")
    scheduled: bool | None = at("input_config.input.fixed_schedule", means="true: not steady")


def recognises(document: Document) -> bool:
    """Tell whether this is a summary of AIPerf or GenAI-Perf."""
    return document.has("input_config") and (
        document.has("records") or document.has("request_latency") or document.has("error_request_count")
    )


def read(document: Document, arm: Arm) -> tuple[Point | ForeignFileError, ...]:
    """Read one summary.

    Args:
        document: the parsed file.
        arm: which arm the engine ran.

    Raises:
        InputError: naming the JSON path.
    """
    read = document.read(AiperfSummary)
    if read.rate is None and read.clients is None:
        # A later configuration names its load elsewhere: nobody may take it for all requests at once.
        return (document.disown("a summary that does not say how requests arrived", "input_config.loadgen"),)
    latency_s = read.mean_latency_s or 0.0
    inflight = latency_s * (read.achieved_rps or 0.0)
    columns, flags = imposed(read.rate, read.clients, inflight, _arrivals(read))
    if read.ramp_s or read.scheduled:
        # The load rose, or followed a recording, while it ran.
        flags.append(Reason.NOT_STEADY)
    if read.failed or read.cancelled:
        flags.insert(0, Reason.REQUESTS_FAILED)
    columns["model"] = (",".join(read.models) or None, "models")
    columns["output_tokens_sq"] = (mean_square(read.output_tokens, read.deviation), "deviation")
    tpot_s = ratio_of_means_s(latency_s, read.ttft_mean_s, read.output_tokens or 0.0)
    columns["tpot_mean_s"] = (tpot_s, "mean_latency_s")
    return (document.point(read, arm, columns | {"flag": (" ".join(flags), "failed")}),)


def _arrivals(read: AiperfSummary) -> str | None:
    """How an open loop's requests arrived; GenAI-Perf sends at a constant rate and does not say so."""
    if read.per_user is not None:
        return None
    match read.arrivals:
        case "poisson":
            return "poisson"
        case "constant" | None:
            return "constant"
        case "gamma":
            return gamma_arrivals(read.smoothness)
        case _:
            return None

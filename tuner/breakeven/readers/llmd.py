"""Reports of llm-d-benchmark, version 0.2: one operating point of whichever load generator it ran.

Version 0.1 holds the load generator's own options and no standard word for how requests arrived: it is refused.
"""

from __future__ import annotations

import json
import math
import re
from typing import Annotated, Any, Literal

from pydantic import Field

from breakeven.arm import Arm
from breakeven.errors import ForeignFileError
from breakeven.points.point import Point
from breakeven.points.quality import few_generations
from breakeven.readers.foreign import (
    Counted,
    Document,
    Figure,
    ForeignResult,
    Moment,
    Number,
    at,
    mean_square,
)
from breakeven.readers.imposed import imposed
from breakeven.reasons import Reason

_SCALES = {"s": 1.0, "ms": 1e-3}
_RESULTS = "results.request_performance.aggregate"
_PerSecond = Literal["queries/s", "queries/sec", "requests/s", "requests/sec"]
_Limit = Annotated[float, Field(strict=True, ge=1)] | None


def _latency(metric: str, statistic: str, means: str, default: Any = None) -> Any:
    return at(f"{_RESULTS}.latency.{metric}.{statistic}", default=default, means=means)


class LlmdReport(ForeignResult):
    """One report; its request latency is in `latency_unit`, its time to the first token in `ttft_unit`."""

    latency_unit: Literal["s", "ms"] = _latency("request_latency", "units", "`s` or `ms`", default=...)
    latency_mean: Annotated[Number, Field(gt=0)] = _latency(
        "request_latency", "mean", "column `mean_latency_s`", default=...
    )
    latency_p50: Figure = _latency("request_latency", "p50", "column `p50_latency_s`")
    latency_p95: Figure = _latency("request_latency", "p95", "column `p95_latency_s`")
    latency_p99: Figure = _latency("request_latency", "p99", "column `p99_latency_s`")
    ttft_unit: Literal["s", "ms"] | None = _latency("time_to_first_token", "units", "`s` or `ms`")
    ttft_mean: Figure = _latency("time_to_first_token", "mean", "column `ttft_mean_s`")
    ttft_p50: Figure = _latency("time_to_first_token", "p50", "column `ttft_p50_s`")
    ttft_p95: Figure = _latency("time_to_first_token", "p95", "column `ttft_p95_s`")
    ttft_p99: Figure = _latency("time_to_first_token", "p99", "column `ttft_p99_s`")
    sent: Number | None = at(f"{_RESULTS}.requests.total", means="requests that were sent")
    failed: Counted = at(f"{_RESULTS}.requests.failures", means="requests that failed")
    incomplete: Counted = at(
        f"{_RESULTS}.requests.incomplete",
        means="requests that were cut off at the end: more than a quarter of those answered are too many",
    )
    prompt_tokens: Figure = at(f"{_RESULTS}.requests.input_length.mean")
    output_tokens: Figure = at(f"{_RESULTS}.requests.output_length.mean")
    deviation: Figure = at(f"{_RESULTS}.requests.output_length.stddev", means="column `output_tokens_sq`")
    achieved_rps: Counted = at(
        f"{_RESULTS}.throughput.request_rate.mean", f"{_RESULTS}.throughput.requests_rate.mean"
    )
    rate_unit: _PerSecond | None = at(
        f"{_RESULTS}.throughput.request_rate.units",
        f"{_RESULTS}.throughput.requests_rate.units",
        means="`queries/s`; another time is refused",
    )
    tokens_per_second: Figure = at(f"{_RESULTS}.throughput.output_token_rate.mean")
    rate: Counted = at("scenario.load.standardized.rate_qps", means="column `request_rate_rps`")
    clients: _Limit = at(
        "scenario.load.standardized.concurrency", means="column `concurrency`; with a rate its upper limit"
    )
    arrivals: str | None = at(
        "scenario.load.native.config.load.type", means="`poisson` or `constant`; else unknown"
    )
    beside: list[Any] = at(
        "scenario.load.metadata.concurrent_with",
        default=[],
        means="not empty: other load ran beside it, so that arrivals are unknown",
    )
    generators: Counted = at("scenario.load.standardized.parallelism", means="above 1: arrivals unknown")
    turns: bool | None = at(
        "scenario.load.standardized.multi_turn.enabled", means="true, with a rate: arrivals unknown"
    )
    target: str | None = at("scenario.load.native.config.server.base_url", means="column `target`")
    begun_s: Moment = at("run.time.start")
    stack: Any = at(
        "scenario.stack",
        means="of its components' `standardized`: `model.name` is column `model`, `accelerator.model` column `gpu`; tool, version, role, "
        "replicas, accelerators and parallelism make column `engine`",
    )


_ENGINE = ("tool", "tool_version", "role", "replicas", "accelerator")
_HARMLESS = re.compile(
    # Names, and how prompts were made: their lengths are among the results.
    r"schema_version|cfg_id|description|treatment(_group)?|tool(_version)?|source|stage|(input|output)_seq_len|prefix"
)


def recognises(document: Document) -> bool:
    """Tell whether this is a report of llm-d-benchmark."""
    return document.has("version", "scenario") and (document.has("results") or document.has("metrics"))


def read(document: Document, arm: Arm) -> tuple[Point | ForeignFileError, ...]:
    """Read one report; a refusal, also of a report of another version, names the path."""
    version = str(document.value["version"])
    if not version.startswith("0.2"):
        why = "which does not say how requests arrived" if version.startswith("0.1") else "which is not known"
        expected = "version 0.2, or the load generator's own result"
        return (document.disown(f"a report of llm-d-benchmark {version[:20]}, {why}", expected, "version"),)
    read = document.read(LlmdReport)
    if read.rate is None and read.clients is None:
        return (
            document.disown(
                "a report that does not say how requests arrived",
                "scenario.load.standardized.rate_qps or concurrency",
            ),
        )
    answered = None if read.sent is None else read.sent - (read.failed or 0.0) - (read.incomplete or 0.0)
    if answered is not None and answered <= 0.0:
        return (document.disown("a report of a run in which no request was answered", "one with answers"),)
    latency_s = read.latency_mean * _SCALES[read.latency_unit]
    limit = None if read.clients == math.inf else read.clients
    arrivals = read.arrivals if read.arrivals in {"poisson", "constant"} else None
    columns, flags = imposed(read.rate, limit, latency_s * (read.achieved_rps or 0.0), arrivals)
    if read.beside or (read.generators or 1.0) > 1.0 or (read.turns and read.rate is not None):
        # The stated load is only a part of the load that the engine answered.
        flags.append(Reason.ARRIVALS_UNKNOWN)
    if read.failed:
        flags.insert(0, Reason.REQUESTS_FAILED)
    columns["mean_latency_s"] = (latency_s, "latency_mean")
    for column, value, scale in _times(read):
        columns[column] = (None if value is None else value * scale, "latency_mean")
    columns["requests"] = (answered, "sent")
    if few_generations(answered or math.inf, read.incomplete or 0.0):
        # Requests that were cut off are the long ones, so the mean of the others is too low.
        flags.append(Reason.POINT_TOO_SHORT)
    columns["output_tokens_sq"] = (mean_square(read.output_tokens, read.deviation), "deviation")
    columns["model"] = (_each(read.stack, "model", "name"), "stack")
    columns["gpu"] = (_each(read.stack, "accelerator", "model"), "stack")
    columns["engine"] = (_engines(read.stack), "stack")
    columns["replicas"] = (_replicas(read.stack), "stack")
    columns["target"] = (read.target, "target")
    columns["flag"] = (" ".join(dict.fromkeys(flags)), "failed")
    unread = document.unread(LlmdReport, _HARMLESS, "scenario.load.standardized")
    unread |= document.unread(LlmdReport, _HARMLESS, "scenario.load.metadata")
    return (document.point(read, arm, columns, unread, f"llm-d-benchmark's report {version[:20]}"),)


def _times(read: LlmdReport) -> list[tuple[str, float | None, float]]:
    scale, first = _SCALES[read.latency_unit], _SCALES[read.ttft_unit or "s"]
    return [
        ("p50_latency_s", read.latency_p50, scale),
        ("p95_latency_s", read.latency_p95, scale),
        ("p99_latency_s", read.latency_p99, scale),
        ("ttft_mean_s", read.ttft_mean, first),
        ("ttft_p50_s", read.ttft_p50, first),
        ("ttft_p95_s", read.ttft_p95, first),
        ("ttft_p99_s", read.ttft_p99, first),
    ]


def _components(stack: Any) -> list[dict[str, Any]]:
    """The standardized fields of each component of a stack."""
    found = (
        [one.get("standardized") for one in stack if isinstance(one, dict)] if isinstance(stack, list) else []
    )
    return [one for one in found if isinstance(one, dict)]


def _each(stack: Any, *keys: str) -> str | None:
    """A text of all inference engines of a stack, each once; components of other kinds have none, or other fields."""
    found: list[str] = []
    for component in _components(stack):
        inner: Any = component
        for key in keys:
            inner = inner.get(key) if isinstance(inner, dict) else None
        if isinstance(inner, str):
            found.append(inner)
    return ",".join(dict.fromkeys(found)) or None


def _engines(stack: Any) -> str | None:
    """The standardized fields of a stack's inference engines, without the model: two engines differ if they differ."""
    told = [
        {key: one[key] for key in _ENGINE if one.get(key) is not None}
        for one in _components(stack)
        if one.get("kind") == "inference_engine"
    ]
    return " ".join(json.dumps(one, sort_keys=True)[:400] for one in told) or None


def _replicas(stack: Any) -> str | None:
    """Number of inference engines that answered together; None for one, or if the report does not say."""
    counts = [one.get("replicas") for one in _components(stack) if one.get("kind") == "inference_engine"]
    total = sum(count for count in counts if isinstance(count, int))
    return str(total) if total > 1 else None

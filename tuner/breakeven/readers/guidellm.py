"""GuideLLM reports: one JSON document with a list of benchmarks, each one operating point of one arm.

The field that states how requests arrived has moved. It is `config.strategy` in reports of version 2 and 1 (0.5 to 0.8),
`scheduler.strategy` in 0.4, and `args.strategy` beside `run_stats` in 0.2 and 0.3. All versions have the same metrics:
`metrics.<name>.successful.mean`.

GuideLLM's inter_token_latency is decode time over decoded tokens, which is TPOT. Its time_per_output_token divides by
all tokens, so it is not TPOT.
"""

from __future__ import annotations

import math
import re
from typing import Annotated, Any

from pydantic import Field

from breakeven.arm import Arm
from breakeven.errors import ForeignFileError
from breakeven.points.point import Point
from breakeven.points.quality import few_generations
from breakeven.readers.foreign import (
    NAN_IS_ABSENT,
    Counted,
    Document,
    Figure,
    ForeignResult,
    Milliseconds,
    Moment,
    Number,
    at,
    mean_square,
)
from breakeven.readers.imposed import imposed
from breakeven.readers.middle import Middle, middle_of, middle_or_whole, times_of
from breakeven.reasons import Reason

# 0.2 wrote the common name of the open-loop strategies, which send at a constant rate by default.
_ARRIVALS = {"poisson": "poisson", "constant": "constant", "async": "constant"}

_KINDS = ("synchronous", "concurrent", "throughput", *_ARRIVALS)

_SCHEMAS = (1.0, 2.0)

_HARMLESS = re.compile(
    # In 0.2 and 0.3 a run with a rate may begin with a burst of one second's requests.
    r"worker_count|processes_limit|queued_requests_limit|processes_requests_limit|random_seed|initial_burst|cpu_\w+"
)

# GuideLLM's own default limit: more requests than an engine's batch holds.
_NO_LIMIT = 512


def _mean(metric: str) -> Any:
    return at(f"metrics.{metric}.successful.mean")


def _percentile(metric: str, percent: int) -> Any:
    return at(f"metrics.{metric}.successful.percentiles.p{percent}")


def _strategy(*keys: str, means: str, default: Any = None) -> Any:
    places = (f"{outer}.strategy.{key}" for key in keys for outer in ("config", "scheduler", "args"))
    return at(*places, default=default, means=means)


class GuideLlmBenchmark(ForeignResult):
    """One benchmark; every request's one inter_token_latency is weighted with its tokens."""

    mean_latency_s: Annotated[Number, Field(gt=0)] = at(
        "metrics.request_latency.successful.mean", default=...
    )
    # Requests cut off at the end of the run were in flight like all others.
    mean_inflight: Counted = at(
        "metrics.request_concurrency.total.mean", "metrics.request_concurrency.successful.mean"
    )
    achieved_rps: Counted = _mean("requests_per_second")
    p50_latency_s: Figure = _percentile("request_latency", 50)
    p95_latency_s: Figure = _percentile("request_latency", 95)
    p99_latency_s: Figure = _percentile("request_latency", 99)
    ttft_mean_s: Milliseconds = _mean("time_to_first_token_ms")
    ttft_p50_s: Milliseconds = _percentile("time_to_first_token_ms", 50)
    ttft_p95_s: Milliseconds = _percentile("time_to_first_token_ms", 95)
    ttft_p99_s: Milliseconds = _percentile("time_to_first_token_ms", 99)
    tpot_mean_s: Milliseconds = _mean("inter_token_latency_ms")
    tpot_p50_s: Milliseconds = _percentile("inter_token_latency_ms", 50)
    tpot_p95_s: Milliseconds = _percentile("inter_token_latency_ms", 95)
    tpot_p99_s: Milliseconds = _percentile("inter_token_latency_ms", 99)
    tokens_per_second: Figure = _mean("output_tokens_per_second")
    prompt_tokens: Figure = _mean("prompt_token_count")
    output_tokens: Figure = _mean("output_token_count")
    deviation: Annotated[Number | None, NAN_IS_ABSENT] = at(
        "metrics.output_token_count.successful.std_dev", means="column `output_tokens_sq`"
    )
    # The older schema counts requests beside the metrics.
    requests: Counted = at(
        "metrics.request_totals.successful", "request_totals.successful", "run_stats.requests_made.successful"
    )
    errored: Counted = at(
        "metrics.request_totals.errored",
        "request_totals.errored",
        "run_stats.requests_made.errored",
        means="requests that failed",
    )
    incomplete: Counted = at(
        "metrics.request_totals.incomplete",
        "request_totals.incomplete",
        "run_stats.requests_made.incomplete",
        means="requests that were cut off at the end: more than a quarter of those answered are too many",
    )
    kind: str = _strategy("type_", default=..., means="how requests arrived")
    rate: Number | None = _strategy("rate", means="column `request_rate_rps`")
    streams: Number | None = _strategy("streams", "max_concurrency", means="column `concurrency`")
    limit: Number | None = _strategy(
        "max_concurrency",
        means="most requests in flight of a `throughput` run or one with a rate; from 512 on: none",
    )
    rampup_s: Counted = _strategy(
        "rampup_duration", "startup_duration", means="above 0: not steady, if no middle can be cut out"
    )
    model: str | None = at("config.backend.model", "worker.backend_model", "benchmarker.backend.model")
    target: str | None = at(
        "config.backend.target",
        "worker.backend_target",
        "benchmarker.backend.target",
        means="column `target`",
    )
    endpoint: str | None = at("config.backend.request_format", means="column `endpoint`")
    begun_s: Moment = at("start_time", "run_stats.start_time")


class GuideLlmRequest(ForeignResult):
    """One request: 0.5 and newer name its times twice; 0.4 and older, each in its own place."""

    start_s: Number | None = at(
        "request_start_time",
        "info.timings.request_start",
        "scheduler_info.request_timings.request_start",
        "start_time",
        means="when it was sent (s): the ends of the run are cut off",
    )
    end_s: Number | None = at(
        "request_end_time",
        "info.timings.request_end",
        "scheduler_info.request_timings.request_end",
        "end_time",
        means="when it was answered, or cut off (s)",
    )
    first_s: Milliseconds = at("time_to_first_token_ms", means="time to first token of the middle")
    tokens: Figure = at("output_tokens", means="output tokens of the middle")


class _Listed(ForeignResult):
    """The requests of a benchmark, as far as it lists them."""

    answered: list[Any] = at("requests.successful", default=[])
    cut_off: list[Any] = at("requests.incomplete", default=[])
    errored: list[Any] = at("requests.errored", default=[])


class _Answered(ForeignResult):
    """Whether the benchmark has answers to read; true for a version that counts no requests."""

    type_: str = at("type_", default="")
    requests: Number = at(
        "metrics.request_totals.successful",
        "request_totals.successful",
        "run_stats.requests_made.successful",
        default=1.0,
    )


class GuideLlmReport(ForeignResult):
    """The part of a report that is about all its benchmarks."""

    model: str | None = at("args.model")
    target: str | None = at("args.target")
    version: str | None = at("metadata.guidellm_version", means="named in messages")
    tokenizer: str | None = at("config.spec.tokenizer.model", "args.processor", means="column `tokenizer`")
    layout: Number | None = at("metadata.version", means="above 2: named as unknown")
    data: list[Any] = at(
        "config.spec.data", default=[], means="more than one of `turns`, with a rate: arrivals unknown"
    )

    @property
    def turns(self) -> float:
        """Most requests of one conversation."""
        found = (part.get("turns") for part in self.data if isinstance(part, dict))
        return max((float(turns) for turns in found if isinstance(turns, int | float)), default=1.0)


def recognises(document: Document) -> bool:
    """Tell whether this is a GuideLLM report."""
    return document.has("benchmarks") and isinstance(document.value["benchmarks"], list)


def read(document: Document, arm: Arm) -> tuple[Point | ForeignFileError, ...]:
    """Read every benchmark of a report; a refusal names the JSON path."""
    benchmarks = [*document.member("benchmarks").items()]
    if not benchmarks:
        raise document.refuse("an empty list", "at least one benchmark", "benchmarks")
    report = document.read(GuideLlmReport)
    return tuple(_point(benchmark, report, arm) for benchmark in benchmarks)


def _point(document: Document, report: GuideLlmReport, arm: Arm) -> Point | ForeignFileError:
    answered = document.read(_Answered)
    if "embedding" in answered.type_:
        return document.disown("a benchmark of embeddings", "one that generates text")
    if not answered.requests:
        return document.disown("a benchmark in which no request was answered", "one with answers")
    read = document.read(GuideLlmBenchmark)
    if read.kind not in _KINDS:
        steps = document.standing(GuideLlmBenchmark, "kind")
        return document.disown(f"a benchmark with the load {read.kind[:40]!r}", ", ".join(_KINDS), steps)
    columns, flags = _imposed(document, read)
    columns["model"] = (read.model or report.model, "model")
    columns["target"] = (read.target or report.target, "target")
    columns["endpoint"] = (read.endpoint, "endpoint")
    columns["tokenizer"] = (report.tokenizer, "model")
    columns["output_tokens_sq"] = (mean_square(read.output_tokens, read.deviation), "deviation")
    if read.errored or document.read(_Listed).errored:
        flags.insert(0, Reason.REQUESTS_FAILED)
    if few_generations(read.requests or math.inf, read.incomplete or 0.0):
        # Requests that were cut off are the long ones, so the mean of the others is too low.
        flags.append(Reason.POINT_TOO_SHORT)
    if report.turns > 1.0 and read.rate is not None and "request_rate_rps" in columns:
        # A turn is sent when the one before it is answered.
        flags.append(Reason.ARRIVALS_UNKNOWN)
    # The load rose for that long, and the means are of the rise too.
    risen = [Reason.NOT_STEADY] if read.rampup_s else []
    tool = f"GuideLLM {report.version or ''}".strip()
    unread = (
        {}
        if report.layout is None or report.layout in _SCHEMAS
        else {"metadata.version": f"{report.layout:g}"}
    )
    for place in ("config.strategy", "scheduler.strategy", "args.strategy"):
        unread |= document.unread(GuideLlmBenchmark, _HARMLESS, place)
    flag = {"flag": (" ".join([*flags, *risen]), "errored")}
    whole = document.point(read, arm, columns | flag, unread, tool)
    middle = _middle(document, read, whole)
    if middle is None:
        return whole
    columns |= middle.resting_on("mean_latency_s")
    flag = {"flag": (" ".join(flags), "errored")}
    return middle_or_whole(document.point(read, arm, columns | flag, unread, tool, middle.part), whole)


def _middle(document: Document, read: GuideLlmBenchmark, whole: Point) -> Middle | None:
    """The steady middle, if the benchmark lists all its requests, not a sample of them."""
    listed = document.read(_Listed)
    if not listed.answered or len(listed.answered) != read.requests:
        return None
    answered = _requests(document, "successful", listed.answered)
    cut_off = _requests(document, "incomplete", listed.cut_off)
    begun = [(one.start_s, one.end_s) for one in cut_off]
    if any(one.start_s is None or one.end_s is None for one in answered):
        return None
    times = times_of(
        [one.start_s or 0.0 for one in answered],
        [(one.end_s or 0.0) - (one.start_s or 0.0) for one in answered],
        [one.first_s or 0.0 for one in answered],
        [one.tokens or 0.0 for one in answered],
        # A request that was cut off in its queue has no begin.
        [(start_s, end_s) for start_s, end_s in begun if start_s is not None and end_s is not None],
    )
    return None if times is None else middle_of(times, whole.load_mode, read.rampup_s or 0.0)


def _requests(document: Document, status: str, listed: list[Any]) -> list[GuideLlmRequest]:
    place = document.place("requests", status)
    return [
        Document(one, document.source, f"{place}[{index}]").read(GuideLlmRequest)
        for index, one in enumerate(listed)
    ]


def _imposed(document: Document, read: GuideLlmBenchmark) -> tuple[dict[str, tuple[Any, str]], list[Reason]]:
    """The columns of the imposed load, and the flag that follows from it."""
    resting_on = {"synchronous": "kind", "concurrent": "streams", "throughput": "limit"}.get(
        read.kind, "rate"
    )
    value = 1.0 if read.kind == "synchronous" else getattr(read, resting_on)
    if read.kind == "throughput" and (value is None or value >= _NO_LIMIT):
        # All requests at once: the run shows the ceiling, and with it saturation, and nothing else.
        return {"concurrency": (max(1.0, read.mean_inflight or 1.0), "kind")}, [Reason.SATURATED_POINT]
    # The limit lets so many requests through, and the next one when an answer ends: that is a closed loop.
    if value is None:
        expected = "requests per second" if resting_on == "rate" else "the number of clients"
        raise document.refuse("nothing there", expected, document.standing(GuideLlmBenchmark, resting_on))
    if resting_on == "rate":
        limit = read.limit if read.limit and read.limit < _NO_LIMIT else None
        columns, flags = imposed(value, limit, read.mean_inflight, _ARRIVALS[read.kind])
        return {
            "request_rate_rps": columns["request_rate_rps"],
            "load_mode": (_ARRIVALS[read.kind], "kind"),
        }, flags
    return {"concurrency": (value, resting_on)}, []

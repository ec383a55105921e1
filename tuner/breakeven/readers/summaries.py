"""Summaries of inference-perf, genai-bench and EvalScope: one operating point in a flat form, a table of keys for each tool.

`TOOLS` names the members by which a file of a tool is known. None of the files says which arm ran, and only EvalScope's
arrivals are known: it sends as Poisson's process does. Files of genai-bench hold one run each.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal, NamedTuple

from pydantic import AfterValidator

from breakeven.arm import Arm
from breakeven.errors import ForeignFileError
from breakeven.points.point import COLUMNS, Point
from breakeven.readers.foreign import (
    NAN_IS_ABSENT,
    Document,
    Figure,
    ForeignResult,
    Milliseconds,
    Number,
    at,
    mean_square,
    ratio_of_means_s,
)
from breakeven.readers.imposed import imposed
from breakeven.reasons import Reason

# EvalScope writes -1 for "not measured" and for "no rate".
_POSITIVE = AfterValidator(lambda value: value if value and value > 0 else None)
_Measured = Annotated[Figure, _POSITIVE]
_Deviation = Annotated[Number | None, NAN_IS_ABSENT]


class Summary(ForeignResult):
    """One run. The class of a tool has the fields that its files state: `mean_latency_s`, `requests`, `rate` and so on."""

    states_load: ClassVar[str]
    """Where the load of a run is found, for the refusal of a file that does not say it."""
    arrivals: ClassVar[str | None] = None
    """Kind of arrivals at a rate; None if the file does not say it."""

    def figure(self, name: str) -> float | None:
        """A field's figure; None if the tool states none."""
        found: float | None = getattr(self, name, None)
        return found

    @property
    def load(self) -> tuple[float | None, float | None]:
        """The offered rate, and the most requests in flight."""
        return self.figure("rate"), self.figure("clients")


class InferencePerfStage(Summary):
    """One stage of a run of inference-perf."""

    states_load = "stage_N_lifecycle_metrics.json of each stage: the summary holds all stages together"

    mean_latency_s: Number | None = at("successes.latency.request_latency.mean")
    p50_latency_s: Figure = at("successes.latency.request_latency.median")
    p95_latency_s: Figure = at("successes.latency.request_latency.p95")
    p99_latency_s: Figure = at("successes.latency.request_latency.p99")
    ttft_mean_s: Figure = at("successes.latency.time_to_first_token.mean")
    ttft_p50_s: Figure = at("successes.latency.time_to_first_token.median")
    ttft_p95_s: Figure = at("successes.latency.time_to_first_token.p95")
    ttft_p99_s: Figure = at("successes.latency.time_to_first_token.p99")
    achieved_rps: Figure = at("successes.throughput.requests_per_sec")
    tokens_per_second: Figure = at("successes.throughput.output_tokens_per_sec")
    prompt_tokens: Figure = at("successes.prompt_tokens.mean", "successes.prompt_len.mean")
    output_tokens: Figure = at("successes.output_tokens.mean", "successes.output_len.mean")
    requests: Number | None = at("successes.count")
    failed: Number | None = at("failures.count", means="requests that failed")
    rate: Number | None = at(
        "load_summary.requested_rate",
        means="column `request_rate_rps`, without a concurrency; arrivals unknown: config.yaml has their kind",
    )
    clients: Number | None = at("load_summary.concurrency", means="column `concurrency`")

    @property
    def load(self) -> tuple[float | None, float | None]:
        """A stage of so many clients has a nominal rate too."""
        return (self.rate, None) if self.clients is None else (None, self.clients)


class GenAiBenchRun(Summary):
    """One run of genai-bench."""

    states_load = "aggregated_metrics.num_concurrency"

    unit: Literal["s", "ms"] = at("_time_unit", default="s", means="`s` or `ms`")
    mean_latency_s: Number | None = at("aggregated_metrics.stats.e2e_latency.mean")
    p50_latency_s: Figure = at("aggregated_metrics.stats.e2e_latency.p50")
    p95_latency_s: Figure = at("aggregated_metrics.stats.e2e_latency.p95")
    p99_latency_s: Figure = at("aggregated_metrics.stats.e2e_latency.p99")
    ttft_mean_s: Figure = at("aggregated_metrics.stats.ttft.mean")
    ttft_p50_s: Figure = at("aggregated_metrics.stats.ttft.p50")
    ttft_p95_s: Figure = at("aggregated_metrics.stats.ttft.p95")
    ttft_p99_s: Figure = at("aggregated_metrics.stats.ttft.p99")
    achieved_rps: Figure = at("aggregated_metrics.requests_per_second")
    tokens_per_second: Figure = at("aggregated_metrics.mean_output_throughput_tokens_per_s")
    prompt_tokens: Figure = at("aggregated_metrics.stats.num_input_tokens.mean")
    output_tokens: Figure = at("aggregated_metrics.stats.num_output_tokens.mean")
    deviation: _Deviation = at(
        "aggregated_metrics.stats.num_output_tokens.stddev", means="column `output_tokens_sq`"
    )
    requests: Number | None = at("aggregated_metrics.num_completed_requests")
    failed: Number | None = at("aggregated_metrics.num_error_requests", means="requests that failed")
    kind: str = at(
        "aggregated_metrics.iteration_type",
        default="num_concurrency",
        means="`num_concurrency`: a closed loop; `request_rate`: arrivals unknown; others are passed over",
    )
    rate: Number | None = at("aggregated_metrics.request_rate", means="column `request_rate_rps`")
    clients: Number | None = at(
        "aggregated_metrics.num_concurrency",
        means="column `concurrency`; column `request_rate_rps` of a run at a rate that is not stated",
    )

    @property
    def load(self) -> tuple[float | None, float | None]:
        """Batches of embeddings have neither."""
        if self.kind == "request_rate":
            return (self.clients if self.rate is None else self.rate), None
        return None, (self.clients if self.kind == "num_concurrency" else None)


class EvalScopeSummary(Summary):
    """One `benchmark_summary.json` of EvalScope; its names changed once."""

    states_load = "Number of concurrency"
    arrivals = "poisson"

    mean_latency_s: Number | None = at("Average latency (s)", "Avg Latency (s)")
    ttft_mean_s: _Measured = at("Average time to first token (s)")
    first_s: Annotated[Milliseconds, _POSITIVE] = at("TTFT (ms)", means="column `ttft_mean_s`")
    achieved_rps: _Measured = at("Request throughput (req/s)", "Req Throughput (req/s)")
    tokens_per_second: _Measured = at("Output token throughput (tok/s)", "Output Throughput (tok/s)")
    prompt_tokens: _Measured = at("Average input tokens per request", "Avg Input Tokens")
    output_tokens: _Measured = at("Average output tokens per request", "Avg Output Tokens")
    requests: Number | None = at("Succeed requests", "Success Requests")
    failed: Number | None = at("Failed requests", "Failed Requests", means="requests that failed")
    rate: Annotated[Number | None, _POSITIVE] = at(
        "Request rate (req/s)", "Request Rate (req/s)", means="column `request_rate_rps`; -1: a closed loop"
    )
    clients: Number | None = at(
        "Number of concurrency", "Concurrency", means="column `concurrency`; with a rate its upper limit"
    )


class _SummaryTool(NamedTuple):
    name: str
    members: tuple[tuple[str, ...], ...]
    """Rows of members: a file of the tool has all of one row."""
    model: type[Summary]


TOOLS = (
    _SummaryTool("inference-perf", (("load_summary", "successes"),), InferencePerfStage),
    _SummaryTool("genai-bench", (("aggregated_metrics",),), GenAiBenchRun),
    _SummaryTool(
        "EvalScope",
        (("Average latency (s)", "Number of concurrency"), ("Avg Latency (s)", "Concurrency")),
        EvalScopeSummary,
    ),
)


def recognises(document: Document) -> bool:
    """Tell whether this is a summary of one of these tools."""
    return any(document.has(*members) for tool in TOOLS for members in tool.members)


def read(document: Document, arm: Arm) -> tuple[Point | ForeignFileError, ...]:
    """Read one summary; a refusal names the JSON path."""
    tool = next(one for one in TOOLS if any(document.has(*members) for members in one.members))
    read = document.read(tool.model)
    rate, clients = read.load
    if read.figure("requests") == 0:
        return (document.disown("a run in which no request was answered", "one with answers"),)
    if rate is None and clients is None:
        problem = f"a result of {tool.name} that does not say how requests arrived"
        return (document.disown(problem, tool.model.states_load),)
    if read.figure("mean_latency_s") is None:
        place = document.standing(tool.model, "mean_latency_s")
        raise document.refuse("nothing there", "the mean latency", place)
    scale = 1e-3 if getattr(read, "unit", "s") == "ms" else 1.0
    times = [name for name in tool.model.model_fields if name in COLUMNS and name.endswith("_s")]
    times_s = {name: value * scale for name in times if (value := read.figure(name)) is not None}
    latency_s, tokens = times_s["mean_latency_s"], read.figure("output_tokens")
    columns: dict[str, tuple[Any, ...]] = {name: (value, name) for name, value in times_s.items()}
    first_s = times_s.get("ttft_mean_s", read.figure("first_s"))
    columns["ttft_mean_s"] = (first_s, "ttft_mean_s")
    columns["tpot_mean_s"] = (ratio_of_means_s(latency_s, first_s, tokens or 0.0), "mean_latency_s")
    columns["output_tokens_sq"] = (mean_square(tokens, read.figure("deviation")), "output_tokens")
    load, flags = imposed(rate, clients, latency_s * (read.figure("achieved_rps") or 0.0), read.arrivals)
    if read.figure("failed"):
        flags.insert(0, Reason.REQUESTS_FAILED)
    columns["flag"] = (" ".join(flags), "failed")
    # The kind of arrivals follows from the rate.
    columns |= {
        name: (value, "rate" if field == "arrivals" else field) for name, (value, field) in load.items()
    }
    return (document.point(read, arm, columns, tool=tool.name),)

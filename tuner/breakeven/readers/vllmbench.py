"""Result files of `vllm bench serve --save-result`: one JSON object, one operating point.

Keys read (`benchmark_serving.py` of 2023 to vLLM 0.33): `request_rate` (number, or "inf" for as fast as `max_concurrency`
clients can ask), `ramp_up_strategy`, `max_concurrency`, `burstiness`, `num_prompts`, `completed`, `failed` (since October
2025), `errors`, `request_throughput`, `total_*_tokens`, `mean_*_ms`,
`median_*_ms`, `p*_*_ms`, `spec_decode_*` and, with `--save-detailed`, the per-request lists. The file does not say
which arm ran.

A run starts and ends with an empty engine, so by Little's law throughput times mean latency is its mean in-flight
exactly, ramp and drain included.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import numpy as np
from pydantic import BeforeValidator, Field

from breakeven.arm import Arm
from breakeven.points.point import Point
from breakeven.readers.foreign import Counted, Document, ForeignResult, Milliseconds, Number, at

_Rate = Annotated[Number | None, BeforeValidator(lambda rate: None if rate in ("inf", "Infinity") else rate)]
_Numbers = tuple[Number, ...]
_Columns = dict[str, tuple[Any, ...]]


class VllmBenchResult(ForeignResult):
    """One result file. Older versions write 0 for what was not measured."""

    requests: Annotated[Number, Field(ge=1)] = at("completed", default=...)
    prompts: Counted = at("num_prompts")
    failed: Number | None = at("failed")
    errors: tuple[str, ...] = at("errors", default=())
    achieved_rps: Counted = at("request_throughput")
    tokens_per_second: Counted = at("output_throughput")
    input_total: Counted = at("total_input_tokens")
    output_total: Counted = at("total_output_tokens")
    mean_latency_s: Milliseconds = at("mean_e2el_ms")
    p50_latency_s: Milliseconds = at("p50_e2el_ms", "median_e2el_ms")
    p95_latency_s: Milliseconds = at("p95_e2el_ms")
    p99_latency_s: Milliseconds = at("p99_e2el_ms")
    ttft_mean_s: Milliseconds = at("mean_ttft_ms")
    ttft_p50_s: Milliseconds = at("p50_ttft_ms", "median_ttft_ms")
    ttft_p95_s: Milliseconds = at("p95_ttft_ms")
    ttft_p99_s: Milliseconds = at("p99_ttft_ms")
    tpot_mean_s: Milliseconds = at("mean_tpot_ms")
    tpot_p50_s: Milliseconds = at("p50_tpot_ms", "median_tpot_ms")
    tpot_p95_s: Milliseconds = at("p95_tpot_ms")
    tpot_p99_s: Milliseconds = at("p99_tpot_ms")
    latencies_s: _Numbers = at("latencies", default=())
    ttfts_s: _Numbers = at("ttfts", default=())
    gaps_s: tuple[_Numbers, ...] = at("itls", default=())
    output_lens: _Numbers = at("output_lens", default=())
    model: str | None = at("model_id")
    rate: _Rate = at("request_rate")
    ramp: str | None = at("ramp_up_strategy")
    clients: Number | None = at("max_concurrency")
    burstiness: Number | None = at("burstiness")
    accepted: Number | None = at("spec_decode_accepted_tokens")
    drafted: Number | None = at("spec_decode_draft_tokens")
    drafts_counted: Counted = at("spec_decode_num_drafts")
    shares: _Numbers = at("spec_decode_per_position_acceptance_rates", default=())


def recognises(document: Document) -> bool:
    """Tell whether this is a result of `vllm bench serve`."""
    return document.has("request_throughput", "completed")


def read(document: Document, arm: Arm) -> tuple[Point, ...]:
    """Read one result.

    Args:
        document: the parsed file.
        arm: which arm the engine ran.

    Raises:
        InputError: naming the JSON path.
    """
    read = document.read(VllmBenchResult)
    scale = 1.0 / read.requests
    columns = _times(document, read) | _speculation(document, read, arm)
    for name, total in (("prompt_tokens", "input_total"), ("output_tokens", "output_total")):
        if tokens := getattr(read, total):
            columns[name] = (tokens * scale, total)
    if read.output_lens:
        # A product overflows to infinity, which the range check refuses; a power raises.
        squares = sum(count * count for count in read.output_lens)
        columns["output_tokens_sq"] = (squares / len(read.output_lens), "output_lens")
    flags = []
    if read.ramp is not None:
        # The rate rose while it ran, whatever `request_rate` says: no load was held.
        flags.append("NotSteady")
    if read.rate is None and read.clients is None:
        # Every request at once: what the engine answers then is a ceiling and nothing else.
        inflight = (read.achieved_rps or 0.0) * columns["mean_latency_s"][0]
        columns["concurrency"] = (max(1.0, inflight), "clients")
        flags.append("SaturatedPoint")
    elif read.rate is None:
        columns["concurrency"] = (read.clients, "clients")
    else:
        even = read.burstiness is not None and read.burstiness >= 10
        columns["request_rate_rps"] = (read.rate, "rate")
        columns["load_mode"] = ("constant" if even else "poisson", "burstiness")
        inflight = (read.achieved_rps or 0.0) * columns["mean_latency_s"][0]
        # Clients that are all busy turn an open loop into a closed one: requests wait in the load generator.
        if read.clients is not None and inflight > 0.9 * read.clients:
            flags.append("SaturatedPoint")
    if _failures(read):
        flags.insert(0, "RequestsFailed")
    return (document.point(read, arm, columns | {"flag": (" ".join(flags), "failed")}),)


def _failures(read: VllmBenchResult) -> float:
    """Requests without an answer; versions before October 2025 do not count them.

    Where the data set was shorter than `num_prompts` this is an upper bound.
    """
    if read.failed is not None:
        return read.failed
    if read.errors:
        return sum(1.0 for text in read.errors if text)
    return max(0.0, (read.prompts or 0.0) - read.requests)


def _times(document: Document, read: VllmBenchResult) -> _Columns:
    """The mean latency, TPOT, and the quantiles that the file leaves to its lists of single requests."""
    latency_s = read.mean_latency_s or _mean_latency_s(read)
    if latency_s is None:
        raise document.refuse(
            "nothing there",
            "mean end-to-end latency (run `vllm bench serve` with --percentile-metrics ttft,tpot,itl,e2el)",
            "mean_e2el_ms",
        )
    columns: _Columns = {"mean_latency_s": (latency_s, "mean_latency_s")}
    # The file's TPOT is a mean of per-request ratios; the ratio of sums is what makes E2E = TTFT + (g-1)*TPOT hold.
    first_s, tokens = read.ttft_mean_s, (read.output_total or 0.0) / read.requests
    if first_s is not None and tokens > 1.0 and latency_s > first_s:
        columns["tpot_mean_s"] = ((latency_s - first_s) / (tokens - 1.0), "mean_latency_s")
    listed = _listed(read)
    for name, form in (("latency", "p{}_latency_s"), ("ttft", "ttft_p{}_s"), ("tpot", "tpot_p{}_s")):
        for percent in (50, 95, 99):
            column = form.format(percent)
            # By default the file says only p99.
            if getattr(read, column) is None and len(listed[name]) >= read.requests:
                columns[column] = (float(np.percentile(listed[name], percent)), column)
    return columns


def _listed(read: VllmBenchResult) -> dict[str, list[float]]:
    """Latency, TTFT and TPOT (s) of every answered request, as far as the file lists them; a failed one has zeros."""
    whole = read.latencies_s or [
        first + sum(gaps) for first, gaps in zip(read.ttfts_s, read.gaps_s, strict=False)
    ]
    rows = zip(whole, read.ttfts_s, read.output_lens, strict=False)
    return {
        "latency": [latency for latency in whole if latency > 0],
        "ttft": [first for first in read.ttfts_s if first > 0],
        # With speculation a gap yields several tokens: TPOT divides by tokens, never by gaps.
        "tpot": [
            (latency - first) / (count - 1.0)
            for latency, first, count in rows
            if latency > first > 0 < count - 1
        ],
    }


def _mean_latency_s(read: VllmBenchResult) -> float | None:
    """Rebuild the mean where e2el was not among the percentile metrics: it is not by default."""
    if read.latencies_s:
        return sum(read.latencies_s) / read.requests
    if read.ttfts_s and read.gaps_s:
        return (sum(read.ttfts_s) + sum(map(sum, read.gaps_s))) / read.requests
    if not (read.ttft_mean_s and read.tpot_mean_s and read.output_total):
        return None
    return read.ttft_mean_s + (read.output_total / read.requests - 1.0) * read.tpot_mean_s


def _speculation(document: Document, read: VllmBenchResult, arm: Arm) -> _Columns:
    """Tokens per request-step from the counters.

    A step yields its accepted drafts and one more token, so decoded tokens less accepted ones are the steps, whether
    a step drafted (eagle) or found no match (n-gram, suffix). `spec_decode_acceptance_length` is per *draft* and
    says more than was had wherever steps do not draft.
    """
    if read.accepted is None:
        return {}
    if arm.k == 0:
        raise document.refuse(
            "counters of a speculating engine",
            "--method and --k of the arm that ran, not none",
            "spec_decode_accepted_tokens",
        )
    columns: _Columns = {"drafts": (read.drafts_counted, "drafts_counted")}
    for index, share in enumerate(read.shares):
        columns[f"accept_{index + 1}"] = (share, "shares", index)
    decoded = (read.output_total or 0.0) - read.requests
    steps = _steps(decoded, read.accepted, read.drafts_counted or 0.0, read.requests, read.shares)
    if steps > 0:
        columns["tokens_per_step"] = (min(max(decoded / steps, 1.0), arm.k + 1.0), "accepted")
        if read.drafted is not None:
            columns["drafted_per_step"] = (min(read.drafted / steps, float(arm.k)), "drafted")
    return columns


def _steps(decoded: float, accepted: float, drafts: float, requests: float, shares: Sequence[float]) -> float:
    """Request-steps of a run, the last one of every request included.

    vLLM counts a step's accepted drafts before it cuts the answer at its last token, so that decoded tokens less
    accepted ones miss steps: 20 % of them for answers of 32 tokens on a real vLLM 0.32 with n-gram, k = 3. What the
    last step of a request overshoots is, for tokens J of a step, (E[J^2]/E[J] - 1)/2 on average (the renewal
    theorem's residual life on whole numbers). Nor are there ever fewer steps than drafts.

    Args:
        decoded: output tokens after each request's first.
        accepted: accepted drafts as counted.
        drafts: steps that drafted.
        requests: requests answered.
        shares: of the drafts, those whose first, second, ... token was accepted.
    """
    steps = max(decoded - accepted, drafts)
    if steps <= 0 or accepted <= 0:
        return steps
    drafting = drafts / steps
    mean = 1.0 + drafting * sum(shares)
    squared = 1.0 + drafting * sum((2 * i + 1) * share for i, share in enumerate(shares, start=1))
    return max(decoded - accepted + requests * (squared / mean - 1.0) / 2.0, drafts)

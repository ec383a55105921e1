"""Result files of `vllm bench serve --save-result`: one JSON object, one operating point.

Keys read (vLLM 0.8 to 0.33): `request_rate` (number, or "inf" for as fast as `max_concurrency` clients can ask),
`max_concurrency`, `burstiness`, `completed`, `duration`, `request_throughput`, `total_*_tokens`, `mean_*_ms`,
`median_*_ms`, `p*_*_ms`, `spec_decode_*` and, with `--save-detailed`, the per-request lists. The file does not say
which arm ran.

A run starts and ends with an empty engine, so by Little's law throughput times mean latency is its mean in-flight
exactly, ramp and drain included.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from breakeven.arm import Arm
from breakeven.errors import InputError
from breakeven.points.point import Point
from breakeven.readers.collecting import Fields
from breakeven.readers.jsonwalk import Node


def recognises(document: Node) -> bool:
    """Tell whether this is a result of `vllm bench serve`."""
    value = document.value
    return isinstance(value, dict) and "request_throughput" in value and "completed" in value


def read(document: Node, arm: Arm) -> tuple[Point, ...]:
    """Read one result.

    Args:
        document: the parsed file.
        arm: which arm the engine ran.

    Raises:
        InputError: naming the JSON path.
    """
    completed = document.get("completed").number("the number of answered requests")
    if completed < 1:
        raise InputError(document.get("completed").where, "no answered request", "a run with answers")
    fields = Fields(arm)
    fields.put("requests", "completed", completed)
    fields.take("achieved_rps", document.get("request_throughput"))
    fields.take("tokens_per_second", document.get("output_throughput"))
    _times(document, fields, completed)
    fields.take("prompt_tokens", document.get("total_input_tokens"), scale=1.0 / completed)
    fields.take("output_tokens", document.get("total_output_tokens"), scale=1.0 / completed)
    lengths = document.get("output_lens")
    if lengths.value:
        counts = [node.number("output tokens of one request") for node in lengths.items()]
        # A product overflows to infinity, which the range check refuses; a power raises.
        fields.put("output_tokens_sq", lengths.path, sum(count * count for count in counts) / len(counts))
    _load(document, fields)
    _speculation(document, arm, completed, fields)
    model = document.get("model_id")
    if model.value is not None:
        fields.put("model", model.path, model.text("the model's name"))
    return (fields.point(document.source, 1),)


def _times(document: Node, fields: Fields, completed: float) -> None:
    latency, ttft = document.get("mean_e2el_ms"), document.get("mean_ttft_ms")
    # Older versions write 0 for what was not measured; `take` leaves it out.
    fields.take("mean_latency_s", latency, scale=1e-3)
    if fields.number("mean_latency_s") is None:
        fields.put("mean_latency_s", latency.path, _mean_latency_s(document, completed))
    latency_s = fields.number("mean_latency_s")
    if latency_s is None:
        raise InputError(
            latency.where,
            "nothing there",
            "mean end-to-end latency (run `vllm bench serve` with --percentile-metrics ttft,tpot,itl,e2el)",
        )
    _quantiles(document, fields, completed)
    fields.take("ttft_mean_s", ttft, scale=1e-3)
    fields.take("tpot_mean_s", document.get("mean_tpot_ms"), scale=1e-3)
    # The file's TPOT is a mean of per-request ratios; the ratio of sums is what makes E2E = TTFT + (g-1)*TPOT hold.
    ttft_s, tokens = fields.number("ttft_mean_s"), document.get("total_output_tokens").optional_number()
    if ttft_s is not None and tokens and tokens > completed and latency_s > ttft_s:
        fields.put("tpot_mean_s", "mean_e2el_ms", (latency_s - ttft_s) / (tokens / completed - 1.0))


def _quantiles(document: Node, fields: Fields, completed: float) -> None:
    """Fill in p50, p95 and p99: as the file says, else from its lists of single requests (by default it says only p99)."""
    requests = _requests(document)
    for name, column in (("e2el", "p{}_latency_s"), ("ttft", "ttft_p{}_s"), ("tpot", "tpot_p{}_s")):
        for percent in (50, 95, 99):
            stated = document.get(f"p{percent}_{name}_ms")
            if percent == 50 and not stated.value:
                stated = document.get(f"median_{name}_ms")
            fields.take(column.format(percent), stated, scale=1e-3)
            if not stated.value and len(requests[name]) >= completed:
                fields.put(column.format(percent), stated.path, float(np.percentile(requests[name], percent)))


def _requests(document: Node) -> dict[str, list[float]]:
    """Latency, TTFT and TPOT (s) of every answered request, as far as the file lists them; a failed one has zeros."""
    first, whole = _seconds(document.get("ttfts")), _seconds(document.get("latencies"))
    tokens = [node.number("output tokens of one request") for node in _listed(document.get("output_lens"))]
    if first and not whole:
        gaps = [sum(_seconds(row)) for row in _listed(document.get("itls"))]
        whole = [ttft + gap for ttft, gap in zip(first, gaps, strict=False)]
    answered = [one for one in zip(whole, first, tokens, strict=False) if one[0] > one[1] > 0]
    return {
        "e2el": [latency for latency in whole if latency > 0],
        "ttft": [ttft for ttft in first if ttft > 0],
        # With speculation a gap yields several tokens: TPOT divides by tokens, never by gaps.
        "tpot": [(latency - ttft) / (count - 1.0) for latency, ttft, count in answered if count > 1],
    }


def _listed(node: Node) -> list[Node]:
    return list(node.items()) if node.value else []


def _seconds(node: Node) -> list[float]:
    return [value.number("seconds") for value in _listed(node)]


def _mean_latency_s(document: Node, completed: float) -> float | None:
    """Rebuild the mean where e2el was not among the percentile metrics: it is not by default."""
    if latencies := _seconds(document.get("latencies")):
        return sum(latencies) / completed
    first, gaps = _seconds(document.get("ttfts")), _listed(document.get("itls"))
    if first and gaps:
        return (sum(first) + sum(sum(_seconds(row)) for row in gaps)) / completed
    ttft_ms, tpot_ms = (document.get(f"mean_{name}_ms").optional_number() for name in ("ttft", "tpot"))
    tokens = document.get("total_output_tokens").optional_number()
    if not (ttft_ms and tpot_ms and tokens):
        return None
    return (ttft_ms + (tokens / completed - 1.0) * tpot_ms) / 1e3


def _load(document: Node, fields: Fields) -> None:
    rate, clients = document.get("request_rate"), document.get("max_concurrency")
    limit = clients.optional_number("the number of clients, or null")
    if rate.value in ("inf", "Infinity", None):
        if limit is None:
            raise InputError(
                clients.where,
                "nothing there, with request_rate inf: every request is sent at once, which is no steady load",
                "a run with --max-concurrency or with --request-rate",
            )
        fields.put("concurrency", clients.path, limit)
    else:
        fields.put("request_rate_rps", rate.path, rate.number("requests per second, or inf"))
        burstiness = document.get("burstiness").optional_number("a number above 0")
        even = burstiness is not None and burstiness >= 10
        fields.put("load_mode", "burstiness", "constant" if even else "poisson")
        inflight = (fields.number("achieved_rps") or 0.0) * (fields.number("mean_latency_s") or 0.0)
        # Clients that are all busy turn an open loop into a closed one: requests wait in the load generator.
        fields.flag("SaturatedPoint", when=limit is not None and inflight > 0.9 * limit)
    fields.flag("RequestsFailed", when=document.get("failed").optional_number())


def _speculation(document: Node, arm: Arm, completed: float, fields: Fields) -> None:
    """Tokens per request-step from the counters.

    A step yields its accepted drafts and one more token, so decoded tokens less accepted ones are the steps, whether
    a step drafted (eagle) or found no match (n-gram, suffix). `spec_decode_acceptance_length` is per *draft* and
    says more than was had wherever steps do not draft.
    """
    accepted_node = document.get("spec_decode_accepted_tokens")
    accepted = accepted_node.optional_number("accepted tokens")
    if accepted is None:
        return
    if arm.k == 0:
        raise InputError(
            accepted_node.where,
            "counters of a speculating engine",
            "--method and --k of the arm that ran, not none",
        )
    drafts, shares = document.get("spec_decode_num_drafts"), []
    fields.take("drafts", drafts)
    by_position = document.get("spec_decode_per_position_acceptance_rates")
    if by_position.value is not None:
        shares = [node.number("a share between 0 and 1") for node in by_position.items()]
        for position, (node, share) in enumerate(zip(by_position.items(), shares, strict=True), start=1):
            fields.put(f"accept_{position}", node.path, share)
    decoded = (document.get("total_output_tokens").optional_number() or 0.0) - completed
    steps = _steps(decoded, accepted, fields.number("drafts") or 0.0, completed, shares)
    if steps > 0:
        fields.put("tokens_per_step", accepted_node.path, min(max(decoded / steps, 1.0), arm.k + 1.0))
        drafted = document.get("spec_decode_draft_tokens")
        drafted_tokens = drafted.optional_number("drafted tokens")
        if drafted_tokens is not None:
            fields.put("drafted_per_step", drafted.path, min(drafted_tokens / steps, float(arm.k)))


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

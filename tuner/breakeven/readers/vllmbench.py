"""Result files of `vllm bench serve --save-result` and of SGLang's `bench_serving`: one JSON object, one operating point.

`fields.csv` has the keys that are read, from `benchmark_serving.py` of 2023 to vLLM 0.33. SGLang's
tool has the same origin. It writes `e2e_latency` for `e2el`, Infinity for "inf", and neither failures nor the model.
Neither tool says which arm ran.

A run starts and ends with an empty engine. By Little's law throughput times mean latency is then exactly its mean
number in flight, ramp and drain included. With --save-detailed the file has each request's times, and ramp and drain
are cut off.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np

from breakeven.arm import Arm
from breakeven.errors import ForeignFileError
from breakeven.points.point import Point
from breakeven.readers.foreign import (
    Columns,
    Document,
    Read,
    gamma_arrivals,
    imposed,
    ratio_of_means_s,
    remarked,
)
from breakeven.readers.middle import Middle, middle_of, middle_or_whole, times_of
from breakeven.reasons import Reason

_HARMLESS = re.compile(
    # Labels for people, figures that follow from those that are read, and figures without a use in any law.
    r"label|tag|speculative_config(\..*)?|dataset_name|num_warmups|max_concurrent_requests|rtfx"
    r"|(ramp_up|sharegpt|random)_.*|(std|p\d+(\.\d+)?|median|max)_\w+|spec_decode_\w+|request_goodput(:.*)?"
    r"|num_conversations|turns_per_conversation|inter_turn_delay_ms|max_model_len|(conversations|avg_turns)_\w+"
    r"|(input|total|total_token|output)_throughput(_\w+)?|total_\w+|max_output_tokens_per_s"
)
_NO_TEXT = re.compile(r".*(embed|pooling|rerank|score|audio|visual|image).*")
_ENGINES = re.compile(
    r"(vllm|sglang|tgi|lmdeploy|deepspeed-mii|tensorrt-llm|trt|scalellm|llama\.cpp|xllm)(-.*)?"
)
"""Words of `backend` that name an engine; the others are kinds of requests, which every engine answers."""


def recognises(document: Document) -> bool:
    """Tell whether this is a result of `vllm bench serve`."""
    return document.has("request_throughput", "completed")


def read(document: Document, arm: Arm) -> tuple[Point | ForeignFileError, ...]:
    """Read one result; a refusal names the JSON path."""
    if document.value.get("completed") == 0:
        # SGLang writes NaN for every mean of nothing, and appends all runs of a sweep to one file.
        return (document.unanswered(),)
    return _points(document, document.read("vllm bench serve"), arm)


def _points(document: Document, read: Read, arm: Arm) -> tuple[Point | ForeignFileError, ...]:
    if (refused := _no_measurement(document, read, arm)) is not None:
        return (refused,)
    scale = 1.0 / read.requests
    flags: list[Reason] = []
    columns = _times(read, arm, flags) | _speculation(document, read, arm)
    for name, total in (("prompt_tokens", "input_total"), ("output_tokens", "output_total")):
        if tokens := getattr(read, total):
            columns[name] = (tokens * scale, total)
    if read.output_lens:
        # A product overflows to infinity, which the range check refuses; a power raises.
        squares = sum(count * count for count in read.output_lens)
        columns["output_tokens_sq"] = (squares / len(read.output_lens), "output_lens")
    if read.achieved_rps is None and read.seconds:
        columns["achieved_rps"] = (read.requests / read.seconds, "seconds")
    if read.ramp is not None or read.steps or document.value.get("request_rate") == "trace":
        flags.append(Reason.NOT_STEADY)
    if _failures(document, read):
        flags.insert(0, Reason.REQUESTS_FAILED)
    engine = _ENGINES.fullmatch(read.backend or "")
    columns["engine"] = (engine and engine[1], "backend")
    tool = "SGLang's bench_serving" if document.has("mean_e2e_latency_ms") else "vllm bench serve"
    unread = document.unread(read, _HARMLESS)

    def run(inflight: float, others: Columns, part: str = "") -> Point:
        load, against = imposed(
            read.rate, read.clients, inflight, gamma_arrivals(1.0 if read.arrivals is None else read.arrivals)
        )
        flag = {"flag": (" ".join([*flags, *against]), "failed")}
        return document.point(read, arm, columns | load | others | flag, unread, tool, part)

    answered_rps = columns.get("achieved_rps", (read.achieved_rps,))[0] or 0.0
    whole = run(answered_rps * columns["mean_latency_s"][0], {})
    middle = _middle(read, whole)
    if middle is not None:
        whole = middle_or_whole(run(middle.inflight, middle.resting_on("starts_s"), middle.part), whole)
    turns = (
        "turns of conversations, whose prompts grow from turn to turn" if read.mode == "multi_turn" else ""
    )
    steady = "" if read.steady is None else "its steady_state is not used: it has no mean latency"
    return (remarked(whole, _draft_length_remark(document, read, arm), turns, steady),)


def _draft_length_remark(document: Document, read: Read, arm: Arm) -> str:
    """See `Document.draft_length_remark`; an engine has a share for each position of its longest draft."""
    drafts, drafted, accepted = read.drafts_counted, read.drafted, read.accepted
    if drafted is None and read.shares:
        drafts, drafted, accepted = 1.0, float(len(read.shares)), None
    if read.accept_length is not None:
        # Of all time since the engine's start, and each step yields one token of the engine's own.
        drafts, drafted, accepted = 1.0, None, read.accept_length - 1.0
    field = "drafted" if read.drafted is not None else "shares" if read.shares else "accept_length"
    return document.draft_length_remark(arm, drafts, drafted, accepted, document.standing(read, field))


def _no_measurement(document: Document, read: Read, arm: Arm) -> ForeignFileError | None:
    for word in (read.backend, read.endpoint):
        if word and _NO_TEXT.fullmatch(word):
            return document.disown(f"a run of {word[:40]}", "one that generates text")
    if not (read.mean_latency_s or _mean_latency_s(read, arm) or _guessed_s(read)):
        return document.disown(
            "no mean end-to-end latency",
            "mean_e2el_ms (run `vllm bench serve` with --percentile-metrics ttft,tpot,itl,e2el)",
        )
    if "request_rate" not in document.value and read.clients is None:
        expected = "multi_turn_concurrency" if read.mode == "multi_turn" else "request_rate"
        return document.disown("a run that does not say how requests arrived", expected)
    return None


def _middle(read: Read, whole: Point) -> Middle | None:
    """The steady middle, if the file lists the times of all requests."""
    if len(read.starts_s) != read.requests:
        return None
    times = times_of(read.starts_s, _latencies_s(read), read.ttfts_s, read.output_lens)
    return None if times is None else middle_of(times, whole.load_mode)


def _failures(document: Document, read: Read) -> float:
    """Requests without an answer; versions before October 2025 do not count them.

    Where the data set was shorter than `num_prompts` this is an upper bound.
    """
    if document.value.get("total_output_tokens") == 0:
        # Every answer was empty.
        return float(read.requests)
    if read.failed is not None:
        return float(read.failed)
    if read.errors:
        return sum(1.0 for text in read.errors if text)
    # The lists hold those that failed too.
    listed = max(len(read.latencies_s), len(read.ttfts_s), len(read.starts_s))
    return max(0.0, max(read.prompts or 0.0, listed) - float(read.requests))


def _times(read: Read, arm: Arm, flags: list[Reason]) -> Columns:
    """The mean latency, TPOT, the begin, and the quantiles that the file leaves to its lists of single requests.

    A latency that can only be guessed is flagged.
    """
    latency_s = read.mean_latency_s or _mean_latency_s(read, arm)
    if latency_s is None:
        latency_s = _guessed_s(read) or 0.0
        flags.append(Reason.LATENCY_UNKNOWN)
    columns: Columns = {"mean_latency_s": (latency_s, "mean_latency_s")}
    tokens = (read.output_total or 0.0) / read.requests
    columns["tpot_mean_s"] = (ratio_of_means_s(latency_s, read.ttft_mean_s, tokens), "mean_latency_s")
    # `start_times` are of a clock of their own.
    if read.ended_s is not None and read.seconds:
        columns["begun_s"] = (max(read.ended_s - read.seconds, 0.0), "ended_s")
    listed = _listed(read)
    for name, form in (("latency", "p{}_latency_s"), ("ttft", "ttft_p{}_s"), ("tpot", "tpot_p{}_s")):
        for percent in (50, 95, 99):
            column = form.format(percent)
            # By default the file says only p99.
            if getattr(read, column) is None and len(listed[name]) >= read.requests:
                columns[column] = (float(np.percentile(listed[name], percent)), column)
    return columns


def _listed(read: Read) -> dict[str, list[float]]:
    """Latency, TTFT and TPOT (s) of every answered request, as far as the file lists them; a failed one has zeros."""
    whole = _latencies_s(read)
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


def _latencies_s(read: Read) -> Sequence[float]:
    """Latency (s) of each request; empty if the file lists none."""
    rows = zip(read.ttfts_s, read.gaps_s, strict=False)
    return [*read.latencies_s] or [first + sum(gaps) for first, gaps in rows]


def _mean_latency_s(read: Read, arm: Arm) -> float | None:
    """Rebuild the mean where e2el was not among the percentile metrics: it is not by default.

    The mean gap pools the gaps of all requests: their number times it is the time from first to last tokens. Without
    speculation each decoded token ends a gap, with it each step does.
    """
    if read.latencies_s:
        return float(sum(read.latencies_s) / read.requests)
    if read.ttfts_s and read.gaps_s:
        return float((sum(read.ttfts_s) + sum(map(sum, read.gaps_s))) / read.requests)
    if not (read.ttft_mean_s and read.gap_mean_s and read.output_total):
        return None
    gaps = _decoded(read) if arm.k == 0 else _request_steps(read)
    return None if gaps is None else float(read.ttft_mean_s + gaps * read.gap_mean_s / read.requests)


def _guessed_s(read: Read) -> float | None:
    """A mean latency from a mean of ratios over requests. In such a mean a short answer with a slow gap weighs too much."""
    if not (read.ttft_mean_s and read.ratio_mean_s and read.output_total):
        return None
    return float(read.ttft_mean_s + (read.output_total / read.requests - 1.0) * read.ratio_mean_s)


def _decoded(read: Read) -> float:
    """Output tokens after each request's first."""
    return float((read.output_total or 0.0) - read.requests)


def _request_steps(read: Read) -> float | None:
    """Steps of all requests with speculation; None if the file has no counters."""
    if read.accepted is None:
        return None
    steps = _steps(_decoded(read), read.accepted, read.drafts_counted or 0.0, read.requests, read.shares)
    return steps if steps > 0 else None


def _speculation(document: Document, read: Read, arm: Arm) -> Columns:
    """Tokens per request-step from the counters.

    A step yields its accepted drafts and one more token, so the number of steps is decoded tokens less accepted ones.
    This holds whether a step drafted (eagle) or found no match (n-gram, suffix). `spec_decode_acceptance_length` is per
    *draft*, so it is too high if some steps do not draft.
    """
    speculates = "accepted" if read.accepted is not None else "accept_length" if read.accept_length else None
    if speculates:
        document.refuse_speculation(arm, read, speculates)
    # SGLang counts accept_length since its server started, not over this run.
    if read.accepted is None:
        return {}
    columns: Columns = {"drafts": (read.drafts_counted, "drafts_counted")}
    for index, share in enumerate(read.shares):
        columns[f"accept_{index + 1}"] = (share, "shares", index)
    if steps := _request_steps(read):
        columns["tokens_per_step"] = (min(max(_decoded(read) / steps, 1.0), arm.k + 1.0), "accepted")
        if read.drafted is not None:
            columns["drafted_per_step"] = (min(read.drafted / steps, float(arm.k)), "drafted")
    return columns


def _steps(decoded: float, accepted: float, drafts: float, requests: float, shares: Sequence[float]) -> float:
    """Request-steps of a run, the last step of every request included.

    vLLM counts a step's accepted drafts before it cuts the answer at its last token. Decoded tokens less accepted ones
    therefore miss steps: 20 % of them for answers of 32 tokens on a real vLLM 0.32 with n-gram, k = 3. With J tokens in a
    step, the last step of a request overshoots by (E[J^2]/E[J] - 1)/2 on average: the residual life of renewal theory, on
    whole numbers. There are never fewer steps than drafts. `shares` are of drafts whose first, second, ... token was accepted.
    """
    steps = max(decoded - accepted, drafts)
    if steps <= 0 or accepted <= 0:
        return steps
    drafting = drafts / steps
    mean = 1.0 + drafting * sum(shares)
    squared = 1.0 + drafting * sum((2 * i + 1) * share for i, share in enumerate(shares, start=1))
    return max(decoded - accepted + requests * (squared / mean - 1.0) / 2.0, drafts)

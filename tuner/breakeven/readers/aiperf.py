"""Summaries of AIPerf (`profile_export_aiperf.json`) and GenAI-Perf (`profile_export_genai_perf.json`): one operating point.

A metric is an object of unit, avg, p50, ..., at the root or, in AIPerf's first releases, under `records`. The first tool
names its load under `input_config.loadgen`, since its second configuration in a list `input_config.phases`; the second
tool beside the other options. Neither says which arm ran.
"""

from __future__ import annotations

import re
from typing import Any, Literal, NamedTuple

from breakeven.arm import Arm
from breakeven.errors import ForeignFileError
from breakeven.points.point import Point
from breakeven.readers.foreign import (
    Counted,
    Document,
    Figure,
    ForeignResult,
    Milliseconds,
    Moment,
    NeededMilliseconds,
    Number,
    at,
    mean_square,
    ratio_of_means_s,
    remarked,
)
from breakeven.readers.imposed import gamma_arrivals, imposed
from breakeven.reasons import Reason


def _metric(name: str, statistic: str = "avg", default: Any = None, means: str | None = None) -> Any:
    return at(f"{name}.{statistic}", f"records.{name}.{statistic}", default=default, means=means)


def _load(*names: str, means: str) -> Any:
    outer = ("input_config.loadgen", "input_config.perf_analyzer.stimulus", "input_config")
    return at(*(f"{place}.{name}" for name in names for place in outer), means=means)


_PerSecond = Literal["requests/sec", "requests/s", "requests/second", "req/s"]


class AiperfSummary(ForeignResult):
    """One summary; times in ms."""

    latency_unit: Literal["ms"] = _metric(
        "request_latency", "unit", default=..., means="`ms`; another one is refused"
    )
    mean_latency_s: NeededMilliseconds = _metric("request_latency", default=...)
    ttft_unit: Literal["ms"] | None = _metric(
        "time_to_first_token", "unit", means="`ms`; another one is refused"
    )
    gap_unit: Literal["ms"] | None = _metric(
        "inter_token_latency", "unit", means="`ms`; another one is refused"
    )
    rate_unit: _PerSecond | None = _metric(
        "request_throughput", "unit", means="`requests/sec`; another time is refused"
    )
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
    requests: Number | None = _metric("request_count")
    failed: Counted = _metric("error_request_count", means="requests that failed")
    achieved_rps: Counted = _metric("request_throughput")
    tokens_per_second: Figure = _metric("output_token_throughput")
    prompt_tokens: Figure = _metric("input_sequence_length")
    output_tokens: Figure = _metric("output_sequence_length")
    deviation: Figure = _metric("output_sequence_length", "std", means="column `output_tokens_sq`")
    errors: list[Any] = at("error_summary", default=[], means="not empty: requests failed")
    cancelled: bool | None = at("was_cancelled", means="true: requests failed")
    complete: bool | None = at("is_complete", means="false: requests failed")
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
    aborted: Counted = _load("request_cancellation_rate", means="above 0: requests failed")
    prefills: Counted = _load(
        "prefill_concurrency", means="any: arrivals unknown, because requests wait at the client"
    )
    turns: Counted = at(
        "input_config.input.conversation.turn.mean", means="above 1, with a rate: arrivals unknown"
    )
    per_user: Counted = _load("user_centric_rate", means="arrivals unknown")
    scheduled: bool | None = at("input_config.input.fixed_schedule", means="true: not steady")
    items: list[Any] = at(
        "input_config.models.items",
        default=[],
        means="column `model`: `name` of each, since the second configuration",
    )
    phases: Any = at(
        "input_config.phases",
        means="the load, since the second configuration: the one phase of profiling",
    )
    targets: list[str] = at("input_config.endpoint.urls", default=[], means="column `target`")
    target: str | None = at("input_config.endpoint.url")
    endpoint: str | None = at("input_config.endpoint.type")
    tokenizer: str | None = at("input_config.tokenizer.name", means="column `tokenizer`")
    version: str | None = at("aiperf_version", means="named in messages")
    begun_s: Moment = at("start_time")
    steps: Counted = _metric("total_spec_decode_steps", means="the engine speculates; column `drafts`")
    accepted: Counted = _metric("total_accepted_draft_tokens", means="column `tokens_per_step`")
    drafted: Counted = _metric("total_draft_tokens", means="column `drafted_per_step`")


class AiperfPhase(ForeignResult):
    """One phase of the second configuration."""

    name: str | None = at("name", means="`warmup`: of no interest, if `kind` is not there")
    role: str | None = at("kind", means="`warmup`: of no interest")
    left_out: bool | None = at("exclude_from_results", means="true: of no interest")
    kind: str = at(
        "type",
        default=...,
        means="`concurrency`, `constant`, `poisson`, `gamma` by its smoothness, `user_centric` (arrivals unknown); others are passed over",
    )
    rate: Counted = at("rate", means="column `request_rate_rps`")
    clients: Counted = at("concurrency", means="column `concurrency`; with a rate its upper limit")
    smoothness: Counted = at("smoothness", means="of gamma: 1 Poisson, from 10 on constant")
    risen: Any = at("rate_ramp", "concurrency_ramp", "prefill_ramp", means="any: not steady")
    series: Any = at("rate_series", means="any: passed over, because the rate changes")
    prefills: Counted = at(
        "prefill_concurrency", means="any: arrivals unknown, because requests wait at the client"
    )
    cancelled: Counted = at("cancellation.rate", means="above 0: requests failed")
    mode: str | None = at("timing_mode", means="`agentic_replay` is passed over")


_PHASES = {
    "concurrency": None,
    "constant": "constant",
    "poisson": "poisson",
    "gamma": None,
    "user_centric": None,
}
"""Types of phases that hold one load, and how requests arrive."""

_HARMLESS = re.compile(
    # Duration and counts, which the results state as well.
    r"requests|duration|sessions|grace_period|seamless|users|sla|failed_request_threshold|trajectory_\w+|burst_phase_starts"
    r"|agentic_\w+|benchmark_(grace_period|duration)|request_count|warmup_\w+|num_users|random_seed"
)


def recognises(document: Document) -> bool:
    """Tell whether this is a summary of AIPerf or GenAI-Perf."""
    return document.has("input_config") and (
        document.has("records") or document.has("request_latency") or document.has("error_request_count")
    )


def read(document: Document, arm: Arm) -> tuple[Point | ForeignFileError, ...]:
    """Read one summary; a refusal names the JSON path."""
    read = document.read(AiperfSummary)
    load = _load_of(document, read)
    if isinstance(load, ForeignFileError):
        return (load,)
    if read.requests == 0:
        return (document.disown("a run in which no request was answered", "one with answers"),)
    if read.steps and arm.k == 0:
        raise document.refuse(
            "counters of a speculating engine",
            "--method and --k of the arm that ran, not none",
            document.standing(AiperfSummary, "steps"),
        )
    latency_s = read.mean_latency_s or 0.0
    inflight = latency_s * (read.achieved_rps or 0.0)
    columns, flags = imposed(load.rate, load.clients, inflight, load.arrivals)
    # A column rests on a field of the summary, or on the phase.
    columns = {name: (value, load.standing or field) for name, (value, field) in columns.items()}
    flags += load.flags
    if read.failed or read.errors or read.cancelled or read.complete is False:
        flags.insert(0, Reason.REQUESTS_FAILED)
    names = [
        item["name"] for item in read.items if isinstance(item, dict) and isinstance(item.get("name"), str)
    ]
    columns["model"] = (",".join(read.models or names) or None, "models")
    columns["target"] = (",".join(read.targets) or read.target, "targets")
    columns["endpoint"] = (read.endpoint, "endpoint")
    columns["tokenizer"] = (read.tokenizer, "tokenizer")
    columns |= _speculation(read, arm)
    columns["output_tokens_sq"] = (mean_square(read.output_tokens, read.deviation), "deviation")
    tpot_s = ratio_of_means_s(latency_s, read.ttft_mean_s, read.output_tokens or 0.0)
    columns["tpot_mean_s"] = (tpot_s, "mean_latency_s")
    columns["flag"] = (" ".join(dict.fromkeys(flags)), "failed")
    tool = f"AIPerf {read.version}" if read.version else "AIPerf or GenAI-Perf"
    remark = document.draft_length_remark(
        arm, read.steps, read.drafted, read.accepted, document.standing(AiperfSummary, "drafted")
    )
    return (remarked(document.point(read, arm, columns, load.unread, tool), remark),)


def _speculation(read: AiperfSummary, arm: Arm) -> dict[str, tuple[Any, ...]]:
    """Tokens per step from the counters of requests: a verifying step yields its accepted drafts and one more token."""
    if not read.steps:
        return {}
    per_step = 1.0 + (read.accepted or 0.0) / read.steps
    return {
        "drafts": (read.steps, "steps"),
        "tokens_per_step": (min(per_step, arm.k + 1.0), "accepted"),
        "drafted_per_step": (
            None if read.drafted is None else min(read.drafted / read.steps, arm.k),
            "drafted",
        ),
    }


class _Load(NamedTuple):
    """The imposed load: the arguments of `imposed`, reasons against the point, unknown keys, and the field that states it."""

    rate: float | None
    clients: float | None
    arrivals: str | None
    flags: list[Reason]
    unread: dict[str, str]
    standing: str = ""


def _load_of(document: Document, read: AiperfSummary) -> _Load | ForeignFileError:
    if isinstance(read.phases, list):
        return _phase_load(document, read.phases)
    if read.rate is None and read.clients is None:
        # A later configuration names its load elsewhere: it must not be read as all requests at once.
        return document.disown(
            "a summary that does not say how requests arrived", "input_config.loadgen or input_config.phases"
        )
    # The load rose, or followed a recording, while it ran.
    raised = {
        Reason.REQUESTS_FAILED: read.aborted is not None,
        Reason.NOT_STEADY: bool(read.ramp_s or read.scheduled),
        Reason.ARRIVALS_UNKNOWN: read.prefills is not None
        or ((read.turns or 1.0) > 1.0 and read.rate is not None),
    }
    flags = [reason for reason, is_so in raised.items() if is_so]
    unread = document.unread(AiperfSummary, _HARMLESS, "input_config.loadgen")
    return _Load(read.rate, read.clients, _arrivals(read), flags, unread)


def _phase_load(document: Document, phases: list[Any]) -> _Load | ForeignFileError:
    """The load of the second configuration: the load of its one phase that is no warm-up."""
    place = "input_config.phases"
    parts = [
        Document(value, document.source, document.place(place, index)) for index, value in enumerate(phases)
    ]
    counted = [
        (part, phase)
        for part in parts
        if not ((phase := part.read(AiperfPhase)).left_out or (phase.role or phase.name) == "warmup")
    ]
    if len(counted) != 1:
        return document.disown(f"figures of {len(counted)} phases together", "one phase of profiling", place)
    ((part, phase),) = counted
    closed = phase.kind == "concurrency"
    if phase.kind not in _PHASES or phase.series is not None or phase.mode == "agentic_replay":
        return part.disown(
            f"a phase of type {phase.kind[:40]!r} whose load is no fixed one", ", ".join(_PHASES), "type"
        )
    if (phase.clients if closed else phase.rate) is None:
        missing = "concurrency" if closed else "rate"
        return part.disown("a phase that does not say how requests arrived", missing, missing)
    arrivals = gamma_arrivals(phase.smoothness) if phase.kind == "gamma" else _PHASES[phase.kind]
    raised = {
        Reason.REQUESTS_FAILED: phase.cancelled is not None,
        Reason.NOT_STEADY: phase.risen is not None,
        Reason.ARRIVALS_UNKNOWN: phase.prefills is not None,
    }
    unread = part.unread(AiperfPhase, _HARMLESS)
    return _Load(
        None if closed else phase.rate,
        phase.clients,
        arrivals,
        [reason for reason, is_so in raised.items() if is_so],
        {f"{place}[].{name}": value for name, value in unread.items()},
        "phases",
    )


def _arrivals(read: AiperfSummary) -> str | None:
    """Kind of arrivals of an open loop; GenAI-Perf sends at a constant rate and does not say so."""
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

"""Summaries of AIPerf (`profile_export_aiperf.json`) and GenAI-Perf (`profile_export_genai_perf.json`): one operating point.

A metric is an object of unit, avg, p50, ..., at the root or, in AIPerf's first releases, under `records`. The first tool
names its load under `input_config.loadgen`, since its second configuration in a list `input_config.phases`; the second
tool beside the other options. Neither says which arm ran.
"""

from __future__ import annotations

import re
from typing import Any, NamedTuple

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
from breakeven.reasons import Reason

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
    read = document.read("AIPerf")
    load = _load_of(document, read)
    if isinstance(load, ForeignFileError):
        return (load,)
    if read.requests == 0:
        return (document.unanswered(),)
    if read.steps:
        document.refuse_speculation(arm, read, "steps")
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
    columns |= _speculation(read, arm)
    tpot_s = ratio_of_means_s(latency_s, read.ttft_mean_s, read.output_tokens or 0.0)
    columns["tpot_mean_s"] = (tpot_s, "mean_latency_s")
    columns["flag"] = (" ".join(dict.fromkeys(flags)), "failed")
    tool = f"AIPerf {read.version}" if read.version else "AIPerf or GenAI-Perf"
    remark = document.draft_length_remark(
        arm, read.steps, read.drafted, read.accepted, document.standing(read, "drafted")
    )
    return (remarked(document.point(read, arm, columns, load.unread, tool), remark),)


def _speculation(read: Read, arm: Arm) -> Columns:
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


def _load_of(document: Document, read: Read) -> _Load | ForeignFileError:
    if isinstance(read.phases, list):
        return _phase_load(document, read.phases)
    if read.rate is None and read.clients is None:
        # A later configuration names its load elsewhere: it must not be read as all requests at once.
        return document.disown(
            "a summary that does not say how requests arrived", "input_config.loadgen or input_config.phases"
        )
    # The load rose, or followed a recording, while it ran.
    unsteady = bool(read.ramp_s or read.scheduled)
    in_turns = (read.turns or 1.0) > 1.0 and read.rate is not None
    flags = _flags(read.aborted is not None, unsteady, read.prefills is not None or in_turns)
    unread = document.unread(read, _HARMLESS, "input_config.loadgen")
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
        if not ((phase := part.read("AIPerf phase")).left_out or (phase.role or phase.name) == "warmup")
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
    unread = part.unread(phase, _HARMLESS)
    return _Load(
        None if closed else phase.rate,
        phase.clients,
        arrivals,
        _flags(phase.cancelled is not None, phase.risen is not None, phase.prefills is not None),
        {f"{place}[].{name}": value for name, value in unread.items()},
        "phases",
    )


def _arrivals(read: Read) -> str | None:
    """Kind of arrivals of an open loop; GenAI-Perf sends at a constant rate and does not say so."""
    if read.arrivals == "gamma" and read.per_user is None:
        return gamma_arrivals(read.smoothness)
    known = {"poisson": "poisson", "constant": "constant", None: "constant"}
    return None if read.per_user is not None else known.get(read.arrivals)


def _flags(failed: bool, unsteady: bool, unknown_arrivals: bool) -> list[Reason]:
    against = (
        (Reason.REQUESTS_FAILED, failed),
        (Reason.NOT_STEADY, unsteady),
        (Reason.ARRIVALS_UNKNOWN, unknown_arrivals),
    )
    return [reason for reason, is_so in against if is_so]

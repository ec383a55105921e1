"""GuideLLM reports: one JSON document with a list of benchmarks, each one operating point of one arm.

The field that states how requests arrived has moved. It is `config.strategy` in reports of version 2 and 1 (0.5 to 0.8),
`scheduler.strategy` in 0.4, and `args.strategy` beside `run_stats` in 0.2 and 0.3. All versions have the same metrics:
`metrics.<name>.successful.mean`. The mean in flight is of all requests: those cut off at the end were in flight like the others.

GuideLLM's inter_token_latency is decode time over decoded tokens, which is TPOT. Its time_per_output_token divides by
all tokens, so it is not TPOT.
"""

from __future__ import annotations

import math
import re
from typing import Any

from breakeven.arm import Arm
from breakeven.errors import ForeignFileError
from breakeven.points.point import Point
from breakeven.points.quality import few_generations
from breakeven.readers.foreign import Columns, Document, Read, imposed
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


def recognises(document: Document) -> bool:
    """Tell whether this is a GuideLLM report."""
    return document.has("benchmarks") and isinstance(document.value["benchmarks"], list)


def read(document: Document, arm: Arm) -> tuple[Point | ForeignFileError, ...]:
    """Read every benchmark of a report; a refusal names the JSON path."""
    benchmarks = [*document.member("benchmarks").items()]
    if not benchmarks:
        raise document.refuse("an empty list", "at least one benchmark", "benchmarks")
    report = document.read("GuideLLM report")
    return tuple(_point(benchmark, report, arm) for benchmark in benchmarks)


def _point(document: Document, report: Read, arm: Arm) -> Point | ForeignFileError:
    answered = document.read("GuideLLM answered")
    if "embedding" in (answered.type_ or ""):
        return document.disown("a benchmark of embeddings", "one that generates text")
    if answered.requests == 0:
        return document.unanswered("a benchmark")
    read = document.read("GuideLLM")
    if read.kind not in _KINDS:
        steps = document.standing(read, "kind")
        return document.disown(f"a benchmark with the load {read.kind[:40]!r}", ", ".join(_KINDS), steps)
    columns, flags = _imposed(document, read)
    columns["model"] = (read.model or report.model, "model")
    columns["target"] = (read.target or report.target, "target")
    columns["tokenizer"] = (report.tokenizer, "model")
    if read.errored or document.read("GuideLLM requests").errored:
        flags.insert(0, Reason.REQUESTS_FAILED)
    if few_generations(read.requests or math.inf, read.incomplete or 0.0):
        # Requests that were cut off are the long ones, so the mean of the others is too low.
        flags.append(Reason.POINT_TOO_SHORT)
    if _turns(report) > 1.0 and read.rate is not None and "request_rate_rps" in columns:
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
        unread |= document.unread(read, _HARMLESS, place)
    flag = {"flag": (" ".join([*flags, *risen]), "errored")}
    whole = document.point(read, arm, columns | flag, unread, tool)
    middle = _middle(document, read, whole)
    if middle is None:
        return whole
    columns |= middle.resting_on("mean_latency_s")
    flag = {"flag": (" ".join(flags), "errored")}
    return middle_or_whole(document.point(read, arm, columns | flag, unread, tool, middle.part), whole)


def _turns(report: Read) -> float:
    """Most requests of one conversation."""
    found = (part.get("turns") for part in report.data if isinstance(part, dict))
    return max((float(turns) for turns in found if isinstance(turns, int | float)), default=1.0)


def _middle(document: Document, read: Read, whole: Point) -> Middle | None:
    """The steady middle, if the benchmark lists all its requests, not a sample of them."""
    listed = document.read("GuideLLM requests")
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


def _requests(document: Document, status: str, listed: list[Any]) -> list[Read]:
    place = document.place("requests", status)
    return [
        Document(one, document.source, f"{place}[{index}]").read("GuideLLM request")
        for index, one in enumerate(listed)
    ]


def _imposed(document: Document, read: Read) -> tuple[Columns, list[Reason]]:
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
        raise document.refuse("nothing there", expected, document.standing(read, resting_on))
    if resting_on == "rate":
        limit = read.limit if read.limit and read.limit < _NO_LIMIT else None
        columns, flags = imposed(value, limit, read.mean_inflight, _ARRIVALS[read.kind])
        return {
            "request_rate_rps": columns["request_rate_rps"],
            "load_mode": (_ARRIVALS[read.kind], "kind"),
        }, flags
    return {"concurrency": (value, resting_on)}, []

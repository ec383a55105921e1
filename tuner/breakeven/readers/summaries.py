"""Summaries of inference-perf, genai-bench and EvalScope, and reports of llm-d-benchmark: one operating point in a flat form.

`TOOLS` names the members by which a file of a tool is known. None of the files says which arm ran, and only EvalScope's
arrivals are known: it sends as Poisson's process does. Files of genai-bench hold one run each.

Reports of llm-d-benchmark are of version 0.2 and of whichever load generator it ran. Version 0.1 holds the load generator's own
options and no standard word for how requests arrived: it is refused.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from typing import Any, NamedTuple

from breakeven.arm import Arm
from breakeven.errors import ForeignFileError
from breakeven.points.point import Point
from breakeven.points.quality import few_generations
from breakeven.readers.foreign import Document, Read, imposed, ratio_of_means_s
from breakeven.reasons import Reason

_Load = tuple[float | None, float | None]
"""The offered rate, and the most requests in flight."""


def _stage_load(read: Read) -> _Load:
    """A stage of so many clients has a nominal rate too."""
    return (read.rate, None) if read.clients is None else (None, read.clients)


def _run_load(read: Read) -> _Load:
    """Batches of embeddings have neither."""
    if read.kind == "request_rate":
        return (read.clients if read.rate is None else read.rate), None
    return None, (read.clients if read.kind in {None, "num_concurrency"} else None)


class SummaryTool(NamedTuple):
    """One tool; its name is also the name of its table of figures."""

    name: str
    members: tuple[tuple[str, ...], ...]
    """Rows of members: a file of the tool has all of one row."""
    states_load: str
    """Where the load of a run is found, for the refusal of a file that does not say it."""
    load: Callable[[Read], _Load] = lambda read: (read.rate, read.clients)
    arrivals: str | None = None
    """Kind of arrivals at a rate; None if the file does not say it."""


TOOLS = (
    SummaryTool(
        "inference-perf",
        (("load_summary", "successes"),),
        "stage_N_lifecycle_metrics.json of each stage: the summary holds all stages together",
        _stage_load,
    ),
    SummaryTool("genai-bench", (("aggregated_metrics",),), "aggregated_metrics.num_concurrency", _run_load),
    SummaryTool(
        "EvalScope",
        (("Average latency (s)", "Number of concurrency"), ("Avg Latency (s)", "Concurrency")),
        "Number of concurrency",
        arrivals="poisson",
    ),
)


def recognises(document: Document) -> bool:
    """Tell whether this is a summary of one of these tools."""
    return any(document.has(*members) for tool in TOOLS for members in tool.members)


def read(document: Document, arm: Arm) -> tuple[Point | ForeignFileError, ...]:
    """Read one summary; a refusal names the JSON path."""
    tool = next(one for one in TOOLS if any(document.has(*members) for members in one.members))
    read = document.read(tool.name)
    rate, clients = tool.load(read)
    if read.requests == 0:
        return (document.unanswered(),)
    if rate is None and clients is None:
        problem = f"a result of {tool.name} that does not say how requests arrived"
        return (document.disown(problem, tool.states_load),)
    if read.mean_latency_s is None:
        raise document.refuse("nothing there", "the mean latency", document.standing(read, "mean_latency_s"))
    inflight = read.mean_latency_s * (read.achieved_rps or 0.0)
    columns, flags = imposed(rate, clients, inflight, tool.arrivals)
    # The kind of arrivals follows from the rate.
    columns = {
        name: (value, "clients" if rest == "clients" else "rate") for name, (value, rest) in columns.items()
    }
    if read.failed:
        flags.insert(0, Reason.REQUESTS_FAILED)
    columns["flag"] = (" ".join(flags), "failed")
    first_s = read.ttft_mean_s or getattr(read, "first_s", None)
    columns["ttft_mean_s"] = (first_s, "ttft_mean_s")
    tpot_s = ratio_of_means_s(read.mean_latency_s, first_s, read.output_tokens or 0.0)
    columns["tpot_mean_s"] = (tpot_s, "mean_latency_s")
    return (document.point(read, arm, columns, tool=tool.name),)


_ENGINE = ("tool", "tool_version", "role", "replicas", "accelerator")
_HARMLESS = re.compile(
    # Names, and how prompts were made: their lengths are among the results.
    r"schema_version|cfg_id|description|treatment(_group)?|tool(_version)?|source|stage|(input|output)_seq_len|prefix"
)


def is_report(document: Document) -> bool:
    """Tell whether this is a report of llm-d-benchmark."""
    return document.has("version", "scenario") and (document.has("results") or document.has("metrics"))


def read_report(document: Document, arm: Arm) -> tuple[Point | ForeignFileError, ...]:
    """Read one report; a refusal, also of a report of another version, names the path."""
    version = str(document.value["version"])
    if not version.startswith("0.2"):
        why = "which does not say how requests arrived" if version.startswith("0.1") else "which is not known"
        expected = "version 0.2, or the load generator's own result"
        return (document.disown(f"a report of llm-d-benchmark {version[:20]}, {why}", expected, "version"),)
    read = document.read("llm-d-benchmark")
    if read.rate is None and read.clients is None:
        return (
            document.disown(
                "a report that does not say how requests arrived",
                "scenario.load.standardized.rate_qps or concurrency",
            ),
        )
    answered = None if read.sent is None else read.sent - (read.failed or 0.0) - (read.incomplete or 0.0)
    if answered is not None and answered <= 0.0:
        return (document.unanswered("a report of a run"),)
    limit = None if read.clients == math.inf else read.clients
    arrivals = read.arrivals if read.arrivals in {"poisson", "constant"} else None
    columns, flags = imposed(read.rate, limit, read.mean_latency_s * (read.achieved_rps or 0.0), arrivals)
    if read.beside or (read.generators or 1.0) > 1.0 or (read.turns and read.rate is not None):
        # The stated load is only a part of the load that the engine answered.
        flags.append(Reason.ARRIVALS_UNKNOWN)
    if read.failed:
        flags.insert(0, Reason.REQUESTS_FAILED)
    columns["requests"] = (answered, "sent")
    if few_generations(answered or math.inf, read.incomplete or 0.0):
        # Requests that were cut off are the long ones, so the mean of the others is too low.
        flags.append(Reason.POINT_TOO_SHORT)
    columns["model"] = (_each(read.stack, "model", "name"), "stack")
    columns["gpu"] = (_each(read.stack, "accelerator", "model"), "stack")
    columns["engine"] = (_engines(read.stack), "stack")
    columns["replicas"] = (_replicas(read.stack), "stack")
    columns["target"] = (read.url, "url")
    columns["flag"] = (" ".join(dict.fromkeys(flags)), "failed")
    unread = document.unread(read, _HARMLESS, "scenario.load.standardized")
    unread |= document.unread(read, _HARMLESS, "scenario.load.metadata")
    return (document.point(read, arm, columns, unread, f"llm-d-benchmark's report {version[:20]}"),)


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

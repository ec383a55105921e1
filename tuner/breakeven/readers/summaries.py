"""Summaries of inference-perf, genai-bench and EvalScope: one operating point in a flat form.

`TOOLS` names the members by which a file of a tool is known. None of the files says which arm ran, and only EvalScope's
arrivals are known: it sends as Poisson's process does. Files of genai-bench hold one run each.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from breakeven.arm import Arm
from breakeven.errors import ForeignFileError
from breakeven.points.point import Point
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

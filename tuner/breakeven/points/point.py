"""A measured operating point of one arm: the one model behind points files, JSON, the CRD's points and their documentation.

A field is a column: its name carries the unit, its type the range. `columns.csv` has what an error message, `docs/cli/points-file.md` and
the CRD say of it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, get_args, get_type_hints

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass as checked_dataclass

from breakeven.arm import Arm, arm_drafting
from breakeven.intake import shipped_rows
from breakeven.phrases import figure

FEWEST_OF_A_LAW = 3
"""Points that give a law."""

POINTS_AT_OTHER_LENGTHS = 2
"""Number of short points at other lengths that an arm has beside its sweep; a schedule has none."""

SETTING = ("workload", "gpu", "model", "max_num_seqs")
"""Columns that must not vary within one fit: rows that differ here belong to different laws."""

ENGINE = ("engine", "tokenizer")
"""Other fields that must not vary within one fit, if a file states them: the engine, and the tokenizer."""

WHERE = ("target", "endpoint", "replicas")
"""Fields that may differ between two runs on one engine: address, kind of request, number of engines behind the address."""

LIVE_TRAFFIC = "live traffic"
"""`text_source` of a row that users' own requests measured."""

ACCEPT = re.compile(r"accept_([1-9]\d{0,3})")
"""accept_1, accept_2, ...: the columns of `Point.accept`."""


class LoadMode(StrEnum):
    """Kind of arrivals of requests."""

    CLOSED = "closed"
    """A fixed number of clients, each sending its next request when its last is answered."""
    POISSON = "poisson"
    CONSTANT = "constant"


@dataclass(frozen=True, slots=True)
class ImposedLoad:
    """One imposed load: clients of a closed loop that each wait for their answer before asking again, or requests per second."""

    mode: LoadMode
    value: float

    def __post_init__(self) -> None:
        if not self.value > 0:
            raise ValueError(f"a load is positive, not {self.value}")
        if self.mode is LoadMode.CLOSED and self.value != int(self.value):
            raise ValueError(f"a closed loop has a whole number of clients, not {self.value}")

    @property
    def clients(self) -> int | None:
        """Imposed concurrency of a closed loop; None in an open loop."""
        return int(self.value) if self.mode is LoadMode.CLOSED else None

    @property
    def rps(self) -> float | None:
        """Offered rate of an open loop; None in a closed loop."""
        return None if self.mode is LoadMode.CLOSED else self.value

    def __str__(self) -> str:
        if self.clients is not None:
            return "1 client" if self.clients == 1 else f"{self.clients} clients"
        return f"{figure(self.value)} rps"


@dataclass(frozen=True, slots=True)
class Origin:
    """Origin of a point, as a person would look it up.

    Attributes:
        row: number of the operating point in its file, from 1; the header and blank lines do not count.
        line: line of a CSV file as an editor counts; None for JSON.
        places: column -> JSON path; empty for CSV.
        part: in words, which requests of the run the point is of; empty for all of them.
        remark: what else the file says of the run and no column does; empty for most.
        tool: the load generator that wrote the file, with its version where the file says it; empty for a points file.
    """

    source: str
    row: int
    line: int | None = None
    places: Mapping[str, str] = field(default_factory=dict)
    part: str = ""
    remark: str = ""
    tool: str = ""

    def of(self, column: str) -> str:
        """Name the place of one value: file, row and column, or file and JSON path."""
        place = self.places.get(column)
        return f"{self.source}: {place}" if place else f"{self}, column {column}"

    def __str__(self) -> str:
        line = "" if self.line is None else f" (line {self.line})"
        return f"{self.source}: row {self.row}{line}"


_MEASURED_HERE = Origin("this measurement", 1)
ON_MACHINE = " on "
"""Between the name of a start and its machine."""

# A day: no request takes longer, so a larger value is in milliseconds. No request over a network takes a nanosecond.
LEAST_S, _MOST_S = 1e-9, 86_400.0
_Seconds = Annotated[float, Field(ge=LEAST_S, le=_MOST_S)]
_Rate = Annotated[float, Field(ge=1e-9, le=1e6)]
_Count = Annotated[float, Field(ge=0, le=1e12)]
_Figure = Annotated[float, Field(ge=0)]
_Share = Annotated[float, Field(ge=0, le=1)]


@checked_dataclass(
    frozen=True, slots=True, kw_only=True, config=ConfigDict(allow_inf_nan=False, extra="forbid")
)
class Point:
    """One measured operating point. Exactly one of concurrency and request_rate_rps is given.

    Fields are the columns of the points file in its order; None if not measured. `accept[i-1]` is accept_i.
    """

    method: Annotated[str, Field(max_length=64)] = "none"
    k: Annotated[int, Field(ge=0, le=1000)] = 0
    candidate: Annotated[str | None, Field(max_length=64)] = None
    schedule: Annotated[str | None, Field(max_length=1024)] = None
    load_mode: LoadMode
    concurrency: Annotated[float, Field(ge=1, le=1e6)] | None = None
    request_rate_rps: _Rate | None = None
    flag: str | None = None
    mean_latency_s: _Seconds
    mean_inflight: Annotated[float, Field(ge=1e-9, le=1e7)] | None = None
    achieved_rps: _Rate | None = None
    p50_latency_s: _Seconds | None = None
    p95_latency_s: _Seconds | None = None
    p99_latency_s: _Seconds | None = None
    ttft_mean_s: _Seconds | None = None
    ttft_p50_s: _Seconds | None = None
    ttft_p95_s: _Seconds | None = None
    ttft_p99_s: _Seconds | None = None
    tpot_mean_s: Annotated[float, Field(gt=0, le=_MOST_S)] | None = None
    tpot_p50_s: _Seconds | None = None
    tpot_p95_s: _Seconds | None = None
    tpot_p99_s: _Seconds | None = None
    tokens_per_second: Annotated[float, Field(gt=0, le=1e9)] | None = None
    prompt_tokens: Annotated[float, Field(ge=0, le=1e8)] | None = None
    output_tokens: Annotated[float, Field(ge=1, le=1e8)] | None = None
    output_tokens_sq: Annotated[float, Field(ge=1, le=1e16)] | None = None
    tokens_per_step: Annotated[float, Field(ge=1, le=1001)] | None = None
    drafted_per_step: Annotated[float, Field(ge=0, le=1000)] | None = None
    drafts: Annotated[float, Field(ge=0, le=1e15)] | None = None
    requests: Annotated[float, Field(ge=1, le=1e12)] | None = None
    preemptions: _Count | None = None
    window_s: _Figure | None = None
    failed: _Count | None = None
    send_lag_p99_s: _Figure | None = None
    little_residual: _Figure | None = None
    relative_error: _Figure | None = None
    queued_ratio: _Figure | None = None
    kv_usage_max: _Figure | None = None
    prefix_hit_ratio: _Figure | None = None
    accept: tuple[_Share, ...] = ()
    workload: str | None = None
    gpu: str | None = None
    model: str | None = None
    max_num_seqs: Annotated[float, Field(ge=1, le=1e6)] | None = None
    engine_version: str | None = None
    sweep: str | None = None
    text_source: str | None = None
    replicate: str | None = None
    start: Annotated[str | None, Field(max_length=64)] = None
    begun_s: _Figure | None = None
    origin: Origin = _MEASURED_HERE
    extra: Mapping[str, str] = field(default_factory=dict)

    @property
    def arm(self) -> Arm:
        """The arm that was measured."""
        return arm_drafting(self.method, self.k, self.candidate, self.schedule)

    @property
    def load(self) -> ImposedLoad:
        """The imposed load: points with the same load are replicates of each other."""
        imposed = self.concurrency if self.closed else self.request_rate_rps
        return ImposedLoad(self.load_mode, float(imposed or math.nan))

    @property
    def machine(self) -> str:
        """The machine that the start ran on, if arms were measured at the same time; empty if that is not known."""
        return (self.start or "").partition(ON_MACHINE)[2]

    @property
    def closed(self) -> bool:
        """Whether the load was a closed loop."""
        return self.load_mode is LoadMode.CLOSED

    @property
    def windowed(self) -> bool:
        """Measured in a window of a running load, not over a run that starts and ends empty."""
        return self.window_s is not None or self.little_residual is not None

    @property
    def flags(self) -> tuple[str, ...]:
        """The reason words against the point, gravest first."""
        return tuple((self.flag or "").split())

    @property
    def usable(self) -> bool:
        """Whether the point has no flag against it."""
        return not self.flags

    @property
    def answered_rps(self) -> float | None:
        """Answers per second, counted or from the tokens; None if neither was measured."""
        if self.achieved_rps is not None:
            return self.achieved_rps
        if self.tokens_per_second is not None and self.output_tokens:
            return self.tokens_per_second / self.output_tokens
        return None

    @property
    def measured_inflight(self) -> float | None:
        """Mean number in flight, counted or by Little's law; None if neither was measured."""
        if self.mean_inflight is not None:
            return self.mean_inflight
        # Little's law over a run that starts and ends empty is exact, ramp and drain included.
        return None if self.answered_rps is None else self.answered_rps * self.mean_latency_s

    @property
    def unknown(self) -> tuple[str, ...]:
        """The keys of another tool's file that are kept and mean nothing to any reader."""
        known = (*ENGINE, *WHERE)
        return tuple(name for name in self.extra if name not in known) if self.origin.tool else ()

    def text(self, column: str) -> str | None:
        """Return any column as text, for `--where` and `--group-by`; None if the row has no such value."""
        if column in NUMBERS or column in TEXTS:
            value = getattr(self, column)
            return value if value is None or isinstance(value, str) else f"{value:g}"
        return self.extra.get(column)


def multiplied(point: Point, factors: Mapping[str, float]) -> Point:
    """A row with some of its times multiplied, by column; times that were not measured stay unknown.

    A product outside of the range of times becomes the nearest end of that range.
    """
    times_s = {name: getattr(point, name) for name in factors}
    return replace(
        point,
        **{
            name: min(max(value * factors[name], LEAST_S), _MOST_S)
            for name, value in times_s.items()
            if value is not None
        },
    )


def significant(value: float) -> float:
    """A measured figure in the digits that a points file keeps: six, of 1e6 and more all before the point, below 1e-4 four."""
    if value == 0 or not math.isfinite(value):
        return value
    size = abs(value)
    digits = 4 if size < 1e-4 else 6
    return round(value, max(digits - 1 - math.floor(math.log10(size)), 0) if size < 1e6 else 0)


@dataclass(frozen=True)
class PointColumn:
    """One column as the model describes it; its meaning has unit and range, as an error message shows them."""

    name: str
    meaning: str
    counted: bool
    textual: bool
    type: Any

    @cached_property
    def _bounds(self) -> TypeAdapter[Any]:
        return TypeAdapter(self.type)

    def holds(self, value: float) -> bool:
        """Whether a value is a number within the column's range."""
        if not math.isfinite(value):
            return False
        try:
            self._bounds.validate_python(value)
        except ValidationError:
            return False
        return True


def _columns() -> dict[str, PointColumn]:
    types, plain = get_type_hints(Point, include_extras=True), get_type_hints(Point)
    found = {}
    for name, counted, meaning in shipped_rows(Path(__file__).with_name("columns.csv")):
        textual = not {str, LoadMode}.isdisjoint((plain[name], *get_args(plain[name])))
        found[name] = PointColumn(name, meaning, bool(counted), textual, types[name])
    return found


COLUMNS = _columns()
"""Every column in the order of the points file; `accept` stands for accept_1 ... accept_k."""

TEXTS = tuple(name for name, column in COLUMNS.items() if column.textual)
"""Columns of plain text."""

NUMBERS = {name: column for name, column in COLUMNS.items() if name != "accept" and not column.textual}
"""Every numeric column but accept_1 ... accept_k."""

SHARE = PointColumn("accept", COLUMNS["accept"].meaning, counted=False, textual=False, type=_Share)
"""One of accept_1 ... accept_k: unconditional survival at one position."""


def first_half(loads: int) -> int:
    """Number of loads that the first of two starts measures: enough for a law of its own."""
    return min(loads, max(FEWEST_OF_A_LAW, (loads + 1) // 2))

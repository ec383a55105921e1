"""Results of other tools: the table of what is read of each, the reader that walks it, and the point of what was read.

A row of `fields.csv` is one figure of a tool: its name, its kind, and the dotted places of which the first that a document has
counts. `{a,b}` stands for either, `#` for the percentiles 50, 95 and 99, and `!` for a figure that the document must have. A time
`in ms`, or in the unit that an earlier figure names, is held in s; others are in s. A figure that is named as a column of a point is that column. Null is read as absent, and so is
NaN where a point can do without the figure. Another NaN and a value of another type are refused; what no row names is not looked at.
"""

from __future__ import annotations

import contextlib
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

from pydantic import (
    AfterValidator,
    AliasChoices,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    ValidationInfo,
    create_model,
)

from breakeven.arm import NO_SPECULATION, Arm
from breakeven.errors import ForeignFileError, InputError
from breakeven.intake import json_value, kind_of, shipped_rows, wrong_field
from breakeven.methods import LOOKUP_METHODS
from breakeven.phrases import figure
from breakeven.points.point import COLUMNS, ENGINE, SETTING, WHERE, Origin, Point
from breakeven.points.row import point
from breakeven.reasons import Reason

Columns = dict[str, tuple[Any, ...]]
"""Columns of a point: the value, and the figure (and index) that it rests on."""

_EVEN_SHAPE = 10.0
"""Shape of gamma arrivals from which they are as even as clock ticks."""

_BUSY = 0.9
"""Share of the clients in flight from which an open loop waits for one of them."""

_WHOLE = 0.01
"""A mean draft length this close to a whole number is that number: the last drafts before the context's end are shorter."""


def _holed(value: Any) -> bool:
    """Whether a value is NaN, or a list of numbers or of such lists in which one is NaN."""
    rows = value if isinstance(value, list) else [value]
    cells = (cell for row in rows for cell in (row if isinstance(row, list) else (row,)))
    return any(isinstance(cell, float) and math.isnan(cell) for cell in cells)


def _unix_s(value: Any) -> float | None:
    """Unix time (s) of a moment as tools write it; None of anything else, because no figure rests on it.

    Many write local time without a zone. It is taken for UTC: within the files of one set only the order matters.
    """
    with contextlib.suppress(ValueError, OverflowError):
        value = datetime.fromisoformat(value) if isinstance(value, str) else value
        if isinstance(value, datetime):
            value = (value if value.tzinfo else value.replace(tzinfo=UTC)).timestamp()
        if isinstance(value, int | float) and 0 < value < math.inf:
            return float(value)
    return None


_Number = Annotated[float, Field(strict=True, allow_inf_nan=False)]
# Tools write 0 for "not counted".
_Counted = Annotated[_Number | None, AfterValidator(lambda value: value or None)]
_NAN_IS_ABSENT = BeforeValidator(lambda value: None if _holed(value) else value)
# A figure that a point can do without: tools write NaN for a mean of nothing.
_Figure = Annotated[_Counted, _NAN_IS_ABSENT]
# EvalScope writes -1 for "not measured" and for "no rate".
_POSITIVE = AfterValidator(lambda value: value if value and value > 0 else None)
_WHOLE_LIST = BeforeValidator(lambda listed: () if _holed(listed) else listed)
_UNLIMITED = BeforeValidator(lambda rate: None if rate in ("inf", "Infinity", "trace", math.inf) else rate)

_KINDS: Mapping[str, Any] = {
    "any": Any,
    "boolean": bool | None,
    "text": str | None,
    "number": _Number | None,
    "above 0": Annotated[_Number, Field(gt=0)],
    "count": _Counted,
    "figure": _Figure,
    "deviation": Annotated[_Number | None, _NAN_IS_ABSENT],
    "positive": Annotated[_Figure, _POSITIVE],
    "positive number": Annotated[_Number | None, _POSITIVE],
    "moment": Annotated[float | None, BeforeValidator(_unix_s)],
    "rate": Annotated[_Number | None, _UNLIMITED],
    "limit": Annotated[float, Field(strict=True, ge=1)] | None,
    "unit ms": Literal["ms"] | None,
    "unit s or ms": Literal["s", "ms"] | None,
    "requests per second": Literal["requests/sec", "requests/s", "requests/second", "req/s"] | None,
    "queries per second": Literal["queries/s", "queries/sec", "requests/s", "requests/sec"] | None,
    "list": list[Any],
    "names": list[str],
    "texts": tuple[str, ...],
    "numbers": Annotated[tuple[_Number, ...], _WHOLE_LIST],
    "lists of numbers": Annotated[tuple[tuple[_Number, ...], ...], _WHOLE_LIST],
}
"""Types of the kinds of figures."""

_MANY = frozenset({"list", "names", "texts", "numbers", "lists of numbers"})
"""Kinds of which a document without the figure has none."""

COLUMN_FIGURES = frozenset({*COLUMNS, *ENGINE, *WHERE})
"""Figures that are columns of a point."""


class Row(NamedTuple):
    """One row of `fields.csv`; `means` says in docs/result-files.md what becomes of the figure, and is empty for a column."""

    kind: str
    places: tuple[str, ...]
    means: str


@cache
def tables() -> Mapping[str, Mapping[str, Row]]:
    """What is read of each tool, by figure."""
    found: dict[str, dict[str, Row]] = {}
    for table, name, kind, places, means in shipped_rows(Path(__file__).with_name("fields.csv")):
        for percent in ("50", "95", "99") if "#" in name else ("",):
            spread = (one for place in places.replace("#", percent).split(" | ") for one in _spread(place))
            row = Row(kind, tuple(spread), means)
            found.setdefault(table, {})[name.replace("#", percent)] = row
    return found


def _spread(place: str) -> Sequence[str]:
    before, brace, rest = place.partition("{")
    choices, _, after = rest.partition("}")
    return [f"{before}{one}{after}" for one in choices.split(",")] if brace else [place]


class Read(BaseModel):
    """The figures of the table that is named as the class is; None, or an empty list, if the document does not have them."""

    model_config = ConfigDict(frozen=True)

    if TYPE_CHECKING:

        def __getattr__(self, figure: str) -> Any: ...


@cache
def _model(table: str) -> type[Read]:
    fields: dict[str, Any] = {}
    for name, row in tables()[table].items():
        kind, _, unit = row.kind.removesuffix("!").partition(" in ")
        type_ = Annotated[_KINDS[kind], AfterValidator(_scaled(unit))] if unit else _KINDS[kind]
        default: Any = ... if row.kind.endswith("!") else () if kind in _MANY else None
        fields[name] = (type_, Field(default, validation_alias=AliasChoices(*row.places)))
    return create_model(table, __base__=Read, **fields)


def _scaled(unit: str) -> Callable[[float | None, ValidationInfo], float | None]:
    """Converts a time to s from this unit, or from the unit that an earlier figure of this name has."""
    return lambda time, info: time * 1e-3 if time and "ms" in (unit, info.data.get(unit)) else time


@dataclass(frozen=True)
class Document:
    """A parsed document, or a part of it at a path such as `a.b[0]`, which is empty for the root."""

    value: Any
    source: str
    path: str = ""

    def place(self, *steps: str | int) -> str:
        """JSON path of what stands below this."""
        below = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in steps)
        return f"{self.path}{below}".removeprefix(".")

    def refuse(self, problem: str, expected: str, *steps: str | int) -> InputError:
        """Build the refusal of what stands below this."""
        return InputError(f"{self.source}: {self.place(*steps)}".removesuffix(": "), problem, expected)

    def disown(self, problem: str, expected: str, *steps: str | int) -> ForeignFileError:
        """Build the refusal of a document that holds no measurement, by what stands below it."""
        return ForeignFileError(f"{self.source}: {self.place(*steps)}".removesuffix(": "), problem, expected)

    def unanswered(self, what: str = "a run") -> ForeignFileError:
        """Build the refusal of a run without an answer."""
        return self.disown(f"{what} in which no request was answered", "one with answers")

    def has(self, *keys: str) -> bool:
        """Tell whether this is an object with these members."""
        return isinstance(self.value, dict) and self.value.keys() >= {*keys}

    def member(self, key: str) -> Document:
        """Return a member that is there."""
        return Document(self.value[key], self.source, self.place(key))

    def items(self) -> Iterator[Document]:
        """The elements of a list."""
        return (Document(one, self.source, self.place(index)) for index, one in enumerate(self.value))

    def read(self, table: str) -> Read:
        """Read this as a table says.

        Raises:
            InputError: naming the JSON path of the first value that is missing or of another type.
        """
        if not isinstance(self.value, dict):
            raise self.refuse(kind_of(self.value), "an object")
        found: dict[str, Any] = {}
        for key in (key for row in tables()[table].values() for key in row.places):
            for end in (place for place, letter in enumerate(key) if letter == "."):
                if not isinstance(on_the_way := _below(self.value, key[:end], {}), dict):
                    raise self.refuse(kind_of(on_the_way), "an object", key[:end])
            if (value := _below(self.value, key)) is not None:
                found[key] = value
        try:
            return _model(table).model_validate(found)
        except ValidationError as error:
            raise wrong_field(error, self.source, "is read", self.path) from None

    def standing(self, read: Read, name: str) -> str:
        """The dotted path at which a figure stands, or would stand: beside figures that are there, else at its first place."""
        keys = tables()[type(read).__name__][name].places
        beside = (key for key in keys if _below(self.value, key.rpartition(".")[0]) is not None)
        return next((key for key in keys if _below(self.value, key) is not None), next(beside, keys[0]))

    def unread(self, read: Read, harmless: re.Pattern[str], place: str = "") -> dict[str, str]:
        """Members of an object that no row reads and that are not known to be harmless, by their dotted names.

        Without a place the object is this one, of which only texts and numbers count. Harmless names match in full.
        """
        found = _below(self.value, place) if place else self.value
        if not isinstance(found, dict):
            return {}
        before = f"{place}." if place else ""
        depth = before.count(".") + 1
        rows = tables()[type(read).__name__].values()
        known = {".".join(key.split(".")[:depth]) for row in rows for key in row.places}
        return {
            f"{before}{name}": str(value)[:200]
            for name, value in found.items()
            if f"{before}{name}" not in known and not harmless.fullmatch(name)
            if isinstance(value, str | int | float) or (place and value not in (None, [], {}))
        }

    def refuse_speculation(self, arm: Arm, read: Read, counter: str) -> None:
        """Refuse a counter of speculation in the file of an arm without speculation."""
        if arm.k == 0:
            expected = "--method and --k of the arm that ran, not none"
            raise self.refuse("counters of a speculating engine", expected, self.standing(read, counter))

    def draft_length_remark(
        self, arm: Arm, drafts: float | None, drafted: float | None, accepted: float | None, *steps: str | int
    ) -> str:
        """A remark on drafts that were shorter than the arm drafts; empty if the run's counters agree with the arm.

        Without drafts the tool counted none; the steps say where the counters stand.

        Raises:
            InputError: an engine that runs this arm cannot have counted so.
        """
        if not drafts:
            return ""
        length = (drafted or 0.0) / drafts
        per_draft = f"{figure(length)} drafted per draft with k = {arm.k}"
        if max(length, (accepted or 0.0) / drafts) > arm.k + _WHOLE:
            least = math.ceil(max(length, (accepted or 0.0) / drafts) - _WHOLE)
            if drafted is None:
                per_draft = f"{figure((accepted or 0.0) / drafts)} accepted per draft with k = {arm.k}"
            raise self.refuse(per_draft, f"--k {least}" if drafted else f"--k {least} or more", *steps)
        if arm.scheduled or drafted is None or length >= arm.k - _WHOLE:
            return ""
        # Look-ups and an engine's own schedule draft fewer tokens at times, never the same number less in each draft.
        off = abs(length - round(length))
        if off == 0.0 or (off <= _WHOLE and arm.method not in LOOKUP_METHODS):
            raise self.refuse(per_draft, f"--k {length:.0f}", *steps)
        return f"{per_draft}: the engine cut drafts short, or took their length from a schedule (--k TABLE)"

    def point(
        self,
        read: Read,
        arm: Arm,
        worked_out: Columns,
        unread: Mapping[str, str] | None = None,
        tool: str = "",
        part: str = "",
    ) -> Point:
        """Make the point of what was read.

        Args:
            read: this document, read.
            arm: which arm the engine ran.
            worked_out: columns that no row holds as they are. They go before those that were read; None leaves a column out.
            unread: kept beside the columns; gpu and workload, which people add, are columns.
            tool: as in `Origin`.
            part: which requests of the run the columns are of; empty for all.

        Raises:
            InputError: as `row.point`, naming the JSON path.
        """
        names = [*type(read).model_fields]
        columns: Columns = {name: (getattr(read, name), name) for name in names if name in COLUMN_FIGURES}
        if "deviation" in names:
            columns["output_tokens_sq"] = (_mean_square(read.output_tokens, read.deviation), "deviation")
        columns.update(worked_out)
        given: dict[str, Any] = {"method": arm.method, "k": float(arm.k), "candidate": arm.candidate or ""}
        given |= {
            name: value for name, value in (unread or {}).items() if name in SETTING or name not in COLUMNS
        }
        given |= {name: value for name, (value, *_) in columns.items() if value is not None}
        places = {
            name: self.place(self.standing(read, rest[0]), *rest[1:]) for name, (_, *rest) in columns.items()
        }
        return point(given, Origin(self.source, 1, places=places, part=part, tool=tool))


_CONFIG = "speculative_config"


def named_arm(document: Document) -> Arm | None:
    """The arm that a result names; None if it names none.

    Members `method` and `k` do, which people add (`vllm bench serve --metadata method=eagle3 k=3`), and so does the engine's
    `speculative_config`, as an object, as its text, or as dotted members. A draft length that follows the batch is no number:
    such a result names no arm.

    Raises:
        InputError: the two contradict each other, or no arm can be so.
    """
    value = document.value if isinstance(document.value, dict) else {}
    config = value.get(_CONFIG)
    if isinstance(config, str):
        config = json_value(config, f"{document.source}: {_CONFIG}", "vLLM's speculative configuration")
    if config is None:
        config = {
            key.removeprefix(f"{_CONFIG}."): one
            for key, one in value.items()
            if key.startswith(f"{_CONFIG}.")
        }
    if not isinstance(config, dict) or any(key.startswith("num_speculative_tokens_per") for key in config):
        return None
    said = [
        (value.get("method"), value.get("k")),
        (config.get("method"), config.get("num_speculative_tokens")),
    ]
    arms = {_arm_of(document, method, k) for method, k in said if isinstance(method, str)} - {None}
    if len(arms) > 1:
        raise document.refuse(f"names {' and '.join(sorted(map(str, arms)))}", "one arm")
    return next(iter(arms), None)


def _arm_of(document: Document, method: str, k: object) -> Arm | None:
    """The arm of a method and a draft length as JSON or a text has it; None without a length, because other tools call other things a method."""
    if method == "none" and k in {None, 0, "0"}:
        return NO_SPECULATION
    try:
        return None if k is None else Arm(method, int(str(k)))
    except ValueError as error:
        raise document.refuse(
            f"method {method[:64]!r} with k {str(k)[:24]!r}", "an arm, such as eagle3 with 3"
        ) from error


def _below(value: Any, path: str, default: Any = None) -> Any:
    """The value at a dotted path below a value: a member of that whole name, or of the objects on the way; null is absent.

    Looked up one by one: the paths of all members of one megabyte may be half a gigabyte.
    """
    if not path or not isinstance(value, dict):
        return default
    if (whole := value.get(path)) is not None:
        return whole
    # A member's own name may hold dots.
    for end in (place for place, letter in enumerate(path) if letter == "."):
        if (found := _below(value.get(path[:end]), path[end + 1 :])) is not None:
            return found
    return default


def parse(text: str, source: str) -> Document:
    """Parse a document.

    Raises:
        ForeignFileError: it is not JSON, or cut off; the line and column are named.
    """
    try:
        value = json_value(text.removeprefix("\ufeff"), source, "a result file of a load generator")
    except InputError as refused:
        raise ForeignFileError(refused.where, refused.problem, refused.expected) from None
    return Document(value, source)


def remarked(point: Point, *remarks: str) -> Point:
    """The point with remarks on its run, for the person who gave the file; empty ones are none."""
    return replace(point, origin=replace(point.origin, remark="; ".join(filter(None, remarks))))


def _mean_square(mean: float | None, deviation: float | None) -> float | None:
    """The mean of squares; None if either figure is. A product overflows to infinity, which the range check refuses."""
    return None if mean is None or deviation is None else mean * mean + deviation * deviation


def ratio_of_means_s(latency_s: float, first_s: float | None, tokens: float) -> float | None:
    """TPOT (s) with which E2E = TTFT + (g - 1)*TPOT holds of means; None if it has no sense.

    Tools give a mean of ratios over requests: one short answer with a slow gap weighs as much in it as a long one.
    """
    if first_s is None or tokens <= 1.0 or latency_s <= first_s:
        return None
    return (latency_s - first_s) / (tokens - 1.0)


def gamma_arrivals(shape: float | None) -> str | None:
    """The word for arrivals whose gaps have a gamma distribution of this shape; None if it is neither of ours."""
    if shape == 1.0:
        return "poisson"
    return "constant" if shape is not None and shape >= _EVEN_SHAPE else None


def imposed(
    rate_rps: float | None, clients: float | None, inflight: float | None, arrivals: str | None
) -> tuple[Columns, list[Reason]]:
    """The columns of the load that a tool imposed, each resting on `rate`, `clients` or `arrivals`, and flags.

    Without a rate clients ask again as soon as they are answered. Arrivals are None if they were neither Poisson nor constant, or
    the tool does not say.
    """
    if rate_rps is None and clients is None:
        # With every request sent at once, the run shows the throughput ceiling and nothing else.
        return {"concurrency": (max(1.0, inflight or 1.0), "clients")}, [Reason.SATURATED_POINT]
    if rate_rps is None:
        return {"concurrency": (clients, "clients")}, []
    # If all clients are busy an open loop becomes a closed one: requests wait in the load generator.
    flags = [Reason.SATURATED_POINT] if clients is not None and (inflight or 0.0) > _BUSY * clients else []
    if arrivals is None:
        flags.append(Reason.ARRIVALS_UNKNOWN)
    mode = arrivals or "poisson"
    return {"request_rate_rps": (rate_rps, "rate"), "load_mode": (mode, "arrivals")}, flags

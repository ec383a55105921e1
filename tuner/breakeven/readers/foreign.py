"""JSON that other tools write: models of the parts that are read, and the place of each of their fields for refusals.

Null is read as absent, and so is NaN where a point can do without the figure. Another NaN and a value of another type are
refused; what no field names is not looked at.
"""

from __future__ import annotations

import contextlib
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cache
from typing import Annotated, Any, TypeVar

from pydantic import (
    AfterValidator,
    AliasChoices,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
)

from breakeven.arm import NO_SPECULATION, Arm
from breakeven.errors import ForeignFileError, InputError
from breakeven.intake import json_value, kind_of, wrong_field
from breakeven.methods import LOOKUP_METHODS
from breakeven.phrases import figure
from breakeven.points.point import COLUMNS, SETTING, Origin, Point
from breakeven.points.row import point

ModelT = TypeVar("ModelT", bound=BaseModel)

Number = Annotated[float, Field(strict=True, allow_inf_nan=False)]
# Tools write 0 for "not counted".
Counted = Annotated[Number | None, AfterValidator(lambda value: value or None)]


def holed(value: Any) -> bool:
    """Whether a value is NaN, or a list of numbers or of such lists in which one is NaN."""
    rows = value if isinstance(value, list) else [value]
    cells = (cell for row in rows for cell in (row if isinstance(row, list) else (row,)))
    return any(isinstance(cell, float) and math.isnan(cell) for cell in cells)


NAN_IS_ABSENT = BeforeValidator(lambda value: None if holed(value) else value)
Figure = Annotated[Counted, NAN_IS_ABSENT]
"""A figure that a point can do without: tools write NaN for a mean of nothing."""
_IN_S = AfterValidator(lambda value: None if value is None else value * 1e-3)
Milliseconds = Annotated[Figure, _IN_S]
"""Read in ms, held in s."""
NeededMilliseconds = Annotated[Counted, _IN_S]
"""Milliseconds of which NaN is refused."""


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


Moment = Annotated[float | None, BeforeValidator(_unix_s)]
"""When something happened, Unix time (s)."""


def mean_square(mean: float | None, deviation: float | None) -> float | None:
    """The mean of squares; None if either figure is. A product overflows to infinity, which the range check refuses."""
    return None if mean is None or deviation is None else mean * mean + deviation * deviation


def ratio_of_means_s(latency_s: float, first_s: float | None, tokens: float) -> float | None:
    """TPOT (s) with which E2E = TTFT + (g - 1)*TPOT holds of means; None if it has no sense.

    Tools give a mean of ratios over requests: one short answer with a slow gap weighs as much in it as a long one.
    """
    if first_s is None or tokens <= 1.0 or latency_s <= first_s:
        return None
    return (latency_s - first_s) / (tokens - 1.0)


def at(*places: str, default: Any = None, means: str | None = None) -> Any:
    """Make a field that stands at the first of these dotted paths that the document has.

    `default` is Ellipsis if the document must have one; `means` is for docs/result-files.md. A field that is named as a column of
    a point means that column.
    """
    return Field(default=default, validation_alias=AliasChoices(*places), description=means)


_WHOLE = 0.01
"""A mean draft length this close to a whole number is that number: the last drafts before the context's end are shorter."""


class ForeignResult(BaseModel):
    """One operating point as another tool wrote it. Fields that are named as a column of a point are that column."""

    model_config = ConfigDict(frozen=True)


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

    def has(self, *keys: str) -> bool:
        """Tell whether this is an object with these members."""
        return isinstance(self.value, dict) and self.value.keys() >= {*keys}

    def member(self, key: str) -> Document:
        """Return a member that is there."""
        return Document(self.value[key], self.source, self.place(key))

    def items(self) -> Iterator[Document]:
        """The elements of a list."""
        return (Document(one, self.source, self.place(index)) for index, one in enumerate(self.value))

    def read(self, model: type[ModelT]) -> ModelT:
        """Read this as a model says.

        Raises:
            InputError: naming the JSON path of the first value that is missing or of another type.
        """
        if not isinstance(self.value, dict):
            raise self.refuse(kind_of(self.value), "an object")
        found: dict[str, Any] = {}
        for key in (key for name in model.model_fields for key in _keys(model, name)):
            for end in (place for place, letter in enumerate(key) if letter == "."):
                if not isinstance(on_the_way := _below(self.value, key[:end], {}), dict):
                    raise self.refuse(kind_of(on_the_way), "an object", key[:end])
            if (value := _below(self.value, key)) is not None:
                found[key] = value
        try:
            return model.model_validate(found)
        except ValidationError as error:
            raise wrong_field(error, self.source, "is read", self.path) from None

    def standing(self, model: type[BaseModel], name: str) -> str:
        """The dotted path at which a field stands, or would stand: beside fields that are there, else at its first place."""
        keys = _keys(model, name)
        beside = (key for key in keys if _below(self.value, key.rpartition(".")[0]) is not None)
        return next((key for key in keys if _below(self.value, key) is not None), next(beside, keys[0]))

    def unread(self, model: type[BaseModel], harmless: re.Pattern[str], place: str = "") -> dict[str, str]:
        """Members of an object that no field reads and that are not known to be harmless, by their dotted names.

        Without a place the object is this one, of which only texts and numbers count. Harmless names match in full.
        """
        found = _below(self.value, place) if place else self.value
        if not isinstance(found, dict):
            return {}
        before = f"{place}." if place else ""
        depth = before.count(".") + 1
        known = {
            ".".join(key.split(".")[:depth]) for name in model.model_fields for key in _keys(model, name)
        }
        return {
            f"{before}{name}": str(value)[:200]
            for name, value in found.items()
            if f"{before}{name}" not in known and not harmless.fullmatch(name)
            if isinstance(value, str | int | float) or (place and value not in (None, [], {}))
        }

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
        read: ForeignResult,
        arm: Arm,
        worked_out: Mapping[str, Sequence[Any]],
        unread: Mapping[str, str] | None = None,
        tool: str = "",
        part: str = "",
    ) -> Point:
        """Make the point of what was read.

        Args:
            read: this document, read.
            arm: which arm the engine ran.
            worked_out: columns that no field holds as they are: the value, and the field (and index) that it rests on. They
                go before those that were read; None leaves a column out.
            unread: kept beside the columns; gpu and workload, which people add, are columns.
            tool: as in `Origin`.
            part: which requests of the run the columns are of; empty for all.

        Raises:
            InputError: as `row.point`, naming the JSON path.
        """
        model = type(read)
        columns: dict[str, Sequence[Any]] = {
            name: (getattr(read, name), name) for name in model.model_fields if name in COLUMNS
        }
        columns.update(worked_out)
        given: dict[str, Any] = {"method": arm.method, "k": float(arm.k), "candidate": arm.candidate or ""}
        given |= {
            name: value for name, value in (unread or {}).items() if name in SETTING or name not in COLUMNS
        }
        given |= {name: value for name, (value, *_) in columns.items() if value is not None}
        places = {
            name: self.place(self.standing(model, rest[0]), *rest[1:]) for name, (_, *rest) in columns.items()
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


def remarked(point: Point, *remarks: str) -> Point:
    """The point with remarks on its run, for the person who gave the file; empty ones are none."""
    return replace(point, origin=replace(point.origin, remark="; ".join(filter(None, remarks))))


def _below(value: Any, path: str, default: Any = None) -> Any:
    """The value at a dotted path below a value: a member of that whole name, or of the objects on the way; null is absent.

    Looked up one by one: the paths of all members of one megabyte may be half a gigabyte.
    """
    if not path or not isinstance(value, dict):
        return default
    if (whole := value.get(path)) is not None:
        return whole
    if "." not in path:
        return default
    # A member's own name may hold dots.
    for end in (place for place, letter in enumerate(path) if letter == "."):
        if (found := _below(value.get(path[:end]), path[end + 1 :])) is not None:
            return found
    return default


@cache
def _keys(model: type[BaseModel], name: str) -> tuple[str, ...]:
    alias = model.model_fields[name].validation_alias
    return tuple(map(str, alias.choices)) if isinstance(alias, AliasChoices) else (name,)


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

"""Marks of the fields of a status: where a field is read, where else it is shown, and when it is worth a write.

A row of the status is one field of its model. The schema, the status, the gauges, the log line, the rule of writing and the
pages are made of the rows: a new figure is a new row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from functools import cache
from typing import Annotated, Any, Final, NamedTuple, TypeVar, get_args

from pydantic import Field
from pydantic.alias_generators import to_camel
from pydantic.fields import FieldInfo

from breakeven.estimate import Estimate
from breakeven_operator.resources.base import Model, Number

M = TypeVar("M")
_UNITS = ("_seconds", "_percent", "_rps")


class Renewal(Enum):
    """When a change of a field is worth a write of the status; a field without one takes it from the part it is in."""

    AT_ONCE = "at once"
    MOVED = "now and then, if it moved"
    NEVER = "with other changes"
    LEARNED = "when a new operator would miss it"
    AMOUNT = "when a new operator would miss it, or by a fifth"
    BEGINNING = "at once if it was absent, else when a new operator would miss it"


LowerBound = Annotated[Number | None, Field(description="Lower bound.")]
UpperBound = Annotated[Number | None, Field(description="Upper bound.")]
LowerOrOpen = Annotated[Number | None, Field(description="Lower bound; absent where open.")]
UpperOrOpen = Annotated[Number | None, Field(description="Upper bound; absent where open.")]
ItsLower = Annotated[Number | None, Field(description="Its lower bound.")]
ItsUpperOrOpen = Annotated[Number | None, Field(description="Its upper bound; absent where open.")]

LOGGED: Final = "logged"
"""Mark of a field that the log line of a decision repeats."""


@dataclass(frozen=True, slots=True)
class FigureGauge:
    """Mark of a field that is a gauge of every service.

    A time is shown in Unix seconds, a percentage as a ratio.

    Attributes:
        labels: values of labels by name: the name of a field of the same part. A part without one of them is not shown.
        fixed: other labels with their values: the same name, help and label names may stand at several fields.
        ends: fields of the same part that hold the bounds, which the label `bound` tells apart; empty: it has none.
        only_with: name of a field of the same part; a part without it is not shown.
        fresh: not shown while the operator cannot decide and the status is of an earlier cycle.
        info: the value is 1, and the labels say everything.
        instead: computes the value of a part in which another field overrules this one; None if none does.
    """

    name: str
    help: str
    labels: Mapping[str, str] = field(default_factory=dict)
    fixed: Mapping[str, str] = field(default_factory=dict)
    ends: tuple[str, ...] = ()
    only_with: str = ""
    fresh: bool = False
    info: bool = False
    instead: Callable[[Any], object] | None = None


@dataclass(frozen=True, slots=True)
class Reading:
    """Mark of a field that is read from the facts of a cycle; an Estimate fills the fields of its bounds too."""

    of: Callable[..., object]


def row(
    description: str,
    *marks: object,
    default: object = None,
    extra: dict[str, Any] | None = None,
    **limits: Any,
) -> Any:
    """A field that may be left out.

    Args:
        description: for `kubectl explain`.
        marks: of a status: a Reading, and what else belongs to the row.
        default: the field where nothing is given.
        extra: for the schema, as `json_schema_extra`.
        limits: as of pydantic's `Field`.
    """
    found: FieldInfo = Field(default=default, description=description, json_schema_extra=extra, **limits)
    # The place of what `Annotated` says beside a Field.
    found.metadata.extend(marks)
    return found


def ends_of(name: str) -> tuple[str, str]:
    """The fields of a figure's bounds: `speedup_lower`, and before a unit `load_lower_rps`."""
    unit = next((unit for unit in _UNITS if name.endswith(unit)), "")
    stem = name.removesuffix(unit)
    return f"{stem}_lower{unit}", f"{stem}_upper{unit}"


def bounded(name: str, found: Estimate | None) -> dict[str, float | None]:
    """An estimate as the three fields of a part."""
    one = found or Estimate()
    return dict(zip((name, *ends_of(name)), (one.value, one.lower, one.upper), strict=True))


class StatusField(NamedTuple):
    """A field somewhere in a status.

    Attributes:
        path: names of the fields that lead to its part.
        renewal: when its change is worth a write.
    """

    path: tuple[str, ...]
    name: str
    info: FieldInfo
    renewal: Renewal

    @property
    def json_path(self) -> str:
        """Its place in the JSON, without the places in lists: `decision.loadRps`."""
        return ".".join(to_camel(name) for name in (*self.path, self.name))

    def marks(self, kind: type[M]) -> list[M]:
        """Its marks of one type."""
        return [mark for mark in self.info.metadata if isinstance(mark, kind)]


@cache
def status_fields(model: type[Model]) -> tuple[StatusField, ...]:
    """Every field of a status and of its parts, parts before what is in them."""
    return tuple(_below(model, (), Renewal.AT_ONCE))


def _below(model: type[Model], path: tuple[str, ...], renewal: Renewal) -> Iterator[StatusField]:
    for name, info in model.model_fields.items():
        own = next((mark for mark in info.metadata if isinstance(mark, Renewal)), renewal)
        yield StatusField(path, name, info, own)
        if (part := _part(info.annotation)) is not None:
            yield from _below(part, (*path, name), own)


def _part(annotation: object) -> type[Model] | None:
    """The model that a field holds, alone or in a list."""
    if isinstance(annotation, type) and issubclass(annotation, Model):
        return annotation
    return next((found for inner in get_args(annotation) if (found := _part(inner)) is not None), None)


@cache
def _readings(model: type[Model]) -> tuple[tuple[str, Reading], ...]:
    return tuple(
        (name, mark)
        for name, info in model.model_fields.items()
        for mark in info.metadata
        if isinstance(mark, Reading)
    )


def read_figures(model: type[Model], *facts: object) -> dict[str, object]:
    """The values of all fields of a part that are read from the facts of a cycle."""
    found: dict[str, object] = {}
    for name, reading in _readings(model):
        value = reading.of(*facts)
        found |= bounded(name, value) if isinstance(value, Estimate) else {name: value}
    return found

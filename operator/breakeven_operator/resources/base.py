"""Base of the three kinds: frozen models, rules between fields, numbers and times as JSON holds them.

The models are the source of the CRDs (`shipping/generate/definitions.py`), so a field's bounds and description stand in one place and are
enforced twice: by the API server on every write and by `read` when the operator parses what it was given.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from functools import cache
from typing import Annotated, Any, ClassVar, Final, Self, TypeGuard, cast

from pydantic import (
    AfterValidator,
    AwareDatetime,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    GetJsonSchemaHandler,
    PlainSerializer,
    SerializationInfo,
    SerializerFunctionWrapHandler,
    ValidationError,
    ValidationInfo,
    ValidatorFunctionWrapHandler,
    WithJsonSchema,
    WrapValidator,
    model_serializer,
)
from pydantic.alias_generators import to_camel
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, PydanticCustomError

from breakeven.errors import InputError
from breakeven.intake import READABLE, wrong_field
from breakeven.printable import printable

GROUP = "breakeven.dev"
VERSION = "v1alpha1"
API_VERSION = f"{GROUP}/{VERSION}"
CATEGORY = "breakeven"

# Marks what `to_json_object` serialises.
_FOR_THE_API = {"for": "the API"}
IN_NOTES: Final = "in notes"
"""Mark of a field of a status that stands in its notes, see `packed`, and is no field of the CRD."""
_LIST_TYPE = "x-kubernetes-list-type"
_LIST_KEYS = "x-kubernetes-list-map-keys"

# One set for all objects that were given the same fields.
_GIVEN: dict[frozenset[str], set[str]] = {}

DECIMAL_PATTERN = r"^-?[0-9]{1,15}(\.[0-9]{1,12})?$"


@dataclass(frozen=True, slots=True)
class Rule:
    """A condition between fields, written once and checked by the API server and by Python.

    Attributes:
        cel: the expression the API server evaluates on the object that carries the rule; `None` where only reading can know.
        problem: what is wrong when it does not hold.
        wanted: what should stand there.
        holds: the condition in Python, on the parsed model; `None` where only the API server can know (transitions).
        field: camelCase path below the object to which the message is attached, such as `.options.method`.
    """

    cel: str | None
    problem: str
    wanted: str
    holds: Callable[[Any], bool] | None = None
    field: str | None = None

    @property
    def message(self) -> str:
        """The message in the API server's answer; `InputError` has the same words."""
        return f"{self.problem}; expected {self.wanted}"

    def to_json_object(self) -> dict[str, str] | None:
        """An item of `x-kubernetes-validations`; `None` if the API server cannot know."""
        if self.cel is None:
            return None
        place = {} if self.field is None else {"fieldPath": self.field}
        return {"rule": self.cel, "message": self.message, **place}


class Model(BaseModel):
    """A frozen part of a kind: snake_case in Python, camelCase in JSON, unknown fields refused."""

    model_config = ConfigDict(
        alias_generator=to_camel, validate_by_name=True, validate_by_alias=True, frozen=True, extra="forbid"
    )
    rules: ClassVar[tuple[Rule, ...]] = ()

    def model_post_init(self, _: Any, /) -> None:
        """Check the rules between fields: once for each new object, and not again where it is a part of another one."""
        # Pydantic notes for each object which fields it was given, in a set of its own: of a thousand statuses these took
        # 100 MB, a third of the operator. A frozen model never changes its set, and a copy gets one of its own.
        given = self.__pydantic_fields_set__
        object.__setattr__(self, "__pydantic_fields_set__", _GIVEN.setdefault(frozenset(given), given))
        # The API server refuses equal items of such lists by itself; a file that is read must fail in the same way.
        for name, keys, field in _sets_and_maps(type(self)):
            _refuse_equal_items(getattr(self, name), keys, field)
        for rule in self.rules:
            if rule.holds is not None and not rule.holds(self):
                raise PydanticCustomError(
                    "rule",
                    "{problem}; expected {wanted}",
                    {"problem": rule.problem, "wanted": rule.wanted, "field": rule.field or ""},
                )

    @classmethod
    def __get_pydantic_json_schema__(
        cls, core_schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        schema = handler.resolve_ref_schema(handler(core_schema))
        if rules := list(filter(None, (rule.to_json_object() for rule in cls.rules))):
            schema["x-kubernetes-validations"] = rules
        for name, info in cls.model_fields.items():
            if IN_NOTES in info.metadata:
                del schema["properties"][to_camel(name)]
        return schema

    @classmethod
    def read(cls, data: Mapping[str, Any], where: str) -> Self:
        """Parse what the API server or a file holds; errors name it as a person would look it up: `SpeculativeService llm/chat`.

        Raises:
            InputError: one line with the JSON path of the first wrong field and the number of others.
        """
        try:
            # Through JSON text: strict there means what it means to the API server ("2" is no number, a list is one).
            return cls.model_validate_json(
                json.dumps(data, default=str), strict=True, by_alias=True, by_name=False
            )
        except RecursionError:
            raise InputError(where, "is nested too deep", READABLE) from None
        except ValidationError as error:
            raise wrong_field(error, where, "`kubectl explain` lists") from None

    def replace(self, **changes: Any) -> Self:
        """The same object with other values of some fields, named as in Python, checked as in a new object.

        Raises:
            ValidationError: there is no such field, it takes no such value, or a rule between fields is broken.
        """
        held = self.__dict__
        if all(name in held and held[name] == new for name, new in changes.items()):
            # Most of what a cycle repeats: validation would take ten times as long, and equal parts stay one object.
            return self
        # `model_copy` takes any name and any value: a misspelt field would be lost without a word.
        kept = {name: held[name] for name in self.model_fields_set}
        checked = type(self).model_validate(kept | changes, extra="forbid")
        # A copy, because validation makes new tuples of the old ones, and equal parts shall be one object in memory.
        return self.model_copy(update={name: getattr(checked, name) for name in changes})

    def to_json_object(self) -> dict[str, Any]:
        """The JSON object with camelCase keys; fields without a value are left out, never null."""
        return self.model_dump(mode="json", by_alias=True, exclude_none=True, context=_FOR_THE_API)


@cache
def _zeros(model: type[Model]) -> tuple[tuple[str, str], ...]:
    """Name in JSON, and name, of each field that is zero, false or empty text unless something is written."""
    return tuple(
        (info.alias or name, name)
        for name, info in model.model_fields.items()
        if isinstance(info.default, int | float | str) and not info.default
    )


@cache
def _sets_and_maps(model: type[Model]) -> tuple[tuple[str, list[str], str], ...]:
    """Name, keys and name in JSON of each list whose items differ from each other.

    Once for each model: looked for in every validation, they were most of its time.
    """
    found = []
    for name, info in model.model_fields.items():
        extra = info.json_schema_extra
        if isinstance(extra, dict) and extra.get(_LIST_TYPE) in {"map", "set"}:
            found.append((name, cast("list[str]", extra.get(_LIST_KEYS, [])), info.alias or name))
    return tuple(found)


def _refuse_equal_items(items: Sequence[Any], keys: Sequence[str], field: str) -> None:
    seen: list[Any] = []
    for position, item in enumerate(items):
        identity = tuple(getattr(item, key) for key in keys) if keys else item
        if identity in seen:
            raise PydanticCustomError(
                "rule",
                "{problem}",
                {"problem": "is there twice", "wanted": "each once", "field": f".{field}[{position}]"},
            )
        seen.append(identity)


class StatusModel(Model):
    """A part of a status: what a newer version wrote beside it is ignored, so that a downgrade keeps working."""

    model_config = ConfigDict(extra="ignore")

    @model_serializer(mode="wrap")
    def _without_what_is_empty(
        self, dump: SerializerFunctionWrapHandler, info: SerializationInfo
    ) -> dict[str, Any]:
        fields: dict[str, Any] = dump(self)
        if info.context is not _FOR_THE_API:
            return fields
        # `History:` with nothing below it, and zeros that mean nothing, would fill kubectl describe. `exclude_none` looks at
        # what a field holds, not at what is written for it.
        held = self.__dict__
        for alias, name in _zeros(type(self)):
            if not held[name]:
                fields.pop(alias, None)
        # Words of engines, servers and manifests get no further than here with what moves a terminal's cursor.
        return {
            key: printable(value) if isinstance(value, str) and not value.isprintable() else value
            for key, value in fields.items()
            if value is not None and value != []
        }


def fits(value: float) -> bool:
    """Whether the schemas take a figure: a finite number of at most fifteen digits before the point."""
    # Rounded as it is written: 999999999999999.9 would become a one with fifteen zeros.
    return -1e14 < value < 1e14 or (math.isfinite(value) and abs(float(f"{value:.6g}")) < 1e15)


def decimal_string(value: float) -> str:
    """Six significant digits without an exponent, at most twelve decimals: `0.0293`, `14400`, `1.82`.

    Raises:
        ValueError: a value without such a text that the schemas take; see `fits`.
    """
    if not fits(value):
        raise ValueError(f"{value!r} is no figure of a status; expected a finite number below 1e15")
    text = f"{value:.6g}"
    if "e" not in text:
        # Most figures; a status has two hundred.
        return text
    figure = Decimal(text)
    # Below that the schema refuses it, and it is what arithmetic leaves of zero: 1.4e-16.
    if abs(figure) < 1 and figure != round(figure, 12):
        figure = round(figure, 12).normalize() + 0
    return format(figure, "f")


def _is_number(value: object) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _read_decimal(value: object) -> float:
    if isinstance(value, str) and re.fullmatch(DECIMAL_PATTERN, value):
        return float(value)
    if _is_number(value) and fits(value):
        return float(value)
    raise PydanticCustomError(
        "decimal", "not a decimal number", {"wanted": 'a decimal string such as "1.82"'}
    )


def _read_if_it_fits(value: object, read: ValidatorFunctionWrapHandler) -> float | None:
    return None if _is_number(value) and not fits(value) else read(_read_decimal(value))


_FIRST, _LAST = datetime(1970, 1, 1, tzinfo=UTC), datetime(9000, 1, 1, tzinfo=UTC)


def computable(value: datetime) -> datetime:
    """The time in UTC, moved to where a year may be added to it or taken from it.

    The API server takes 0001-01-01T00:00:00+14:00 and 9999-12-31T23:59:59-14:00, which have no time in UTC.
    """
    return min(max(value, _FIRST), _LAST).astimezone(UTC)


# A float in Python, a decimal string in JSON: the API conventions allow no floats, and a client that re-encodes
# 1.82 as 1.8200000000000001 would start a write loop.
_IN_JSON = (
    PlainSerializer(lambda value: decimal_string(value) if fits(value) else None, return_type=str | None),
    WithJsonSchema({"type": "string", "pattern": DECIMAL_PATTERN, "maxLength": 32}),
)
RequiredNumber = Annotated[float, BeforeValidator(_read_decimal), *_IN_JSON]
# A computed figure that no schema takes (infinite, no number, too large) is left out: with one such figure in it the API
# server would refuse the whole status, cycle after cycle.
Number = Annotated[float, WrapValidator(_read_if_it_fits), *_IN_JSON]
_MOST_LEARNED = 1e12
# An amount that a decision learns and computes on with. A person who edits a status may write one that no fleet reaches; a
# sum with it would have no text that the schemas take.
LearnedAmount = Annotated[
    RequiredNumber, AfterValidator(lambda value: min(max(value, -_MOST_LEARNED), _MOST_LEARNED))
]


class Learned(StatusModel):
    """A part of what windows have taught. A person who edits a status may write one that no window leaves."""

    @property
    def possible(self) -> bool:
        """Whether windows can have left it; one that they cannot have left is forgotten, see `LEARNED`."""
        raise NotImplementedError


def _possible(parts: tuple[Learned, ...], reading: ValidationInfo) -> tuple[Learned, ...]:
    # Only as the API server has them: a decision that leaves an impossible one is a defect, and must not be hidden.
    return tuple(one for one in parts if one.possible) if reading.mode == "json" else parts


# Marks a list of such parts.
LEARNED = AfterValidator(_possible)
# Times that people read: whole seconds, as in Kubernetes' own times.
Time = Annotated[
    AwareDatetime,
    AfterValidator(computable),
    PlainSerializer(lambda value: value.strftime("%Y-%m-%dT%H:%M:%SZ"), return_type=str),
    WithJsonSchema({"type": "string", "format": "date-time", "maxLength": 32}),
]
# Times that decisions are computed from: rounding to seconds would make a one-second window end early or late.
Instant = Annotated[
    AwareDatetime,
    AfterValidator(computable),
    PlainSerializer(
        lambda value: value.isoformat(timespec="milliseconds").replace("+00:00", "Z"), return_type=str
    ),
    WithJsonSchema({"type": "string", "format": "date-time", "maxLength": 32}),
]

LABEL_PATTERN = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"
NAME_PATTERN = r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$"
# One alternative beside another: so that anybody can see that what was a name is one still.
ARM_PATTERN = (
    r"^(none|[a-z0-9]([-a-z0-9_.]{0,62}[a-z0-9])?/[1-9][0-9]?)$"
    r"|^[a-z0-9]([-a-z0-9_.]{0,62}[a-z0-9])?/schedule$"
    r"|^[a-z0-9]([-a-z0-9_.]{0,62}[a-z0-9])?/adaptive$"
)

ObjectName = Annotated[str, Field(min_length=1, max_length=253, pattern=NAME_PATTERN)]
KeyName = Annotated[str, Field(min_length=1, max_length=253, pattern=r"^[-._a-zA-Z0-9]+$")]
"""Key of a ConfigMap or a Secret."""
TimeZone = Annotated[str, Field(min_length=1, max_length=64, pattern=r"^[A-Za-z][A-Za-z0-9_+/-]*$")]
ArmName = Annotated[str, Field(max_length=72, pattern=ARM_PATTERN)]
AGAIN = "/again"
"""End of the name of an arm's second start in a run: eagle/3/again."""
BEFORE, AFTER = "before", "after"
"""Names of a gate's two trials: the same arm on the engine of before and of now."""
TrialName = Annotated[
    str,
    Field(
        max_length=78,
        pattern=f"{ARM_PATTERN}|{ARM_PATTERN.replace('$', f'{AGAIN}$')}|^({BEFORE}|{AFTER})$",
    ),
]
Word = Annotated[str, Field(max_length=64, pattern=r"^[A-Za-z][A-Za-z0-9]*$")]
Sentence = Annotated[str, Field(max_length=1024)]
# Wide enough for a kind and the longest name an object can have.
Cell = Annotated[str, Field(max_length=320)]


def list_map(*keys: str) -> dict[str, Any]:
    """Schema extra of a list whose items these fields identify, so that several writers can own items."""
    return {_LIST_TYPE: "map", _LIST_KEYS: list(keys)}


LIST_SET: dict[str, Any] = {_LIST_TYPE: "set"}
ATOMIC: dict[str, Any] = {_LIST_TYPE: "atomic"}

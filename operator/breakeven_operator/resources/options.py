"""Further keys of vLLM's --speculative-config: any JSON within bounds that the API server and the models hold.

What is bounded comes from vLLM's own keys. The deepest is draft_load_config.model_loader_extra_config, an object of objects;
the longest list is a draft length per batch size; the longest text is a tree of draft tokens.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Final

from pydantic import AfterValidator, Field
from pydantic_core import PydanticCustomError

from breakeven.serving.command_line import arm_json

LEVELS: Final = 4
"""Objects and lists inside each other, the options themselves counted."""
MOST_MEMBERS: Final = 32
MOST_ITEMS: Final = 256
LONGEST_TEXT: Final = 2048
LONGEST: Final = 4096
"""Characters of all options as one line of JSON: a plan holds 8192 of an arm, its drafter and its schedule among them."""
OWN_FIELDS: Final = ("method", "model", "num_speculative_tokens")


def _schema(levels: int) -> dict[str, Any]:
    """The schema of a value below which objects and lists may stand in so many levels.

    Without a type any value passes, so each bound holds for the values that it is about. The innermost level admits empty
    objects and lists, because their bounds are zero.
    """
    below = {} if levels == 0 else {"items": _schema(levels - 1), "additionalProperties": _schema(levels - 1)}
    return {
        "nullable": True,
        "maxLength": LONGEST_TEXT,
        "maxItems": MOST_ITEMS if levels else 0,
        "maxProperties": MOST_MEMBERS if levels else 0,
        "x-kubernetes-preserve-unknown-fields": True,
        **below,
    }


def _bounded(options: dict[str, Any]) -> dict[str, Any]:
    _check(options, "", LEVELS)
    if (length := len(arm_json(options))) > LONGEST:
        raise _refused(f"has {length} characters as JSON", f"at most {LONGEST}", "")
    return options


def _check(value: object, place: str, levels: int) -> None:
    """Refuse a value beyond the bounds; it is looked at no deeper than they allow."""
    if isinstance(value, str) and len(value) > LONGEST_TEXT:
        raise _refused("is too long", f"at most {LONGEST_TEXT} characters", place)
    if not isinstance(value, Mapping | list):
        return
    if value and levels == 0:
        raise _refused("is nested too deep", f"at most {LEVELS} levels of objects and lists", place)
    if isinstance(value, list):
        if len(value) > MOST_ITEMS:
            raise _refused("has too many items", f"at most {MOST_ITEMS}", place)
        for index, item in enumerate(value):
            _check(item, f"{place}[{index}]", levels - 1)
        return
    if len(value) > MOST_MEMBERS:
        raise _refused("has too many members", f"at most {MOST_MEMBERS}", place)
    for key, member in value.items():
        _check(member, f"{place}.{key[:64]}", levels - 1)


def _refused(problem: str, wanted: str, place: str) -> PydanticCustomError:
    return PydanticCustomError("rule", "{problem}", {"problem": problem, "wanted": wanted, "field": place})


Options = Annotated[
    dict[str, Any],
    AfterValidator(_bounded),
    Field(
        json_schema_extra={
            "maxProperties": MOST_MEMBERS,
            "additionalProperties": _schema(LEVELS - 1),
            # A CEL rule cannot look into values without a type, and a schema with further keys takes no fields beside them.
            "not": {"anyOf": [{"required": [name]} for name in OWN_FIELDS]},
        },
    ),
]

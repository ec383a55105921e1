"""One line for a person out of a validation error: which field, what stands there, what is expected."""

from __future__ import annotations

from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails


def refusal(error: ValidationError) -> tuple[str, str, str]:
    """The first wrong field as (path, problem, expected); the problem says how many more there are."""
    details = error.errors(include_url=False)
    places = [detail["loc"] for detail in details]
    # A list whose item is wrong also counts as too short: that error only repeats the other one.
    details = [
        detail
        for detail in details
        if detail["type"] != "too_short" or not any(_inside(place, detail["loc"]) for place in places)
    ]
    first = details[0]
    problem, expected = _words(first)
    if len(details) > 1:
        problem += f" (and {len(details) - 1} more)"
    return _path(first), problem, expected


def _inside(place: tuple[int | str, ...], outer: tuple[int | str, ...]) -> bool:
    return len(place) > len(outer) and place[: len(outer)] == outer


def _path(detail: ErrorDetails) -> str:
    text = ""
    for part in detail["loc"]:
        text += f"[{part}]" if isinstance(part, int) else f".{part}"
    text += str(detail.get("ctx", {}).get("field", ""))
    return text.removeprefix(".")


def _shown(value: Any) -> str:
    text = repr(value) if isinstance(value, str) else f"{value}"
    return text if len(text) <= 80 else f"{text[:77]}..."


# Per kind of pydantic error: what stands there, what is expected.
_TEXTS: dict[str, tuple[str, str]] = {
    "missing": ("is missing", "a value"),
    "extra_forbidden": ("is not a field", "a field that `kubectl explain` lists"),
    "greater_than_equal": ("is {given}", "at least {ge}"),
    "less_than_equal": ("is {given}", "at most {le}"),
    "enum": ("is {given}", "{expected}"),
    "literal_error": ("is {given}", "{expected}"),
    "string_pattern_mismatch": ("is {given}", "text that matches {pattern}"),
    "string_too_long": ("is too long", "at most {max_length} characters"),
    "string_too_short": ("is too short", "at least {min_length} characters"),
    "too_long": ("has too many items", "at most {max_length}"),
    "too_short": ("has too few items", "at least {min_length}"),
    "rule": ("{problem}", "{wanted}"),
    "decimal": ("is {given}", "{wanted}"),
}


def _words(detail: ErrorDetails) -> tuple[str, str]:
    given = _shown(detail.get("input"))
    if detail["type"] not in _TEXTS:
        return f"is {given}", detail["msg"].removeprefix("Input should be ").removeprefix("Value error, ")
    problem, expected = _TEXTS[detail["type"]]
    values = {**detail.get("ctx", {}), "given": given}
    return problem.format_map(values), expected.format_map(values)

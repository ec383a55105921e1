"""Input from outside, as text, JSON or fields, and the one line that refuses it: where, what stands there, what is expected.

Every reader of files and documents ends here, so that the same mistake has the same words everywhere.
"""

from __future__ import annotations

import csv
import importlib
import json
import stat
from pathlib import Path
from typing import TYPE_CHECKING, Any

from breakeven.errors import ForeignFileError, InputError

if TYPE_CHECKING:
    from pydantic import ValidationError
    from pydantic_core import ErrorDetails

_MOST_BYTES = 256 * 2**20
READABLE = "Unicode texts, and at most 200 objects and lists inside each other"
"""The parser's bounds on JSON beyond its grammar."""
_KINDS = {dict: "an object", list: "a list", str: "a text", bool: "a boolean", type(None): "null"}


def file_text(path: Path, expected: str, where: str | None = None) -> str:
    """The text of a file in UTF-8, with or without a byte order mark; messages call it by its path unless they say where.

    Raises:
        ForeignFileError: it is not UTF-8: a picture or an archive; or larger than any file of numbers (256 MiB).
        InputError: it cannot be read, or is a device.
    """
    where = where or str(path)
    try:
        # A device has size 0 and no end, and a pipe has size 0 too, so the bytes are counted as they come.
        mode = path.stat().st_mode
        if stat.S_ISCHR(mode) or stat.S_ISBLK(mode):
            raise InputError(where, "a device", f"a file or a pipe: {expected}")
        with path.open("rb") as file:
            data = file.read(_MOST_BYTES + 1)
        if len(data) > _MOST_BYTES:
            raise ForeignFileError(where, "more than 256 MiB", expected)
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ForeignFileError(
            f"{where}: byte {error.start}", "not UTF-8 text", f"{expected} in UTF-8"
        ) from None
    except OSError as error:
        raise InputError(
            where, error.strerror or "cannot be read", f"a file that can be read: {expected}"
        ) from None


def shipped_rows(path: Path) -> list[list[str]]:
    """The rows of a table that ships with the library, without its header."""
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.reader(file))[1:]


def shipped_json(name: str) -> Any:
    """A JSON table that ships in `serving`; lists of an object are tuples, so that it can be a part of frozen data."""
    text = Path(__file__).with_name("serving").joinpath(name).read_text(encoding="utf-8")
    return json.loads(
        text,
        object_hook=lambda row: {
            key: tuple(value) if isinstance(value, list) else value for key, value in row.items()
        },
    )


def json_value(text: str | bytes, where: str, expected: str) -> Any:
    """The value of a JSON text; a refusal names line and column."""
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        place = f"{where}: line {error.lineno}, column {error.colno}"
        raise InputError(place, f"not JSON ({error.msg})", expected) from None
    except (RecursionError, ValueError):
        # Nesting or an integer beyond what Python reads, or no UTF-8: no tool writes such a text.
        raise InputError(where, "JSON that cannot be read", expected) from None


def wrong_field(error: ValidationError, where: str, listed: str, inside: str = "") -> InputError:
    """The first field that pydantic refused, with its path inside the document; the problem says how many more there are.

    `listed` says where a person finds the fields that there are, to go on "a field that ...".
    """
    details = error.errors(include_url=False)
    places = [detail["loc"] for detail in details]
    # A list whose item is wrong also counts as too short: that error only repeats the other one.
    details = [
        detail
        for detail in details
        if detail["type"] != "too_short"
        or not any(place != detail["loc"] == place[: len(detail["loc"])] for place in places)
    ]
    first = details[0]
    problem, expected = _words(first, listed)
    if len(details) > 1:
        problem += f" (and {len(details) - 1} more)"
    path = f"{inside}{_path(first)}".removeprefix(".")
    return InputError(": ".join(filter(None, (where, path))), problem, expected)


def package(name: str, what: str) -> Any:
    """A package that only some files or options need; a refusal where it is not installed."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError:
        package = name.partition(".")[0]
        raise InputError(what, f"needs {package}, which is not installed", f"pip install {package}") from None


def kind_of(value: object) -> str:
    """Kind of a JSON value, or a number itself. A message names the kind if it has no room for the value."""
    return _KINDS.get(type(value)) or repr(value)[:40]


def _path(detail: ErrorDetails) -> str:
    text = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in detail["loc"])
    return text + str(detail.get("ctx", {}).get("field", ""))


def _shown(value: Any) -> str:
    if isinstance(value, dict | list):
        return kind_of(value)
    text = repr(value) if isinstance(value, str) else f"{value}"
    return text if len(text) <= 80 else f"{text[:77]}..."


# Per kind of pydantic error: what stands there, what is expected.
_TEXTS: dict[str, tuple[str, str]] = {
    "missing": ("is missing", "a value"),
    "float_parsing": ("is {given}", "a number"),
    "float_type": ("is {given}", "a number"),
    "int_parsing": ("is {given}", "a whole number"),
    "int_type": ("is {given}", "a whole number"),
    "extra_forbidden": ("is not a field", "a field that {listed}"),
    "unexpected_keyword_argument": ("is not a field", "a field that {listed}"),
    "greater_than": ("is {given}", "above {gt}"),
    "greater_than_equal": ("is {given}", "at least {ge}"),
    "less_than": ("is {given}", "below {lt}"),
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
    "json_invalid": ("is JSON that cannot be read ({error})", READABLE),
}


def _words(detail: ErrorDetails, listed: str) -> tuple[str, str]:
    given = _shown(detail.get("input"))
    if detail["type"] not in _TEXTS:
        return f"is {given}", detail["msg"].removeprefix("Input should be ").removeprefix("Value error, ")
    problem, expected = _TEXTS[detail["type"]]
    bounds = {
        name: f"{bound:g}" if isinstance(bound, float) else bound
        for name, bound in detail.get("ctx", {}).items()
    }
    values = {**bounds, "given": given, "listed": listed}
    return problem.format_map(values), expected.format_map(values)

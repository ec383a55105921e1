"""Parts that all commands share: `--json`, `--confidence`, and files that are written whole or not at all."""

from __future__ import annotations

import functools
import os
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import click

from breakeven.cli.parameters import Number
from breakeven.errors import InputError

_Decorator = Callable[[Any], Any]

DEFAULT_CONFIDENCE = 0.9
"""Level of every interval where a command has no `--confidence` of its own; every document repeats it."""


def several(*decorators: _Decorator) -> _Decorator:
    """Options that commands share, in the order of `--help`."""

    def add(command: Any) -> Any:
        return functools.reduce(lambda changed, decorator: decorator(changed), reversed(decorators), command)

    return add


json_option: _Decorator = click.option(
    "--json", "as_json", is_flag=True, help="One JSON document on stdout; the same facts."
)
confidence_option: _Decorator = click.option(
    "--confidence",
    type=Number(0.5, 0.999),
    default=DEFAULT_CONFIDENCE,
    show_default=True,
    help="Two-sided confidence of every interval.",
)


def echo_result(result: Mapping[str, Any]) -> None:
    """Print the document of `--json`; NaN and infinities become null, which means "no figure"."""
    from pydantic_core import to_json

    click.echo(to_json(result, indent=2, ensure_ascii=True, inf_nan_mode="null"))


def document(fields: Mapping[str, str], *parts: object, place: str = "", **given: object) -> dict[str, Any]:
    """The named fields of results, in order: each from `given`, else from the first part that has such an attribute.

    `fields` are names by place: results within a field have a place of their own, `best.`, or `arms[].` in a list. A name that
    ends in `?` is left out while it is empty.
    """
    found = {}
    for name in fields[place].split():
        key = name.removesuffix("?")
        owner = next((part for part in parts if hasattr(part, key)), None)
        value = given[key] if key in given else _within(fields, getattr(owner, key), f"{place}{key}")
        if value or key == name:
            found[key] = value
    return found


def _within(fields: Mapping[str, str], value: Any, place: str) -> Any:
    if f"{place}[]." in fields:
        return [document(fields, one, place=f"{place}[].") for one in value]
    return document(fields, value, place=f"{place}.") if value and f"{place}." in fields else value


ARM = "method k candidate? scheduled? adaptive?"
"""Fields of an arm, named as in options."""


def write_atomically(path: Path, content: str | bytes) -> None:
    """Write through a sibling file and a rename, so that an interruption leaves the old file or the new one.

    A link is followed. `/dev/null`, a pipe and other special files are written in place: a rename would replace them.

    Raises:
        InputError: the folder does not exist or cannot be written to.
    """
    data = content.encode() if isinstance(content, str) else content
    target = path.resolve()
    try:
        if target.exists() and not target.is_file():
            target.write_bytes(data)
        else:
            _replace(target, data)
    except OSError as error:
        raise InputError(str(path), error.strerror or "cannot be written", "a folder to write to") from error


def _replace(target: Path, data: bytes) -> None:
    descriptor, temporary = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name[:100]}.")
    try:
        with os.fdopen(descriptor, "wb") as stream:
            stream.write(data)
        umask = os.umask(0)
        os.umask(umask)
        Path(temporary).chmod(0o666 & ~umask)
        Path(temporary).replace(target)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise

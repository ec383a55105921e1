"""Parts that all commands share: `--json`, `--confidence`, tables, and files that are written whole or not at all.

Tables are aligned, with units in the header, bounds in brackets and warnings last, within 100 columns.
"""

from __future__ import annotations

import functools
import os
import tempfile
import textwrap
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from breakeven.cli.parameters import Number
from breakeven.errors import InputError
from breakeven.phrases import bounded
from breakeven.printable import printable

if TYPE_CHECKING:
    # At run time it would bring numpy into every `--help`.
    from breakeven.profile.fits import Bounds

_WIDTH = 100
_Decorator = Callable[[Any], Any]

DEFAULT_CONFIDENCE = 0.9
"""Level of every interval where a command has no `--confidence` of its own; every document repeats it."""


def several(*decorators: _Decorator) -> _Decorator:
    """Options that commands share, in the order of `--help`."""

    def add(command: Any) -> Any:
        return functools.reduce(lambda changed, decorator: decorator(changed), reversed(decorators), command)

    return add


def gathered(name: str, make: Callable[..., Any], *options: _Decorator) -> _Decorator:
    """Options of which a command gets one value: `make` of theirs, by their names."""

    def add(command: Any) -> Any:
        @functools.wraps(command)
        def called(**given: Any) -> Any:
            own = {option: given.pop(option) for option in names}
            return command(**given, **{name: make(**own)})

        before = len(getattr(called, "__click_params__", ()))
        found = several(*options)(called)
        names = [option.name for option in found.__click_params__[before:]]
        return found

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
            return
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
    except OSError as error:
        raise InputError(str(path), error.strerror or "cannot be written", "a folder to write to") from error


def figure(value: float | None) -> str:
    """Three significant digits without an exponent; a dash where there is no figure."""
    if value is None:
        return "-"
    if value == float("inf"):
        return "unbounded"
    if value == 0:
        return "0"
    if abs(value) >= 99.95:
        return f"{value:.0f}"
    return f"{value:#.3g}" if abs(value) >= 1e-3 else f"{value:.1e}"


def bounds(value: float | None, interval: Bounds | None, scale: float = 1.0) -> str:
    """A value with its bounds as `phrases.bounded` has them, in another unit and with zeros at the end."""
    return bounded(value, interval, lambda one: figure(scale * one))


def print_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print columns side by side, as wide as their figures need; a terminal's bold only sets the header off."""
    # Names of arms and models come from files of strangers.
    rows = [[printable(cell) for cell in row] for row in rows]
    widths = [max(len(cell) for cell in column) for column in zip(header, *rows, strict=True)]

    def line(cells: Sequence[str]) -> str:
        padded = (cell.ljust(width) for cell, width in zip(cells, widths, strict=True))
        return "  ".join(padded).rstrip()

    click.echo(click.style(line(header), bold=True))
    for row in rows:
        click.echo(line(row))


def print_text(text: str, mark: str = "") -> None:
    """Print a sentence over as many lines as it needs, those after the first indented."""
    wrapped = textwrap.wrap(
        printable(mark + text), _WIDTH, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False
    )
    click.echo("\n".join(wrapped))


def print_warnings(warnings: Sequence[str]) -> None:
    """Print warnings last, marked by an exclamation mark; a warning about several arms is printed once."""
    owners: dict[str, list[str]] = {}
    for warning in dict.fromkeys(warnings):
        owner, colon, text = warning.partition(": ")
        is_arm = bool(colon) and " " not in owner
        owners.setdefault(text if is_arm else warning, []).extend([owner] if is_arm else [])
    for text, named in owners.items():
        print_text(f"{', '.join(named)}: {text}" if named else text, mark="! ")

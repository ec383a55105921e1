"""What every command shares: `--json`, `--confidence`, and files that are written whole or not at all."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from breakeven.cli.parameters import Number
from breakeven.errors import InputError

if TYPE_CHECKING:
    from pydantic import BaseModel

F = TypeVar("F", bound=Callable[..., Any])

DEFAULT_CONFIDENCE = 0.9
"""Level of every interval where a command has no `--confidence` of its own; every document repeats it."""


def json_option(command: F) -> F:
    """Add `--json`: one JSON document on stdout instead of tables."""
    return click.option(
        "--json", "as_json", is_flag=True, help="One JSON document on stdout; the same facts."
    )(command)


def confidence_option(command: F) -> F:
    """Add `--confidence`: the two-sided level of every interval in the output."""
    return click.option(
        "--confidence",
        type=Number(0.5, 0.999),
        default=DEFAULT_CONFIDENCE,
        show_default=True,
        help="Two-sided confidence of every interval.",
    )(command)


def echo_result(result: BaseModel) -> None:
    """Print the document of `--json`; NaN and infinities become null, which means "no figure"."""
    click.echo(result.model_dump_json(indent=2, ensure_ascii=True))


def write_atomically(path: Path, content: str | bytes) -> None:
    """Write through a sibling file and a rename, so that an interruption leaves the old file or the new one.

    A link is followed. What is no plain file (`/dev/null`, a pipe) is written to as it stands: a rename would replace it.

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

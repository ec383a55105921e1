"""What every command shares: `--json`, `--confidence`, and files that are written whole or not at all."""

from __future__ import annotations

import json
import math
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from breakeven.errors import InputError

F = TypeVar("F", bound=Callable[..., Any])


def json_option(command: F) -> F:
    """Add `--json`: one JSON document on stdout instead of tables."""
    return click.option(
        "--json", "as_json", is_flag=True, help="One JSON document on stdout; the same facts."
    )(command)


def confidence_option(command: F) -> F:
    """Add `--confidence`: the two-sided level of every interval in the output."""
    return click.option(
        "--confidence",
        type=click.FloatRange(0.5, 0.999),
        default=0.9,
        show_default=True,
        help="Two-sided confidence of every interval.",
    )(command)


def plain(value: Any) -> Any:
    """Turn numpy scalars and arrays into JSON's types; NaN and infinities become null, which means "no figure"."""
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if hasattr(value, "tolist"):
        return plain(value.tolist())
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def echo_json(document: dict[str, Any]) -> None:
    """Print one document; a figure that does not exist is null, never NaN."""
    click.echo(json.dumps(plain(document), indent=2, allow_nan=False))


def write_atomically(path: Path, content: str | bytes) -> None:
    """Write through a sibling file and a rename, so that an interruption leaves the old file or the new one.

    Raises:
        InputError: the folder does not exist or cannot be written to.
    """
    data = content.encode() if isinstance(content, str) else content
    try:
        descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    except OSError as error:
        raise InputError(str(path), error.strerror or "cannot be written", "a folder to write to") from error
    try:
        with os.fdopen(descriptor, "wb") as stream:
            stream.write(data)
        umask = os.umask(0)
        os.umask(umask)
        Path(temporary).chmod(0o666 & ~umask)
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise

"""The flags of `vllm serve`, as its own parser declares them.

`vllm_0_32_flags.json` and `vllm_0_33_flags.json` were printed by `tests/realvllm/flags.py` where those versions are installed. A
flag that the simulated engine's version does not have is refused, as vLLM would: a manifest with a misspelt flag must fail here too.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from breakeven.errors import InputError

VERSIONS = ("0.32", "0.33")
"""Versions whose flags are known, oldest first."""
_DECIMAL = {"k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}
_BINARY = {"K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


@dataclass(frozen=True, slots=True)
class Flag:
    """One flag.

    Attributes:
        names: `--long-name` first, then short forms.
        takes: nothing, yes or no (`--no-long-name` exists), one, perhaps one, or many.
        type: int, float, size, json, or empty for text.
        choices: the only values taken; empty for any.
        opposite: the flag that switches it off, beside `--no-...`.
    """

    names: tuple[str, ...]
    takes: str
    type: str = ""
    choices: tuple[str, ...] = ()
    opposite: str = ""


@cache
def flags_of(version: str) -> dict[str, Flag]:
    """Every flag of one of `VERSIONS` by its long name."""
    name = f"vllm_{version.replace('.', '_')}_flags.json"
    rows = json.loads(files("breakeven.serving").joinpath(name).read_text(encoding="utf-8"))["flags"]
    table: list[dict[str, Any]] = [
        {key: tuple(said) if isinstance(said, list) else said for key, said in row.items()} for row in rows
    ]
    return {row["names"][0]: Flag(**row) for row in table}


@cache
def flags() -> dict[str, Flag]:
    """Every flag of any known version by its long name, as the newest version that has it takes it.

    A manifest may run any of them, so its words are cut with all of them. A flag that switches another one off is a switch.
    """
    found: dict[str, Flag] = {}
    for version in VERSIONS:
        found |= flags_of(version)
    off = {flag.opposite: Flag((flag.opposite,), "nothing") for flag in found.values() if flag.opposite}
    return off | found


def size(text: str) -> int:
    """VLLM's readable integers: 8192, 8k (8000), 8K (8192), 25.6k; -1 and auto leave the choice to the engine.

    Raises:
        argparse.ArgumentTypeError: not such a number.
    """
    word = text.strip()
    if word.lower() == "auto":
        return -1
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([kKmMgGtT])", word)
    try:
        if found is None:
            return int(word)
        number, suffix = found.groups()
        if suffix in _DECIMAL:
            return int(float(number) * _DECIMAL[suffix])
        return int(number) * _BINARY[suffix]
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number such as 8192, 8k or 8K") from None


def json_or_none(text: str) -> Any:
    """JSON; empty and `None` mean none.

    Raises:
        argparse.ArgumentTypeError: not JSON, such as an environment reference that was not expanded.
    """
    if text in {"", "None"}:
        return None
    try:
        return json.loads(text)
    except ValueError:
        hint = " (an environment variable that was not expanded)" if text.startswith("$(") else ""
        raise argparse.ArgumentTypeError(f"invalid JSON value: {text!r}{hint}") from None
    except RecursionError:
        raise argparse.ArgumentTypeError("JSON that is nested too deep") from None


def _int_or_none(text: str) -> int | None:
    return None if text in {"", "None"} else int(text)


def _float_or_none(text: str) -> float | None:
    return None if text in {"", "None"} else float(text)


# argparse names the type of a wrong value by the function's name.
_int_or_none.__name__, _float_or_none.__name__ = "int", "float"

TYPES: dict[str, Callable[[str], Any]] = {
    "": str,
    "int": _int_or_none,
    "float": _float_or_none,
    "size": size,
    "json": json_or_none,
}


def read(name: str, text: str) -> Any:
    """The value of a flag as its type, or a refused input; text where vLLM's table has no such flag."""
    kind = flags()[name].type if name in flags() else ""
    try:
        return TYPES[kind](text)
    except (argparse.ArgumentTypeError, ValueError):
        raise InputError(name, repr(text), {"int": "a whole number"}.get(kind, f"a {kind}")) from None

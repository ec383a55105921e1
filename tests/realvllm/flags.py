"""Print the flags of `vllm serve` as `breakeven/serving/vllm_0_32_flags.json` and its neighbours hold them; runs where vLLM is.

python tests/realvllm/flags.py > tuner/breakeven/serving/vllm_0_32_flags.json
"""

from __future__ import annotations

import argparse
import inspect
import json
import sys
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

from vllm.entrypoints.cli.serve import ServeSubcommand
from vllm.utils.argparse_utils import FlexibleArgumentParser

_KINDS = {
    "int": "int",
    "float": "float",
    "human_readable_int": "size",
    "human_readable_int_or_auto": "size",
    "loads": "json",
    "parse_dataclass": "json",
}


def main() -> None:
    """Write the table to the file named on the command line; vLLM logs to standard output."""
    commands = FlexibleArgumentParser().add_subparsers(dest="subparser")
    parser = ServeSubcommand().subparser_init(commands)
    flags = [
        _described(action)
        for action in parser._actions
        if action.option_strings and not isinstance(action, argparse._HelpAction)
    ]
    flags.sort(key=lambda flag: flag["names"])
    rows = ",\n  ".join(json.dumps(flag) for flag in flags)
    table = f'{{"vllm": "{version("vllm").partition("+")[0]}", "flags": [\n  {rows}\n]}}\n'
    Path(sys.argv[1]).write_text(table)


def _described(action: argparse.Action) -> dict[str, Any]:
    names = list(action.option_strings)
    if isinstance(action, argparse.BooleanOptionalAction):
        # Since 0.33 --enable-x is switched off by --disable-x, and the other way round.
        opposites = getattr(action, "_inverse_prefixes", {})
        off = {
            name.replace(here, there, 1)
            for name in names
            for here, there in opposites.items()
            if name.startswith(here)
        } - {names[0]}
        said = [name for name in names if not name.startswith("--no-") and name not in off]
        return {"names": said, "takes": "yes or no"} | ({"opposite": off.pop()} if off else {})
    if action.nargs == 0:
        return {"names": names, "takes": "nothing"}
    flag: dict[str, Any] = {
        "names": names,
        "takes": {"+": "many", "?": "perhaps one"}.get(action.nargs, "one"),
    }
    kind = _KINDS.get(_innermost(action.type))
    if kind:
        flag["type"] = kind
    if action.choices:
        flag["choices"] = [str(choice) for choice in action.choices if choice is not None]
    return flag


def _innermost(kind: Callable[[str], Any] | None) -> str:
    """The name of a type; vLLM wraps those that also take None."""
    while getattr(kind, "__name__", "") in {"_optional_type", "_parse_type"}:
        kind = inspect.getclosurevars(kind).nonlocals["return_type"]
    return getattr(kind, "__name__", "")


if __name__ == "__main__":
    main()

"""Write what vLLM's own parser and configuration make of the command lines of a table; runs where vLLM is.

    python tests/realvllm/command_lines.py tests/engine/vllm_0_32_command_lines.json tiny fresh.json

The second argument is the folder that model.py wrote. Outcomes: `usage` (the parser exits), `refused` (an exception
after it), `accepted`, with what was understood.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path
from typing import Any

from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.entrypoints.cli.serve import ServeSubcommand
from vllm.utils.argparse_utils import FlexibleArgumentParser

_ABSENT = {
    "served_model_name": None,
    "port": 8000,
    "max_num_seqs": None,
    "max_num_batched_tokens": None,
    "max_model_len": None,
    "shutdown_timeout": 0,
    "seed": 0,
}


def main() -> None:
    """Write the table with fresh verdicts to the third file named; vLLM logs to standard output."""
    table, model = json.loads(Path(sys.argv[1]).read_text()), Path(sys.argv[2]).resolve()
    output = Path(sys.argv[3]).resolve()
    command = ServeSubcommand()
    parser = FlexibleArgumentParser()
    command.subparser_init(parser.add_subparsers(dest="subparser"))
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        for name, text in table["files"].items():
            Path(name).write_text(text)
        Path("tiny").symlink_to(model)
        rows = [
            json.dumps({"words": line["words"]} | _verdict(parser, command, line["words"]))
            for line in table["lines"]
        ]
    table = {"vllm": version("vllm").partition("+")[0], "files": table["files"], "lines": []}
    head = json.dumps(table, indent=1).removesuffix("[]\n}")
    output.write_text(head + "[\n  " + ",\n  ".join(rows) + "\n]}\n")


def _verdict(parser: FlexibleArgumentParser, command: ServeSubcommand, words: list[str]) -> dict[str, Any]:
    errors = io.StringIO()
    try:
        with contextlib.redirect_stderr(errors):
            given = parser.parse_args(["serve", *words])
        command.validate(given)
        given.model = given.model_tag or given.model
        found = {key: getattr(given, key) for key in _ABSENT}
        spec = _speculation(given) if given.model == "tiny" else None
    except SystemExit:
        return {"outcome": "usage", "message": _one_line(errors.getvalue().partition(" error: ")[2])}
    except Exception as refused:  # noqa: BLE001  # whatever takes vLLM down
        return {"outcome": "refused", "message": _one_line(str(refused))}
    taken = {"outcome": "accepted", "model": given.model}
    taken |= {key: value for key, value in found.items() if value != _ABSENT[key]}
    return taken | ({"speculation": spec} if spec else {})


def _speculation(given: Any) -> dict[str, Any] | None:
    """The engine's configuration from the arguments; the tiny model has no checkpoint to infer a dtype from."""
    given.dtype = "bfloat16" if given.dtype == "auto" else given.dtype
    spec = AsyncEngineArgs.from_cli_args(given).create_engine_config().speculative_config
    return {"method": spec.method, "k": spec.num_speculative_tokens} if spec else None


def _one_line(text: str) -> str:
    return " ".join(text.split())[:140]


if __name__ == "__main__":
    main()

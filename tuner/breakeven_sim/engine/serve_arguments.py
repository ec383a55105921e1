"""vLLM's command line, read as vLLM 0.32 reads it: flags, JSON with dotted forms, `--config FILE`, refusals, exits.

Flags that change a simulated engine are understood. Other flags (parallelism, quantisation, ...) are accepted, kept in
`recorded` and shown in the log. A hundred and fifty command lines were tried with vLLM's own parser; the tests compare
with its verdicts (tests/engine/vllm_0_32_command_lines.json).
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from breakeven.errors import InputError
from breakeven.methods import ADAPTIVE_KEY, PROFILED_CONTEXT, PROFILED_CONTEXT_TOKENS
from breakeven.serving.command_line import (
    SHORT_KEYS,
    SPECULATIVE_CONFIG,
    TYPES,
    Flag,
    after_program,
    checked,
    flags_of,
    joined,
)
from breakeven_sim.engine.command_words import rewritten
from breakeven_sim.engine.costs import json_schema

_DEFAULT_MODEL = "Qwen/Qwen3-0.6B"
_EPILOG = """\
Other flags of `vllm serve` (parallelism, dtype, quantisation, ...) are accepted and recorded.

  breakeven engine-sim meta-llama/Llama-3.1-8B --port 8000
  breakeven engine-sim org/model --speculative-config '{"method": "eagle3", "model": "org/head",
      "num_speculative_tokens": 3}' --sim-costs examples/engine-costs/demo.json

The GPU class comes from BREAKEVEN_SIM_GPU (default NVIDIA-H100-80GB-HBM3), the costs from --sim-costs or
BREAKEVEN_SIM_COSTS (docs/engine-costs.md); --seed makes texts repeatable; GET /sim/clock tells how far real time
lags behind the event clock."""


@dataclass(frozen=True, slots=True)
class ServeArguments:
    """A command line that vLLM would start with; `None` leaves the choice to the engine's costs."""

    model: str
    served_names: tuple[str, ...]
    host: str
    port: int
    api_keys: tuple[str, ...]
    speculative_config: Mapping[str, Any] | None
    profiled_context: int
    max_num_seqs: int | None
    max_num_batched_tokens: int | None
    max_model_len: int | None
    gpu_memory_utilization: float
    block_size: int
    num_gpu_blocks_override: int | None
    kv_cache_memory_bytes: int | None
    shutdown_timeout_s: float
    seed: int
    sim_costs: str | None
    as_json: bool
    recorded: Mapping[str, Any]


def parse(argv: Sequence[str], environment: Mapping[str, str] | None = None) -> ServeArguments:
    """Read a command line; wrong usage exits with status 2, as vLLM's parser does.

    Args:
        argv: everything after `vllm` or `breakeven engine-sim`; a leading `serve` is optional.
        environment: where VLLM_API_KEY and the context of adaptive verification's profile are read; the process's own by default.

    Raises:
        InputError: what vLLM refuses beside its parser: a configuration file, a value out of range, a combination.
    """
    variables = os.environ if environment is None else environment
    parser = argument_parser()
    given = vars(parser.parse_args(rewritten(list(after_program(argv)))))
    keys = given.pop("api_key") or ([variables["VLLM_API_KEY"]] if variables.get("VLLM_API_KEY") else [])
    model = given.pop("model_tag") or given.pop("model", None) or _DEFAULT_MODEL
    given.pop("model", None)
    names = given.pop("served_model_name") or [model]
    shorts = {name: given.pop(name[2:].replace("-", "_")) for name in SHORT_KEYS}
    speculative = joined(checked(given.pop("speculative_config")), shorts)
    _check_values(given)
    _check_combinations(given, speculative)
    if given["max_model_len"] == -1:
        given["max_model_len"] = None
    understood = {name: given.pop(name) for name in _UNDERSTOOD}
    return ServeArguments(
        model=model,
        served_names=tuple(names),
        api_keys=tuple(key for key in keys if key),
        speculative_config=speculative,
        profiled_context=_profiled_context(variables),
        shutdown_timeout_s=given.pop("shutdown_timeout"),
        recorded={
            name: value for name, value in given.items() if value is not None and name != "sim_costs_schema"
        },
        **understood,
    )


_UNDERSTOOD = (
    "host", "port", "max_num_seqs", "max_num_batched_tokens", "max_model_len", "gpu_memory_utilization",
    "block_size", "num_gpu_blocks_override", "kv_cache_memory_bytes", "seed", "sim_costs", "as_json",
)  # fmt: skip

# Help and defaults of the flags that change the simulated engine; vLLM defines their types and choices.
_EXPLAINED: dict[str, dict[str, Any]] = {
    "--model": {"help": "the same as a flag"},
    "--served-model-name": {
        "metavar": "NAME",
        "help": "names the API answers to; the first labels the metrics",
    },
    "--host": {
        "default": "127.0.0.1",
        "help": "address to listen on (vLLM itself listens on all by default)",
    },
    "--port": {"default": 8000, "help": "0 chooses a free one"},
    "--api-key": {"metavar": "KEY", "help": "required of clients; or VLLM_API_KEY"},
    SPECULATIVE_CONFIG: {"metavar": "JSON", "help": "empty, None and null mean no speculation"},
    "--spec-method": {"metavar": "METHOD", "help": "short for the key method of --speculative-config"},
    "--spec-model": {"help": "short for the key model"},
    "--spec-tokens": {"metavar": "K", "help": "short for the key num_speculative_tokens"},
    "--config": {
        "metavar": "FILE",
        "help": "flags from a YAML file; those on the command line win (--config=FILE is ignored, as by vLLM 0.32)",
    },
    "--max-num-seqs": {"metavar": "N", "help": "requests in one step"},
    "--max-num-batched-tokens": {"metavar": "N", "help": "tokens in one step; 8k and 8K are understood"},
    "--max-model-len": {"metavar": "N", "help": "tokens of one request; 8k and 8K are understood"},
    "--gpu-memory-utilization": {
        "default": 0.92,
        "metavar": "F",
        "help": "share of the device memory used",
    },
    "--block-size": {"default": 16, "metavar": "N", "help": "KV block, for the metrics page"},
    "--num-gpu-blocks-override": {"metavar": "N", "help": "KV pool in blocks, instead of by memory"},
    "--kv-cache-memory-bytes": {"metavar": "N", "help": "KV pool in bytes, instead of by memory"},
    "--shutdown-timeout": {
        "default": 0,
        "metavar": "S",
        "help": "whole seconds that requests in flight get at SIGTERM",
    },
    "--seed": {"default": 0, "help": "of the simulation"},
}


VERSION = "0.32.0+breakeven"


@cache
def argument_parser() -> argparse.ArgumentParser:
    """Every flag of vLLM's parser, and the simulation's own; like vLLM's it takes unambiguous abbreviations."""
    parser = argparse.ArgumentParser(
        prog="breakeven engine-sim",
        description="A simulated vLLM: its flags, its API, its metrics, and the costs you give it.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "model_tag", nargs="?", metavar="MODEL", help="model name; only its name matters here"
    )
    # A text of a shell asks vLLM for it, and takes the last word.
    parser.add_argument("--version", action="version", version=VERSION, help="print the version and exit")
    table = flags_of("0.32")
    for name, explained in _EXPLAINED.items():
        _declare(parser, table[name], **explained)
    parser.add_argument("--sim-costs", metavar="FILE|JSON", help="engine costs; see docs/engine-costs.md")
    parser.add_argument(
        "--sim-costs-schema", action=_PrintSchema, nargs=0, help="print the JSON schema of the costs and exit"
    )
    parser.add_argument(
        "--json",
        dest="as_json",
        action="store_true",
        help="one JSON document on stdout once it serves: its address, its speculation and its sizes",
    )
    for name, flag in table.items():
        if name not in _EXPLAINED:
            _declare(parser, flag)
    return parser


def _declare(parser: argparse.ArgumentParser, flag: Flag, **more: Any) -> None:
    """Give the parser a vLLM flag; `more` adds to or replaces what vLLM says about it."""
    options: dict[str, Any] = {"default": None, "help": argparse.SUPPRESS}
    if flag.takes == "yes or no":
        options["action"] = argparse.BooleanOptionalAction
    elif flag.takes == "nothing":
        options["action"] = "store_true"
    else:
        options["nargs"] = {"many": "+", "perhaps one": "?"}.get(flag.takes)
        options["type"] = TYPES[flag.type]
        options["choices"] = [TYPES[flag.type](choice) for choice in flag.choices] or None
    parser.add_argument(*flag.names, **options | more)


class _PrintSchema(argparse.Action):
    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> None:
        sys.stdout.write(json.dumps(json_schema(), indent=2) + "\n")
        parser.exit()


def _check_values(given: Mapping[str, Any]) -> None:
    """Ranges that vLLM checks after parsing."""
    for name in ("max_num_seqs", "max_num_batched_tokens", "block_size", *_PARALLEL):
        _within(given, name, "a whole number of at least 1", lambda value: value >= 1)
    _within(given, "max_model_len", "a positive whole number, or -1 for auto", lambda n: n == -1 or n >= 1)
    _within(given, "gpu_memory_utilization", "above 0 and at most 1", lambda share: 0 < share <= 1)
    _within(given, "shutdown_timeout", "at least 0", lambda seconds: seconds >= 0)
    _within(given, "optimization_level", "0, 1, 2 or 3", lambda level: level in {"0", "1", "2", "3"})


_PARALLEL = ("tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size")


def _within(given: Mapping[str, Any], name: str, expected: str, good: Callable[[Any], bool]) -> None:
    if given[name] is not None and not good(given[name]):
        raise InputError(f"--{name.replace('_', '-')}", str(given[name]), expected)


def _check_adaptive(given: Mapping[str, Any], speculative: Mapping[str, Any]) -> None:
    """Flags that vLLM refuses beside adaptive verification."""
    if speculative.get(ADAPTIVE_KEY) is not True:
        return
    for name, refused in (
        ("enable_lora", given["enable_lora"]),
        ("enforce_eager", given["enforce_eager"]),
        ("pipeline_parallel_size", (given["pipeline_parallel_size"] or 1) > 1),
    ):
        if refused:
            raise InputError(f"--{name.replace('_', '-')}", f"beside {ADAPTIVE_KEY}", "one of the two")


_MOST_DIGITS = 9


def _profiled_context(variables: Mapping[str, str]) -> int:
    given = variables.get(PROFILED_CONTEXT, str(PROFILED_CONTEXT_TOKENS))
    if not given.isascii() or not given.isdigit() or len(given) > _MOST_DIGITS:
        raise InputError(PROFILED_CONTEXT, repr(given[:40]), "a number of tokens")
    return int(given)


def _check_combinations(given: Mapping[str, Any], speculative: Mapping[str, Any] | None) -> None:
    """Pairs of flags that vLLM refuses."""
    requests, tokens = given["max_num_seqs"], given["max_num_batched_tokens"]
    if requests is not None and tokens is not None and tokens < requests:
        raise InputError("--max-num-batched-tokens", str(tokens), f"at least max_num_seqs ({requests})")
    for flag, needs in (
        ("enable_auto_tool_choice", "tool_call_parser"),
        ("enable_log_outputs", "enable_log_requests"),
    ):
        if given[flag] and not given[needs]:
            raise InputError(
                f"--{flag.replace('_', '-')}", "given alone", f"--{needs.replace('_', '-')} beside it"
            )
    if speculative is not None:
        _check_adaptive(given, speculative)
    asked = given["per_request_spec_decode_metrics"]
    if asked not in {None, "none"} and speculative is None:
        raise InputError("--per-request-spec-decode-metrics", "no speculation", SPECULATIVE_CONFIG)

"""vLLM's command line, read as vLLM reads it: flags, JSON with dotted forms, `--config FILE`, refusals and exits.

What changes a simulated engine is understood; what does not (parallelism, quantisation, ...) is accepted, kept in
`recorded` and shown in the log. Tried with vLLM 0.32's own parser: see the rules at `_with_config_file`.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import yaml

from breakeven.errors import InputError
from breakeven.simulator import vllm_flags
from breakeven.simulator.costs import json_schema
from breakeven.simulator.speculative_config import parse_json_argument

_DEFAULT_MODEL = "Qwen/Qwen3-0.6B"
_SPECULATIVE = "--speculative-config"
_MULTIPLES = {"k": 10**3, "m": 10**6, "g": 10**9, "K": 2**10, "M": 2**20, "G": 2**30}
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
    recorded: Mapping[str, Any]


def parse(argv: Sequence[str], environment: Mapping[str, str] | None = None) -> ServeArguments:
    """Read a command line; wrong usage exits with status 2, as vLLM's parser does.

    Args:
        argv: everything after `vllm` or `breakeven engine-sim`; a leading `serve` is optional.
        environment: where VLLM_API_KEY is read; the process's own by default.

    Raises:
        InputError: a configuration file that vLLM crashes on or a combination it refuses after parsing.
    """
    variables = os.environ if environment is None else environment
    parser = argument_parser()
    words = list(argv)
    if words[:2] == ["vllm", "serve"]:
        words = words[1:]
    if words[:1] != ["serve"]:
        words = ["serve", *words]
    try:
        words = _with_config_file(words)
        words = _spelled_out(words[1:])
    except ValueError as refused:
        parser.error(str(refused))
    given = vars(parser.parse_args(words))
    keys = given.pop("api_key") or ([variables["VLLM_API_KEY"]] if variables.get("VLLM_API_KEY") else [])
    model = given.pop("model_tag") or given.pop("model", None) or _DEFAULT_MODEL
    given.pop("model", None)
    names = given.pop("served_model_name") or [model]
    speculative = _speculative(given, parser)
    understood = {name: given.pop(name) for name in _UNDERSTOOD}
    return ServeArguments(
        model=model,
        served_names=tuple(names),
        api_keys=tuple(key for key in keys if key),
        speculative_config=speculative,
        shutdown_timeout_s=given.pop("shutdown_timeout"),
        recorded={
            name: value
            for name, value in given.items()
            if value is not None and name not in {"config", "sim_costs_schema"}
        },
        **understood,
    )


_UNDERSTOOD = (
    "host", "port", "max_num_seqs", "max_num_batched_tokens", "max_model_len", "gpu_memory_utilization",
    "block_size", "num_gpu_blocks_override", "kv_cache_memory_bytes", "seed", "sim_costs",
)  # fmt: skip


def argument_parser() -> argparse.ArgumentParser:
    """Every flag that the simulated server takes, as vLLM spells it."""
    # No abbreviations: a cluster's manifest must not depend on which flags exist beside the one it means.
    parser = argparse.ArgumentParser(
        prog="breakeven engine-sim",
        description="A simulated vLLM: its flags, its API, its metrics, and the costs you give it.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("model_tag", nargs="?", metavar="MODEL", help="model name; only its name matters here")
    add("--model", help="the same as a flag")
    add(
        "--served-model-name",
        nargs="+",
        metavar="NAME",
        help="names the API answers to; the first labels the metrics",
    )
    add("--host", default="127.0.0.1", help="address to listen on (vLLM itself listens on all by default)")
    add("--port", type=int, default=8000, help="0 chooses a free one")
    add("--api-key", nargs="*", metavar="KEY", help="required of clients; or VLLM_API_KEY")
    add(
        _SPECULATIVE,
        "-sc",
        type=_json_or_none,
        metavar="JSON",
        help="empty, None and null mean no speculation",
    )
    add("--spec-method", help="short for the key method of --speculative-config")
    add("--spec-model", help="short for the key model")
    add("--spec-tokens", type=int, metavar="K", help="short for the key num_speculative_tokens")
    add("--config", metavar="FILE", help="flags from a YAML file; those on the command line win")
    add("--max-num-seqs", type=_positive, metavar="N", help="requests in one step")
    add("--max-num-batched-tokens", type=_positive, metavar="N", help="tokens in one step")
    add("--max-model-len", type=_length, metavar="N", help="tokens of one request; 8k and 8K are understood")
    add(
        "--gpu-memory-utilization",
        type=_fraction,
        default=0.92,
        metavar="F",
        help="share of the device memory used",
    )
    add("--block-size", type=_positive, default=16, metavar="N", help="KV block, for the metrics page")
    add(
        "--num-gpu-blocks-override",
        type=_positive,
        metavar="N",
        help="KV pool in blocks, instead of by memory",
    )
    add("--kv-cache-memory-bytes", type=_positive, metavar="N", help="KV pool in bytes, instead of by memory")
    add(
        "--shutdown-timeout",
        type=float,
        default=0.0,
        metavar="S",
        help="seconds that requests in flight get at SIGTERM",
    )
    add("--seed", type=int, default=0, help="of the simulation")
    add("--sim-costs", metavar="FILE|JSON", help="engine costs; see docs/engine-costs.md")
    add(
        "--sim-costs-schema", action=_PrintSchema, nargs=0, help="print the JSON schema of the costs and exit"
    )
    short: dict[str, list[str]] = {}
    for alias, name in vllm_flags.ALIASES.items():
        short.setdefault(name, []).append(alias)
    for name in sorted(vllm_flags.SWITCHES):
        add(
            f"--{name}", *short.get(f"--{name}", ()),
            action=argparse.BooleanOptionalAction, default=None, help=argparse.SUPPRESS,
        )  # fmt: skip
    for name in sorted(vllm_flags.VALUES | vllm_flags.LISTS):
        count = "+" if name in vllm_flags.LISTS else None
        add(f"--{name}", *short.get(f"--{name}", ()), nargs=count, help=argparse.SUPPRESS)
    return parser


class _PrintSchema(argparse.Action):
    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> None:
        sys.stdout.write(json.dumps(json_schema(), indent=2) + "\n")
        parser.exit()


def _json_or_none(text: str) -> Any:
    try:
        value = parse_json_argument(text)
    except ValueError as problem:
        raise argparse.ArgumentTypeError(str(problem)) from None
    if value is not None and not isinstance(value, dict):
        raise argparse.ArgumentTypeError(f"{text!r} is not a JSON object")
    return value


def _length(text: str) -> int | None:
    """VLLM's readable integers: 8192, 8k (8000), 8K (8192), 25.6k; -1 and auto leave it to the engine."""
    if text in {"-1", "auto"}:
        return None
    factor = _MULTIPLES.get(text[-1:], 1)
    digits = text[:-1] if factor > 1 else text
    try:
        value = float(digits) * factor if factor in {10**3, 10**6, 10**9} else int(digits) * factor
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number such as 8192, 8k or 8K") from None
    if value < 1 or value != int(value):
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive whole number")
    return int(value)


def _positive(text: str) -> int:
    value = _length(text)
    if value is None:
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive whole number")
    return value


def _fraction(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value <= 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not above 0 and at most 1")
    return value


def _with_config_file(words: list[str]) -> list[str]:
    """Put the flags of `--config FILE` right behind the model, before the command line's own, which therefore win.

    As tried: two files are refused; a file needs the model as the first word or as a key of its own; an empty file
    crashes; a mapping value becomes JSON, `true` a bare flag.
    """
    places = [i for i, word in enumerate(words) if word == "--config" or word.startswith("--config=")]
    if not places:
        return words
    if len(places) > 1:
        raise ValueError("More than one config file specified!")
    at = places[0]
    _, equals, path = words[at].partition("=")
    if not equals:
        if at + 1 >= len(words):
            raise ValueError("No config file specified! Please check your command-line arguments.")
        path = words[at + 1]
    flags, has_model = _read_config_file(path)
    rest = words[:at] + words[at + (1 if equals else 2) :]
    model_first = len(rest) > 1 and not rest[1].startswith("-") and at > 1
    if (
        not model_first
        and not has_model
        and not any(w == "--model" or w.startswith("--model=") for w in rest)
    ):
        raise ValueError("No model specified! Give it as the first argument or as a key of the config file.")
    head = 2 if model_first else 1
    return rest[:head] + flags + rest[head:]


def _read_config_file(path: str) -> tuple[list[str], bool]:
    """The flags of a YAML file, and whether a model is among them."""
    where = f"--config {path}"
    if Path(path).suffix not in {".yaml", ".yml"}:
        raise ValueError(f"Config file must be of a yaml/yml type. {path} supplied")
    try:
        loaded = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as problem:
        raise InputError(where, " ".join(str(problem).split()), "a readable YAML file") from None
    if not isinstance(loaded, dict):
        # An empty file, or one of comments only, takes vLLM down with an AttributeError.
        raise InputError(
            where, f"'{type(loaded).__name__}' object has no attribute 'items'", "a YAML mapping; {} for none"
        )
    flags: list[str] = []
    for key, value in loaded.items():
        flag = f"--{str(key).replace('_', '-')}"
        if isinstance(value, bool):
            flags += [flag] if value else []
        elif isinstance(value, list):
            flags += [flag, *(str(item) for item in value)] if value else []
        elif isinstance(value, dict):
            flags += [flag, json.dumps(value)]
        else:
            flags.append(f"{flag}={'' if value is None else value}")
    return flags, "model" in loaded or "model_tag" in loaded


def _spelled_out(words: list[str]) -> list[str]:
    """Underscores to dashes in flag names, and dotted forms (`--a.b.c 3`) gathered into one JSON value per flag."""
    plain: list[str] = []
    gathered: dict[str, dict[str, Any]] = {}
    i = 0
    while i < len(words):
        name, equals, value = words[i].partition("=")
        i += 1
        if not name.startswith("-") or _is_number(name):
            plain.append(name + equals + value)
            continue
        head, *path = name.split(".")
        head = head.replace("_", "-") if head.startswith("--") else head
        if not path:
            plain.append(head + equals + value)
            continue
        if not equals:
            if i >= len(words):
                raise ValueError(f"argument {name}: expected one argument")
            value = words[i]
            i += 1
        flag = _SPECULATIVE if head == "-sc" else vllm_flags.ALIASES.get(head, head)
        _put(gathered.setdefault(flag, {}), path, value)
    for flag, value_by_key in gathered.items():
        plain += [flag, json.dumps(value_by_key)]
    return plain


def _is_number(word: str) -> bool:
    try:
        float(word)
    except ValueError:
        return False
    return True


def _put(target: dict[str, Any], path: list[str], text: str) -> None:
    """Set one nested key; a key that ends in `+` appends to a list."""
    for key in path[:-1]:
        inner = target.setdefault(key, {})
        if not isinstance(inner, dict):
            problem = f"{'.'.join(path)}: {key} is given both as a value and as a mapping"
            raise ValueError(problem)  # noqa: TRY004  # the text is wrong, not a Python type
        target = inner
    try:
        value = json.loads(text)
    except ValueError:
        value = text
    key = path[-1]
    if key.endswith("+"):
        target.setdefault(key[:-1], []).append(value)
    else:
        target[key] = value


def _speculative(given: dict[str, Any], parser: argparse.ArgumentParser) -> dict[str, Any] | None:
    """Join `--speculative-config` with its short forms; the same key given twice is refused."""
    config = given.pop("speculative_config")
    shorts = {
        "method": given.pop("spec_method"),
        "model": given.pop("spec_model"),
        "num_speculative_tokens": given.pop("spec_tokens"),
    }
    named = {key: value for key, value in shorts.items() if value is not None}
    if not named:
        return config if config is None else dict(config)
    for key in named:
        if config and key in config:
            flag = {"num_speculative_tokens": "tokens"}.get(key, key)
            _refuse(parser, f"--spec-{flag} and the key {key!r} of {_SPECULATIVE} are both given")
    return {**(config or {}), **named}


def _refuse(parser: argparse.ArgumentParser, message: str) -> NoReturn:
    parser.print_usage(sys.stderr)
    parser.exit(2, f"{parser.prog}: error: {message}\n")

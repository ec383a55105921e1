"""vLLM's command line as it stands in a manifest: what it says about speculation, and the same line without it.

Rules as tried with vLLM 0.32's own parser: `--speculative-config` and its short form `-sc` take JSON; an empty value,
`null` and `None` mean no speculation; single keys may be given dotted (`--speculative-config.num_speculative_tokens 3`)
or by the short forms `--spec-method`, `--spec-model` and `--spec-tokens`; dashes and underscores are alike; a value
follows as the next item or after `=`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import dropwhile
from typing import Any

_WHOLE = ("--speculative-config", "-sc")
_SHORT_KEYS = {"--spec-method": "method", "--spec-model": "model", "--spec-tokens": "num_speculative_tokens"}
_VARIABLE = re.compile(r"^\$\(([A-Za-z_][A-Za-z0-9_.-]*)\)$")
_SHELLS = {"sh", "bash", "ash", "dash", "zsh", "ksh", "busybox"}


@dataclass(frozen=True, slots=True)
class Speculation:
    """What a command line says about speculation.

    Attributes:
        config: the configuration given in place; None: no speculation, or decided elsewhere (see `variable`).
        variable: name of the environment variable when the value is `$(NAME)`: the container decides at start.
        given: the items of the command line that say so, in order; empty when it says nothing.
        problem: one line when vLLM would refuse to start (bad JSON, not an object), else None.
    """

    config: Mapping[str, Any] | None = None
    variable: str | None = None
    given: tuple[str, ...] = ()
    problem: str | None = None


@dataclass(frozen=True, slots=True)
class _Flag:
    name: str  # dashes for underscores, dotted path kept
    value: str | None
    items: tuple[str, ...]
    speculative: bool


def speculation(args: Sequence[str]) -> Speculation:
    """Read every form in which a command line may ask for speculation; the last whole value wins, as in vLLM."""
    config: dict[str, Any] | None = None
    variable: str | None = None
    problem: str | None = None
    keys: dict[str, Any] = {}
    given: list[str] = []
    for flag in _flags(args):
        if not flag.speculative:
            continue
        given.extend(flag.items)
        if flag.name in _WHOLE:
            config, variable, problem = _parse_whole(flag.value)
        elif flag.name in _SHORT_KEYS:
            keys[_SHORT_KEYS[flag.name]] = _scalar(flag.value)
        else:
            keys[flag.name.partition(".")[2].replace("-", "_")] = _scalar(flag.value)
    if keys and variable is None and problem is None:
        config = {**(config or {}), **keys}
    return Speculation(config, variable, tuple(given), problem)


def without_speculation(args: Sequence[str]) -> list[str]:
    """The same command line with every form of a speculative flag and its value removed."""
    return [item for flag in _flags(args) if not flag.speculative for item in flag.items]


def with_speculation(args: Sequence[str], config: Mapping[str, Any] | None) -> list[str]:
    """The command line of one arm: everything else as it was, and the arm said explicitly (`null`: none)."""
    return [*without_speculation(args), f"--speculative-config={arm_json(config)}"]


def arm_json(config: Mapping[str, Any] | None) -> str:
    """One spelling per configuration (sorted keys, no spaces), so that equal arms compare equal as text."""
    return "null" if config is None else json.dumps(dict(config), sort_keys=True, separators=(",", ":"))


def flag_value(args: Sequence[str], *names: str) -> str | None:
    """Value of a flag given under any of `names` (with dashes); the last one wins; None when absent."""
    found = None
    for flag in _flags(args):
        if flag.name in names:
            found = flag.value if flag.value is not None else ""
    return found


def model_of(args: Sequence[str]) -> str | None:
    """The model a `vllm serve` command line names: positional (after an optional `vllm serve`), else `--model`."""
    items = [
        item
        for flag in _flags(args)
        for item in flag.items
        if len(flag.items) == 1 and not item.startswith("-")
    ]
    words = [
        item for item in items if item not in {"vllm", "serve"} and not item.endswith(("/vllm", "python3"))
    ]
    return words[0] if words else flag_value(args, "--model")


def runs_through_shell(command: Sequence[str]) -> bool:
    """Whether a shell would re-read the arguments: JSON in `$(VAR)` then loses its quotes."""
    if not command:
        return False
    program = command[0].rsplit("/", 1)[-1]
    if program == "env":
        return runs_through_shell(
            list(dropwhile(lambda item: "=" in item or item.startswith("-"), command[1:]))
        )
    return program in _SHELLS and any(re.fullmatch(r"-[a-z]*c[a-z]*", item) for item in command[1:])


# Boolean switches take no value: the item after them is not theirs. Any other flag without `=` owns the next item,
# unless that begins with a dash; a negative number is not a value any vLLM flag of ours takes as a separate item.
_SWITCHES = frozenset(
    {
        "--enforce-eager",
        "--trust-remote-code",
        "--enable-prefix-caching",
        "--enable-chunked-prefill",
        "--enable-expert-parallel",
        "--enable-lora",
        "--enable-auto-tool-choice",
        "--enable-sleep-mode",
        "--disable-log-stats",
        "--disable-log-requests",
        "--enable-log-requests",
        "--disable-frontend-multiprocessing",
        "--disable-custom-all-reduce",
        "--disable-sliding-window",
        "--disable-cascade-attn",
        "--async-scheduling",
        "--headless",
        "--language-model-only",
        "--enable-server-load-tracking",
        "--enable-prompt-tokens-details",
        "--return-tokens-as-token-ids",
        "--enable-force-include-usage",
        "--enable-request-id-headers",
        "--enable-ssl-refresh",
        "--skip-tokenizer-init",
        "--allow-credentials",
    }
)


def _flags(args: Sequence[str]) -> Iterator[_Flag]:
    """Cut a command line into flags with their values and single positional items, losing nothing."""
    position = 0
    while position < len(args):
        item = args[position]
        if not item.startswith("-") or item in {"-", "--"}:
            yield _Flag(item, None, (item,), speculative=False)
            position += 1
            continue
        name, equals, value = item.partition("=")
        if name.startswith("--"):
            head, dot, path = name.partition(".")
            name = head.replace("_", "-") + dot + path
        speculative = name in _WHOLE or name in _SHORT_KEYS or name.startswith("--speculative-config.")
        following = args[position + 1] if position + 1 < len(args) else None
        if equals:
            yield _Flag(name, value, (item,), speculative)
            position += 1
        elif name in _SWITCHES or name.startswith("--no-") or following is None or following.startswith("-"):
            yield _Flag(name, None, (item,), speculative)
            position += 1
        else:
            yield _Flag(name, following, (item, following), speculative)
            position += 2


def _parse_whole(value: str | None) -> tuple[dict[str, Any] | None, str | None, str | None]:
    text = (value or "").strip()
    if text in {"", "null", "None"}:
        return None, None, None
    reference = _VARIABLE.match(text)
    if reference:
        return None, reference.group(1), None
    try:
        parsed = json.loads(text)
    except ValueError as error:
        return None, None, f"--speculative-config is not JSON ({error})"
    if not isinstance(parsed, dict):
        return None, None, f"--speculative-config is {type(parsed).__name__}, not an object"
    return parsed, None, None


def _scalar(value: str | None) -> Any:
    try:
        return json.loads(value or "")
    except ValueError:
        return value

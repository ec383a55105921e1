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
from functools import cache
from itertools import dropwhile, takewhile
from typing import Any

from breakeven.serving.vllm_flags import flags

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


# Switches of other versions of vLLM than the one whose table `vllm_flags` holds.
_OTHER_SWITCHES = frozenset({"--disable-frontend-multiprocessing", "--disable-log-requests"})


@cache
def _takes() -> dict[str, str]:
    """How many values a flag takes, by every name it has; a switch mistaken for a flag would swallow the model."""
    table = {name: flag.takes for flag in flags().values() for name in flag.names}
    return dict.fromkeys(_OTHER_SWITCHES, "nothing") | table


def _values_after(name: str, following: Sequence[str]) -> int:
    """How many of the items after a flag without `=` are its values; none begins with a dash.

    A flag that vLLM's table does not know, as of a newer version or a plug-in, owns one.
    """
    takes = _takes().get(name, "one")
    if takes in {"nothing", "yes or no"} or name.startswith("--no-"):
        return 0
    values = sum(1 for _ in takewhile(lambda item: not item.startswith("-"), following))
    return values if takes == "many" else min(values, 1)


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
        if equals:
            yield _Flag(name, value, (item,), speculative)
            position += 1
            continue
        values = args[position + 1 : position + 1 + _values_after(name, args[position + 1 :])]
        yield _Flag(name, values[0] if values else None, (item, *values), speculative)
        position += 1 + len(values)


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

"""How a container starts vLLM: directly, behind another program, or in a script that is read and never run."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from breakeven.serving.command_line import after_program, command_line, cut, shell_call
from breakeven.serving.config_file import with_config_file
from breakeven.serving.shell_script import Script, ShellCommand, shell_script

_DEEPEST = 4
_REFERENCE = re.compile(r"\$\(([A-Za-z_][A-Za-z0-9_.-]*)\)")
# These only speak of vLLM.
_NO_STARTERS = {"echo", "printf", "grep", "pgrep", "pkill", "pip", "pip3", "uv", "which", "cat", "ps"}
_HARMLESS = {"set", "ulimit", "umask", "cd", "echo", "date", "true", ":"}
_OTHER_ENGINES = re.compile(
    r"sglang|text-generation-inference|\btgi\b|ollama|triton|tensorrt|trtllm|llama", re.IGNORECASE
)
_NO_ENGINES = re.compile(
    r"router|gateway|proxy|exporter|operator|controller|inference-sim|sidecar", re.IGNORECASE
)
_OWN_FLAGS = {
    "--gpu-memory-utilization",
    "--kv-transfer-config",
    "--max-model-len",
    "--max-num-batched-tokens",
    "--max-num-seqs",
    "--num-speculative-tokens",
    "--speculative-config",
}


@dataclass(frozen=True, slots=True)
class EngineStart:
    """The command line that vLLM gets.

    Attributes:
        words: program and arguments; variables of unknown value stand as `$(NAME)`. Empty if no start of vLLM was found.
        through_shell: whether a shell reads the words before vLLM does.
        problems: sentences: why the words may be others, and what the shell keeps from vLLM.
        direct: the words with which vLLM can be started without the shell; empty if the script does more than that.
    """

    words: tuple[str, ...]
    through_shell: bool = False
    problems: tuple[str, ...] = ()
    direct: tuple[str, ...] = ()


def engine_start(container: Mapping[str, Any], files: Mapping[str, str] | None = None) -> EngineStart:
    """Find the command that starts vLLM.

    Args:
        container: the engine's.
        files: texts of files in it by path, for `--config`.
    """
    start = _started(container)
    return replace(start, words=tuple(with_config_file(start.words, files or {})))


def _started(container: Mapping[str, Any]) -> EngineStart:
    environment = _environment(container)
    words = [_with_values(word, environment) for word in command_line(container)]
    call = shell_call(words)
    if call is None:
        return EngineStart(tuple(words))
    script = shell_script(call.script, environment, call.arguments)
    found = list(_starts(script, environment, _DEEPEST))
    complete = script.complete and all(inner.complete for _, inner in found)
    if not found:
        why = "its script cannot be read" if not complete else "its script starts no vLLM that can be seen"
        return EngineStart((), through_shell=True, problems=(f"{why}: start vLLM directly",))
    command, inside = found[0]
    problems = list(_doubts(command, found, complete=complete))
    words = _without_exec(command.words)
    # Kubernetes puts in what the container's environment has, and nothing that an image sets.
    named = set(_REFERENCE.findall(" ".join(words))) <= environment.keys()
    alone = len(found) == 1 and complete and named and command.literal and not command.unquoted
    plain = alone and not (
        command.conditional or command.repeated or command.background or command.redirected
    )
    others = [one for one in inside.commands if one is not command] + (
        [one for one in script.commands if one.words[0] not in {"eval", "exec"}]
        if inside is not script
        else []
    )
    simple = plain and not command.assignments and all(one.words[0] in _HARMLESS for one in others)
    return EngineStart(tuple(words), True, tuple(problems), tuple(words) if simple else ())


def _doubts(
    command: ShellCommand, found: Sequence[tuple[ShellCommand, Script]], *, complete: bool
) -> Iterator[str]:
    if not complete:
        yield "its script cannot be read to the end: what is said here may be incomplete"
    if len(found) > 1:
        yield f"its script starts vLLM in {len(found)} places, of which the first is read"
    elif command.conditional or command.repeated:
        yield "its script starts vLLM under a condition, in a loop or in a pipe: what is said here may not hold"
    if not command.literal:
        yield "its script makes words of the command line that only running it can tell"
    (alone,) = {len(inner.commands) == 1 for _, inner in found[:1]}
    if not (command.words[0] == "exec" or (alone and not command.conditional and not command.background)):
        yield (
            "its shell gets SIGTERM in place of vLLM, which then drains nothing and is killed in the end: put exec before "
            "the command that starts vLLM"
        )


def _starts(
    script: Script, environment: Mapping[str, str | None], deepest: int
) -> Iterator[tuple[ShellCommand, Script]]:
    """Commands that start vLLM, each with the script that it stands in."""
    for command in script.commands:
        words = _without_exec(command.words)
        if not words or words[0].rpartition("/")[2] in _NO_STARTERS:
            continue
        call = shell_call(words) if words[0] != "eval" else None
        text = " ".join(words[1:]) if words[0] == "eval" else call.script if call else ""
        if text and deepest:
            # Variables that eval has put in are words by now, and the others stand as `$(NAME)`.
            unknown = dict.fromkeys(_REFERENCE.findall(text))
            inner = shell_script(text, {**environment, **unknown}, call.arguments if call else ())
            yield from _starts(inner, environment, deepest - 1)
        elif len(after_program(words)) < len(words):
            yield command, script


def _without_exec(words: Sequence[str]) -> list[str]:
    rest = list(words)
    while rest and rest[0] in {"exec", "command"}:
        rest = rest[1:]
    return rest


def _environment(container: Mapping[str, Any]) -> dict[str, str | None]:
    """Variables of the container; None for a value that stands elsewhere in the cluster."""
    return {
        str(entry.get("name")): str(entry["value"])
        if "value" in entry
        else None
        if "valueFrom" in entry
        else ""
        for entry in container.get("env") or []
        if entry.get("name")
    }


def _with_values(word: str, environment: Mapping[str, str | None]) -> str:
    """The word with the variables that Kubernetes puts in, as far as the manifest has their values."""
    return _REFERENCE.sub(
        lambda found: found[0] if (value := environment.get(found[1])) is None else value, word
    )


def says_vllm(container: Mapping[str, Any]) -> bool:
    """Whether image, command or arguments of a container say that it runs vLLM."""
    words = command_line(container)
    if any(_is_program(word) for word in words) or (engine_start(container).words and shell_call(words)):
        return True
    image = str(container.get("image", "")).partition("@")[0].rpartition("/")[2].partition(":")[0]
    if _OTHER_ENGINES.search(image) or _NO_ENGINES.search(image):
        return False
    if any(flag.name in _OWN_FLAGS or flag.former for flag in cut(words)):
        return True
    # Another program in an image of vLLM's is no vLLM; a script may start it.
    command = [str(word) for word in container.get("command") or []]
    return "vllm" in image.lower() and (not command or shell_call(words) is not None or _is_script(command))


def _is_script(command: Sequence[str]) -> bool:
    return any(word.endswith(".sh") for word in command)


def _is_program(word: str) -> bool:
    return word.rpartition("/")[2] == "vllm" or word.startswith("vllm.") or "vllm/entrypoints" in word

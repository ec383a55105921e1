"""Start of vLLM in a container: directly, behind another program, or in a script that is read and never run."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from breakeven.serving.command_line import (
    SHELLS,
    after_program,
    command_line,
    cut,
    shell_call,
    with_config_file,
)
from breakeven.serving.findings import said
from breakeven.serving.shell_script import Script, ShellCommand, shell_script

PRESET_VARIABLE = "VLLM_ADDITIONAL_ARGS"
"""The variable that KServe's presets of LLMInferenceService add to vLLM's command line, through `eval`."""
_DEEPEST = 4
_REFERENCE = re.compile(r"\$\(([A-Za-z_][A-Za-z0-9_.-]*)\)")
_NO_STARTERS = {"echo", "printf", "grep", "pgrep", "pkill", "pip", "pip3", "uv", "which", "cat", "ps"}
_HARMLESS = {"set", "ulimit", "umask", "echo", "date", "true", ":"}
# Subcommands of `vllm`, and of its modules, that do not serve requests.
_NO_SERVERS = {"bench", "chat", "complete", "collect-env", "run-batch"}
_NO_SERVER_MODULES = {"vllm.entrypoints.openai.run_batch", "vllm.collect_env"}
_RAYS_SCRIPT = "multi-node-serving.sh"
_SHEBANG = re.compile(r"#!.*sh\b")
_OTHER_ENGINES = re.compile(
    r"sglang|text-generation-inference|\btgi\b|ollama|triton|tensorrt|trtllm|llama", re.IGNORECASE
)
_NO_ENGINES = re.compile(
    r"router|gateway|proxy|exporter|operator|controller|inference-sim|sidecar", re.IGNORECASE
)
# Flags that only vLLM has.
_OWN_FLAGS = {
    "--gpu-memory-utilization",
    "--kv-transfer-config",
    "--max-model-len",
    "--max-num-batched-tokens",
    "--max-num-seqs",
    "--speculative-config",
}


@dataclass(frozen=True, slots=True)
class EngineStart:
    """The command line that vLLM gets.

    Attributes:
        words: program and arguments; variables of unknown value stand as `$(NAME)`. Empty if no start of vLLM was found.
        shell: the shell that reads the words before vLLM does, and the option that hands it a text; empty if none does.
        through_shell: whether a shell reads the words, or a script makes them.
        problems: sentences: why the words may be others.
        undrained: a sentence if the shell keeps the signal to end from vLLM.
        certain: whether the shell's text shows the one command that starts vLLM, which runs once and in any case.
        unquoted: variables of unknown value that the shell splits.
        direct: words with which vLLM can be started without the shell; empty if the script does more than that.
        exports: variables that the script hands to vLLM.
        beside: other commands of the script that may change the engine.
        literal: whether every word is known but for variables.
        file: path of the script that starts vLLM; empty for one that stands in the command line.
        unseen: path of a script that is not known here, and may start vLLM.
    """

    words: tuple[str, ...]
    shell: tuple[str, ...] = ()
    through_shell: bool = False
    problems: tuple[str, ...] = ()
    undrained: str = ""
    certain: bool = True
    unquoted: tuple[str, ...] = ()
    direct: tuple[str, ...] = ()
    exports: Mapping[str, str] = field(default_factory=dict)
    beside: tuple[tuple[str, ...], ...] = ()
    literal: bool = True
    file: str = ""
    unseen: str = ""


def engine_start(
    container: Mapping[str, Any], files: Mapping[str, str] | None = None, longest: int | None = None
) -> EngineStart:
    """Find the command that starts vLLM; `files` are texts by path: the file of `--config`, and scripts.

    A shell's text of more than `longest` characters is not read; None for as many as the grammar takes a second for.
    """
    call = shell_call(command_line(container)) if longest is not None else None
    read = _read_text(call.script).text if call is not None else ""
    if call is not None and longest is not None and len(read) > longest:
        why = (f"its text has more than {longest} characters: start vLLM directly",)
        return EngineStart((), (call.program, call.option), True, why, certain=False, literal=False)
    start = _started(container, files or {})
    return replace(start, words=tuple(with_config_file(start.words, files or {})))


def preset_arguments(container: Mapping[str, Any]) -> str:
    """The text that a container gives to KServe's preset for vLLM's command line; empty if it gives none."""
    given = [entry for entry in container.get("env") or [] if entry.get("name") == PRESET_VARIABLE]
    return str(given[-1].get("value", "")) if given else ""


def preset_start(container: Mapping[str, Any]) -> EngineStart:
    """The part of the command line that a container adds to the command line of KServe's preset."""
    script = shell_script(f"vllm serve {preset_arguments(container)}", environment_of(container))
    words = script.commands[0].words if script.complete and script.commands else ()
    return EngineStart(words, literal=all(command.literal for command in script.commands))


def hands_on(container: Mapping[str, Any], files: Mapping[str, str], argument: str) -> bool:
    """Whether the script that starts vLLM hands a new argument of the container on to it."""
    given = {**container, "args": [*(container.get("args") or []), argument]}
    return argument in engine_start(given, files).words


def _started(container: Mapping[str, Any], files: Mapping[str, str]) -> EngineStart:
    environment = environment_of(container)
    words = [_with_values(word, environment) for word in command_line(container)]
    call = shell_call(words)
    if call is not None:
        read = _read_text(call.script)
        environment |= read.variables
        path, script = "", shell_script(read.text, environment, call.arguments)
    elif (at := _script_file(words, files)) is not None:
        path = words[at]
        if path not in files:
            return EngineStart(tuple(words), unseen=path)
        script = shell_script(files[path], environment, words[at:])
    else:
        return EngineStart(tuple(words))
    shell: tuple[str, ...] = (call.program, call.option) if call is not None else ()
    found = list(_starts(script, environment, files, _DEEPEST))
    complete = script.complete and all(inner.complete for _, inner in found)
    if not found:
        why = "its script cannot be read" if not complete else "its script starts no vLLM that can be seen"
        unseen = (f"{why}: start vLLM directly",)
        return EngineStart((), shell, True, unseen, certain=False, literal=False, file=path)
    command, inside = found[0]
    problems = tuple(_doubts(command, found, complete=complete))
    words = _without_exec(command.words)
    # Kubernetes puts in what the container's environment has, and nothing that an image sets.
    exports = {**script.exports, **inside.exports}
    handed = {name: value for name, value in exports.items() if value is not None}
    named = set(_REFERENCE.findall(" ".join([*words, *handed.values()]))) <= environment.keys()
    own = exports.keys() == handed.keys() and not exports.keys() & environment.keys()
    alone = len(found) == 1 and complete and named and own and command.literal and not command.unquoted
    sure = not (command.conditional or command.repeated or command.background)
    plain = alone and sure and not command.redirected
    others = [one for one in inside.commands if one is not command] + (
        [one for one in script.commands if one.words[0] not in {"eval", "exec"}]
        if inside is not script
        else []
    )
    beside = tuple(one.words for one in others if one.words[0] not in _HARMLESS)
    literal = complete and command.literal
    return EngineStart(
        tuple(words),
        shell,
        True,
        problems,
        undrained=_undrained(command, inside),
        certain=literal and len(found) == 1 and sure and not command.piped,
        unquoted=command.unquoted,
        direct=tuple(words) if plain and not command.assignments and not beside and not path else (),
        exports=handed,
        beside=beside,
        literal=literal,
        file=path,
    )


def _read_text(text: str) -> PresetEnd:
    """The part of a shell's text that is read: all of it, or the end of KServe's preset."""
    return preset_end(text) or PresetEnd(text, {})


class TextOfStart(NamedTuple):
    """The text in `command` or `args` of a shell, and the command in it that starts vLLM."""

    part: str
    item: int
    text: str
    command: ShellCommand


def text_of_start(container: Mapping[str, Any]) -> TextOfStart | None:
    """The text of the container's shell with the one command in it that starts vLLM; None if it is not to be seen."""
    environment = environment_of(container)
    call = shell_call([_with_values(word, environment) for word in command_line(container)])
    places = [
        (part, at, str(item))
        for part in ("command", "args")
        for at, item in enumerate(container.get(part) or [])
        if call is not None and _with_values(str(item), environment) == call.script
    ]
    if call is None or len(places) != 1:
        return None
    ((part, at, text),) = places
    script = shell_script(text, environment, call.arguments)
    found = list(_starts(script, environment, {}, _DEEPEST))
    if len(found) != 1 or found[0][1] is not script:
        return None
    return TextOfStart(part, at, text, found[0][0])


def _script_file(words: Sequence[str], files: Mapping[str, str]) -> int | None:
    """Place of a script that is run by its name, with or without a shell before it; None if vLLM is started without one."""
    if len(after_program(words)) < len(words):
        return None
    for at, word in enumerate(words):
        behind = at > 0 and words[at - 1].rpartition("/")[2] in SHELLS
        known = word in files and (behind or _SHEBANG.match(files[word]) is not None)
        if known or (word.endswith(".sh") and not word.startswith("-")):
            return at
    return None


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


def _undrained(command: ShellCommand, inside: Script) -> str:
    """A sentence if the shell keeps the signal to end from vLLM; empty if it does not."""
    aside = command.background or command.piped
    alone = len(inside.commands) == 1 and not command.conditional
    if not aside and (command.words[0] == "exec" or alone):
        return ""
    where = " start it in the foreground and in no pipe, and" if aside else ""
    return said("no exec", where=where)


def _starts(
    script: Script, environment: Mapping[str, str | None], files: Mapping[str, str], deepest: int
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
            yield from _starts(inner, environment, files, deepest - 1)
        elif deepest and (at := _script_file(words, files)) is not None and words[at] in files:
            inner = shell_script(files[words[at]], environment, words[at:])
            yield from _starts(inner, environment, files, deepest - 1)
        elif len(after_program(words)) < len(words):
            yield command, script


def _without_exec(words: Sequence[str]) -> list[str]:
    rest = list(words)
    while rest and rest[0] in {"exec", "command"}:
        rest = rest[1:]
    return rest


def environment_of(container: Mapping[str, Any]) -> dict[str, str | None]:
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


def serves_nobody(container: Mapping[str, Any]) -> str | None:
    """The other use of a container that has vLLM in it, as the end of a sentence; None if the container may serve."""
    words = command_line(container)
    call = shell_call(words)
    if call is None:
        return _other_use(words)
    script = shell_script(call.script, environment_of(container), call.arguments)
    if any(True for _ in _starts(script, environment_of(container), {}, _DEEPEST)):
        return None
    # One branch of a script is not the use of the whole container.
    commands = [_without_exec(command.words) for command in script.commands]
    branches = any(command.conditional or command.repeated for command in script.commands)
    leads = any(_leads_ray(one) for one in commands)
    return None if branches or leads else next(filter(None, map(_other_use, commands)), None)


def _leads_ray(words: Sequence[str]) -> bool:
    named = any(word.rpartition("/")[2] in {"ray", _RAYS_SCRIPT} for word in words)
    return named and ("--head" in words or "leader" in words)


def _other_use(words: Sequence[str]) -> str | None:
    for at, word in enumerate(words):
        following = words[at + 1] if at + 1 < len(words) else ""
        program = word.rpartition("/")[2]
        if program == "vllm" and following in _NO_SERVERS:
            return f"runs vllm {following}, which serves nobody"
        if word in _NO_SERVER_MODULES:
            return f"runs {word}, which serves nobody"
        joins = program == "ray" and following == "start" and not _leads_ray(words)
        if joins or (program == _RAYS_SCRIPT and following == "worker"):
            return "joins Ray and starts no vLLM: what counts is the container that does"
    return None


def says_vllm(container: Mapping[str, Any]) -> bool:
    """Whether image, command or arguments of a container say that it serves by vLLM."""
    words = command_line(container)
    if serves_nobody(container) is not None:
        return False
    starts = any(
        word.rpartition("/")[2] == "vllm" or word.startswith("vllm.") or "vllm/entrypoints" in word
        for word in words
    )
    if starts or (engine_start(container).words and shell_call(words)):
        return True
    image = str(container.get("image", "")).partition("@")[0].rpartition("/")[2].partition(":")[0]
    if _OTHER_ENGINES.search(image) or _NO_ENGINES.search(image):
        return False
    if any(flag.name in _OWN_FLAGS for flag in cut(words)):
        return True
    # Another program in an image of vLLM's is no vLLM; a script may start it.
    command = [str(word) for word in container.get("command") or []]
    is_script = any(word.endswith(".sh") for word in command)
    return "vllm" in image.lower() and (not command or shell_call(words) is not None or is_script)


# The text with which KServe's presets start vLLM, read from its end. It looks for network devices and for vLLM's version, sets
# variables, and ends with one command in its first column: `eval "exec vllm serve ... ${VLLM_ADDITIONAL_ARGS} $@"`. It is too
# long to be read as a whole for each target in each cycle.


_LAST_COMMAND = re.compile(r'^eval "exec vllm serve ', re.MULTILINE)
# A target has a megabyte for its text; a preset has 7,000 characters.
_MOST_CHARACTERS = 64 * 1024
_USED = re.compile(r"\$\{(\w+)\}")
_SET = re.compile(r"^[ \t]*(\w+)=(.*)$", re.MULTILINE)
# Anything else is known only when the text runs.
_PLAIN = re.compile(r'"([^"$`\\]*)"')


class PresetEnd(NamedTuple):
    """The last command of a preset's text, and variables that the text before it sets; None if only running it shows the value."""

    text: str
    variables: Mapping[str, str | None]


def preset_end(text: str) -> PresetEnd | None:
    """The last command of a text that has the form of KServe's presets; None of any other text.

    If the text sets a variable more than once, the last value counts: it is for the newest vLLM that the preset supports.
    """
    starts = list(_LAST_COMMAND.finditer(text)) if len(text) <= _MOST_CHARACTERS else []
    if len(starts) != 1:
        return None
    before, command = text[: starts[0].start()], text[starts[0].start() :]
    used = set(_USED.findall(command))
    if PRESET_VARIABLE not in used:
        return None
    last = {name: value for name, value in _SET.findall(before) if name in used - {PRESET_VARIABLE}}
    plain = {name: _PLAIN.fullmatch(value.strip()) for name, value in last.items()}
    return PresetEnd(command, {name: found[1] if found else None for name, found in plain.items()})

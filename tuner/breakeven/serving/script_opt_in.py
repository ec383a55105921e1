"""The opt-in of any container: directly, by a script's file, or in the line of a shell's text that starts vLLM.

A shell's text is read and edited, never run. In it the value must stand in quotes: without them the shell would cut the arm's
JSON at its spaces, and an empty value would be no word at all.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from breakeven.serving.command_line import command_line, cut, shell_call, without_speculation
from breakeven.serving.engine_start import EngineStart, TextOfStart, hands_on, preset_end, text_of_start
from breakeven.serving.manifest import as_written
from breakeven.serving.opt_in import (
    ARGUMENT,
    PRESET_VARIABLE,
    VARIABLE,
    Change,
    OptIn,
    Places,
    direct_start,
    opt_in,
    preset_arguments,
    preset_opt_in,
    unspeculative,
)

QUOTED_ARGUMENT = f'--speculative-config "${VARIABLE}"'
"""The argument as a shell's text has it."""

_BEFORE_WORD = re.compile(rb"(?:[ \t]|\\\n)+$")


def opt_in_of(
    container: Mapping[str, Any],
    start: EngineStart,
    places: Places | None = None,
    files: Mapping[str, str] | None = None,
) -> OptIn:
    """Compare one container with the opt-in; without places it lies as in a Deployment."""
    places = places or Places.of(container)
    call = shell_call(command_line(container))
    if call is not None and preset_end(call.script) is not None:
        return _by_preset(container, start, places)
    if start.through_shell and not start.file:
        return _in_text(container, start, places)
    if start.file and not hands_on(container, files or {}, ARGUMENT):
        why = (
            f'its script {start.file} hands no argument on to vLLM: end its command line with "$@", or start vLLM directly '
            "(command: [vllm, serve], arguments in args)"
        )
        return OptIn((), (), why)
    return opt_in(container, places)


def with_argument(container: Mapping[str, Any], argument: str) -> Mapping[str, Any] | None:
    """The container with one argument more in the line that starts vLLM, and without those about speculation.

    None if the text of its shell does not show where that is. The argument is as the shell reads it.
    """
    call = shell_call(command_line(container))
    if call is not None and preset_end(call.script) is not None:
        return _in_preset(container, argument)
    found = text_of_start(container)
    text = _edited(found, argument) if found is not None else None
    if found is None or text is None:
        return None
    items = list(container[found.part])
    items[found.item] = text
    return {**container, found.part: items}


def _by_preset(container: Mapping[str, Any], start: EngineStart, places: Places) -> OptIn:
    """The opt-in of a container that KServe's preset starts; what vLLM gets in the end counts too."""
    wanted = preset_opt_in(container, places)
    if not wanted.ok:
        return wanted
    beside = opt_in({**container, "command": [], "args": list(start.words)}, places)
    return beside if start.certain else OptIn((), (), next(iter(start.problems), "its text cannot be read"))


def _in_preset(container: Mapping[str, Any], argument: str) -> Mapping[str, Any]:
    """The container with one argument more in what it gives to KServe's preset, and without those about speculation.

    The preset's `eval` reads it as a shell does.
    """
    own = unspeculative(preset_arguments(container))
    env = [entry for entry in container.get("env") or [] if entry.get("name") != PRESET_VARIABLE]
    given = {"name": PRESET_VARIABLE, "value": f"{own} {argument}".strip()}
    args = without_speculation([str(item) for item in container.get("args") or []])
    return {**container, "env": [*env, given], **({"args": args} if "args" in container else {})}


def _in_text(container: Mapping[str, Any], start: EngineStart, places: Places) -> OptIn:
    # The words that vLLM gets, as if the container had them: what is missing is the same.
    unwrapped = opt_in({**container, "command": [], "args": list(start.words)}, places)
    in_env = OptIn(
        tuple(change for change in unwrapped.add if change.path == places.env),
        tuple(change for change in unwrapped.remove if change.path == places.env),
        unwrapped.refusal,
    )
    in_line = [change for change in (*unwrapped.add, *unwrapped.remove) if change.path != places.env]
    if start.certain and not in_line and VARIABLE not in start.unquoted:
        return in_env
    shell = " ".join(start.shell)
    where = _where(container, places)
    if start.direct:
        direct = direct_start(container, start.direct, places, start.exports)
        why = (
            f"{where} runs vLLM through a shell ({shell}), whose text does not take the arm: start vLLM directly (command: "
            f"[vllm, serve], arguments in args), or write {QUOTED_ARGUMENT} in the text, in quotes"
        )
        return OptIn(direct.add, direct.remove, why)
    changed = with_argument(container, QUOTED_ARGUMENT) if start.certain else None
    if changed is None:
        why = start.problems[0] if start.problems else "its text does not show the command line to its end"
        return OptIn((), (), f"{where} runs vLLM through a shell ({shell}) that cannot be read: {why}")
    add, remove = zip(*_differences(container, changed, places), strict=True)
    why = (
        f"{where} runs vLLM through a shell ({shell}), whose text does not take the arm: write {QUOTED_ARGUMENT}, in quotes, "
        "in the line that starts vLLM, and nothing else about speculation"
    )
    return OptIn((*in_env.add, *add), (*in_env.remove, *remove), unwrapped.refusal or why)


def _where(container: Mapping[str, Any], places: Places) -> str:
    found = text_of_start(container)
    part = found.part if found is not None else "args" if container.get("args") else "command"
    return places.command if part == "command" else places.args


def _differences(
    container: Mapping[str, Any], changed: Mapping[str, Any], places: Places
) -> Iterator[tuple[Change, Change]]:
    """The lines to add and to remove where items of the command line differ."""
    for path, part in ((places.command, "command"), (places.args, "args")):
        for old, new in zip(container.get(part) or [], changed.get(part) or [], strict=True):
            if old != new:
                yield Change(path, tuple(as_written(new))), Change(path, tuple(as_written(old)))


def _edited(found: TextOfStart, argument: str) -> str | None:
    """The text with one argument more and without speculation; None if a word about it stands in one with others."""
    source, spans = found.text.encode("utf-8", "surrogatepass"), found.command.spans
    kept: list[tuple[int, int]] = []
    gone: list[tuple[int, int]] = []
    at = 0
    for flag in cut(found.command.words):
        (gone if flag.speculative else kept).extend(spans[at : at + len(flag.items)])
        at += len(flag.items)
    if not kept or set(gone) & set(kept):
        return None
    end = max(span[1] for span in kept)
    source = source[:end] + b" " + argument.encode() + source[end:]
    longer = len(argument.encode()) + 1
    for first, last in sorted(set(gone), reverse=True):
        moved = longer if first >= end else 0
        before = _BEFORE_WORD.sub(b"", source[: first + moved])
        source = before + source[last + moved :]
    return source.decode("utf-8", "surrogatepass")

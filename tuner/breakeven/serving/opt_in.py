"""Whether a pod template lets one annotation choose the arm, and which lines are missing.

The opt-in is two static things in the user's own manifest, once: an environment variable that reads the annotation
`breakeven.dev/speculative-config`, and `--speculative-config=$(BREAKEVEN_SPECULATIVE_CONFIG)`. Kubernetes turns a
missing annotation into an empty value, and vLLM takes an empty value as no speculation. A shell's text is read and edited, never
run. In it the value must stand in quotes: without them the shell would cut the arm's JSON at its spaces, and an empty value
would be no word at all.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import yaml

from breakeven.serving.command_line import (
    SPECULATIVE_CONFIG,
    after_program,
    command_line,
    cut,
    shell_call,
    speculation,
    without_speculation,
)
from breakeven.serving.engine_start import (
    PRESET_VARIABLE,
    EngineStart,
    TextOfStart,
    hands_on,
    preset_arguments,
    preset_end,
    text_of_start,
)
from breakeven.serving.findings import said
from breakeven.serving.vllm_versions import OLDEST, version_of

ANNOTATION = "breakeven.dev/speculative-config"
VARIABLE = "BREAKEVEN_SPECULATIVE_CONFIG"
ARGUMENT = f"--speculative-config=$({VARIABLE})"
PRESET_ARGUMENT = ARGUMENT.replace("=", "='", 1) + "'"
"""The argument as that variable has it: in quotes, because `eval` would cut the JSON and drop the empty value."""
_ENV_LINES = (
    f"- name: {VARIABLE}",
    f"  valueFrom: {{fieldRef: {{fieldPath: \"metadata.annotations['{ANNOTATION}']\"}}}}",
)


def as_written(item: Any) -> list[str]:
    """The lines of an item of a list: as its file writes it, or as YAML would."""
    source = getattr(item, "source", None)
    if source is None:
        plain = yaml.safe_dump([item], width=2**31, allow_unicode=True, sort_keys=False)
        return str(plain).splitlines()
    return f"- {source}".splitlines()


@dataclass(frozen=True, slots=True)
class Change:
    """One edit of a manifest: under which path, and the exact lines."""

    path: str
    lines: tuple[str, ...]

    @classmethod
    def of(cls, path: str, items: Iterable[Any]) -> Change:
        """The change of whole items of a list."""
        return cls(path, tuple(line for item in items for line in as_written(item)))


@dataclass(frozen=True, slots=True)
class OptIn:
    """The edits that let one annotation choose a template's arm.

    The refusal is a sentence if these lines do not help, or more is to do (a shell reads them, vLLM is too old).
    """

    add: tuple[Change, ...] = ()
    remove: tuple[Change, ...] = ()
    refusal: str | None = None

    @property
    def ok(self) -> bool:
        """Whether writing the annotation changes what the engine runs."""
        return not (self.add or self.remove or self.refusal)

    @property
    def lines(self) -> Iterator[str]:
        """The edits as people read them: where, and below it the exact lines, indented."""
        for verb, changes in (("remove", self.remove), ("add", self.add)):
            for change in changes:
                yield f"{verb} under {change.path}:"
                yield from (f"    {line}" for line in change.lines)


Places = Mapping[str, str]
"""Paths of `command`, `args` and `env` of an engine's container, in the file's own terms."""


def places_in(container: Mapping[str, Any], inside: str = "") -> Places:
    """Paths of a container of the pod spec at a path, which is empty for a Deployment."""
    path = f"{inside}.containers[{container.get('name', '')}]".lstrip(".")
    return {part: f"{path}.{part}" for part in ("command", "args", "env")}


def engine_container(pod_spec: Mapping[str, Any], name: str | None = None) -> Mapping[str, Any] | None:
    """The container that runs vLLM: the named one, the only one, or the only one whose image or command says vllm.

    None if none, or more than one, may be it.
    """
    containers: Sequence[Mapping[str, Any]] = pod_spec.get("containers") or []
    if name is not None:
        return next((c for c in containers if c.get("name") == name), None)
    if len(containers) == 1:
        return containers[0]
    matching = [c for c in containers if "vllm" in str(c.get("image", "")) or _starts_vllm(c)]
    return matching[0] if len(matching) == 1 else None


def _starts_vllm(container: Mapping[str, Any]) -> bool:
    call = shell_call(command_line(container))
    text = [call.script] if call is not None else container.get("command") or []
    return any("vllm" in str(item) for item in text)


def opt_in(container: Mapping[str, Any], places: Places | None = None) -> OptIn:
    """Compare one container that starts vLLM without a shell with the opt-in; without places it lies as in a Deployment."""
    version = version_of(str(container.get("image", "")))
    if version is not None and version < OLDEST:
        return OptIn(refusal=said("too old", version=version, oldest=OLDEST))
    places = places or places_in(container)
    add: list[Change] = []
    remove: list[Change] = []
    entries = [e for e in container.get("env") or [] if e.get("name") == VARIABLE]
    reads = [
        (((e.get("valueFrom") or {}).get("fieldRef") or {}).get("fieldPath") or "").replace('"', "'")
        for e in entries
    ]
    if reads != [f"metadata.annotations['{ANNOTATION}']"]:
        if entries:
            remove.append(Change.of(places["env"], json.loads(json.dumps(entries))))
        add.append(Change(places["env"], _ENV_LINES))
    # The whole value must be exactly the variable, and said once: vLLM takes the last and refuses mixed forms.
    remove += [
        Change.of(places[part], beside)
        for part in ("command", "args")
        if (beside := _beside_the_variable(container.get(part) or []))
    ]
    if speculation(command_line(container)).variable != VARIABLE:
        add.append(Change(places["args"], (f'- "{ARGUMENT}"',)))
    return OptIn(tuple(add), tuple(remove))


def preset_opt_in(container: Mapping[str, Any], places: Places) -> OptIn:
    """Compare a container whose command KServe's preset makes with the opt-in that such a preset takes."""
    found = opt_in(container, places)
    if found.refusal is not None:
        return found
    env = tuple(change for change in found.add if change.path == places["env"])
    value = preset_arguments(container)
    if PRESET_ARGUMENT in value:
        return OptIn(env)
    wanted = {"name": PRESET_VARIABLE, "value": f"{unspeculative(value)} {PRESET_ARGUMENT}".strip()}
    given = [entry for entry in container.get("env") or [] if entry.get("name") == PRESET_VARIABLE]
    remove = (Change.of(places["env"], json.loads(json.dumps(given))),) if given else ()
    return OptIn((*env, Change.of(places["env"], [wanted])), remove)


def unspeculative(text: str) -> str:
    """The arguments for a preset without speculative flags, whose last one would win; as it stands if it has variables or odd quotes."""
    for own in (PRESET_ARGUMENT, ARGUMENT):
        text = " ".join(text.split(own)).strip() if own in text else text
    try:
        words = shlex.split(text)
    except ValueError:
        return text
    kept = without_speculation(words)
    return text if "$" in text or kept == words else shlex.join(kept)


def _direct_start(container: Mapping[str, Any], start: EngineStart, places: Places, why: str) -> OptIn:
    """The lines with which a container starts vLLM without its shell, which makes its words and exports; opted in."""
    program = len(start.direct) - len(after_program(start.direct))
    command, args = start.direct[:program], start.direct[program:]
    direct = {"command": command, "args": [*without_speculation(args), ARGUMENT]}
    changed = opt_in({**container, **direct}, places)
    remove = [Change.of(places[part], container[part]) for part in direct if container.get(part)]
    add = [Change.of(places[part], direct[part]) for part in direct]
    env = [{"name": name, "value": value} for name, value in start.exports.items()]
    add += [Change.of(places["env"], env)] if env else []
    return OptIn((*changed.add, *add), (*changed.remove, *remove), why)


def _beside_the_variable(items: Sequence[Any]) -> list[Any]:
    """Items of speculative flags that do not read the variable, as the file has them."""
    beside: list[Any] = []
    position = 0
    for flag in cut([str(item) for item in items]):
        following = position + len(flag.items)
        reads_it = flag.name == SPECULATIVE_CONFIG and not flag.path and flag.values == (f"$({VARIABLE})",)
        if flag.speculative and not reads_it:
            beside += items[position:following]
        position = following
    return beside


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
    places = places or places_in(container)
    call = shell_call(command_line(container))
    if call is not None and preset_end(call.script) is not None:
        return _by_preset(container, start, places)
    if start.through_shell and not start.file:
        return _in_text(container, start, places)
    if start.file and not hands_on(container, files or {}, ARGUMENT):
        return OptIn(refusal=said("deaf script", file=start.file))
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
    return beside if start.certain else OptIn(refusal=next(iter(start.problems), "its text cannot be read"))


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
    add = [change for change in unwrapped.add if change.path == places["env"]]
    remove = [change for change in unwrapped.remove if change.path == places["env"]]
    in_line = len(add) + len(remove) < len(unwrapped.add) + len(unwrapped.remove)
    if start.certain and not in_line and VARIABLE not in start.unquoted:
        return OptIn(tuple(add), tuple(remove), unwrapped.refusal)
    found = text_of_start(container)
    where = places[found.part if found is not None else "args" if container.get("args") else "command"]
    figures = {"where": where, "shell": " ".join(start.shell), "argument": QUOTED_ARGUMENT}
    if start.direct:
        return _direct_start(container, start, places, said("needless shell", **figures))
    changed = with_argument(container, QUOTED_ARGUMENT) if start.certain else None
    if changed is None:
        why = next(iter(start.problems), "its text does not show the command line to its end")
        return OptIn(refusal=said("unreadable shell", **figures, why=why))
    for part in ("command", "args"):
        for old, new in zip(container.get(part) or [], changed.get(part) or [], strict=True):
            if old != new:
                add.append(Change.of(places[part], [new]))
                remove.append(Change.of(places[part], [old]))
    return OptIn(tuple(add), tuple(remove), unwrapped.refusal or said("deaf shell", **figures))


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

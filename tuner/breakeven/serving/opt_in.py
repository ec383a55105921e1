"""Whether a pod template lets one annotation choose the arm, and which lines are missing.

The opt-in is two static things in the user's own manifest, once: an environment variable that reads the annotation
`breakeven.dev/speculative-config`, and `--speculative-config=$(BREAKEVEN_SPECULATIVE_CONFIG)`. Kubernetes turns a
missing annotation into an empty value, and vLLM takes an empty value as no speculation.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from breakeven.serving.command_line import (
    SPECULATIVE_CONFIG,
    after_program,
    command_line,
    cut,
    shell_call,
    speculation,
    without_speculation,
)
from breakeven.serving.manifest import as_written
from breakeven.serving.vllm_versions import OLDEST, version_of

ANNOTATION = "breakeven.dev/speculative-config"
VARIABLE = "BREAKEVEN_SPECULATIVE_CONFIG"
ARGUMENT = f"--speculative-config=$({VARIABLE})"
PRESET_VARIABLE = "VLLM_ADDITIONAL_ARGS"
"""The variable that KServe's presets of LLMInferenceService add to vLLM's command line, through `eval`."""
PRESET_ARGUMENT = ARGUMENT.replace("=", "='", 1) + "'"
"""The argument as that variable has it: in quotes, because `eval` would cut the JSON and drop the empty value."""
_ENV_LINES = (
    f"- name: {VARIABLE}",
    f"  valueFrom: {{fieldRef: {{fieldPath: \"metadata.annotations['{ANNOTATION}']\"}}}}",
)


@dataclass(frozen=True, slots=True)
class Change:
    """One edit of a manifest: under which path, and the exact lines."""

    path: str
    lines: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class OptIn:
    """The edits that let one annotation choose a template's arm.

    The refusal is a sentence if these lines do not help, or more is to do (a shell reads them, vLLM is too old).
    """

    add: tuple[Change, ...]
    remove: tuple[Change, ...]
    refusal: str | None

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


@dataclass(frozen=True, slots=True)
class Places:
    """Paths of command, arguments and environment of an engine's container, in the file's own terms."""

    command: str
    args: str
    env: str

    @classmethod
    def of(cls, container: Mapping[str, Any], inside: str = "") -> Places:
        """Paths of a container of the pod spec at a path, which is empty for a Deployment."""
        path = f"{inside}.containers[{container.get('name', '')}]".lstrip(".")
        return cls(f"{path}.command", f"{path}.args", f"{path}.env")


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
        refusal = (
            f"vLLM {version} is older than {OLDEST}, the oldest that Breakeven works with: upgrade first"
        )
        return OptIn((), (), refusal)
    places = places or Places.of(container)
    command = [str(item) for item in container.get("command") or []]
    args = [str(item) for item in container.get("args") or []]
    add: list[Change] = []
    remove: list[Change] = []
    entries = [e for e in container.get("env") or [] if e.get("name") == VARIABLE]
    reads = [
        (((e.get("valueFrom") or {}).get("fieldRef") or {}).get("fieldPath") or "").replace('"', "'")
        for e in entries
    ]
    if reads != [f"metadata.annotations['{ANNOTATION}']"]:
        if entries:
            lines = [line for entry in entries for line in as_written(json.loads(json.dumps(entry)))]
            remove.append(Change(places.env, tuple(lines)))
        add.append(Change(places.env, _ENV_LINES))
    # The whole value must be exactly the variable, and said once: vLLM takes the last and refuses mixed forms.
    for where, part in ((places.command, "command"), (places.args, "args")):
        items = container.get(part) or []
        beside = _beside_the_variable(items)
        if beside:
            remove.append(Change(where, tuple(line for item in beside for line in as_written(item))))
    if speculation([*command, *args]).variable != VARIABLE:
        add.append(Change(places.args, (f'- "{ARGUMENT}"',)))
    return OptIn(tuple(add), tuple(remove), None)


def preset_opt_in(container: Mapping[str, Any], places: Places) -> OptIn:
    """Compare a container whose command KServe's preset makes with the opt-in that such a preset takes."""
    found = opt_in(container, places)
    if found.refusal is not None:
        return found
    env = [change for change in found.add if change.path == places.env]
    given = [entry for entry in container.get("env") or [] if entry.get("name") == PRESET_VARIABLE]
    value = preset_arguments(container)
    if PRESET_ARGUMENT in value:
        return OptIn(tuple(env), (), None)
    wanted = f"{unspeculative(value)} {PRESET_ARGUMENT}".strip()
    lines = as_written({"name": PRESET_VARIABLE, "value": wanted})
    remove = [line for entry in given for line in as_written(json.loads(json.dumps(entry)))]
    return OptIn(
        (*env, Change(places.env, tuple(lines))),
        (Change(places.env, tuple(remove)),) if remove else (),
        None,
    )


def preset_arguments(container: Mapping[str, Any]) -> str:
    """The text that a container gives to KServe's preset for vLLM's command line; empty if it gives none."""
    given = [entry for entry in container.get("env") or [] if entry.get("name") == PRESET_VARIABLE]
    return str(given[-1].get("value", "")) if given else ""


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


def direct_start(
    container: Mapping[str, Any],
    words: Sequence[str],
    places: Places | None = None,
    exports: Mapping[str, str] | None = None,
) -> OptIn:
    """The lines with which a container starts vLLM without its shell, which makes these words and exports; opted in."""
    places = places or Places.of(container)
    program = len(words) - len(after_program(words))
    direct = {"command": words[:program], "args": [*without_speculation(words[program:]), ARGUMENT]}
    named = {"command": places.command, "args": places.args}
    changed = opt_in({**container, **direct}, places)
    remove = [
        Change(named[part], tuple(line for item in container[part] for line in as_written(item)))
        for part in ("command", "args")
        if container.get(part)
    ]
    add = [
        Change(named[part], tuple(line for item in items for line in as_written(item)))
        for part, items in direct.items()
    ]
    env = tuple(
        line for name, value in (exports or {}).items() for line in as_written({"name": name, "value": value})
    )
    add += [Change(places.env, env)] if env else []
    return OptIn((*changed.add, *add), (*changed.remove, *remove), changed.refusal)


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

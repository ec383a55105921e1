"""Whether a pod template lets one annotation choose the arm, and which lines are missing.

The opt-in is two static things in the user's own manifest, once: an environment variable that reads the annotation
`breakeven.dev/speculative-config`, and `--speculative-config=$(BREAKEVEN_SPECULATIVE_CONFIG)`. Kubernetes turns a
missing annotation into an empty value, and vLLM takes an empty value as no speculation.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from breakeven.serving.command_line import (
    SPECULATIVE_CONFIG,
    GivenFlag,
    cut,
    shell_of,
    speculation,
)

ANNOTATION = "breakeven.dev/speculative-config"
VARIABLE = "BREAKEVEN_SPECULATIVE_CONFIG"
ARGUMENT = f"--speculative-config=$({VARIABLE})"
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
    """What stands between a template and one-annotation actuation.

    Attributes:
        add: lines to add. remove: lines to remove.
        refusal: a whole sentence when no line helps (a shell re-reads the arguments), else None.
    """

    add: tuple[Change, ...]
    remove: tuple[Change, ...]
    refusal: str | None

    @property
    def ok(self) -> bool:
        """Whether writing the annotation changes what the engine runs."""
        return not (self.add or self.remove or self.refusal)


def engine_container(pod_spec: Mapping[str, Any], name: str | None = None) -> Mapping[str, Any] | None:
    """The container that runs vLLM: the named one, the only one, or the only one whose image or command says vllm.

    None when none, or more than one, may be it.
    """
    containers: Sequence[Mapping[str, Any]] = pod_spec.get("containers") or []
    if name is not None:
        return next((c for c in containers if c.get("name") == name), None)
    if len(containers) == 1:
        return containers[0]
    matching = [
        c
        for c in containers
        if "vllm" in str(c.get("image", "")) or any("vllm" in str(item) for item in c.get("command") or [])
    ]
    return matching[0] if len(matching) == 1 else None


def opt_in(container: Mapping[str, Any]) -> OptIn:
    """Compare one container (manifest JSON) with the opt-in."""
    path = f"containers[{container.get('name', '')}]"
    command = [str(item) for item in container.get("command") or []]
    args = [str(item) for item in container.get("args") or []]
    if shell := shell_of([*command, *args]):
        where = "command" if shell[0] in command else "args"
        return OptIn(
            (),
            (),
            f"{path}.{where} runs vLLM through a shell ({' '.join(shell)}), which strips the quotes of the "
            "arm's JSON: start vLLM directly (command: [vllm, serve], arguments in args)",
        )
    add: list[Change] = []
    remove: list[Change] = []
    entries = [e for e in container.get("env") or [] if e.get("name") == VARIABLE]
    reads = [
        (((e.get("valueFrom") or {}).get("fieldRef") or {}).get("fieldPath") or "").replace('"', "'")
        for e in entries
    ]
    if reads != [f"metadata.annotations['{ANNOTATION}']"]:
        if entries:
            remove.append(Change(f"{path}.env", (f"- name: {VARIABLE}  (and what follows it)",)))
        add.append(Change(f"{path}.env", _ENV_LINES))
    # The whole value must be exactly the variable, and said once: vLLM takes the last and refuses mixed forms.
    for where, items in (("command", command), ("args", args)):
        beside = [flag for flag in cut(items) if flag.speculative and not _reads_the_variable(flag)]
        if beside:
            lines = tuple(f"- {_quoted(item)}" for flag in beside for item in flag.items)
            remove.append(Change(f"{path}.{where}", lines))
    if speculation([*command, *args]).variable != VARIABLE:
        add.append(Change(f"{path}.args", (f'- "{ARGUMENT}"',)))
    return OptIn(tuple(add), tuple(remove), None)


def _reads_the_variable(flag: GivenFlag) -> bool:
    return flag.name == SPECULATIVE_CONFIG and not flag.path and flag.values == (f"$({VARIABLE})",)


def _quoted(item: str) -> str:
    return f"'{item}'" if any(c in item for c in '{}[]"#:, ') else item

"""A target's engine, read once from its pod template."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Self

from breakeven.serving.command_line import (
    GivenFlag,
    Speculation,
    command_line,
    cut,
    flag_number,
    flag_value,
    model_of,
    speculation,
)
from breakeven.serving.drain import Drain, drain
from breakeven.serving.engine_start import EngineStart, engine_start, says_vllm
from breakeven.serving.opt_in import OptIn, engine_container
from breakeven.serving.script_opt_in import opt_in_of
from breakeven_operator.ports import Manifest
from breakeven_operator.workloads.devices import Devices, devices_of

# A tenant's text of the greatest length that the grammar reads would hold up the cycle of all services for a second.
_LONGEST_TEXT = 4096


@dataclass(frozen=True, slots=True)
class ServedEngine:
    """The container that runs vLLM, and what follows from it.

    Attributes:
        start: how it starts vLLM: directly, or by the text of a shell.
        words: command and arguments that vLLM gets. flags: the same, cut into flags with their values.
        opt_in: what stands between the template and an annotation that chooses the arm.
        drain: whether a pod that is replaced finishes its requests.
        model: as the command line names it.
    """

    container: Mapping[str, Any]
    pod_spec: Mapping[str, Any]
    start: EngineStart
    words: tuple[str, ...]
    flags: tuple[GivenFlag, ...]
    speculation: Speculation
    opt_in: OptIn
    drain: Drain
    devices: Devices
    model: str | None

    @classmethod
    def of(cls, template: Manifest, container_name: str | None) -> Self | None:
        """The engine of a pod template, in the named container if a user names one; None if none or several may be it."""
        spec = template["spec"]
        container = engine_container(spec, container_name)
        if container is None:
            return None
        start = engine_start(container, longest=_LONGEST_TEXT)
        words = start.words if start.shell else tuple(command_line(container))
        stopping = drain(spec, container, words)
        if start.undrained:
            stopping = replace(stopping, problems=(*stopping.problems, start.undrained))
        return cls(
            container=container,
            pod_spec=spec,
            start=start,
            words=words,
            flags=cut(words),
            speculation=speculation(words),
            opt_in=opt_in_of(container, start),
            drain=stopping,
            devices=devices_of(container, spec),
            model=model_of(words),
        )

    @classmethod
    def of_workers(cls, spec: Mapping[str, Any]) -> Self | None:
        """The engine that workers of a group start themselves; None if something else starts it in them, such as Ray."""
        containers = [one for one in spec.get("containers") or [] if says_vllm(one)]
        found = cls.of({"spec": {**spec, "containers": containers}}, None)
        return found if found is not None and found.model is not None else None

    @property
    def name(self) -> str:
        """Name of the container."""
        return str(self.container.get("name", ""))

    def flag(self, name: str) -> str | None:
        """Value of a flag by its long name; None if absent."""
        return flag_value(self.words, name)

    def number(self, name: str) -> int | None:
        """A whole number that a flag gives; None if it gives none."""
        return flag_number(self.words, name)

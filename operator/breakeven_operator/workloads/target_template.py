"""A target's pod template, the one place of the operator that reads one: every part when it is first asked for, and once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Self

from breakeven.serving import command_line
from breakeven.serving.command_line import GivenFlag, Speculation
from breakeven.serving.drain import Drain, drain
from breakeven.serving.opt_in import OptIn, engine_container, opt_in
from breakeven_operator.ports import Manifest
from breakeven_operator.workloads.devices import Devices, devices_of


@dataclass(frozen=True)
class TargetEngine:
    """The engine's container of a pod template.

    Attributes:
        container: as the template has it.
        pod_spec: the spec that it stands in.
    """

    container: Mapping[str, Any]
    pod_spec: Mapping[str, Any]

    @property
    def name(self) -> str:
        """Name of the container."""
        return str(self.container.get("name", ""))

    @cached_property
    def words(self) -> tuple[str, ...]:
        """Command and arguments as the manifest has them."""
        return tuple(command_line.command_line(self.container))

    @cached_property
    def flags(self) -> tuple[GivenFlag, ...]:
        """The same cut into flags with their values."""
        return command_line.cut(self.words)

    @cached_property
    def shell(self) -> tuple[str, ...]:
        """The shell that would read the command line again; empty if there is none."""
        return command_line.shell_of(self.words)

    @cached_property
    def speculation(self) -> Speculation:
        """What the arguments say about speculation."""
        return command_line.speculation(self.words)

    @cached_property
    def opt_in(self) -> OptIn:
        """What stands between the template and an annotation that chooses the arm."""
        return opt_in(self.container)

    @cached_property
    def drain(self) -> Drain:
        """Whether a pod that is replaced finishes its requests."""
        return drain(self.pod_spec, self.container)

    @cached_property
    def devices(self) -> Devices:
        """What a pod's engine asks of devices."""
        return devices_of(self.container, self.pod_spec)

    @cached_property
    def model(self) -> str | None:
        """The model that the command line names."""
        return command_line.model_of(self.words)

    @cached_property
    def served_model(self) -> str | None:
        """VLLM's `model_name` label: the model's first name for clients."""
        return self.flag("--served-model-name") or self.model

    @cached_property
    def max_num_seqs(self) -> int | None:
        """Requests that one engine runs at once; None where it is left to vLLM."""
        return self.number("--max-num-seqs")

    def flag(self, name: str) -> str | None:
        """Value of a flag by its long name; None when absent."""
        return command_line.flag_value(self.words, name)

    def number(self, name: str) -> int | None:
        """A whole number that a flag gives; None when it gives none."""
        return command_line.flag_number(self.words, name)


@dataclass(frozen=True)
class TargetTemplate:
    """A pod template with its engine.

    Attributes:
        manifest: the template as JSON.
        engine: None when no container, or more than one, may be the one that runs vLLM.
    """

    manifest: Manifest
    engine: TargetEngine | None

    @classmethod
    def read(cls, manifest: Manifest, container_name: str | None) -> Self:
        """A template with the container that a user named; None: told from the template."""
        container = engine_container(manifest["spec"], container_name)
        return cls(manifest, TargetEngine(container, manifest["spec"]) if container is not None else None)

    @property
    def spec(self) -> Mapping[str, Any]:
        """The pods' spec."""
        spec: Mapping[str, Any] = self.manifest["spec"]
        return spec

    @property
    def labels(self) -> Mapping[str, str]:
        """The pods' labels."""
        return (self.manifest.get("metadata") or {}).get("labels") or {}

    @property
    def annotations(self) -> Mapping[str, str]:
        """The pods' annotations."""
        return (self.manifest.get("metadata") or {}).get("annotations") or {}

    @property
    def grace_s(self) -> float:
        """The pods' termination grace period, s."""
        return float(self.spec.get("terminationGracePeriodSeconds", 30))

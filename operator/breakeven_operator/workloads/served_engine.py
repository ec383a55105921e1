"""A target's engine, read once from its pod template, and the devices that it asks for: GPUs, slices, other accelerators, claims of DRA."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from decimal import Decimal
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
from breakeven.serving.engine_start import EngineStart, engine_start, says_vllm
from breakeven.serving.opt_in import OptIn, engine_container, opt_in_of
from breakeven.serving.rolling import Drain, drain
from breakeven_operator.ports import Manifest

# Whole GPUs of any vendor's plugin (nvidia.com/gpu, amd.com/gpu).
_WHOLE = "/gpu"
# Slices and accelerators whose plugins use another word: nvidia.com/mig-3g.40gb, nvidia.com/gpu.shared, gpu.intel.com/xe,
# habana.ai/gaudi, google.com/tpu, aws.amazon.com/neuroncore, huawei.com/Ascend910.
_ACCELERATOR = re.compile(
    r"/(mig-.+|gpu\..+|.*gpu|xe|i915|gaudi\w*|tpu|neuron\w*|ascend.*|npu.*|mlu\w*|dcu\w*|qaic\w*)$",
    re.IGNORECASE,
)
# Extended resources beside an accelerator that are none: fabric, amounts of a GPU's memory, devices of the system.
_BESIDE = re.compile(
    r"rdma|hca|infiniband|/ib|sriov|/efa|/roce|nic\b|mem|cores?$|/(fuse|kvm|tun|vhost\S*)$", re.IGNORECASE
)
# Resources of Kubernetes itself that have a slash in their name.
_OWN = ("kubernetes.io/", "requests.", "attachable-volumes-")
_UNITS = {"": 1, **{unit: 1000**power for power, unit in enumerate("kMGTPE", 1)}}


_UNITS |= {f"{unit}i": 1024**power for power, unit in enumerate("KMGTPE", 1)}


_QUANTITY = re.compile(
    rf"(?P<number>\d{{1,20}}(?:\.\d{{0,9}})?(?:[eE][+-]?\d\d?)?)(?P<unit>{'|'.join(_UNITS)})"
)
# More than any node has; a status holds no sum of numbers that are longer.
_MOST = Decimal(2**31 - 1)


@dataclass(frozen=True, slots=True)
class Devices:
    """The devices of one container.

    Attributes:
        whole: GPUs.
        others: slices, other accelerators and what stands beside them, with their numbers.
        claims: of DRA, each as (name or template, request within it).
    """

    whole: int
    others: Mapping[str, int]
    claims: tuple[tuple[str, str], ...]
    resources: tuple[str, ...]

    @property
    def identity(self) -> Mapping[str, object]:
        """The devices that move a latency besides the number of whole GPUs; empty if there are no others."""
        return {
            **({"devices": dict(self.others)} if self.others else {}),
            **({"claims": [list(claim) for claim in self.claims]} if self.claims else {}),
        }

    @property
    def count(self) -> int:
        """Devices that a pod holds while it is there: a slice is one, and so is a claim, whose size nobody tells."""
        accelerators = sum(n for name, n in self.others.items() if _ACCELERATOR.search(name))
        unknown = sum(n for name, n in self.others.items() if not _BESIDE.search(name))
        known = self.whole + accelerators or unknown or int(bool(self.others))
        return known + len(self.claims)


def devices_of_pod(spec: Mapping[str, Any]) -> int:
    """Devices that the containers of a pod ask for together."""
    return sum(devices_of(container, spec).count for container in spec.get("containers") or [])


def devices_of(container: Mapping[str, Any], pod_spec: Mapping[str, Any] | None = None) -> Devices:
    """The extended resources and the claims that a container asks for; the pod's spec has what stands behind a claim's name."""
    resources = container.get("resources") or {}
    asked = {**(resources.get("requests") or {}), **(resources.get("limits") or {})}
    extended = {
        name: _number(str(quantity))
        for name, quantity in asked.items()
        if "/" in name and not name.startswith(_OWN) and ".kubernetes.io/" not in name
    }
    behind = {
        claim["name"]: str(claim.get("resourceClaimTemplateName") or claim.get("resourceClaimName") or "")
        for claim in (pod_spec or {}).get("resourceClaims") or []
    }
    claims = sorted(
        (behind.get(claim["name"], claim["name"]), str(claim.get("request") or ""))
        for claim in resources.get("claims") or []
    )
    whole = {name: number for name, number in extended.items() if name.endswith(_WHOLE)}
    return Devices(
        whole=sum(whole.values()),
        others={name: extended[name] for name in sorted(extended.keys() - whole.keys())},
        claims=tuple(claims),
        resources=tuple(sorted(extended)),
    )


def _number(quantity: str) -> int:
    """Devices of a quantity as Kubernetes writes it, such as `2`, `1e0` or `1k`.

    `kubernetes.utils.quantity` reads one too, and takes the whole client along: half a second and 35 MB.
    The API server lets no fraction of a device into a pod, but into the template of a custom resource: a part of one is one.
    """
    found = _QUANTITY.fullmatch(quantity)
    if found is None:
        return 1
    number: Decimal = Decimal(found["number"]) * _UNITS[found["unit"]]
    return math.ceil(min(number, _MOST))


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

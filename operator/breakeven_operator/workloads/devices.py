"""The devices that an engine's container asks for: whole GPUs, slices of one, other accelerators, and claims of DRA."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

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

"""Simulated GPUs: the labels GPU Feature Discovery gives a node, and which container holds which GPU."""

from __future__ import annotations

from dataclasses import dataclass, field

RESOURCE = "nvidia.com/gpu"


@dataclass(frozen=True)
class Product:
    """Labels that GPU Feature Discovery gives one GPU model."""

    memory_mib: int
    family: str
    compute: tuple[int, int]


# Memory as `nvidia-smi --query-gpu=memory.total` prints it; family and compute capability from NVIDIA's CUDA GPU list.
PRODUCTS = {
    "NVIDIA-A100-SXM4-40GB": Product(40960, "ampere", (8, 0)),
    "NVIDIA-A100-SXM4-80GB": Product(81920, "ampere", (8, 0)),
    "NVIDIA-A100-80GB-PCIe": Product(81920, "ampere", (8, 0)),
    "NVIDIA-L4": Product(23034, "ada-lovelace", (8, 9)),
    "NVIDIA-L40S": Product(46068, "ada-lovelace", (8, 9)),
    "NVIDIA-H100-80GB-HBM3": Product(81559, "hopper", (9, 0)),
    "NVIDIA-H100-PCIe": Product(81559, "hopper", (9, 0)),
    "NVIDIA-H200": Product(143771, "hopper", (9, 0)),
    "NVIDIA-B200": Product(183359, "blackwell", (10, 0)),
}


def labels(product: str, count: int) -> dict[str, str]:
    """The node labels for `count` GPUs of a product; an unknown product gets those that do not depend on the model."""
    found = {
        "nvidia.com/gpu.present": "true",
        "nvidia.com/gpu.product": product,
        "nvidia.com/gpu.count": str(count),
        "nvidia.com/gpu.replicas": "1",
        "nvidia.com/gpu.sharing-strategy": "none",
        "nvidia.com/mig.capable": "false",
    }
    if known := PRODUCTS.get(product):
        major, minor = known.compute
        found |= {
            "nvidia.com/gpu.memory": str(known.memory_mib),
            "nvidia.com/gpu.family": known.family,
            "nvidia.com/gpu.compute.major": str(major),
            "nvidia.com/gpu.compute.minor": str(minor),
            "nvidia.com/mig.capable": "true" if major >= 8 and minor == 0 else "false",
        }
    return found


@dataclass
class Ledger:
    """Which of a node's GPUs each holder has; the scheduler counts, this only tells them apart."""

    count: int
    held: dict[str, tuple[int, ...]] = field(default_factory=dict)

    def take(self, holder: str, wanted: int) -> tuple[int, ...]:
        """The lowest free GPUs; the same ones again for a holder that already has them.

        Raises:
            LookupError: fewer than `wanted` are free (only a pod that went past the scheduler meets this).
        """
        if wanted == 0:
            return ()
        if len(self.held.get(holder, ())) == wanted:
            return self.held[holder]
        taken = {index for name, indexes in self.held.items() if name != holder for index in indexes}
        free = [index for index in range(self.count) if index not in taken]
        if len(free) < wanted:
            raise LookupError(f"{wanted} of {RESOURCE} asked for, {len(free)} of {self.count} free")
        self.held[holder] = tuple(free[:wanted])
        return self.held[holder]

    def release(self, holder: str) -> None:
        """Gives back what a holder has, if anything."""
        self.held.pop(holder, None)

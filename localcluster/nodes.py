"""Which nodes a cluster has, and the command that plays them."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self

from localcluster.failure import LocalClusterError
from localcluster.state import StateFolder

_NODE: Final = re.compile(r"(?P<name>[a-z0-9]([-a-z0-9]*[a-z0-9])?)=(?P<product>[\w.-]+):(?P<count>\d{1,3})")


@dataclass(frozen=True)
class GpuNode:
    """A GPU node: its name, its GPUs as GPU Feature Discovery labels them, and how many of them."""

    name: str
    product: str
    gpus: int

    @classmethod
    def parse(cls, text: str) -> Self:
        """From `NAME=GPU_PRODUCT:COUNT`.

        Raises:
            LocalClusterError: it is not of that form.
        """
        found = _NODE.fullmatch(text)
        if found is None:
            raise LocalClusterError(
                f"node {text!r}; expected NAME=GPU_PRODUCT:COUNT, for example {DEFAULT[0]}"
            )
        return cls(found["name"], found["product"], int(found["count"]))

    def __str__(self) -> str:
        return f"{self.name}={self.product}:{self.gpus}"


DEFAULT: Final = (
    GpuNode("a100-0", "NVIDIA-A100-SXM4-80GB", 8),
    GpuNode("h100-0", "NVIDIA-H100-80GB-HBM3", 8),
)


def agent_command(
    state: StateFolder, nodes: Sequence[GpuNode], *, agent: str, extra: Sequence[str] = ()
) -> list[str]:
    """Command line of the node agent for these nodes; it serves its kubelet port with the cluster's certificates."""
    return [
        sys.executable, "-P", "-m", "localcluster.nodeagent",
        "--kubeconfig", str(state.kubeconfig_of("node-agent")),
        "--state-dir", str(state.root / "nodes" / agent),
        "--tls-cert-file", str(state.pki / "node.crt"),
        "--tls-private-key-file", str(state.pki / "node.key"),
        "--client-ca-file", str(state.pki / "ca.crt"),
        *(part for node in nodes for part in ("--node", str(node))),
        *extra,
    ]  # fmt: skip


def with_this_package(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment with the folder of this package on PYTHONPATH, so that processes can start anywhere."""
    home = str(Path(__file__).parents[1])
    earlier = [entry for entry in environment.get("PYTHONPATH", "").split(":") if entry]
    # Relative entries meant something where the starter stood, and nothing in the state folder.
    absolute = [str(Path(entry).absolute()) for entry in earlier]
    return {**environment, "PYTHONPATH": ":".join(dict.fromkeys([home, *absolute]))}


def is_ready(node: Mapping[str, Any] | None) -> bool:
    """Whether a Node object, as JSON, says that pods can be placed there."""
    conditions = (node or {}).get("status", {}).get("conditions", [])
    return any(c["type"] == "Ready" and c["status"] == "True" for c in conditions)

"""What a profile is valid for: everything of the target that moves its latency and is not the arm.

In it: the image's digest as the node resolved it, the model, the engine's arguments without speculative ones, the
engine's environment, GPU product, and what a pod asks of devices. Not in it: our annotation, restartedAt, replicas, resources of
sidecars; otherwise every roll would recalibrate.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from breakeven.serving.command_line import cut, flag_value, model_of
from breakeven.serving.opt_in import VARIABLE
from breakeven_operator.reconcile.deployment import Deployment
from breakeven_operator.reconcile.devices import devices_of

# They say where the server listens and what it prints, not how fast it is; a port change is no reason to measure anew.
_HARMLESS = ("--host", "--port", "--api-key", "--root-path", "--uvicorn-log-level", "--shutdown-timeout")


@dataclass(frozen=True, slots=True)
class Identity:
    """What a measurement of the target belongs to.

    Attributes:
        fingerprint: 12 hexadecimal digits over all of it.
        model: as the command line names it. served_model: vLLM's `model_name` label.
        image: digest where known, else the tag of the manifest.
        gpu_product: GPU class; None when unknown.
        gpus: devices per pod, slices and claims among them.
        registry_digest: the image's digest in its registry; None while no pod tells one.
    """

    fingerprint: str
    model: str | None
    served_model: str | None
    image: str
    gpu_product: str | None
    gpus: int
    registry_digest: str | None = None


def identify(deployment: Deployment) -> Identity:
    """The identity of a workload's current pods (of its template, where no pod runs yet).

    The digest comes from Ready pods of the newest ReplicaSet. While none runs, the manifest's image stands in, and the
    fingerprint changes once when the digest becomes known: a profile is looked up only with serving pods.
    """
    container = deployment.container or {}
    line = deployment.command_line
    digests = sorted({digest(pod.image_id) for pod in deployment.serving if pod.image_id})
    image = digests[-1] if digests else str(container.get("image", ""))
    devices = devices_of(container, deployment.pod_spec)
    product = deployment.gpu_products[0] if len(deployment.gpu_products) == 1 else deployment.gpu_hint
    model = model_of(line)
    facts = {
        "image": image,
        "arguments": _arguments(line),
        "environment": _environment(container.get("env") or []),
        "gpu": product,
        "gpus": devices.whole,
        **devices.identity,
    }
    text = json.dumps(facts, sort_keys=True, separators=(",", ":"))
    return Identity(
        fingerprint=hashlib.sha256(text.encode()).hexdigest()[:12],
        model=model,
        served_model=flag_value(line, "--served-model-name") or model,
        image=image,
        gpu_product=product,
        gpus=devices.count,
        registry_digest=max(
            (found for pod in deployment.serving if (found := registry_digest(pod.image_id))), default=None
        ),
    )


def digest(image_id: str) -> str:
    """`sha256:...` of an imageID such as `docker.io/vllm/vllm-openai@sha256:...`; the whole text without one."""
    return image_id.rpartition("@")[2]


def registry_digest(image_id: str) -> str | None:
    """The digest under which a registry knows the image; None where the node tells only an identity of its own.

    Only these can be compared between nodes: an image that was loaded by hand has another name on each runtime.
    """
    return digest(image_id) if "@" in image_id else None


def gpus_of(container: Mapping[str, Any]) -> int:
    """Devices that one pod's engine holds: GPUs of any vendor, slices, other accelerators, claims of DRA."""
    return devices_of(container).count


def _arguments(line: Sequence[str]) -> list[str]:
    """Arguments that matter, in their order (vLLM takes the last of two equal flags)."""
    matter = (flag for flag in cut(line) if not flag.speculative and flag.name not in _HARMLESS)
    return [item for flag in matter for item in flag.items]


def _environment(entries: Sequence[Mapping[str, Any]]) -> list[Any]:
    """The engine's own environment by name; values of Secrets and ConfigMaps by reference, never by content."""
    engine = [
        entry
        for entry in entries
        if entry.get("name") != VARIABLE
        and str(entry.get("name", "")).startswith(("VLLM_", "CUDA_", "NCCL_"))
    ]
    return sorted(
        ([entry.get("name"), entry.get("value"), entry.get("valueFrom")] for entry in engine),
        key=lambda item: str(item[0]),
    )

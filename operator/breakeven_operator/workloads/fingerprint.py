"""The validity of a profile: everything of the target that moves its latency and is not the arm.

In it: the image's digest on the node, the model, the engine's arguments without speculative ones, the engine's environment,
the GPU product, and the devices that a pod asks for. Not in it: our annotation, restartedAt, replicas, resources of
sidecars; otherwise every roll would recalibrate.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from breakeven.serving.command_line import GivenFlag
from breakeven.serving.opt_in import VARIABLE
from breakeven_operator.workloads.devices import devices_of_pod
from breakeven_operator.workloads.served_engine import ServedEngine
from breakeven_operator.workloads.workload_kind import ALONE, Workers

# These flags set where the server listens and what it prints, not its speed; a port change needs no calibration.
_FETCHES = "storage-initializer"
_HARMLESS = ("--host", "--port", "--api-key", "--root-path", "--uvicorn-log-level", "--shutdown-timeout")


@dataclass(frozen=True, slots=True)
class Identity:
    """The identity of a target that a measurement belongs to.

    Attributes:
        fingerprint: 12 hexadecimal digits over all of it.
        model: as the command line names it. served_model: vLLM's `model_name` label.
        image: digest where known, else the tag of the manifest.
        gpu_product: GPU class; None if unknown.
        gpus: devices per replica, slices and claims among them.
        registry_digest: the image's digest in its registry; None while no pod tells one.
        one_of_several: whether the target's pods run on other GPU classes too, each of which has an identity of its own.
    """

    fingerprint: str
    model: str | None
    served_model: str | None
    image: str
    gpu_product: str | None
    gpus: int
    registry_digest: str | None = None
    one_of_several: bool = False


def identify(
    engine: ServedEngine, image_ids: Iterable[str], gpu_product: str | None, workers: Workers = ALONE
) -> Identity:
    """The identity of an engine.

    Args:
        engine: of the pod template.
        image_ids: of its image, as nodes of Ready pods resolved it. Without any the manifest's image stands in, and the
            fingerprint changes once when the digest becomes known.
        gpu_product: GPU class; None if unknown.
        workers: of each replica.
    """
    known = list(image_ids)
    image = max(map(digest, known), default=str(engine.container.get("image", "")))
    facts = {
        "image": image,
        "arguments": _arguments(engine.flags),
        "environment": _environment(
            [
                *(engine.container.get("env") or []),
                *({"name": name, "value": value} for name, value in engine.start.exports.items()),
            ]
        ),
        "gpu": gpu_product,
        "gpus": engine.devices.whole,
        **engine.devices.identity,
        **({"beside": engine.start.beside} if engine.start.beside else {}),
        **({"workers": _workers(workers)} if workers.number else {}),
        **({"fetched": fetched} if (fetched := _fetched(engine.pod_spec)) else {}),
    }
    text = json.dumps(facts, sort_keys=True, separators=(",", ":"))
    return Identity(
        fingerprint=hashlib.sha256(text.encode()).hexdigest()[:12],
        model=engine.model,
        served_model=engine.flag("--served-model-name") or engine.model,
        image=image,
        gpu_product=gpu_product,
        gpus=engine.devices.count + workers.number * devices_of_pod(workers.pod_spec),
        registry_digest=max(filter(None, map(registry_digest, known)), default=None),
    )


def digest(image_id: str) -> str:
    """`sha256:...` of an imageID such as `docker.io/vllm/vllm-openai@sha256:...`; the whole text without one."""
    return image_id.rpartition("@")[2]


def registry_digest(image_id: str) -> str | None:
    """The digest under which a registry knows the image; None if the node tells only an identity of its own.

    Only these can be compared between nodes: an image that was loaded by hand has another name on each runtime.
    """
    return digest(image_id) if "@" in image_id else None


def _workers(workers: Workers) -> list[Any]:
    """The number of pods that compute with the engine, and what they run."""
    containers = workers.pod_spec.get("containers") or []
    fields = ("image", "command", "args", "resources")
    return [workers.number, [[one.get(field) for field in fields] for one in containers]]


def _fetched(pod_spec: Mapping[str, Any]) -> list[Any]:
    """Arguments of KServe's init container: vLLM is given a folder, and these name the model that comes into it."""
    inits = pod_spec.get("initContainers") or []
    return [one.get("args") for one in inits if one.get("name") == _FETCHES]


def _arguments(flags: Iterable[GivenFlag]) -> list[str]:
    """Arguments that matter, in their order (vLLM takes the last of two equal flags)."""
    matter = (flag for flag in flags if not flag.speculative and flag.name not in _HARMLESS)
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

"""Values of charts that are known, as pod templates: each becomes what the chart makes of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from breakeven.serving.manifest import CONTAINER, POD_SPEC, checked
from breakeven.serving.opt_in import Places
from breakeven.serving.template import PodTemplate, at

_NO_HOOKS = (
    "the versions of this chart that were read have no values for an engine's preStop hook and terminationGracePeriodSeconds: "
    "patch the Deployment that it makes"
)


def _production_stack(values: Mapping[str, Any], where: str, prefix: str) -> Iterator[PodTemplate]:
    models = at(values, ("servingEngineSpec", "modelSpec"))
    for number, model in enumerate(models if isinstance(models, list) else []):
        if not isinstance(model, Mapping):
            continue
        named = str(model.get("name", number))
        path = f"{prefix}servingEngineSpec.modelSpec[{named}]"
        settings = checked(model.get("vllmConfig") or {}, {"extraArgs": [str]}, where, f"{path}.vllmConfig")
        shape = {"env": CONTAINER["env"], "podAnnotations": {}}
        one = checked(model, shape, where, path)
        engine: Mapping[str, Any] = at(values, ("servingEngineSpec",)) or {}
        grouped = at(model, ("lwsSpec", "enabled")) is True
        container: dict[str, Any] = {
            "name": "vllm",
            "image": f"{model.get('repository', '')}:{model.get('tag', '')}",
            "command": ["vllm", "serve", str(model.get("modelURL", "")), *_stack_flags(model, settings)],
            "args": settings.get("extraArgs") or [],
            "env": one.get("env") or [],
            "ports": [{"name": engine.get("containerPortName", "container-port")}],
        }
        spec: dict[str, Any] = {"containers": [container]}
        yield PodTemplate(
            "production-stack values", named, where, one.get("podAnnotations") or {}, f"{path}.podAnnotations",
            checked(spec, POD_SPEC, where, path), inside=path, managed="raySpec" not in model and not grouped,
            places={"vllm": Places(f"{path}.vllmConfig", f"{path}.vllmConfig.extraArgs", f"{path}.env")}, remark=_NO_HOOKS,
        )  # fmt: skip


def _stack_flags(model: Mapping[str, Any], settings: Mapping[str, Any]) -> list[str]:
    """Flags that the chart makes of fields of its own."""
    said = {
        "maxModelLen": "--max-model-len",
        "maxNumSeqs": "--max-num-seqs",
        "tensorParallelSize": "--tensor-parallel-size",
    }
    flags = [word for key, flag in said.items() if key in settings for word in (flag, str(settings[key]))]
    groups = at(model, ("lwsSpec", "size")) if at(model, ("lwsSpec", "enabled")) is True else None
    stages = settings.get("pipelineParallelSize", groups) if groups or "raySpec" in model else None
    flags += ["--pipeline-parallel-size", str(stages)] if stages else []
    if model.get("enableLoRA"):
        flags.append("--enable-lora")
    cache = model.get("lmcacheConfig")
    if isinstance(cache, Mapping) and cache.get("enabled"):
        flags += ["--kv-transfer-config", '{"kv_connector":"LMCacheConnectorV1"}']
    return flags


_EXTRA = "this chart takes a container's lifecycle under its extraConfig, and nowhere else in the version that was read"


def _modelservice(values: Mapping[str, Any], where: str, prefix: str) -> Iterator[PodTemplate]:
    for role in ("decode", "prefill"):
        part = values.get(role)
        if not isinstance(part, Mapping) or not isinstance(part.get("containers"), list):
            continue
        if part.get("create") is False:
            continue
        path = f"{prefix}{role}"
        shape = POD_SPEC | {"podAnnotations": {}, "annotations": {}}
        # These pass on everything for which the chart has no field.
        more = checked(part.get("extraConfig") or {}, POD_SPEC, where, f"{path}.extraConfig")
        spec = {**more, **checked(part, shape, where, path)}
        shards = at(part, ("parallelism", "data"))
        parallel = ["--data-parallel-size", str(shards)] if isinstance(shards, int) and shards > 1 else []
        containers = [
            {
                **one,
                "lifecycle": checked(one.get("extraConfig") or {}, CONTAINER, where, path).get("lifecycle"),
            }
            | ({"command": ["vllm", "serve", *parallel]} if one.get("modelCommand") == "vllmServe" else {})
            for one in spec["containers"]
        ]
        yield PodTemplate(
            "llm-d-modelservice values", role, where,
            spec.get("podAnnotations") or {}, f"{path}.podAnnotations", {**spec, "containers": containers}, inside=path,
            managed=not values.get("multinode"), remark=_EXTRA,
        )  # fmt: skip


def _own_chart(values: Mapping[str, Any], where: str, prefix: str) -> Iterator[PodTemplate]:
    image = values.get("image")
    if not isinstance(image, Mapping) or not isinstance(image.get("command"), list):
        return
    path = f"{prefix}image"
    one = checked(image, {"command": [str], "env": CONTAINER["env"]}, where, path)
    container: dict[str, Any] = {
        "name": "vllm",
        "image": f"{image.get('repository', '')}:{image.get('tag', '')}",
        "command": one["command"],
        "env": one.get("env") or [],
    }
    yield PodTemplate(
        "vLLM chart values", str(values.get("nameOverride") or "vllm"), where, {}, f"{prefix}podAnnotations",
        {"containers": [container]}, inside=path, managed=True,
        places={"vllm": Places(f"{path}.command", f"{path}.command", f"{path}.env")},
    )  # fmt: skip


CHARTS: tuple[Callable[[Mapping[str, Any], str, str], Iterator[PodTemplate]], ...] = (
    _production_stack,
    _modelservice,
    _own_chart,
)
"""The readers of a chart's values; each yields nothing for the values of another chart."""

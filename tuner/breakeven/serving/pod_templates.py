"""Pod templates wherever a file has them: in workloads of several kinds, in lists of them, in values of charts.

Each comes with the paths of its parts in that file's own terms. A thing without a pod template that can be read is passed over
with the reason, by name. No API server has checked a file: the parts that lint reads have the types they must have, or are refused.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from breakeven.errors import InputError
from breakeven.intake import kind_of, shipped_json
from breakeven.serving.opt_in import Places, places_in
from breakeven.serving.rolling import ROLLED

# Shapes of what is read, kinds with the paths of their pod templates, and kinds that are never read.
_TABLE: Mapping[str, Any] = shipped_json("manifests.json")
_CONTAINER: Mapping[str, Any] = _TABLE["shapes"]["container"]
_POD_SPEC: Mapping[str, Any] = {**_TABLE["shapes"]["pod_spec"], "containers": (_CONTAINER,)}
# The types that a shape names, and how a refusal calls what is expected.
_TYPES: Mapping[str, tuple[type | tuple[type, ...], str]] = {
    "text": (str, "a text"),
    "number": ((int, float), "a number"),
    "pods": ((int, str), "a number of pods or a percentage"),
    "ordinal": (int, "a text"),
}


def checked_claim(document: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Return the PersistentVolumeClaim without its nulls; raises what `checked` raises."""
    found = dict(checked(document, _TABLE["shapes"]["claim"], where, ""))
    return {"metadata": {"name": "", **(found.get("metadata") or {})}, "spec": found.get("spec") or {}}


def checked(value: Any, shape: Any, where: str, path: str) -> Any:
    """Return a part of a manifest without its nulls, which Kubernetes takes for absent.

    A shape is an object of shapes by name, a list of one shape, or a name of `_TYPES`. `path` is empty for the whole document.

    Raises:
        InputError: naming the first field of another type than Kubernetes gives it.
    """
    if isinstance(shape, Mapping):
        if not isinstance(value, Mapping):
            raise _refusal(value, where, path, "an object")
        return {
            key: checked(item, shape[key], where, f"{path}.{key}".lstrip(".")) if key in shape else item
            for key, item in value.items()
            if item is not None
        }
    if isinstance(shape, list | tuple):
        if not isinstance(value, list):
            raise _refusal(value, where, path, "a list")
        return [checked(item, shape[0], where, f"{path}[{index}]") for index, item in enumerate(value)]
    accepted, expected = _TYPES[shape]
    if not isinstance(value, accepted):
        raise _refusal(value, where, path, expected)
    return value


def _refusal(value: Any, where: str, path: str, expected: str) -> InputError:
    return InputError(f"{where}: {path or 'the document'}", kind_of(value), expected)


MOST_OBJECTS = 10_000
"""Objects of a file that are looked at."""
Path = tuple[str, ...]
"""Keys from an object inwards."""


@dataclass(frozen=True, slots=True)
class PodTemplate:
    """A pod template, with what stands around it.

    Attributes:
        kind: of the object that has it, or the name of the chart whose values have it.
        where: file and document.
        annotations: annotations of the pods. annotations_path: where the file has them.
        pod_spec: as far as the file says it.
        inside: path of the pod spec; empty for a Deployment and its like.
        managed: whether the operator rolls what runs it.
        places: of a container by its name, if it does not lie as in a pod spec.
        rolling: what the spec of a managed object says about rolls; empty for another.
        remark: what is to be known of the place, as a sentence.
    """

    kind: str
    name: str
    where: str
    annotations: Mapping[str, Any]
    annotations_path: str
    pod_spec: Mapping[str, Any]
    inside: str = ""
    managed: bool = False
    places: Mapping[str, Places] = field(default_factory=dict)
    rolling: Mapping[str, Any] = field(default_factory=dict)
    namespace: str = ""
    remark: str = ""

    @property
    def title(self) -> str:
        """Kind and name."""
        return f"{self.kind}/{self.name}"

    @property
    def containers(self) -> Sequence[Mapping[str, Any]]:
        """Its containers."""
        found: Sequence[Mapping[str, Any]] = self.pod_spec.get("containers") or []
        return found

    def places_of(self, container: Mapping[str, Any]) -> Places:
        """Paths in the file of the parts of one of its containers."""
        name = str(container.get("name", ""))
        return self.places.get(name) or places_in(container, self.inside)


@dataclass(frozen=True, slots=True)
class PassedOver:
    """Something that is not read, by kind and name, and the reason with what would help; empty for an object that runs no pods."""

    title: str
    why: str = ""


def at(item: Any, path: Path) -> Any:
    """The part at a path; None if there is none."""
    for key in path:
        item = item.get(key) if isinstance(item, Mapping) else None
    return item


_UNKNOWN = "not read: a kind that is not known; lint the object that its controller makes"
_ANOTHER = "not read: a kind of another group; lint the object that its controller makes"
PATCH = "a patch; lint what `kubectl kustomize` renders"
TEMPLATE = "a Helm template; lint what `helm template` renders"

PRESET_KIND = "LLMInferenceService"
PRESET_CONTAINER = "main"
"""The kind whose pods KServe makes by presets, and the preset's container that runs vLLM."""

_DEEPEST_LISTS = 3
_HELMS_OWN = re.compile(r"\{\{-?\s*(?:\.(?:Values|Release|Chart|Capabilities|Files)\b|include\b|template\b)")
# KServe fills in {{.Name}} and the like by itself.
_COMMENTS = re.compile(r"(?:[ \t\r]*(?:(?:#|//)[^\n]*)?\n)*[ \t]*")
_HELM = re.compile(r"\{\{-?\s*(?:[.$]|(?:if|else|end|range|with|include|template|define|tpl|toYaml|quote)\b)")


def _path(dotted: str) -> Path:
    return tuple(dotted.split(".")) if dotted else ()


# Paths by kind: of pod specs, and of the annotations that reach the pods; of a chart's values, in kinds that install one.
_TEMPLATES: Mapping[str, Sequence[tuple[Path, Path]]] = {
    kind: [(_path(spec), _path(annotations)) for spec, annotations in places]
    for kinds, places in _TABLE["templates"]
    for kind in kinds
}
_RELEASES: Mapping[str, Path] = {kind: _path(dotted) for kind, dotted in _TABLE["releases"].items()}
_NOT_READ: Mapping[str, str] = _TABLE["not_read"]
# The API groups of kinds whose names mean something else in other groups.
_GROUPS: Mapping[str, str] = _TABLE["groups"]


def pod_templates(document: Any, where: str) -> Iterator[PodTemplate | PassedOver]:
    """The pod templates of one document of `written_documents`, and its objects that are passed over.

    Raises:
        InputError: it is no object, or a part of it has a type that Kubernetes does not give it.
    """
    if document is None:
        return
    if (
        isinstance(document, list)
        and document
        and all(isinstance(one, Mapping) and "op" in one for one in document)
    ):
        yield PassedOver("a list of operations", PATCH)
        return
    if not isinstance(document, Mapping):
        raise InputError(where, kind_of(document), "a Kubernetes object")
    for item in _unlisted(document):
        yield from _values(item, where) if "kind" not in item else _object(item, where)


@dataclass(frozen=True, slots=True)
class Neighbours:
    """ConfigMaps as a file has them, and checked PersistentVolumeClaims: its pod templates may refer to these."""

    config_maps: tuple[Mapping[str, Any], ...] = ()
    claims: tuple[Mapping[str, Any], ...] = ()


def neighbours(documents: Iterable[tuple[str, Any]]) -> Neighbours:
    """ConfigMaps and PersistentVolumeClaims of the documents of a file, each with what messages call it."""
    found: dict[str, list[Mapping[str, Any]]] = {"ConfigMap": [], "PersistentVolumeClaim": []}
    for where, document in documents:
        for item in _unlisted(document) if isinstance(document, Mapping) else ():
            kind = str(item.get("kind"))
            if kind in found:
                found[kind].append(checked_claim(item, where) if kind == "PersistentVolumeClaim" else item)
    return Neighbours(tuple(found["ConfigMap"]), tuple(found["PersistentVolumeClaim"]))


def _unlisted(document: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """The objects of a list, however the list is called; a list may hold lists, and by an anchor itself."""
    waiting: list[tuple[Any, int]] = [(document, 0)]
    seen = 0
    while waiting and seen < MOST_OBJECTS:
        item, depth = waiting.pop()
        seen += 1
        if not isinstance(item, Mapping):
            continue
        items = item.get("items")
        if str(item.get("kind", "")).endswith("List") and isinstance(items, list) and depth < _DEEPEST_LISTS:
            waiting += [(one, depth + 1) for one in reversed(items)]
        else:
            yield item


def _object(item: Mapping[str, Any], where: str) -> Iterator[PodTemplate | PassedOver]:
    metadata = checked(item.get("metadata") or {}, {"name": "text"}, where, "metadata")
    kind, name = str(item.get("kind")), str(metadata.get("name", "?"))
    title = f"{kind}/{name}"
    if (unread := _not_read(item, kind, name)) is not None:
        yield unread
        return
    release = _RELEASES.get(kind, ())
    if release and isinstance(values := at(item, release), Mapping):
        yield from _values(values, where, title, f"{'.'.join(release)}.")
        return
    places = _TEMPLATES.get(kind) or (_TEMPLATES["Deployment"] if _has_template(item) else ())
    found = [
        template
        for spec_path, annotations_path in places
        if (template := _template(item, where, kind, name, spec_path, annotations_path)) is not None
    ]
    yield from found
    if found:
        return
    if not places:
        yield PassedOver(title, _UNKNOWN if _has_containers(item) else "")
    elif at(item, ("spec", "workloadRef")):
        yield PassedOver(title, "its pod template is that of spec.workloadRef; lint that")
    elif at(item, ("spec", "baseRefs")) or kind.startswith(("LLMInference", "InferenceService")):
        yield PassedOver(title, "no containers in it; lint the object that its controller makes")
    else:
        yield PassedOver(title, f"no containers: {PATCH}")


def _not_read(item: Mapping[str, Any], kind: str, name: str) -> PassedOver | None:
    """An object of a kind that is never read, or of another group's kind of a known name; None for others."""
    version = item.get("apiVersion")
    group = str(version).rpartition("/")[0]
    # A part of a manifest may leave its group out.
    if version and group != _GROUPS.get(kind, group) and not _has_template(item):
        return PassedOver(f"{kind} ({group or version})/{name}"[:200], _ANOTHER)
    return PassedOver(f"{kind}/{name}", f"not read: {_NOT_READ[kind]}") if kind in _NOT_READ else None


def _has_template(item: Mapping[str, Any]) -> bool:
    return isinstance(at(item, ("spec", "template", "spec", "containers")), list)


def _has_containers(item: Mapping[str, Any]) -> bool:
    """Whether containers stand anywhere in an object, as far as it is looked at."""
    waiting: list[Any] = [item.get("spec")]
    for _ in range(MOST_OBJECTS):
        if not waiting:
            return False
        node = waiting.pop()
        if isinstance(node, Mapping):
            if isinstance(node.get("containers"), list) or (
                "image" in node and {*node} & {"command", "args"}
            ):
                return True
            waiting += node.values()
        elif isinstance(node, list):
            waiting += node
    return False


def _template(
    item: Mapping[str, Any], where: str, kind: str, name: str, spec_path: Path, annotations_path: Path
) -> PodTemplate | None:
    """The pod template at a path; None if the object has no containers there."""
    spec = _checked_at(item, where, spec_path, _POD_SPEC)
    model = spec.get("model") if kind == "InferenceService" else None
    annotations = _checked_at(item, where, annotations_path, {}) if annotations_path else {}
    inside = ".".join(spec_path)
    places: dict[str, Places] = {}
    if isinstance(model, Mapping) and not spec.get("containers"):
        # KServe makes the container of its runtime's and these arguments.
        one = checked({**model, "name": "kserve-container"}, _CONTAINER, where, f"{inside}.model")
        spec = (
            {**spec, "containers": [{"image": f"vllm:{model.get('runtimeVersion', '')}", **one}]}
            if _is_vllm(model)
            else spec
        )
        places["kserve-container"] = {part: f"{inside}.model.{part}" for part in ("command", "args", "env")}
    if not spec.get("containers") and kind == PRESET_KIND and spec_path == ("spec", "template"):
        # The preset's container; what the file adds to it goes under its name.
        spec = {**spec, "containers": [{"name": PRESET_CONTAINER}]} if at(item, ("spec", "model")) else spec
    if not spec.get("containers"):
        return None
    # Another group's kind of that name is another kind; a part of a manifest may leave its group out.
    rolled = ROLLED.get(kind)
    managed = rolled is not None and str(item.get("apiVersion") or f"{rolled.group}/").startswith(
        f"{rolled.group}/"
    )
    own = kind in {"Deployment", "StatefulSet", "DaemonSet", "ReplicaSet", "Rollout"}
    return PodTemplate(
        kind, name, where, annotations, ".".join(annotations_path), spec,
        inside="" if own else inside, managed=managed, places=places,
        rolling=_checked_at(item, where, ("spec",), _TABLE["shapes"]["rolling"]) if managed else {},
        namespace=str((item.get("metadata") or {}).get("namespace") or ""),
    )  # fmt: skip


def _is_vllm(model: Mapping[str, Any]) -> bool:
    return "vllm" in str(model.get("runtime", "")).lower() or any(
        "vllm" in str(arg) for arg in model.get("args") or []
    )


def _values(
    values: Mapping[str, Any], where: str, title: str = "an object without a kind", prefix: str = ""
) -> Iterator[PodTemplate | PassedOver]:
    """Values of the charts that are known, at the top or one level down, where a chart above has them."""
    levels: list[tuple[str, Mapping[str, Any]]] = [(prefix, values)]
    levels += [(f"{prefix}{key}.", value) for key, value in values.items() if isinstance(value, Mapping)]
    found = False
    for path, level in levels[:MOST_OBJECTS]:
        for read in CHARTS:
            for template in read(level, where, path):
                found = True
                yield template
        if found:
            return
    if prefix:
        yield PassedOver(title, "values of a chart that is not known; lint what `helm template` renders")
    elif isinstance(values.get("services"), Mapping):
        yield PassedOver(title, "a compose file; lint the objects that Kubernetes gets")
    else:
        yield PassedOver(
            title,
            "neither values of a chart that is known (production-stack, llm-d-modelservice) nor a manifest; "
            "lint what `helm template` or `kubectl kustomize` renders",
        )


def other_form(text: str) -> str | None:
    """Name of the form of a text that is no manifest; None if its begin does not show it."""
    first = _COMMENTS.sub("", text, count=1)
    found = (name for begins, name in _TABLE["other_forms"] if re.match(begins, first, re.MULTILINE))
    return next(found, "a script" if text.startswith("#!") else None)


def is_helm_template(text: str, kind: str = "") -> bool:
    """Whether the text of a file, or of a part of an object of some kind, holds what only Helm fills in."""
    return (_HELMS_OWN if _GROUPS.get(kind) == "serving.kserve.io" else _HELM).search(text) is not None


def _checked_at(item: Mapping[str, Any], where: str, path: Path, shape: Any) -> Mapping[str, Any]:
    """The object at a path, checked on the way; empty if there is none."""
    wrapped: Any = shape
    for key in reversed(path):
        wrapped = {key: wrapped}
    found: Any = checked(item, wrapped, where, "")
    for key in path:
        found = found.get(key)
        if found is None:
            return {}
    return dict(found)


# Values of charts that are known, as pod templates: each becomes what the chart makes of it.


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
        settings = checked(
            model.get("vllmConfig") or {}, {"extraArgs": ["text"]}, where, f"{path}.vllmConfig"
        )
        shape = {"env": _CONTAINER["env"], "podAnnotations": {}}
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
            checked(spec, _POD_SPEC, where, path), inside=path, managed="raySpec" not in model and not grouped,
            remark=_NO_HOOKS, places={
                "vllm": {"command": f"{path}.vllmConfig", "args": f"{path}.vllmConfig.extraArgs", "env": f"{path}.env"}
            },
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
        shape = {**_POD_SPEC, "podAnnotations": {}, "annotations": {}}
        # These pass on everything for which the chart has no field.
        more = checked(part.get("extraConfig") or {}, _POD_SPEC, where, f"{path}.extraConfig")
        spec = {**more, **checked(part, shape, where, path)}
        shards = at(part, ("parallelism", "data"))
        parallel = ["--data-parallel-size", str(shards)] if isinstance(shards, int) and shards > 1 else []
        containers = [
            {
                **one,
                "lifecycle": checked(one.get("extraConfig") or {}, _CONTAINER, where, path).get("lifecycle"),
            }
            | ({"command": ["vllm", "serve", *parallel]} if one.get("modelCommand") == "vllmServe" else {})
            for one in spec["containers"]
        ]
        yield PodTemplate(
            "llm-d-modelservice values", role, where,
            spec.get("podAnnotations") or {}, f"{path}.podAnnotations", {**spec, "containers": containers}, inside=path,
            managed=not values.get("multinode"), remark=_EXTRA,
        )  # fmt: skip


CHARTS: tuple[Callable[[Mapping[str, Any], str, str], Iterator[PodTemplate]], ...] = (
    _production_stack,
    _modelservice,
)
"""The readers of a chart's values; each yields nothing for the values of another chart."""

"""Facts about pods that their counters do not hold: image, GPU, arguments and annotation, of series about pods.

kube-state-metrics has image, annotation and node, its node labels or DCGM the GPU, and vLLM itself some of its arguments.
None of these need be there. A fact that is unknown differs from nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from breakeven.arm import ADAPTIVE
from breakeven.errors import InputError
from breakeven.methods import ADAPTIVE_KEY, draft_length_of, method_of
from breakeven.serving.command_line import configuration
from breakeven.serving.opt_in import ANNOTATION
from breakeven.serving.promql import REPLICA, EngineSeries, Matcher, any_of, selector
from breakeven.serving.vllm_versions import schedule_in

IMAGES, ANNOTATIONS, NODES = "images", "annotations", "nodes"
GPUS, DCGM, ARGUMENTS = "gpus", "dcgm", "arguments"
"""Questions about pods."""

_CONFIG = "annotation_" + re.sub(r"[^a-zA-Z0-9]", "_", ANNOTATION)
_GPU = "label_nvidia_com_gpu_product"
_ARGUMENTS = ("block_size", "cache_dtype", "enable_prefix_caching", "gpu_memory_utilization")
"""Arguments in vLLM's `cache_config_info` that change what a step costs. Its number of blocks also differs between arms,
because a drafter takes memory."""

_OF_POD = {
    IMAGES: ("kube_pod_container_info", ("container", "exported_container", "image_spec", "image")),
    ANNOTATIONS: ("kube_pod_annotations", (_CONFIG,)),
    NODES: ("kube_pod_info", ("node", "exported_node")),
    DCGM: ("DCGM_FI_DEV_GPU_UTIL", ("modelName",)),
}
_PLACES = ("namespace", "pod", "exported_namespace", "exported_pod")
_ENGINE_NAME = re.compile("vllm", re.IGNORECASE)
Labels = Mapping[str, str]


class PodFacts(NamedTuple):
    """Known facts of one pod; the configuration is the value of the annotation `breakeven.dev/speculative-config`."""

    image: str | None = None
    gpu: str | None = None
    arguments: str | None = None
    config: str | None = None


class Fingerprint(NamedTuple):
    """Facts that make windows of the past comparable; None: not known."""

    model: str | None
    image: str | None
    gpu: str | None
    arguments: str | None

    def differs(self, other: Fingerprint) -> tuple[str, ...]:
        """Names of the facts that are known of both and differ."""
        pairs = zip(self._fields, self, other, strict=True)
        return tuple(name for name, one, two in pairs if one is not None and two is not None and one != two)


@dataclass(frozen=True, slots=True)
class PodKind:
    """Arm and fingerprint of a pod; k is its longest draft, or 0 if it counts no drafts.

    The annotation gives the schedule: draft length per batch size, or the word for adaptive verification.
    """

    k: int
    method: str | None
    schedule: str | None
    fingerprint: Fingerprint


def fact_questions(pods: Iterable[tuple[str, str]], engines: EngineSeries, span_s: int) -> dict[str, str]:
    """PromQL of each fact about pods (namespace, name), over a span that ends at the time of the query."""
    named = sorted(set(pods))
    # The pods of one ReplicaSet share all but the last word of their names. A server that scrapes kube-state-metrics without
    # honorLabels renames the labels of the pods it describes.
    spaces = any_of({space for space, _ in named})
    names = any_of({name.rpartition("-")[0] or name for _, name in named})
    places = [
        selector(
            (Matcher(f"{own}namespace", "=~", spaces), Matcher(f"{own}pod", "=~", f"({names})[a-z0-9.-]*"))
        )
        for own in ("", "exported_")
    ]
    found = {}
    for fact, (metric, labels) in _OF_POD.items():
        either = " or ".join(f"last_over_time({metric}{place}[{span_s}s])" for place in places)
        found[fact] = f"group by({','.join((*_PLACES, *labels))})({either})"
    found[GPUS] = f"group by(node,{_GPU})(last_over_time(kube_node_labels[{span_s}s]))"
    info = engines.labelled(engines.gauge("last_over_time", "cache_config_info", span_s))
    found[ARGUMENTS] = f"group by(namespace,{REPLICA},{','.join(_ARGUMENTS)})({info})"
    return found


def read_facts(answers: Mapping[str, Iterable[Labels]]) -> dict[tuple[str, str], PodFacts]:
    """Facts by (namespace, pod), of the labels of the elements that each of `fact_questions` found; one may be missing."""
    found: dict[tuple[str, str], dict[str, str]] = {}
    for pod, image in _images(answers.get(IMAGES, ())).items():
        found.setdefault(pod, {})["image"] = image
    for pod, product in _gpus(answers):
        found.setdefault(pod, {})["gpu"] = product
    for one in answers.get(ANNOTATIONS, ()):
        found.setdefault(_pod(one), {})["config"] = one.get(_CONFIG, "")
    for one in answers.get(ARGUMENTS, ()):
        words = [f"{name}={one[name]}" for name in _ARGUMENTS if one.get(name)]
        if words:
            pod = one.get("namespace", ""), one.get(REPLICA, "")
            found.setdefault(pod, {})["arguments"] = " ".join(words)
    return {pod: PodFacts(**facts) for pod, facts in found.items()}


def _images(containers: Iterable[Labels]) -> dict[tuple[str, str], str]:
    """Image of each pod's engine: of the container that is called after vLLM, else of all."""
    images: dict[tuple[str, str], set[tuple[str, str]]] = {}
    for one in containers:
        if image := one.get("image_spec") or one.get("image"):
            images.setdefault(_pod(one), set()).add((_own(one, "container"), image))
    found = {}
    for pod, pairs in images.items():
        engine = {pair for pair in pairs if any(map(_ENGINE_NAME.search, pair))}
        found[pod] = " ".join(sorted({image for _, image in engine or pairs}))
    return found


def _gpus(answers: Mapping[str, Iterable[Labels]]) -> Iterator[tuple[tuple[str, str], str]]:
    """GPU of each pod; what the node's labels say comes last and counts."""
    for one in answers.get(DCGM, ()):
        if product := one.get("modelName"):
            yield _pod(one), product
    products = {one["node"]: one[_GPU] for one in answers.get(GPUS, ()) if one.get("node") and one.get(_GPU)}
    for one in answers.get(NODES, ()):
        if product := products.get(_own(one, "node")):
            yield _pod(one), product


def _own(labels: Labels, name: str) -> str:
    """A label of the described object, not of the exporter that describes it."""
    return labels.get(f"exported_{name}") or labels.get(name, "")


def _pod(labels: Labels) -> tuple[str, str]:
    return _own(labels, "namespace"), _own(labels, "pod")


def kind_of(model: str, drafts: bool, longest: int, facts: PodFacts, method: str | None) -> PodKind:
    """The kind of a pod; an engine's counts decide what ran, and the annotation only names it.

    The longest draft is 0 if its counters do not tell it.
    """
    known = Fingerprint(model or None, facts.image, facts.gpu, facts.arguments)
    if not drafts:
        return PodKind(0, "none", None, known)
    try:
        config = configuration(facts.config) if facts.config else None
        schedule = schedule_in(config) if config else None
    except InputError:
        # Text that vLLM would have refused too: another source of the configuration ran.
        config, schedule = None, None
    if not config:
        return PodKind(max(longest, 1), method, None, known)
    asked, named = draft_length_of(config), method_of(config)
    k = longest or (asked if isinstance(asked, int) and asked > 0 else 1)
    table = ADAPTIVE if config.get(ADAPTIVE_KEY) is True else str(schedule) if schedule else None
    return PodKind(k, named if isinstance(named, str) else method, table, known)

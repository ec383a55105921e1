"""Warnings about an engine's container: what fights with the operator, or leaves it without use."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from breakeven.errors import InputError
from breakeven.serving.command_line import configuration, flag_number, speculation
from breakeven.serving.dynamic_speculation import doubts
from breakeven.serving.engine_start import EngineStart
from breakeven.serving.hindrances import hindrances, unknown_words
from breakeven.serving.opt_in import ANNOTATION
from breakeven.serving.pod_templates import PATCH, PRESET_CONTAINER, PRESET_KIND
from breakeven.serving.rolling import ROLLED, rolled_kinds
from breakeven.serving.template import PodTemplate
from breakeven.serving.vllm_flags import flags
from breakeven.serving.vllm_versions import version_of

_DEFAULT_PORT = 8000


def is_preset(template: PodTemplate, container: Mapping[str, Any]) -> bool:
    """Whether KServe's preset makes the container's command."""
    own = container.get("command") or container.get("args")
    return template.kind == PRESET_KIND and container.get("name") == PRESET_CONTAINER and not own


def configured(template: PodTemplate, start: EngineStart) -> Mapping[str, Any] | None:
    """The arm that runs, as far as the file tells."""
    return _annotated(template) or speculation(start.words).config


def engine_warnings(template: PodTemplate, container: Mapping[str, Any], start: EngineStart) -> Iterator[str]:
    """Whole sentences about one container."""
    image, named = str(container.get("image", "")), f"containers[{container.get('name')}]"
    version = version_of(image)
    if ANNOTATION in template.annotations:
        yield (
            f"{template.annotations_path} has {ANNOTATION}: in Git it takes the key back at every apply; "
            "remove the line from the manifest (the operator writes it)"
        )
    yield from (f"{named}: {problem}" for problem in (*start.problems, start.undrained) if problem)
    said = speculation(start.words)
    if said.problem is not None and start.literal:
        yield f"{named}: vLLM refuses to start: {said.problem}"
    for config in (said.config, _annotated(template)):
        if config is not None:
            yield from doubts(config, start.words, image)
    config = configured(template, start)
    for line in (*hindrances(start.words, config, version), *unknown_words(start.words, config, version)):
        yield f"{named} has {line}"
    if config and config.get("rejection_sample_method") == "synthetic" and "cpu" in image.lower():
        yield f"{named} has rejection_sample_method synthetic: vLLM on CPU fails with it; leave it out"
    yield from _ignored_files(container, named)
    yield from _flags_with_spaces(container, named, start)
    yield from _scraped(template, start)
    if not image and not is_preset(template, container) and template.kind in ROLLED:
        yield f"{template.title}: no image: {PATCH}, because the rest of it is not seen here"
    rolled = ROLLED.get(template.kind)
    if rolled is not None and (held := rolled.held(template.rolling)) is not None:
        yield f"{template.title} {held}"
    if not template.managed:
        yield (
            f"{template.title}: the operator rolls {rolled_kinds('and', 's')} and does not manage this kind; the annotation would go "
            f"to {template.annotations_path or 'no place that reaches its pods'}"
        )


def _ignored_files(container: Mapping[str, Any], named: str) -> Iterator[str]:
    for part in ("command", "args"):
        for item in container.get(part) or []:
            if str(item).startswith("--config="):
                yield (
                    f"{named}.{part} has {item}: vLLM 0.32 reads the file only when its name is an "
                    "item of its own, and ignores it here without a word"
                )


def _flags_with_spaces(container: Mapping[str, Any], named: str, start: EngineStart) -> Iterator[str]:
    if start.through_shell or start.unseen:
        return
    for part in ("command", "args"):
        for item in container.get(part) or []:
            flag, *values = str(item).split(maxsplit=1) or [""]
            if values and flag in flags():
                yield (
                    f"{named}.{part} has {flag} and its value in one item: vLLM takes an item with a space for no flag, and does "
                    "not start; write them as two items, or with = between them"
                )


def _annotated(template: PodTemplate) -> Mapping[str, Any] | None:
    """The arm that the template's annotation chooses; None if it chooses none, or cannot be read."""
    try:
        return configuration(str(template.annotations.get(ANNOTATION) or ""))
    except InputError:
        return None


def _scraped(template: PodTemplate, start: EngineStart) -> Iterator[str]:
    """The objections that annotations for Prometheus raise."""
    said = template.annotations
    if str(said.get("prometheus.io/scrape", "")).lower() == "false":
        yield (
            f'{template.annotations_path} has prometheus.io/scrape: "false": a Prometheus that goes by annotations leaves '
            "the engine out, and the operator decides nothing without its metrics"
        )
    given, port = said.get("prometheus.io/port"), flag_number(start.words, "--port") or _DEFAULT_PORT
    if given is not None and str(given) != str(port) and not start.through_shell:
        yield (
            f"{template.annotations_path} has prometheus.io/port: {given}, vLLM serves its metrics at {port}: "
            "they are not found there"
        )

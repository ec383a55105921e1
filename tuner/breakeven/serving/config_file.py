"""The YAML file of vLLM's `--config`: the flags that it comes to, and where a manifest's ConfigMap holds it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import yaml

from breakeven.serving.command_line import after_program
from breakeven.serving.vllm_flags import flags
from breakeven.yaml_intake import yaml_documents


def flags_of(settings: Mapping[Any, Any]) -> list[str]:
    """The flags of a file's mapping: a mapping becomes JSON, `true` and `false` the two forms of a switch."""
    found: list[str] = []
    for key, value in settings.items():
        flag = f"--{key}"
        if isinstance(value, bool):
            switch = flags().get(flag)
            has_negative = switch is not None and switch.takes == "yes or no"
            found += [flag] if value else [f"--no-{key}"] if has_negative else []
        elif isinstance(value, list):
            found += [flag, *(str(item) for item in value)] if value else []
        elif isinstance(value, dict):
            found += [flag, json.dumps(value, default=str)]
        else:
            found += [flag, str(value)]
    return found


def mounted_files(
    pod_spec: Mapping[str, Any], container: Mapping[str, Any], config_maps: Iterable[Mapping[str, Any]]
) -> dict[str, str]:
    """Files of ConfigMaps (of any namespace) in a container, by path; what Kubernetes would refuse is left out."""
    held = {str(_inner(one, "metadata").get("name")): _inner(one, "data") for one in config_maps}
    volumes = {
        volume.get("name"): _inner(volume, "configMap") for volume in _objects(pod_spec.get("volumes"))
    }
    found = {}
    for mount in _objects(container.get("volumeMounts")):
        source = volumes.get(str(mount.get("name"))) or {}
        data = held.get(str(source.get("name")), {})
        items = {str(item.get("key")): item.get("path") for item in _objects(source.get("items"))}
        base, part = str(mount.get("mountPath", "")).rstrip("/"), mount.get("subPath")
        for key, text in data.items():
            name = items.get(str(key)) if items else key
            if name is not None and (part is None or part == name):
                found[base if part is not None else f"{base}/{name}"] = str(text)
    return found


def with_config_file(words: Sequence[str], files: Mapping[str, str]) -> list[str]:
    """The command line with the flags of its `--config` file, behind the model as vLLM puts them, so that others win.

    As it was if the file is not known, or is none that vLLM reads.
    """
    start = len(words) - len(after_program(words))
    own = list(words[start:])
    if own.count("--config") != 1:
        return list(words)
    at = own.index("--config")
    try:
        loaded = next(yaml_documents(files[own[at + 1]]), None)
    except (IndexError, KeyError, ValueError, RecursionError, yaml.YAMLError):
        return list(words)
    if not isinstance(loaded, Mapping):
        return list(words)
    rest = own[:at] + own[at + 2 :]
    head = 1 if rest and not rest[0].startswith("-") else 0
    return [*words[:start], *rest[:head], *flags_of(loaded), *rest[head:]]


def _objects(items: Any) -> Iterator[Mapping[str, Any]]:
    yield from (item for item in (items if isinstance(items, list) else []) if isinstance(item, Mapping))


def _inner(item: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    found = item.get(key)
    return found if isinstance(found, Mapping) else {}

"""Structural OpenAPI v3 schemas out of the models, as the API server accepts them.

pydantic writes JSON Schema; a CRD's schema must be structural: no references, no `anyOf` with null, no titles, every
node with a type. Descriptions get the default and the bounds appended, because `kubectl explain` shows neither.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from breakeven_operator.resources.base import Model

_SHAPE = ("description", "type", "format", "nullable", "enum", "pattern", "not")
_BOUNDS = ("minimum", "maximum", "minLength", "maxLength", "minItems", "maxItems", "maxProperties")
# Units by the ending of a field's name, longest ending first.
_UNITS = (
    ("GpuSeconds", "GPU-seconds"),
    ("Milliseconds", "milliseconds"),
    ("Seconds", "seconds"),
    ("Percent", "percent"),
    ("Rps", "requests per second"),
)

# Fields whose defaults the API server fills in: columns and rules read them. All others would be lines of `kubectl describe` that
# nobody wrote; their descriptions have the default, and whoever reads the object has the same.
_FILLED_IN = frozenset({"apiVersion", "kind", "name", "mode", "draftLengths", "trigger"})


def structural(kind: type[Model]) -> dict[str, Any]:
    """The `openAPIV3Schema` of a kind: a model with the fields apiVersion, kind, metadata, spec and status."""
    document = kind.model_json_schema(by_alias=True, mode="validation")
    definitions = document.get("$defs", {})
    properties = {
        # The API server owns these three and refuses any schema of theirs beyond the type.
        "apiVersion": {
            "type": "string",
            "description": "Version of the API that this object is written for.",
        },
        "kind": {"type": "string", "description": "Kind of this object."},
        "metadata": {"type": "object"},
        "spec": _node(document["properties"]["spec"], definitions, with_defaults=True),
        # A status holds what was written and nothing else.
        "status": _node(document["properties"]["status"], definitions, with_defaults=False),
    }
    properties["status"].pop("default", None)
    schema: dict[str, Any] = {"description": document["description"], "type": "object", "required": ["spec"]}
    schema["properties"] = properties
    if "x-kubernetes-validations" in document:
        schema["x-kubernetes-validations"] = document["x-kubernetes-validations"]
    return schema


def _node(
    raw: Mapping[str, Any], definitions: Mapping[str, Any], *, with_defaults: bool, name: str = ""
) -> dict[str, Any]:
    """One schema node with everything it refers to written out; the `name` of the field has its unit."""
    source = _resolved(raw, definitions)
    if "const" in source:
        source["enum"] = [source["const"]]
    node: dict[str, Any] = {}
    node |= {key: source[key] for key in _SHAPE if key in source}
    if node.get("type") == "integer":
        node["format"] = "int64"
    node |= {key: source[key] for key in _BOUNDS if key in source}
    default = source.get("default")
    if with_defaults and default not in (None, [], {}):
        node["default"] = {} if node.get("type") == "object" else default
    if "items" in source:
        node["items"] = _node(source["items"], definitions, with_defaults=with_defaults)
    if source.get("required"):
        node["required"] = source["required"]
    if "properties" in source:
        node["properties"] = {
            field: _node(child, definitions, with_defaults=with_defaults, name=field)
            for field, child in source["properties"].items()
        }
    elif isinstance(source.get("additionalProperties"), dict):
        node["additionalProperties"] = _node(
            source["additionalProperties"], definitions, with_defaults=with_defaults
        )
    node |= {key: value for key, value in source.items() if key.startswith("x-kubernetes-")}
    node["description"] = _described(node, name)
    if not node["description"]:
        del node["description"]
    if "default" in node and not _is_filled_in(node, name):
        del node["default"]
    return node


def _is_filled_in(node: Mapping[str, Any], name: str) -> bool:
    """Whether the API server fills in a default: an object's where a default inside it is to be filled in."""
    inside = node.get("properties", {})
    return name in _FILLED_IN if not inside else any("default" in child for child in inside.values())


def _resolved(raw: Mapping[str, Any], definitions: Mapping[str, Any]) -> dict[str, Any]:
    """The node with its reference followed and its null alternative dropped; what stands beside them wins."""
    beside = {key: value for key, value in raw.items() if key not in {"$ref", "anyOf", "title"}}
    if "$ref" in raw:
        return _resolved(definitions[raw["$ref"].removeprefix("#/$defs/")], definitions) | beside
    if "anyOf" in raw:
        (only,) = (option for option in raw["anyOf"] if option.get("type") != "null")
        return _resolved(only, definitions) | beside
    return beside


def _described(node: Mapping[str, Any], name: str) -> str:
    text = str(node.get("description", ""))
    unit = next((word for suffix, word in _UNITS if name.endswith(suffix)), "")
    notes = []
    default = node.get("default")
    if default not in (None, {}):
        shown = str(default).lower() if isinstance(default, bool) else default
        notes.append(f"Default {shown} {unit}".rstrip() + ".")
    if node.get("type") == "integer" and "minimum" in node and "maximum" in node:
        notes.append(f"{node['minimum']} to {node['maximum']} {unit}".rstrip() + ".")
    if unit and not notes and unit not in text:
        notes.append(f"In {unit}.")
    return " ".join([text, *notes]).strip()

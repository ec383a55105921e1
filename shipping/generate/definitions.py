"""The three CustomResourceDefinitions: names, columns, and structural OpenAPI v3 schemas out of the models, as the API server accepts them.

pydantic writes JSON Schema; a CRD's schema must be structural: no references, no `anyOf` with null, no titles, every
node with a type. Descriptions get the default and the bounds appended, because `kubectl explain` shows neither.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import yaml

from breakeven_operator.resources.base import CATEGORY, GROUP, VERSION, Model
from breakeven_operator.resources.calibrationrun import CalibrationRun
from breakeven_operator.resources.speculationprofile import SpeculationProfile
from breakeven_operator.resources.speculativeservice import SpeculativeService

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


class Column(NamedTuple):
    """A column of `kubectl get`; `wide` ones appear with `-o wide` only."""

    name: str
    path: str
    wide: bool = False
    type: str = "string"


class Definition(NamedTuple):
    """The parts of a CRD beside its schema."""

    model: type[Model]
    plural: str
    short: str
    columns: tuple[Column, ...]

    @property
    def kind(self) -> str:
        """The kind's name."""
        return self.model.__name__

    @property
    def file_name(self) -> str:
        """Name of its generated file."""
        return f"{GROUP}_{self.plural}.yaml"


_AGE = Column("Age", ".metadata.creationTimestamp", type="date")
DEFINITIONS = (
    Definition(
        SpeculativeService,
        "speculativeservices",
        "specsvc",
        (
            Column("Arm", ".status.workings.display.arm"),
            Column("Pays", ".status.workings.display.pays"),
            Column("Speedup", ".status.workings.display.speedup"),
            Column("Break-Even", ".status.workings.display.breakEven"),
            Column("Load", ".status.workings.display.load"),
            Column("Recommended", ".status.workings.display.recommended"),
            Column("Reason", ".status.workings.display.reason"),
            Column("Mode", ".status.workings.display.mode"),
            Column("Target", ".spec.targetRef.name", wide=True),
            Column("Profile", ".status.calibration.profile", wide=True),
            Column("Ready", '.status.conditions[?(@.type=="Ready")].status', wide=True),
            Column("Decided", ".status.decision.time", wide=True, type="date"),
            _AGE,
        ),
    ),
    Definition(
        CalibrationRun,
        "calibrationruns",
        "calrun",
        (
            Column("Service", ".spec.serviceRef.name"),
            Column("Phase", ".status.phase"),
            Column("Arm", ".status.display.arm"),
            Column("Points", ".status.display.points"),
            Column("GPU-Seconds", ".status.display.gpuSeconds"),
            Column("Break-Even", ".status.display.breakEven"),
            Column("Left", ".status.display.left"),
            Column("Trigger", ".spec.trigger", wide=True),
            Column("GPU", ".status.plan.gpuProduct", wide=True),
            Column("Profile", ".status.profileRef.name", wide=True),
            Column("Reason", ".status.reason", wide=True),
            _AGE,
        ),
    ),
    Definition(
        SpeculationProfile,
        "speculationprofiles",
        "specprof",
        (
            Column("Service", ".spec.serviceRef.name"),
            Column("GPU", ".spec.gpuProduct"),
            Column("Worst", ".status.display.worst"),
            Column("Break-Even", ".status.display.breakEven"),
            Column("In Force", ".status.inForce", type="boolean"),
            Column("Fingerprint", ".spec.fingerprint", wide=True),
            Column("Reason", ".status.reason", wide=True),
            _AGE,
        ),
    ),
)


def manifest(definition: Definition) -> dict[str, Any]:
    """The CustomResourceDefinition object."""
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {
            "name": f"{definition.plural}.{GROUP}",
            "labels": {"app.kubernetes.io/name": "breakeven", "app.kubernetes.io/component": "crds"},
        },
        "spec": {
            "group": GROUP,
            "scope": "Namespaced",
            "names": {
                "kind": definition.kind,
                "listKind": f"{definition.kind}List",
                "plural": definition.plural,
                "singular": definition.kind.lower(),
                "shortNames": [definition.short],
                "categories": [CATEGORY],
            },
            "versions": [
                {
                    "name": VERSION,
                    "served": True,
                    "storage": True,
                    "subresources": {"status": {}},
                    "additionalPrinterColumns": [_column(column) for column in definition.columns],
                    "schema": {"openAPIV3Schema": structural(definition.model)},
                }
            ],
        },
    }


def _column(column: Column) -> dict[str, Any]:
    item: dict[str, Any] = {"name": column.name, "type": column.type, "jsonPath": column.path}
    return item | {"priority": 1} if column.wide else item


def to_yaml(definition: Definition) -> str:
    """The generated file's text."""
    header = "# Generated from the models in breakeven_operator/resources by `make generate`; not edited by hand.\n"
    return header + yaml.dump(
        manifest(definition), Dumper=_Dumper, sort_keys=False, width=120, allow_unicode=True
    )


class _Dumper(yaml.SafeDumper):
    """No anchors: the same Python object in two places is two texts in YAML."""

    def ignore_aliases(self, data: Any) -> bool:  # noqa: ARG002 -- the signature is PyYAML's
        return True

"""The three CustomResourceDefinitions: names, columns, schema."""

from __future__ import annotations

from typing import Any, NamedTuple

import yaml

from breakeven_operator.resources.base import CATEGORY, GROUP, VERSION, Model
from breakeven_operator.resources.calibrationrun import CalibrationRun
from breakeven_operator.resources.schema import structural
from breakeven_operator.resources.speculationprofile import SpeculationProfile
from breakeven_operator.resources.speculativeservice import SpeculativeService


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
            Column("Target", ".status.workings.display.target"),
            Column("Arm", ".status.workings.display.arm"),
            Column("Pays", ".status.workings.display.pays"),
            Column("Speedup", ".status.workings.display.speedup"),
            Column("Break-Even", ".status.workings.display.breakEven"),
            Column("Load", ".status.workings.display.load"),
            Column("Recommended", ".status.workings.display.recommended"),
            Column("Mode", ".spec.updatePolicy.mode", wide=True),
            Column("Profile", ".status.calibration.profile", wide=True),
            Column("Ready", '.status.conditions[?(@.type=="Ready")].status', wide=True),
            Column("Reason", ".status.workings.display.reason", wide=True),
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
            Column("Run", ".spec.runRef.name", wide=True),
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

"""Annotations of a chart's package for Artifact Hub, made of the CRDs, the examples and the changelog."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import yaml

from shipping.release_notes import changes

_HOME: Final = "https://github.com/breakeven-dev/breakeven"
_EXAMPLES: Final = ("speculativeservice.yaml", "calibrationrun.yaml")


def stamp_chart(chart: Path, tree: Path, notes: str) -> None:
    """Adds the annotations to the Chart.yaml of an exported tree."""
    file = chart / "Chart.yaml"
    document = yaml.safe_load(file.read_text(encoding="utf-8"))
    values = yaml.safe_load((chart / "values.yaml").read_text(encoding="utf-8"))
    examples = [yaml.safe_load((tree / "examples" / name).read_text(encoding="utf-8")) for name in _EXAMPLES]
    image = f"{values['image']['repository']}:{document['appVersion']}"
    said: dict[str, Any] = {
        "crds": [
            _described(yaml.safe_load(crd.read_text(encoding="utf-8")))
            for crd in sorted((tree / "crds").glob("*.yaml"))
        ],
        "crdsExamples": examples,
        "images": [{"name": "breakeven", "image": image}],
        "links": [
            {"name": "documentation", "url": f"{_HOME}/blob/main/docs/README.md"},
            {"name": "issues", "url": f"{_HOME}/issues"},
        ],
        "changes": changes(notes),
    }
    annotations = document.setdefault("annotations", {})
    for name, value in said.items():
        # Artifact Hub reads YAML inside of strings.
        annotations[f"artifacthub.io/{name}"] = yaml.safe_dump(
            value, sort_keys=False, allow_unicode=True, width=120
        )
    annotations["artifacthub.io/operatorCapabilities"] = "Auto Pilot"
    file.write_text(
        yaml.safe_dump(document, sort_keys=False, allow_unicode=True, width=120), encoding="utf-8"
    )


def _described(crd: Any) -> dict[str, str]:
    spec, version = crd["spec"], crd["spec"]["versions"][0]
    return {
        "kind": spec["names"]["kind"],
        "version": version["name"],
        "name": crd["metadata"]["name"],
        "displayName": spec["names"]["kind"],
        "description": version["schema"]["openAPIV3Schema"]["description"].split("\n")[0],
    }

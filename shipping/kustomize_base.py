"""A kustomize base: the chart with its default values as files, for who installs without Helm."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import yaml

_NAMESPACE: Final = "breakeven"
_README: Final = """\
# The chart with its default values. An overlay names the image and the Prometheus:
#   resources: [base]
#   images: [{name: ghcr.io/breakeven-dev/breakeven, newName: registry.example.com/breakeven}]
"""


def kustomize_files(rendered: str) -> Mapping[str, str]:
    """The files of the base, by name.

    Args:
        rendered: what `helm template` prints for the release `breakeven` in its namespace.
    """
    documents = [_without_helm(one) for one in yaml.safe_load_all(rendered) if one]
    crds = [one for one in documents if one["kind"] == "CustomResourceDefinition"]
    others = [one for one in documents if one["kind"] != "CustomResourceDefinition"]
    namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": _NAMESPACE}}
    kustomization = {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "resources": ["crds.yaml", "namespace.yaml", "operator.yaml"],
    }
    return {
        "crds.yaml": _text(crds),
        "namespace.yaml": _text([namespace]),
        "operator.yaml": _text(others),
        "kustomization.yaml": _README + _text([kustomization]),
    }


def _without_helm(document: Any) -> Any:
    """The object without the marks by which Helm knows what is its own."""
    if isinstance(document, dict):
        return {
            key: _without_helm(value)
            for key, value in document.items()
            if key not in {"helm.sh/chart", "helm.sh/resource-policy"}
            and (key, value) != ("app.kubernetes.io/managed-by", "Helm")
        }
    return [_without_helm(one) for one in document] if isinstance(document, list) else document


def _text(documents: list[Any]) -> str:
    return yaml.safe_dump_all(documents, sort_keys=False, allow_unicode=True, width=160)

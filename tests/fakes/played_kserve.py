"""KServe's controllers, played after the source of version 0.20: a Deployment per LLMInferenceService and per InferenceService.

Presets, routers and workers are not played; the controller of LLMInferenceServices is tried for real
(`tests/cluster/test_operator_kserve.py`). Knative mode makes no Deployment here.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

from breakeven_operator.kinds import DEPLOYMENTS, INFERENCE_SERVICES, LLM_SERVICES
from fakes.api_server import FakeCluster

MODE = "serving.kserve.io/deploymentMode"


def deployment_of(parent: Mapping[str, Any], there: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """The Deployment that a controller makes of its parent; None if it makes none.

    Args:
        parent: with its kind.
        there: the Deployment as it is; its annotations stay, because the controllers compare only what the parent has.
    """
    meta, spec = parent["metadata"], parent["spec"]
    if parent["kind"] == INFERENCE_SERVICES.kind:
        if (meta.get("annotations") or {}).get(MODE) == "Knative":
            return None
        predictor = dict(spec["predictor"])
        labels = {"app": f"isvc.{meta['name']}-predictor", **predictor.pop("labels", {})}
        annotations, strategy = predictor.pop("annotations", {}), predictor.pop("deploymentStrategy", {})
        replicas, name, pod_spec = predictor.pop("minReplicas", 1), f"{meta['name']}-predictor", predictor
    else:
        labels = {"app.kubernetes.io/name": meta["name"], **spec.get("labels", {})}
        annotations, strategy = spec.get("annotations") or {}, {}
        replicas, name, pod_spec = spec.get("replicas", 1), f"{meta['name']}-kserve", spec["template"]
    template = (there or {}).get("spec", {}).get("template", {})
    kept = (template.get("metadata") or {}).get("annotations") or {}
    owner = {
        "apiVersion": parent["apiVersion"],
        "kind": parent["kind"],
        "name": meta["name"],
        "uid": meta["uid"],
        "controller": True,
    }
    return copy.deepcopy(
        {
            "apiVersion": DEPLOYMENTS.api_version,
            "kind": DEPLOYMENTS.kind,
            "metadata": {
                "name": name,
                "namespace": meta["namespace"],
                "labels": labels,
                "ownerReferences": [owner],
            },
            "spec": {
                "replicas": replicas,
                "selector": {"matchLabels": labels},
                **({"strategy": strategy} if strategy else {}),
                "template": {
                    "metadata": {
                        "labels": labels,
                        "annotations": {
                            **kept,
                            **{key: value for key, value in annotations.items() if value},
                        },
                    },
                    "spec": pod_spec,
                },
            },
        }
    )


class KserveControllers:
    """Keep the Deployments of both kinds.

    Args:
        cluster: holds the objects.
    """

    def __init__(self, cluster: FakeCluster) -> None:
        self._cluster = cluster

    def step(self) -> None:
        for resource in (LLM_SERVICES, INFERENCE_SERVICES):
            for parent in self._cluster.of(resource):
                named = {**parent, "apiVersion": resource.api_version, "kind": resource.kind}
                there = self._there(named)
                made = deployment_of(named, there)
                if made is not None and (there is None or there["spec"] != made["spec"]):
                    status = {"status": there["status"]} if there and "status" in there else {}
                    self._cluster.put(DEPLOYMENTS, {**made, **status}, manager="manager")

    def _there(self, parent: Mapping[str, Any]) -> dict[str, Any] | None:
        made = deployment_of(parent, None)
        if made is None:
            return None
        meta = made["metadata"]
        return self._cluster.objects.get((DEPLOYMENTS.plural, meta["namespace"], meta["name"]))


def as_llm_inference_service(deployment: Mapping[str, Any]) -> dict[str, Any]:
    """The parent of which the controller makes the same pods."""
    template = copy.deepcopy(deployment["spec"]["template"])
    return {
        "apiVersion": LLM_SERVICES.api_version,
        "kind": LLM_SERVICES.kind,
        "metadata": copy.deepcopy(dict(deployment["metadata"])),
        "spec": {
            "replicas": deployment["spec"]["replicas"],
            "labels": template["metadata"].get("labels") or {},
            "annotations": template["metadata"].get("annotations") or {},
            "template": template["spec"],
        },
    }


def as_inference_service(deployment: Mapping[str, Any]) -> dict[str, Any]:
    """The same of an InferenceService in Standard mode."""
    spec = as_llm_inference_service(deployment)["spec"]
    return {
        "apiVersion": INFERENCE_SERVICES.api_version,
        "kind": INFERENCE_SERVICES.kind,
        "metadata": copy.deepcopy(dict(deployment["metadata"])),
        "spec": {
            "predictor": {
                **spec["template"],
                "labels": spec["labels"],
                "annotations": spec["annotations"],
                "minReplicas": spec["replicas"],
                "deploymentStrategy": copy.deepcopy(deployment["spec"].get("strategy") or {}),
            }
        },
    }

"""A kind that the operator does not know, on a real API server: looked at by its pods, calibrated, and left alone."""

from __future__ import annotations

import json
from typing import Any

import pytest

from operatorcluster import manifests
from operatorcluster.stage import Place

CRD = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": "clonesets.apps.kruise.io"},
    "spec": {
        "group": "apps.kruise.io",
        "scope": "Namespaced",
        "names": {"kind": "CloneSet", "plural": "clonesets", "singular": "cloneset"},
        "versions": [
            {
                "name": "v1alpha1",
                "served": True,
                "storage": True,
                "schema": {
                    "openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
                },
            }
        ],
    },
}
CLONE_SET = {
    "apiVersion": "apps.kruise.io/v1alpha1",
    "kind": "CloneSet",
    "metadata": {"name": manifests.TARGET},
}


def replica_set(owner: dict[str, Any]) -> dict[str, Any]:
    """A ReplicaSet such as a CloneSet's own controller could make; its pods are made by Kubernetes'."""
    target = manifests.target()
    labels = {"app": manifests.TARGET, "clone-set-hash": "5b7d9c6f4"}
    template = target["spec"]["template"]
    template["metadata"]["labels"] = labels
    reference = {
        **{name: owner[name] for name in ("apiVersion", "kind")},
        **{name: owner["metadata"][name] for name in ("name", "uid")},
        "controller": True,
    }
    return {
        "apiVersion": "apps/v1",
        "kind": "ReplicaSet",
        "metadata": {
            "name": f"{manifests.TARGET}-5b7d9c6f4",
            "labels": labels,
            "ownerReferences": [reference],
        },
        "spec": {"replicas": 1, "selector": {"matchLabels": labels}, "template": template},
    }


@pytest.mark.claim(
    "README.md",
    "Other kinds that own their pods directly or by ReplicaSets are measured and recommended for.",
)
def test_a_clone_set_is_calibrated_and_recommended_for_and_its_pods_stay(place: Place) -> None:
    place.apply(CRD)
    place.stage.cluster.until_established("clonesets.apps.kruise.io")
    place.apply(CLONE_SET)
    owner = place.kubectl("get", "clonesets.apps.kruise.io", manifests.TARGET, "--output=json")
    place.apply(replica_set(json.loads(owner)))
    reference = {"apiVersion": "apps.kruise.io/v1alpha1", "kind": "CloneSet", "name": manifests.TARGET}
    place.apply(manifests.service(targetRef=reference, updatePolicy={"pinnedArm": "eagle/3"}))
    place.until_calibrated()
    made = place.until_decided("TargetOwned")
    assert made["arm"] == "eagle/3"
    assert place.writes() == []
    (pod,) = (one for one in place.all("pod") if "clone-set-hash" in one["metadata"]["labels"])
    assert pod["status"]["containerStatuses"][0]["restartCount"] == 0

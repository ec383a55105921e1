"""What is kept of the objects that a cycle reads: whole pods of a large cluster would be most of this process's memory."""

from __future__ import annotations

from collections.abc import Mapping

from breakeven_operator.kinds import CRONJOBS, DEPLOYMENTS, JOBS, PODS, RUNS, Resource
from breakeven_operator.labels import FINISHED_LABEL, MANAGED_SELECTOR, RUN_LABEL
from breakeven_operator.ports import Manifest

LABELS: Mapping[Resource, str] = {
    JOBS: MANAGED_SELECTOR,
    CRONJOBS: MANAGED_SELECTOR,
    RUNS: f"!{FINISHED_LABEL}",
}
"""Label selectors of the kinds of which not all objects are looked at."""


def trimmed(resource: Resource, manifest: Manifest) -> Manifest:
    """The fields of an object that are read later."""
    if resource == DEPLOYMENTS:
        # Who manages which of its fields is part of what is decided.
        return manifest
    if resource == PODS:
        return _slim_pod(manifest)
    meta = {name: value for name, value in manifest["metadata"].items() if name != "managedFields"}
    return {**manifest, "metadata": meta}


def is_selected(resource: Resource, manifest: Manifest) -> bool:
    """Whether LABELS selects an object of ours, which an answer to a write may not."""
    return resource != RUNS or FINISHED_LABEL not in (manifest["metadata"].get("labels") or {})


def _slim_pod(pod: Manifest) -> Manifest:
    meta = pod["metadata"]
    if RUN_LABEL in (meta.get("labels") or {}):
        return pod
    kept = ("name", "namespace", "uid", "annotations", "ownerReferences", "deletionTimestamp")
    status = pod.get("status") or {}
    return {
        "metadata": {name: meta[name] for name in kept if name in meta},
        "spec": {"nodeName": (pod.get("spec") or {}).get("nodeName", "")},
        "status": {name: status[name] for name in ("conditions", "containerStatuses") if name in status},
    }

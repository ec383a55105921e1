"""Fields that are kept of the objects that a cycle reads: whole pods of a large cluster would fill this process's memory."""

from __future__ import annotations

from collections.abc import Mapping
from sys import intern
from typing import Any

from breakeven.serving.opt_in import ANNOTATION
from breakeven_operator.adapters.api_json import problem_of
from breakeven_operator.kinds import (
    CLAIMS,
    CRONJOBS,
    JOBS,
    NODES,
    PODS,
    RUNS,
    SERVICES,
    Resource,
)
from breakeven_operator.labels import FINISHED_LABEL, MANAGED_SELECTOR, RUN_LABEL
from breakeven_operator.ports import Manifest
from breakeven_operator.resources.calibrationrun import FINAL_PHASES
from breakeven_operator.workloads.known import KINDS, POD_LABELS

LABELS: Mapping[Resource, str] = {
    JOBS: MANAGED_SELECTOR,
    CRONJOBS: MANAGED_SELECTOR,
}
"""Label selectors of the kinds of which not all objects are looked at."""
_CONDITIONS = frozenset({"Ready", "PodScheduled"})
# A service says in its status that its own object or its target's cannot be read.
_NAMED = frozenset({SERVICES, *KINDS})
_OF_RUN = ("startedAt", "finishedAt", "exitCode")
_STATES = frozenset({"waiting", "running", "terminated"})


def trimmed(resource: Resource, manifest: Manifest) -> Manifest | None:
    """The fields of an object that are read later; None of one that cannot be read, unless that is said of it by its name."""
    if problem_of(manifest) is not None:
        return manifest if resource in _NAMED else None
    if resource in KINDS:
        # The fields whose writers nobody asks about are most of their list.
        asked = KINDS[resource].written_fields(manifest)
        writers = [_slim_writer(entry, asked) for entry in manifest["metadata"].get("managedFields") or []]
        return {**manifest, "metadata": {**manifest["metadata"], "managedFields": writers}}
    if resource == PODS:
        return _slim_pod(manifest)
    if resource == NODES:
        return _slim_node(manifest)
    if resource == CLAIMS:
        return {
            "metadata": _some(manifest["metadata"], "namespace", "name", "uid", "resourceVersion"),
            "spec": _some(manifest.get("spec") or {}, "accessModes"),
        }
    meta = {name: value for name, value in manifest["metadata"].items() if name != "managedFields"}
    return {**manifest, "metadata": meta}


def is_selected(resource: Resource, manifest: Manifest) -> bool:
    """Whether an object is kept; a run that is accounted for is not.

    The phase is checked too, because anybody may set the label, which would hide a run that holds a GPU.
    """
    if resource != RUNS or FINISHED_LABEL not in (manifest["metadata"].get("labels") or {}):
        return True
    return str((manifest.get("status") or {}).get("phase") or "") not in FINAL_PHASES


def _slim_writer(entry: Mapping[str, Any], asked: Mapping[str, Any]) -> dict[str, Any]:
    """An entry of managedFields, without the fields that nobody here asks about."""
    return {
        **_shared(entry, "manager", "operation", "subresource"),
        **_some(entry, "time"),
        "fieldsV1": _within(entry.get("fieldsV1") or {}, asked),
    }


def _within(fields: Mapping[str, Any], wanted: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: _within(fields[name], inner)
        for name, inner in wanted.items()
        if isinstance(fields.get(name), Mapping)
    }


def _slim_pod(pod: Manifest) -> Manifest:
    """The fields that are read of a pod: ten thousand pods are kept."""
    meta = pod["metadata"]
    if RUN_LABEL in (meta.get("labels") or {}):
        return pod
    status = pod.get("status") or {}
    slim: Manifest = {
        **_some(meta, "name", "uid", "resourceVersion", "creationTimestamp", "deletionTimestamp"),
        **_shared(meta, "namespace"),
        "annotations": _shared(meta.get("annotations") or {}, ANNOTATION),
        **({"labels": _shared(meta.get("labels") or {}, *POD_LABELS)} if POD_LABELS else {}),
        "ownerReferences": [
            {**_shared(owner, "kind", "name", "uid"), "controller": True}
            for owner in meta.get("ownerReferences") or []
            if owner.get("controller")
        ],
    }
    return {
        "metadata": slim,
        "spec": _shared(pod.get("spec") or {}, "nodeName"),
        "status": {
            **_shared(status, "phase", "reason"),
            "conditions": [
                {
                    **_shared(one, "type", "status", "reason"),
                    **_some(one, "lastTransitionTime"),
                    # The scheduler's message is present only while a pod has no node.
                    **(_some(one, "message") if one.get("type") == "PodScheduled" else {}),
                }
                for one in status.get("conditions") or []
                if one.get("type") in _CONDITIONS
            ],
            **{
                kind: [_slim_container(one) for one in status[kind]]
                for kind in ("initContainerStatuses", "containerStatuses")
                if status.get(kind)
            },
        },
    }


def _slim_container(status: Mapping[str, Any]) -> Manifest:
    """How a container is, and how its last run ended."""
    last = (status.get("lastState") or {}).get("terminated")
    return {
        **_shared(status, "name", "image", "imageID"),
        **_some(status, "restartCount"),
        "state": {
            state: {**_shared(found, "reason"), **_some(found, *_OF_RUN, "message")}
            for state, found in (status.get("state") or {}).items()
            if state in _STATES
        },
        **(
            {"lastState": {"terminated": _some(last, "reason", "exitCode", "message", "finishedAt")}}
            if last
            else {}
        ),
    }


def _slim_node(node: Manifest) -> Manifest:
    """Labels, and whether its kubelet answers: the images that a node holds are most of its status."""
    meta = node["metadata"]
    return {
        "metadata": _some(meta, "name", "uid", "resourceVersion", "labels"),
        "status": {
            "conditions": [
                _shared(one, "type", "status")
                for one in (node.get("status") or {}).get("conditions") or []
                if one.get("type") == "Ready"
            ]
        },
    }


def _some(fields: Mapping[str, Any], *names: str) -> dict[str, Any]:
    return {name: fields[name] for name in names if name in fields}


def _shared(fields: Mapping[str, Any], *names: str) -> dict[str, Any]:
    """Texts that many pods have, each kept once."""
    return {name: intern(fields[name]) for name in names if isinstance(fields.get(name), str)}

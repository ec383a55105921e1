"""Objects that a service needs in its own namespace to be calibrated: an account for the drivers, and a CronJob.

A dependent in another namespace than its owner is deleted within seconds, so all of this stands beside the service.
"""

from __future__ import annotations

from typing import Any

from breakeven_operator.calibration.jobs import (
    DRIVER,
    SECURITY_CONTEXT,
    TOKEN_MOUNT,
    account_name,
    token_volume,
)
from breakeven_operator.kinds import CRONJOBS, ROLE_BINDINGS, SERVICE_ACCOUNTS, SERVICES
from breakeven_operator.labels import MANAGED_BY, SERVICE_LABEL, owner_reference
from breakeven_operator.ports import Manifest, TrialSettings
from breakeven_operator.resources.calibrationspec import Calibration


def trial_access(service: Manifest, cluster_role: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """ServiceAccount and RoleBinding of one service's drivers; they go with the service.

    Args:
        service: the SpeculativeService, which owns both.
        cluster_role: the ClusterRole with the drivers' few rights, which the chart creates.
    """
    name, namespace = account_name(service["metadata"]["name"]), service["metadata"]["namespace"]
    meta = {
        "name": name,
        "namespace": namespace,
        "labels": {**MANAGED_BY, SERVICE_LABEL: service["metadata"]["name"]},
        "ownerReferences": [
            owner_reference(SERVICES, service["metadata"]["name"], service["metadata"]["uid"])
        ],
    }
    account = {
        "apiVersion": SERVICE_ACCOUNTS.api_version,
        "kind": SERVICE_ACCOUNTS.kind,
        "metadata": meta,
        # A driver mounts its token itself; nothing else that might run under this account gets one unasked.
        "automountServiceAccountToken": False,
    }
    binding = {
        "apiVersion": ROLE_BINDINGS.api_version,
        "kind": ROLE_BINDINGS.kind,
        "metadata": meta,
        "roleRef": {"apiGroup": ROLE_BINDINGS.group, "kind": "ClusterRole", "name": cluster_role},
        "subjects": [{"kind": SERVICE_ACCOUNTS.kind, "name": name, "namespace": namespace}],
    }
    return account, binding


def cronjob_name(service: str) -> str:
    """Name of the service's CronJob."""
    return f"breakeven-{service}"


def schedule_job(service: Manifest, settings: TrialSettings) -> dict[str, Any] | None:
    """The CronJob whose Jobs ask for a calibration; None if the service has no schedule.

    Its Jobs only create a CalibrationRun and hold no GPU; `kubectl create job --from=cronjob/...` does the same by
    hand. Missed times are not made up for: one calibration is as good as three.
    """
    calibration = Calibration.read((service["spec"].get("calibration") or {}), "spec.calibration")
    if calibration.schedule is None:
        return None
    meta = service["metadata"]
    labels = {**MANAGED_BY, SERVICE_LABEL: meta["name"]}
    return {
        "apiVersion": CRONJOBS.api_version,
        "kind": CRONJOBS.kind,
        "metadata": {
            "name": cronjob_name(meta["name"]),
            "namespace": meta["namespace"],
            "labels": labels,
            "ownerReferences": [owner_reference(SERVICES, meta["name"], meta["uid"])],
        },
        "spec": {
            "schedule": calibration.schedule,
            **({"timeZone": calibration.time_zone} if calibration.time_zone else {}),
            "suspend": bool(service["spec"].get("paused", False)),
            "concurrencyPolicy": "Forbid",
            "startingDeadlineSeconds": 3600,
            "successfulJobsHistoryLimit": 1,
            "failedJobsHistoryLimit": 1,
            "jobTemplate": {
                "metadata": {"labels": labels},
                "spec": {
                    "backoffLimit": 2,
                    "activeDeadlineSeconds": 300,
                    "ttlSecondsAfterFinished": 3600,
                    "template": {
                        "metadata": {"labels": labels},
                        "spec": _asking_pod(service, settings),
                    },
                },
            },
        },
    }


def _asking_pod(service: Manifest, settings: TrialSettings) -> dict[str, Any]:
    """The pod that asks for a calibration of the service: one container of Breakeven's image, without a GPU."""
    meta = service["metadata"]
    container: dict[str, Any] = {
        "name": DRIVER,
        "image": settings.image,
        "command": ["breakeven-operator"],
        "args": ["request-run"],
        "env": [
            {"name": "BREAKEVEN_NAMESPACE", "valueFrom": {"fieldRef": {"fieldPath": "metadata.namespace"}}},
            {"name": "BREAKEVEN_SERVICE", "value": meta["name"]},
            {"name": "BREAKEVEN_SERVICE_UID", "value": meta["uid"]},
        ],
        "resources": {"requests": {"cpu": "50m", "memory": "96Mi"}, "limits": {"memory": "256Mi"}},
        "securityContext": {**SECURITY_CONTEXT, "runAsNonRoot": True},
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": [TOKEN_MOUNT],
    }
    if settings.image_pull_policy:
        container["imagePullPolicy"] = settings.image_pull_policy
    return {
        "restartPolicy": "Never",
        "serviceAccountName": account_name(meta["name"]),
        "automountServiceAccountToken": False,
        "containers": [container],
        "volumes": [token_volume()],
    }

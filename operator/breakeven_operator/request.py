"""Ask for a calibration: one CalibrationRun, created with the rights of a service's drivers."""

from __future__ import annotations

import secrets

from breakeven_operator.adapters.kubernetes import KubernetesCluster
from breakeven_operator.plan import RUNS, SERVICES
from breakeven_operator.resources import API_VERSION


async def request(service: str, uid: str, namespace: str, trigger: str, kubeconfig: str | None) -> str:
    """Create the run and return its name.

    Args:
        service: name of the SpeculativeService.
        uid: its uid; empty: the run has no owner and is only kept by count.
        namespace: its namespace.
        trigger: why; one of the run's words.
        kubeconfig: file to use; None: the pod's ServiceAccount.

    Raises:
        ClusterError: no access, or the API server refused.
    """
    cluster = await KubernetesCluster.connect(kubeconfig)
    try:
        body = {
            "apiVersion": API_VERSION,
            "kind": RUNS.kind,
            "metadata": {
                "name": f"{service}-{secrets.token_hex(3)}",
                "namespace": namespace,
                "labels": {"breakeven.dev/service": service, "app.kubernetes.io/managed-by": "breakeven"},
                **({"ownerReferences": [_owner(service, uid)]} if uid else {}),
            },
            "spec": {"serviceRef": {"name": service}, "trigger": trigger},
        }
        created = await cluster.create(RUNS, body)
    finally:
        await cluster.close()
    return str(created["metadata"]["name"])


def _owner(service: str, uid: str) -> dict[str, object]:
    return {
        "apiVersion": API_VERSION,
        "kind": SERVICES.kind,
        "name": service,
        "uid": uid,
        "controller": True,
        "blockOwnerDeletion": False,
    }

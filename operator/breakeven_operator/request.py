"""`breakeven-operator request-run`: what the CronJob of a service runs; asks for one calibration and ends.

The run is only asked for: the operator admits it, lets it wait, or ends it as superseded by one under way.
"""

from __future__ import annotations

from typing import Any, Protocol

from breakeven_operator.kinds import RUNS, SERVICES, Resource
from breakeven_operator.labels import MANAGED_BY, SERVICE_LABEL, owner_reference
from breakeven_operator.ports import Manifest
from breakeven_operator.resources.calibrationrun import Trigger


class Creator(Protocol):
    """The part of the cluster that a request uses."""

    async def create(self, resource: Resource, body: Manifest) -> Manifest:
        """Create one object."""
        ...


def requested_run(namespace: str, service: str, uid: str, trigger: Trigger) -> dict[str, Any]:
    """The CalibrationRun to create, with a name that the API server completes.

    Args:
        namespace: of the service.
        service: its name.
        uid: its uid, so that the run goes with it; empty: the run stays when the service goes.
        trigger: why.
    """
    owners = {"ownerReferences": [owner_reference(SERVICES, service, uid)]} if uid else {}
    return {
        "apiVersion": RUNS.api_version,
        "kind": RUNS.kind,
        "metadata": {
            "generateName": f"{service}-",
            "namespace": namespace,
            "labels": {**MANAGED_BY, SERVICE_LABEL: service},
            **owners,
        },
        "spec": {"serviceRef": {"name": service}, "trigger": str(trigger)},
    }


async def request(cluster: Creator, namespace: str, service: str, uid: str, trigger: Trigger) -> str:
    """Create the run; returns its name.

    Raises:
        ClusterError: the API server refused.
    """
    created = await cluster.create(RUNS, requested_run(namespace, service, uid, trigger))
    return str(created["metadata"]["name"])

"""The run that `breakeven-operator request-run` asks for, which the CronJob of a service runs.

The run is only asked for: the operator admits it, lets it wait, or ends it as superseded by one under way.
"""

from __future__ import annotations

from typing import Any

from breakeven_operator.kinds import RUNS, SERVICES
from breakeven_operator.labels import MANAGED_BY, SERVICE_LABEL, owner_reference
from breakeven_operator.resources.calibrationrun import Trigger


def requested_run(namespace: str, service: str, uid: str, trigger: Trigger) -> dict[str, Any]:
    """The CalibrationRun to create, with a name that the API server completes.

    Without a uid the run stays when the service goes.
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

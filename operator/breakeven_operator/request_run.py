"""`breakeven-operator request-run`: what the CronJob of a service runs; asks for one calibration and ends.

The run is only asked for: the operator admits it, lets it wait, or ends it as superseded by one under way.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from collections.abc import Mapping
from typing import Any, Protocol

from breakeven.errors import InputError
from breakeven_operator.adapters.kubernetes import KubernetesCluster
from breakeven_operator.calibration.jobs import MANAGED_BY, SERVICE_LABEL, owner_reference
from breakeven_operator.plan import RUNS, SERVICES, Resource
from breakeven_operator.ports import ClusterError, Manifest
from breakeven_operator.resources.calibrationrun import Trigger

_LOG = logging.getLogger("request-run")
OK, REFUSED, BAD_ENVIRONMENT = 0, 1, 2


class Creator(Protocol):
    """What is needed of the cluster."""

    async def create(self, resource: Resource, body: Manifest) -> Manifest:
        """Create one object."""
        ...


def requested_run(env: Mapping[str, str]) -> dict[str, Any]:
    """The CalibrationRun to create, owned by its service, with a name that the API server completes.

    Raises:
        InputError: a variable that the CronJob sets is missing.
    """
    names = ("BREAKEVEN_NAMESPACE", "BREAKEVEN_SERVICE", "BREAKEVEN_SERVICE_UID")
    for name in names:
        if not env.get(name):
            raise InputError(name, "not set", "what the CronJob of a SpeculativeService sets")
    namespace, service, uid = (env[name] for name in names)
    owner = {
        "apiVersion": SERVICES.api_version,
        "kind": SERVICES.kind,
        "metadata": {"name": service, "uid": uid},
    }
    return {
        "apiVersion": RUNS.api_version,
        "kind": RUNS.kind,
        "metadata": {
            "generateName": f"{service}-",
            "namespace": namespace,
            "labels": {**MANAGED_BY, SERVICE_LABEL: service},
            "ownerReferences": [owner_reference(owner)],
        },
        "spec": {"serviceRef": {"name": service}, "trigger": str(Trigger.SCHEDULE)},
    }


async def request(env: Mapping[str, str], cluster: Creator) -> str:
    """Create the run; returns its name.

    Raises:
        InputError: the environment is not what the CronJob sets.
        ClusterError: the API server refused.
    """
    created = await cluster.create(RUNS, requested_run(env))
    return str(created["metadata"]["name"])


async def _main() -> None:
    cluster = await KubernetesCluster.connect(os.environ.get("KUBECONFIG"))
    try:
        _LOG.info("created CalibrationRun %s", await request(os.environ, cluster))
    finally:
        await cluster.close()


def main() -> int:
    """Entry point; returns the exit code."""
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(asctime)s %(message)s")
    try:
        asyncio.run(_main())
    except InputError as error:
        _LOG.error("%s", error)
        return BAD_ENVIRONMENT
    except ClusterError as error:
        _LOG.error("%s", error)
        return REFUSED
    return OK

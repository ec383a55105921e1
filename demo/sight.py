"""Reader of the demo: objects through the API server, alerts from Alertmanager. It writes nothing."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping, Sequence
from datetime import datetime
from http import HTTPStatus
from pathlib import Path
from typing import Any, Self

import aiohttp
from kubernetes.aio import client, config
from kubernetes.aio.client.exceptions import ApiException

GROUP, VERSION = "breakeven.dev", "v1alpha1"
ALERT = "SpeculationUnprofitable"
Object = Mapping[str, Any]


class Sight:
    """A read-only view of one namespace, one TLS session for all of it."""

    def __init__(self, kubeconfig: Path, namespace: str, alertmanager_url: str) -> None:
        self._kubeconfig = kubeconfig
        self._namespace = namespace
        self._alertmanager_url = alertmanager_url
        self._exits = contextlib.AsyncExitStack()

    async def __aenter__(self) -> Self:
        configuration = client.Configuration()
        load: Any = config.load_kube_config  # untyped
        await load(str(self._kubeconfig), client_configuration=configuration)
        self._api = await self._exits.enter_async_context(client.ApiClient(configuration))
        self._http = await self._exits.enter_async_context(aiohttp.ClientSession())
        return self

    async def __aexit__(self, *failure: object) -> None:
        await self._exits.aclose()

    async def custom(self, plural: str) -> list[Object]:
        """All objects of one of our kinds; a kind whose storage the API server is still making is waited for."""
        api = client.CustomObjectsApi(self._api)
        while True:
            try:
                listing: Any = await api.list_namespaced_custom_object(
                    GROUP, VERSION, self._namespace, plural
                )
            except ApiException as refusal:
                if refusal.status != HTTPStatus.TOO_MANY_REQUESTS:
                    raise
                await asyncio.sleep(float((refusal.headers or {}).get("Retry-After", 1)))
            else:
                return list(listing["items"])

    async def ready_pods(self, selector: Mapping[str, str], port: int) -> dict[str, str]:
        """Name to base URL of the pods an EndpointSlice would call ready: Ready and not being deleted."""
        labels = ",".join(f"{key}={value}" for key, value in selector.items())
        listing: Any = await client.CoreV1Api(self._api).list_namespaced_pod(
            self._namespace, label_selector=labels
        )
        return {
            str(pod.metadata.name): f"http://{pod.status.pod_ip}:{port}"
            for pod in listing.items
            if pod.metadata.deletion_timestamp is None
            and pod.status.pod_ip
            and any(c.type == "Ready" and c.status == "True" for c in pod.status.conditions or ())
        }

    async def events(self) -> list[tuple[float, str, str, str, str]]:
        """(time, object, type, reason, message) of the events on SpeculativeServices and CalibrationRuns."""
        listing: Any = await client.CoreV1Api(self._api).list_namespaced_event(self._namespace)
        found = []
        for event in listing.items:
            if event.involved_object.kind in {"SpeculativeService", "CalibrationRun"}:
                when: datetime = (
                    event.event_time or event.first_timestamp or event.metadata.creation_timestamp
                )
                found.append(
                    (
                        when.timestamp(),
                        str(event.involved_object.name),
                        str(event.type),
                        str(event.reason),
                        str(event.message),
                    )
                )
        return sorted(found)

    async def alerting(self) -> set[str]:
        """Names of the services for which Alertmanager holds a firing SpeculationUnprofitable."""
        address = f"{self._alertmanager_url}/api/v2/alerts?active=true"
        async with self._http.get(address) as answer:
            alerts: Sequence[Object] = await answer.json()
        return {
            str(alert["labels"].get("specsvc", ""))
            for alert in alerts
            if alert["labels"].get("alertname") == ALERT and alert["status"]["state"] == "active"
        }

"""The Kubernetes API as plain JSON, through the official asynchronous client.

The client's configuration (kubeconfig, in-cluster token that is re-read as it expires, CA) and connection pool are used;
its generated models are not: building 50 typed Deployments with all their pods every cycle costs more memory and time
than the whole decision, and unknown fields of newer servers would be lost on the way.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable, Mapping
from typing import Any, Protocol, cast

import aiohttp
from kubernetes.aio import client, config

from breakeven_operator.kinds import FIELD_MANAGER, NODES, PROFILES, REPLICASETS, Ref, Resource
from breakeven_operator.ports import ClusterError, FieldConflictError, Manifest, StaleObjectError

_LOG = logging.getLogger(__name__)
_PAGE = 500
_METADATA_ONLY = "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io"
# Kinds of which only names, labels and owners are read: an eighth of the bytes, and neither pod templates nor whole
# profiles in memory every cycle.
_METADATA_SUFFICES = frozenset({REPLICASETS, NODES, PROFILES})
_CONFLICT_WITH = re.compile(r'conflict(?:s)? with "([^"]+)"')


class _Response(Protocol):
    status: int
    reason: str

    async def read(self) -> bytes: ...


class KubernetesCluster:
    """The `Cluster` port. One instance per process and event loop; `close` it.

    Args:
        configuration: the client's.
        counted: is called for every request with its verb and status code (0: no answer).
        timeout_s: of one request.
    """

    def __init__(
        self,
        configuration: Any,
        *,
        counted: Callable[[str, int], None] | None = None,
        timeout_s: float = 30.0,
    ) -> None:
        self._api = client.ApiClient(configuration)
        self._timeout = aiohttp.ClientTimeout(total=timeout_s, connect=10.0)
        self._counted = counted or (lambda _verb, _code: None)

    @classmethod
    async def connect(
        cls,
        kubeconfig: str | None = None,
        *,
        counted: Callable[[str, int], None] | None = None,
        timeout_s: float = 30.0,
    ) -> KubernetesCluster:
        """From a kubeconfig file when one is named, else from the pod's ServiceAccount.

        Raises:
            ClusterError: neither is usable.
        """
        configuration = client.Configuration()
        try:
            if kubeconfig:
                await config.load_kube_config(  # type: ignore[no-untyped-call]
                    config_file=kubeconfig, client_configuration=configuration
                )
            else:
                config.load_incluster_config(client_configuration=configuration)  # type: ignore[no-untyped-call]
        except (config.ConfigException, OSError) as error:
            raise ClusterError(f"no access to a cluster: {error}") from error
        # Retrying is the fleet loop's business: the next cycle sees the whole world again.
        configuration.retries = False
        return cls(configuration, counted=counted, timeout_s=timeout_s)

    async def close(self) -> None:
        """Close the connections."""
        await self._api.close()  # type: ignore[no-untyped-call]

    async def list_all(
        self,
        resource: Resource,
        namespace: str | None = None,
        labels: str = "",
        trim: Callable[[Manifest], Manifest | None] | None = None,
    ) -> list[Manifest]:
        """See `Cluster.list_all`; large collections come in pages of one consistent read."""
        items: list[Manifest] = []
        token = ""
        accept = _METADATA_ONLY if resource in _METADATA_SUFFICES else "application/json"
        while True:
            query = [("limit", str(_PAGE))]
            query += [("labelSelector", labels)] if labels else []
            query += [("continue", token)] if token else []
            page = await self._request("GET", resource.path(namespace), query=query, accept=accept)
            found = page.get("items") or []
            items.extend(found if trim is None else filter(None, map(trim, found)))
            token = (page.get("metadata") or {}).get("continue") or ""
            if not token:
                return items

    async def get(self, resource: Resource, namespace: str, name: str) -> Manifest | None:
        """See `Cluster.get`."""
        try:
            return await self._request("GET", resource.path(namespace, name))
        except ClusterError as error:
            if error.status == 404:
                return None
            raise

    async def create(self, resource: Resource, body: Manifest) -> Manifest:
        """See `Cluster.create`."""
        return await self._request("POST", resource.path(body["metadata"].get("namespace")), body=body)

    async def apply(
        self,
        resource: Resource,
        body: Manifest,
        *,
        force: bool = False,
        subresource: str | None = None,
        manager: str = FIELD_MANAGER,
    ) -> Manifest:
        """See `Cluster.apply`: a raw PATCH of type apply, nothing of kubectl's migrations."""
        meta = body["metadata"]
        full = {"apiVersion": resource.api_version, "kind": resource.kind, **body}
        return await self._request(
            "PATCH",
            resource.path(meta.get("namespace"), meta["name"], subresource),
            query=[("fieldManager", manager), ("force", "true" if force else "false")],
            body=full,
            content="application/apply-patch+yaml",
        )

    async def replace(self, resource: Resource, body: Manifest) -> Manifest:
        """See `Cluster.replace`."""
        meta = body["metadata"]
        return await self._request("PUT", resource.path(meta.get("namespace"), meta["name"]), body=body)

    async def delete(self, ref: Ref) -> None:
        """See `Cluster.delete`."""
        body: dict[str, Any] = {"propagationPolicy": "Background"}
        if ref.uid:
            body["preconditions"] = {"uid": ref.uid}
        try:
            await self._request("DELETE", ref.resource.path(ref.namespace, ref.name), body=body)
        except ClusterError as error:
            if error.status != 404:
                raise

    async def _request(
        self,
        method: str,
        path: str,
        *,
        query: list[tuple[str, str]] | None = None,
        body: Manifest | None = None,
        accept: str = "application/json",
        content: str = "application/json",
    ) -> dict[str, Any]:
        headers = {"Accept": accept, "Content-Type": content}
        try:
            method, url, headers, _, _ = await self._api.param_serialize(
                method, path, query_params=query or [], header_params=headers, auth_settings=["BearerToken"]
            )
            response = cast(
                "_Response",
                await self._api.call_api(
                    method,
                    url,
                    header_params=headers,
                    body=dict(body) if body is not None else None,
                    _request_timeout=self._timeout,
                ),
            )
            data = await response.read()
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            self._counted(method, 0)
            raise ClusterError(f"{method} {path}: {type(error).__name__} {error}") from error
        self._counted(method, response.status)
        try:
            answer: dict[str, Any] = json.loads(data) if data else {}
        except ValueError:
            # Something between us and the API server answered (a proxy's page).
            answer = {"message": data[:200].decode(errors="replace")}
        if not 200 <= response.status < 300:
            raise _refusal(method, path, response.status, answer)
        return answer


def _refusal(method: str, path: str, status: int, answer: Mapping[str, Any]) -> ClusterError:
    message = f"{method} {path}: {status} {answer.get('message', '')}"
    if status == 409:
        causes = ((answer.get("details") or {}).get("causes")) or []
        managers = {
            match.group(1)
            for cause in causes
            if cause.get("reason") == "FieldManagerConflict"
            and (match := _CONFLICT_WITH.search(str(cause.get("message", ""))))
        }
        if managers:
            return FieldConflictError(message, tuple(sorted(managers)))
        if answer.get("reason") == "Conflict":
            return StaleObjectError(message)
    return ClusterError(message, status)

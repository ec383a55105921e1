"""The Kubernetes API as plain JSON, through the official asynchronous client.

The client's configuration (kubeconfig, in-cluster token that is re-read as it expires, CA) and connection pool are used,
its generated models are not. Building 50 typed workloads with all their pods every cycle costs more memory and time
than the whole decision. The models would also lose unknown fields of newer servers.
"""

from __future__ import annotations

import contextlib
import re
import socket
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping
from http import HTTPStatus
from typing import Any, Protocol, cast

import aiohttp
import pydantic_core
from kubernetes.aio import client, config

from breakeven_operator.cluster.api_json import problem_of, read_event, read_object, read_page
from breakeven_operator.kinds import FIELD_MANAGER, NODES, REPLICASETS, Ref, Resource
from breakeven_operator.ports import (
    ClusterError,
    EventKind,
    FieldConflictError,
    Manifest,
    StaleObjectError,
    WatchEvent,
    admission_spoke,
)

_PAGE = 500
_REQUEST_S = 30.0
_METADATA_LIST = "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io"
_METADATA = "application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io"
_JSON = "application/json"
# Bookmarks come once a minute. If nothing has happened to a kind since the server's start they come only after some
# minutes [ran, 1.36]. Other clients too begin a watch again after 5 to 10 minutes.
SILENCE_S = 300.0
# The kernel notices a peer that is gone silently, after 30 + 3 * 10 s; that costs the API server nothing.
_KEEPALIVE = ((socket.TCP_KEEPIDLE, 30), (socket.TCP_KEEPINTVL, 10), (socket.TCP_KEEPCNT, 3))
# A server without the feature WatchList refuses a list as a stream with one of these.
_NO_STREAMED_LIST = frozenset({HTTPStatus.BAD_REQUEST, HTTPStatus.UNPROCESSABLE_ENTITY})
# Kinds of which only names, labels and owners are read: an eighth of the bytes, and no pod templates.
_METADATA_SUFFICES = frozenset({REPLICASETS, NODES})
_CONFLICT_WITH = re.compile(r'conflict(?:s)? with "([^"]+)"')


class _Response(Protocol):
    status: int
    reason: str
    response: aiohttp.ClientResponse

    async def read(self) -> bytes: ...


class KubernetesCluster:
    """The `Cluster` port. One instance per process and event loop; `close` it.

    Args:
        counted: is called for every request with its verb and status code (0: no answer).
        unreadable: is called for every object that could not be read, each time it comes.
        silence_s: longest time between two lines of a watch.
    """

    def __init__(
        self,
        configuration: Any,
        *,
        counted: Callable[[str, int], None] | None = None,
        unreadable: Callable[[Resource, Manifest], None] | None = None,
        silence_s: float = SILENCE_S,
    ) -> None:
        # Every watch holds a connection for as long as it lasts: with a limit the requests would wait for one for ever.
        configuration.connection_pool_maxsize = 0
        self._api = client.ApiClient(configuration)
        self._timeout = aiohttp.ClientTimeout(total=_REQUEST_S, connect=10.0)
        self._watch_timeout = aiohttp.ClientTimeout(total=None, sock_connect=10.0, sock_read=silence_s)
        self._counted = counted or (lambda _verb, _code: None)
        self._unreadable = unreadable or (lambda _resource, _manifest: None)
        self._streams_lists = True

    @classmethod
    async def connect(
        cls,
        kubeconfig: str | None = None,
        *,
        counted: Callable[[str, int], None] | None = None,
        unreadable: Callable[[Resource, Manifest], None] | None = None,
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
        # The fleet loop retries: the next cycle sees the whole world again.
        configuration.retries = False
        return cls(configuration, counted=counted, unreadable=unreadable)

    async def close(self) -> None:
        """Close the connections."""
        await self._api.close()  # type: ignore[no-untyped-call]

    async def serves(self, resource: Resource) -> bool:
        """Whether there is such a kind, without a look at its objects.

        Raises:
            ClusterError: the server does not say.
        """
        try:
            found = await self.document(resource.version_path)
        except ClusterError as error:
            if error.status == HTTPStatus.NOT_FOUND:
                return False
            raise
        return any(kind.get("name") == resource.plural for kind in found.get("resources") or [])

    async def document(self, path: str) -> dict[str, Any]:
        """A document about the API server itself, such as the kinds of a group.

        Raises:
            ClusterError: it does not say.
        """
        try:
            found = pydantic_core.from_json(await self._request("GET", path))
        except ValueError as error:
            raise ClusterError(f"GET {path}: an answer that is no JSON ({error})") from error
        if not isinstance(found, dict):
            raise ClusterError(f"GET {path}: an answer that is no JSON object")
        return found

    async def list_all(
        self,
        resource: Resource,
        namespace: str | None = None,
        labels: str = "",
        trim: Callable[[Manifest], Manifest | None] | None = None,
        fields: str = "",
    ) -> list[Manifest]:
        """See `Cluster.list_all`; large collections come in pages of one consistent read."""
        items: list[Manifest] = []
        async for page, _ in self._pages(resource, namespace, labels, fields):
            items.extend(page if trim is None else filter(None, map(trim, page)))
        return items

    async def _pages(
        self, resource: Resource, namespace: str | None, labels: str, fields: str = ""
    ) -> AsyncGenerator[tuple[list[Manifest], str]]:
        """The objects of each page, and the version that all pages are of."""
        token = ""
        accept = _METADATA_LIST if resource in _METADATA_SUFFICES else _JSON
        while True:
            query = [("limit", str(_PAGE))]
            query += [("labelSelector", labels)] if labels else []
            query += [("fieldSelector", fields)] if fields else []
            query += [("continue", token)] if token else []
            path = resource.path(namespace)
            text = await self._request("GET", path, query=query, accept=accept)
            try:
                items, token, version = read_page(text, resource)
            except ValueError as error:
                # Read as an empty list, it would mean a cluster without any object.
                raise ClusterError(f"GET {path}: a page that is no list ({error})") from error
            self._report(resource, items)
            yield items, version
            if not token:
                return

    async def watch(
        self, resource: Resource, namespace: str | None = None, labels: str = "", version: str = ""
    ) -> AsyncGenerator[WatchEvent]:
        """See `Cluster.watch`.

        Present objects come as a stream out of the server's own cache, object by object (the feature WatchList). A server that
        does not offer the feature gives them in pages.
        """
        if not version and self._streams_lists:
            streamed = [("sendInitialEvents", "true"), ("resourceVersionMatch", "NotOlderThan")]
            try:
                async for event in self._follow(resource, namespace, labels, streamed):
                    yield event
            except ClusterError as error:
                if error.status not in _NO_STREAMED_LIST:
                    raise
                self._streams_lists = False
            else:
                return
        if not version:
            async for page, moment in self._pages(resource, namespace, labels):
                # All pages are of one moment, and say which.
                version = moment
                for item in page:
                    yield WatchEvent(EventKind.ADDED, item)
            yield WatchEvent(EventKind.SYNCED, {"metadata": {"resourceVersion": version}})
        async for event in self._follow(resource, namespace, labels, [("resourceVersion", version)]):
            yield event

    async def _follow(
        self, resource: Resource, namespace: str | None, labels: str, start: list[tuple[str, str]]
    ) -> AsyncGenerator[WatchEvent]:
        path = resource.path(namespace)
        opened = dict(start).get("resourceVersion")
        query = [("watch", "true"), ("allowWatchBookmarks", "true"), *start]
        query += [("labelSelector", labels)] if labels else []
        accept = _METADATA if resource in _METADATA_SUFFICES else _JSON
        async with contextlib.aclosing(self._lines(path, query, accept)) as lines:
            async for line in lines:
                if line is None:
                    if opened is not None:
                        yield WatchEvent(EventKind.BOOKMARK, {"metadata": {"resourceVersion": opened}})
                    continue
                try:
                    event = read_event(line, resource)
                except ValueError as error:
                    raise ClusterError(f"WATCH {path}: a line that is no event") from error
                if not isinstance(event, WatchEvent):
                    raise _refusal("WATCH", path, int(event.get("code") or 0), event)
                self._report(resource, (event.manifest,))
                yield event

    async def _lines(
        self, path: str, query: list[tuple[str, str]], accept: str
    ) -> AsyncGenerator[bytes | None]:
        """The lines of an answer that does not end, of any length, unlike aiohttp's `readline`; None if it begins."""
        try:
            headers = {"Accept": accept, "Content-Type": _JSON}
            response = await self._send("GET", path, query, None, headers, self._watch_timeout)
            self._counted("WATCH", response.status)
            try:
                if response.status != HTTPStatus.OK:
                    raise _refusal("WATCH", path, response.status, _said(await response.read()))
                _keep_alive(response.response)
                yield None
                begun: list[bytes] = []
                async for chunk in response.response.content.iter_any():
                    first, *others = chunk.split(b"\n")
                    begun.append(first)
                    for following in others:
                        line, begun = b"".join(begun), [following]
                        if line:
                            yield line
            finally:
                response.response.close()
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            self._counted("WATCH", 0)
            raise ClusterError(f"WATCH {path}: {type(error).__name__} {error}") from error

    async def get(self, resource: Resource, namespace: str, name: str) -> Manifest | None:
        """See `Cluster.get`."""
        try:
            return await self._object("GET", resource, resource.path(namespace, name))
        except ClusterError as error:
            if error.status == 404:
                return None
            raise

    async def create(self, resource: Resource, body: Manifest) -> Manifest:
        """See `Cluster.create`."""
        path = resource.path(body["metadata"].get("namespace"))
        return await self._object("POST", resource, path, body=body)

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
        return await self._object(
            "PATCH",
            resource,
            resource.path(meta.get("namespace"), meta["name"], subresource),
            query=[("fieldManager", manager), ("force", "true" if force else "false")],
            body=full,
            content="application/apply-patch+yaml",
        )

    async def replace(self, resource: Resource, body: Manifest) -> Manifest:
        """See `Cluster.replace`."""
        meta = body["metadata"]
        path = resource.path(meta.get("namespace"), meta["name"])
        return await self._object("PUT", resource, path, body=body)

    async def delete(self, ref: Ref, resource_version: str | None = None) -> Manifest | None:
        """See `Cluster.delete`."""
        body: dict[str, Any] = {"propagationPolicy": "Background"}
        held = {"uid": ref.uid or None, "resourceVersion": resource_version}
        if conditions := {name: value for name, value in held.items() if value is not None}:
            body["preconditions"] = conditions
        try:
            path = ref.resource.path(ref.namespace, ref.name)
            text = await self._request("DELETE", path, body=body)
        except ClusterError as error:
            if error.status != 404:
                raise
            return None
        # An object that is gone is answered with as a Status or, by some kinds, as it was. One that cannot be read is left to
        # the watch.
        answer = _said(text)
        return answer if (answer.get("metadata") or {}).get("finalizers") else None

    async def _object(
        self,
        method: str,
        resource: Resource,
        path: str,
        *,
        query: list[tuple[str, str]] | None = None,
        body: Manifest | None = None,
        content: str = _JSON,
    ) -> Manifest:
        text = await self._request(method, path, query=query, body=body, content=content)
        try:
            found = read_object(text, resource)
        except ValueError as error:
            raise ClusterError(f"{method} {path}: an answer that is no object ({error})") from error
        self._report(resource, (found,))
        return found

    def _report(self, resource: Resource, manifests: Iterable[Manifest]) -> None:
        for manifest in manifests:
            if problem_of(manifest) is not None:
                self._unreadable(resource, manifest)

    async def _request(
        self,
        method: str,
        path: str,
        *,
        query: list[tuple[str, str]] | None = None,
        body: Manifest | None = None,
        accept: str = _JSON,
        content: str = _JSON,
    ) -> bytes:
        try:
            headers = {"Accept": accept, "Content-Type": content}
            response = await self._send(method, path, query or [], body, headers, self._timeout)
            data = await response.read()
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            self._counted(method, 0)
            raise ClusterError(f"{method} {path}: {type(error).__name__} {error}") from error
        self._counted(method, response.status)
        if not 200 <= response.status < 300:
            raise _refusal(method, path, response.status, _said(data))
        return data

    async def _send(
        self,
        method: str,
        path: str,
        query: list[tuple[str, str]],
        body: Manifest | None,
        headers: Mapping[str, str],
        limits: aiohttp.ClientTimeout,
    ) -> _Response:
        method, url, sent, _, _ = await self._api.param_serialize(
            method,
            path,
            query_params=query,
            header_params=dict(headers),
            auth_settings=["BearerToken"],
        )
        answer = await self._api.call_api(
            method,
            url,
            header_params=sent,
            body=dict(body) if body is not None else None,
            _request_timeout=limits,
        )
        return cast("_Response", answer)


def _keep_alive(response: aiohttp.ClientResponse) -> None:
    transport = response.connection.transport if response.connection is not None else None
    wire = transport.get_extra_info("socket") if transport is not None else None
    if wire is not None:
        wire.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in _KEEPALIVE:
            wire.setsockopt(socket.IPPROTO_TCP, option, value)


def _said(text: bytes) -> dict[str, Any]:
    """The sentence of an answer that is no object: a Status, or the page of a proxy before the API server."""
    try:
        found = pydantic_core.from_json(text)
    except ValueError:
        found = None
    return found if isinstance(found, dict) else {"message": text[:200].decode(errors="replace")}


def _refusal(method: str, path: str, status: int, answer: Mapping[str, Any]) -> ClusterError:
    said = str(answer.get("message") or "")
    message = f"{method} {path}: {status} {said}"
    # A webhook may deny with any status, 409 too, and an object that was denied is not one that has changed.
    if status == 409 and not admission_spoke(said):
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
    return ClusterError(message, status, said)

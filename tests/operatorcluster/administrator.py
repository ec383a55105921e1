"""The API server as administrator, over connections that stay open: a kubectl costs a tenth of a second of a core.

kubectl itself is used where a test is about what kubectl does.
"""

from __future__ import annotations

import contextlib
import json
import ssl
from collections.abc import Iterator
from types import TracebackType
from typing import Any, Self

import urllib3

from localcluster import LocalCluster

_PATIENCE_S = 180
Document = dict[str, Any]

# Admission policies that patch learn of a new CRD within a minute, and refuse with 503 until then.
_UNTIL_KNOWN = urllib3.Retry(
    None,
    connect=0, read=0, redirect=0, other=0, status=60,
    status_forcelist=(503,), allowed_methods=None, backoff_factor=0.2, backoff_max=3.0, raise_on_status=False,
)  # fmt: skip


class Administrator:
    """Does what kubectl does for tests that are not about kubectl; paths begin with a slash.

    Raises:
        AssertionError: (every method that changes something, or waits) the API server refused, or it did not come true.
    """

    def __init__(self, cluster: LocalCluster) -> None:
        pki = cluster.state_dir / "pki"
        context = ssl.create_default_context(cafile=pki / "ca.crt")
        context.load_cert_chain(pki / "admin.crt", pki / "admin.key")
        self._pool = urllib3.PoolManager(ssl_context=context, maxsize=4, retries=False)
        self._base = cluster.api_url

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._pool.clear()

    def json(self, path: str) -> Any:
        """The decoded body of a 200, or None for anything else, an unreachable server included."""
        try:
            answer = self._pool.request("GET", self._base + path, timeout=30.0)
        except urllib3.exceptions.HTTPError:
            return None
        return answer.json() if answer.status == 200 else None

    def create(self, path: str, body: Document) -> Document:
        """A new object of a collection."""
        return self._change("POST", path, body)

    def patch(self, path: str, change: Document) -> Document:
        """A merge patch, under the name that `kubectl patch` goes by."""
        return self._change("PATCH", f"{path}?fieldManager=kubectl-patch", change, "merge-patch+json")

    def delete(self, path: str, **options: Any) -> None:
        """An object, or all of a collection; returns before they have gone. One that is not there is no failure."""
        body = {"kind": "DeleteOptions", "apiVersion": "v1", **options}
        self._change("DELETE", path, body, accepted=(404,))

    def _change(
        self, method: str, path: str, body: Document, kind: str = "json", accepted: tuple[int, ...] = ()
    ) -> Document:
        answer = self._pool.request(
            method,
            self._base + path,
            json=body,
            headers={"Content-Type": f"application/{kind}"},
            retries=_UNTIL_KNOWN,
        )
        assert answer.status < 300 or answer.status in accepted, f"{method} {path}: {answer.data.decode()}"
        found: Document = answer.json()
        return found

    def until_there(self, collection: str, name: str) -> None:
        """Returns when an object exists."""
        query = f"fieldSelector=metadata.name%3D{name}"
        # Without a place to begin, a watch begins with what there is.
        with self._watch(collection, query) as events:
            assert any(event["type"] == "ADDED" for event in events), f"{collection} got no {name}"

    def until_empty(self, collection: str) -> None:
        """Returns when a collection, to which nothing is added any more, has nothing left."""
        found = self.json(collection)
        assert found is not None, f"the API server does not answer {collection}"
        left = {item["metadata"]["uid"] for item in found["items"]}
        if not left:
            return
        with self._watch(collection, f"resourceVersion={found['metadata']['resourceVersion']}") as events:
            for event in events:
                if event["type"] == "DELETED":
                    left.discard(event["object"]["metadata"]["uid"])
                    if not left:
                        return
        raise AssertionError(f"after {_PATIENCE_S} s still not gone from {collection}: {left}")

    @contextlib.contextmanager
    def _watch(self, collection: str, query: str) -> Iterator[Iterator[Document]]:
        url = f"{self._base}{collection}?watch=true&timeoutSeconds={_PATIENCE_S}&{query}"
        answer = self._pool.request("GET", url, preload_content=False)
        assert answer.status == 200, f"{url}: {answer.status}"
        try:
            yield (json.loads(line) for line in answer)
        finally:
            answer.close()

    @contextlib.contextmanager
    def namespace(self, name: str, *first: str, wait: bool) -> Iterator[None]:
        """A namespace in which pods can be created; at its end its pods are ended.

        Args:
            name: of it.
            first: collections (`apis/apps/v1/deployments`) whose objects would make new pods, deleted before it.
            wait: until the pods have ended, and their GPUs are free. Its other content goes when the controller manager
                gets to it, and nobody waits for that.
        """
        self.create("/api/v1/namespaces", {"metadata": {"name": name}})
        # Pods are refused until the controller manager has made it.
        self.until_there(f"/api/v1/namespaces/{name}/serviceaccounts", "default")
        try:
            yield
        finally:
            for collection in first:
                version, _, kind = collection.rpartition("/")
                self.delete(f"/{version}/namespaces/{name}/{kind}", propagationPolicy="Background")
            # A namespace that is being deleted takes no new pods, so nothing replaces those that go.
            self.delete(f"/api/v1/namespaces/{name}")
            pods = f"/api/v1/namespaces/{name}/pods"
            self.delete(pods, gracePeriodSeconds=1)
            if wait:
                self.until_empty(pods)

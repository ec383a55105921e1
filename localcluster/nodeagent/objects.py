"""ConfigMaps, Secrets and ServiceAccount tokens of pods, as containers and volumes read them."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from localcluster.nodeagent import payloads
from localcluster.nodeagent.api import Api
from localcluster.nodeagent.podspec import PodSpec

_PLURALS = {"configmap": "configmaps", "secret": "secrets"}
# A kubelet renews a token after 80 % of its life, and one of a day or more after a day.
_RENEW_AFTER, _RENEW_AT_LEAST_EVERY_S = 0.8, 86_400.0


class Objects:
    """Reads objects, remembering each for a while so that many pods' refreshes cost one request."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self._known: dict[str, tuple[float, dict[str, Any]]] = {}

    async def read(self, kind: str, namespace: str, name: str, max_age_s: float) -> dict[str, Any] | None:
        """The object, at most `max_age_s` old; None when it does not exist."""
        path = f"/api/v1/namespaces/{namespace}/{_PLURALS[kind]}/{name}"
        now = time.monotonic()
        known = self._known.get(path)
        if known and now - known[0] <= max_age_s:
            return known[1]
        found = await self._api.find(path)
        if found is None:
            self._known.pop(path, None)
        else:
            self._known[path] = (now, found)
        return found

    async def create_token(self, pod: PodSpec, audience: str, lifetime_s: int) -> str:
        """A new token of the pod's ServiceAccount that dies with the pod."""
        request = {
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenRequest",
            "spec": {
                "audiences": [audience] if audience else [],
                "expirationSeconds": lifetime_s,
                "boundObjectRef": {"apiVersion": "v1", "kind": "Pod", "name": pod.name, "uid": pod.uid},
            },
        }
        path = f"/api/v1/namespaces/{pod.namespace}/serviceaccounts/{pod.service_account}/token"
        return str((await self._api.create(path, request))["status"]["token"])


class PodObjects:
    """What one pod may read: the `Source` of its volumes and the `Lookup` of its environment."""

    def __init__(self, objects: Objects, pod: PodSpec) -> None:
        self._objects = objects
        self._pod = pod
        self._tokens: dict[tuple[str, int], tuple[float, str]] = {}
        self.max_age_s = 0.0

    async def lookup(self, kind: str, name: str) -> Mapping[str, str] | None:
        """An object's data as text for environment variables, read now; what is no text is left out."""
        found = await self._objects.read(kind, self._pod.namespace, name, 0.0)
        if found is None:
            return None
        if kind == "configmap":
            return dict(found.get("data") or {})
        return {key: value.decode(errors="replace") for key, value in payloads.secret_data(found).items()}

    async def config_map(self, name: str) -> Mapping[str, bytes] | None:
        """See `payloads.Source`."""
        found = await self._objects.read("configmap", self._pod.namespace, name, self.max_age_s)
        return None if found is None else payloads.config_map_data(found)

    async def secret(self, name: str) -> Mapping[str, bytes] | None:
        """See `payloads.Source`."""
        found = await self._objects.read("secret", self._pod.namespace, name, self.max_age_s)
        return None if found is None else payloads.secret_data(found)

    async def token(self, audience: str, lifetime_s: int) -> str:
        """See `payloads.Source`."""
        now = time.monotonic()
        renew_at, token = self._tokens.get((audience, lifetime_s), (0.0, ""))
        if not token or now >= renew_at:
            token = await self._objects.create_token(self._pod, audience, lifetime_s)
            renew_at = now + min(_RENEW_AFTER * lifetime_s, _RENEW_AT_LEAST_EVERY_S)
            self._tokens[audience, lifetime_s] = (renew_at, token)
        return token

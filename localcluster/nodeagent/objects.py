"""ConfigMaps, Secrets and ServiceAccount tokens of pods, as containers and volumes read them."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, NamedTuple

from localcluster.nodeagent import payloads
from localcluster.nodeagent.api_client import ApiClient
from localcluster.nodeagent.podspec import PodSpec

_PLURALS = {"configmap": "configmaps", "secret": "secrets"}
# A kubelet renews a token after 80 % of its life, and one of a day or more after a day.
_RENEW_AFTER, _RENEW_AT_LEAST_EVERY_S = 0.8, 86_400.0


class _Read(NamedTuple):
    """An object, and when it was read (s, monotonic)."""

    at_s: float
    found: dict[str, Any]


class _Lifetime(NamedTuple):
    """A token's audience and lifetime."""

    audience: str
    lifetime_s: int


class _Token(NamedTuple):
    """A token, and when it is due to be renewed (s, monotonic)."""

    renew_at_s: float
    token: str


class Objects:
    """Reads objects, remembering each for a while so that many pods' refreshes cost one request."""

    def __init__(self, api: ApiClient) -> None:
        self._api = api
        self._known: dict[str, _Read] = {}

    async def read(self, kind: str, namespace: str, name: str, max_age_s: float) -> dict[str, Any] | None:
        """The object, at most `max_age_s` old; None if it does not exist."""
        path = f"/api/v1/namespaces/{namespace}/{_PLURALS[kind]}/{name}"
        now = time.monotonic()
        known = self._known.get(path)
        if known and now - known.at_s <= max_age_s:
            return known.found
        found = await self._api.find(path)
        if found is None:
            self._known.pop(path, None)
        else:
            self._known[path] = _Read(now, found)
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
    """The objects that one pod may read: the `Source` of its volumes and the `Lookup` of its environment."""

    def __init__(self, objects: Objects, pod: PodSpec) -> None:
        self._objects = objects
        self._pod = pod
        self._tokens: dict[_Lifetime, _Token] = {}
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
        """See `PayloadSource`."""
        found = await self._objects.read("configmap", self._pod.namespace, name, self.max_age_s)
        return None if found is None else payloads.config_map_data(found)

    async def secret(self, name: str) -> Mapping[str, bytes] | None:
        """See `PayloadSource`."""
        found = await self._objects.read("secret", self._pod.namespace, name, self.max_age_s)
        return None if found is None else payloads.secret_data(found)

    async def token(self, audience: str, lifetime_s: int) -> str:
        """See `PayloadSource`."""
        now = time.monotonic()
        key = _Lifetime(audience, lifetime_s)
        known = self._tokens.get(key)
        if known is None or now >= known.renew_at_s:
            token = await self._objects.create_token(self._pod, audience, lifetime_s)
            known = _Token(now + min(_RENEW_AFTER * lifetime_s, _RENEW_AT_LEAST_EVERY_S), token)
            self._tokens[key] = known
        return known.token

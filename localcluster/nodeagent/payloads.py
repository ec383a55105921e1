"""Contents of a volume's files, given the objects they are made from."""

from __future__ import annotations

import base64
from collections.abc import Awaitable, Mapping
from dataclasses import dataclass
from typing import Protocol

from localcluster.nodeagent import fieldrefs
from localcluster.nodeagent.fieldrefs import Placement
from localcluster.nodeagent.podspec import Json, PodSpec

DEFAULT_MODE = 0o644


class MissingSourceError(Exception):
    """An object or key that the volume needs does not exist (yet): a kubelet's FailedMount."""


@dataclass(frozen=True)
class Payload:
    """One file of a volume."""

    content: bytes
    mode: int


class PayloadSource(Protocol):
    """Reads what volumes are made from, in one pod's namespace."""

    def config_map(self, name: str) -> Awaitable[Mapping[str, bytes] | None]:
        """A ConfigMap's data and binaryData; None if it does not exist."""

    def secret(self, name: str) -> Awaitable[Mapping[str, bytes] | None]:
        """A Secret's data, decoded; None if it does not exist."""

    def token(self, audience: str, lifetime_s: int) -> Awaitable[str]:
        """A token of the pod's ServiceAccount, bound to the pod; renewed before it expires."""


async def volume_files(
    volume: Json, pod: PodSpec, where: Placement, source: PayloadSource
) -> dict[str, Payload]:
    """The files of a configMap, secret, downwardAPI or projected volume by their path in it; later sources win.

    Raises:
        MissingSourceError: a source that is not optional, or one of its keys, does not exist.
    """
    if "configMap" in volume:
        return await _config_map(volume["configMap"], _mode(volume["configMap"]), source)
    if "secret" in volume:
        body = volume["secret"]
        return await _secret({**body, "name": body.get("secretName")}, _mode(body), source)
    if "downwardAPI" in volume:
        return _downward(volume["downwardAPI"], _mode(volume["downwardAPI"]), pod, where)
    files: dict[str, Payload] = {}
    projected = volume["projected"]
    for part in projected.get("sources", []):
        if "serviceAccountToken" in part:
            wish = part["serviceAccountToken"]
            token = await source.token(wish.get("audience", ""), int(wish.get("expirationSeconds", 3600)))
            files[wish["path"]] = Payload(token.encode(), _mode(projected))
        elif "configMap" in part:
            files |= await _config_map(part["configMap"], _mode(projected), source)
        elif "secret" in part:
            files |= await _secret(part["secret"], _mode(projected), source)
        elif "downwardAPI" in part:
            files |= _downward(part["downwardAPI"], _mode(projected), pod, where)
    return files


def config_map_data(config_map: Json) -> dict[str, bytes]:
    """A ConfigMap's values as bytes."""
    text = {key: value.encode() for key, value in (config_map.get("data") or {}).items()}
    return text | {
        key: base64.b64decode(value) for key, value in (config_map.get("binaryData") or {}).items()
    }


def secret_data(secret: Json) -> dict[str, bytes]:
    """A Secret's values, decoded."""
    return {key: base64.b64decode(value) for key, value in (secret.get("data") or {}).items()}


async def _config_map(body: Json, mode: int, source: PayloadSource) -> dict[str, Payload]:
    return _selected("configmap", body, await source.config_map(body["name"]), mode)


async def _secret(body: Json, mode: int, source: PayloadSource) -> dict[str, Payload]:
    return _selected("secret", body, await source.secret(body["name"]), mode)


def _selected(kind: str, body: Json, data: Mapping[str, bytes] | None, mode: int) -> dict[str, Payload]:
    """All keys under their own names, or only `items` under their paths."""
    if data is None:
        if body.get("optional"):
            return {}
        raise MissingSourceError(f'{kind} "{body["name"]}" not found')
    if not body.get("items"):
        return {key: Payload(value, mode) for key, value in data.items()}
    files = {}
    for item in body["items"]:
        if item["key"] in data:
            files[item["path"]] = Payload(data[item["key"]], item.get("mode", mode))
        elif not body.get("optional"):
            raise MissingSourceError(f'{kind} "{body["name"]}" references non-existent key: {item["key"]}')
    return files


def _downward(body: Json, mode: int, pod: PodSpec, where: Placement) -> dict[str, Payload]:
    files = {}
    for item in body.get("items", []):
        try:
            if "fieldRef" in item:
                text = fieldrefs.field(item["fieldRef"]["fieldPath"], pod, where)
            else:
                text = fieldrefs.resource(item["resourceFieldRef"], pod, None, where)
        except ValueError as error:
            raise MissingSourceError(str(error)) from error
        files[item["path"]] = Payload(text.encode(), item.get("mode", mode))
    return files


def _mode(body: Json) -> int:
    return int(body.get("defaultMode", DEFAULT_MODE))

"""The API server over HTTP: JSON in, JSON out, and watches that never end by themselves.

Plain requests instead of a generated client: the agent touches a dozen paths and hands objects through as they are.
"""

from __future__ import annotations

import asyncio
import json
import logging
import math
import random
import time
from collections.abc import AsyncIterator, Mapping
from typing import Any, Literal

import aiohttp

from localcluster.nodeagent.api_access import Connection
from localcluster.nodeagent.podspec import Json

_log = logging.getLogger(__name__)

MERGE = "application/merge-patch+json"
STRATEGIC = "application/strategic-merge-patch+json"

# The server sends a bookmark about once a minute; twice that in silence means the stream is dead.
_SILENCE_S = 130.0
_MAX_OBJECT_BYTES = 4 * 2**20


class ApiError(Exception):
    """The API server refused; `status` is the HTTP code and the text its own message."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


# Errors of a request if the server is not there or goes away.
UNREACHABLE = (aiohttp.ClientError, TimeoutError, OSError)
FAILURES = (ApiError, *UNREACHABLE)


def describe(error: Exception) -> str:
    """The error's text; its kind when it has none, as timeouts do not."""
    return str(error) or type(error).__name__


class ApiClient:
    """One connection pool to one API server."""

    def __init__(
        self, connection: Connection, backoff_s: tuple[float, float] = (0.2, 10.0), short_s: float = 1.0
    ) -> None:
        """Without asking anything yet.

        Args:
            connection: to the server.
            backoff_s: the first and the longest delay before a watch begins again.
            short_s: a stream that ends within that time ends because the server is stopping.
        """
        self.connection = connection
        self._backoff_s, self._short_s = backoff_s, short_s
        headers = {"Authorization": f"Bearer {connection.token}"} if connection.token else {}
        self._session = aiohttp.ClientSession(
            connection.server,
            connector=aiohttp.TCPConnector(ssl=connection.ssl or True, limit=32),
            headers={"User-Agent": "breakeven-nodeagent", "Accept": "application/json", **headers},
            timeout=aiohttp.ClientTimeout(total=30, sock_connect=5),
            read_bufsize=_MAX_OBJECT_BYTES,
        )

    async def close(self) -> None:
        """Closes the connections."""
        await self._session.close()

    async def get(self, path: str, params: Mapping[str, str] | None = None) -> dict[str, Any]:
        """Reads an object or a list.

        Raises:
            ApiError: the server refused.
            aiohttp.ClientError, TimeoutError, OSError: the server could not be asked (`UNREACHABLE`), here and below.
        """
        return await self._request("GET", path, params=params)

    async def find(self, path: str) -> dict[str, Any] | None:
        """Reads an object; None if it does not exist."""
        try:
            return await self.get(path)
        except ApiError as error:
            if error.status == 404:
                return None
            raise

    async def create(self, path: str, body: Json) -> dict[str, Any]:
        """Creates an object in the collection at `path`."""
        return await self._request("POST", path, body=body)

    async def replace(self, path: str, body: Json) -> dict[str, Any]:
        """Replaces an object."""
        return await self._request("PUT", path, body=body)

    async def patch(self, path: str, body: Json, kind: str) -> dict[str, Any]:
        """Patches an object; `kind` is MERGE or STRATEGIC."""
        return await self._request("PATCH", path, body=body, content_type=kind)

    async def delete(self, path: str, options: Json) -> dict[str, Any]:
        """Deletes an object."""
        return await self._request("DELETE", path, body=options)

    async def follow(
        self, path: str, selector: Mapping[str, str]
    ) -> AsyncIterator[tuple[Literal["LIST", "ADDED", "MODIFIED", "DELETED"], Any]]:
        """A collection's changes for ever: one LIST with all objects first and after every gap, then single changes.

        Guarantees: whoever applies every item has a state that once was the server's; errors of any kind are logged and
        retried with a growing, jittered delay.
        """
        delay = self._backoff_s[0]
        while True:
            began = time.monotonic()
            try:
                listing = await self.get(path, selector)
                yield "LIST", listing["items"]
                async for change in self._changes(path, selector, listing["metadata"]["resourceVersion"]):
                    yield change
            except FAILURES as error:
                _log.warning("watch of %s: %s; listing again", path, describe(error))
            if time.monotonic() - began > self._backoff_s[1]:
                delay = self._backoff_s[0]
            await asyncio.sleep(delay * random.uniform(0.5, 1.0))
            delay = min(delay * 2, self._backoff_s[1])

    async def _changes(self, path: str, selector: Mapping[str, str], version: str) -> AsyncIterator[Any]:
        """Single changes from a version on; ends when the server no longer knows the version."""
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=5, sock_read=_SILENCE_S)
        # A server that ends streams at once is stopping; `follow` knows how long to leave it alone.
        began = -math.inf
        while time.monotonic() - began > self._short_s:
            began = time.monotonic()
            params = {
                **selector,
                "watch": "true",
                "allowWatchBookmarks": "true",
                "resourceVersion": version,
                "timeoutSeconds": str(random.randint(300, 600)),
            }
            async with self._session.get(path, params=params, timeout=timeout) as response:
                await _raise_for(response)
                async for line in response.content:
                    event = json.loads(line)
                    if event["type"] == "ERROR":
                        _log.info("watch of %s: %s", path, event["object"].get("message"))
                        return
                    version = event["object"]["metadata"]["resourceVersion"]
                    if event["type"] != "BOOKMARK":
                        yield event["type"], event["object"]

    async def _request(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, str] | None = None,
        body: Json | None = None,
        content_type: str = "application/json",
    ) -> dict[str, Any]:
        data = None if body is None else json.dumps(body)
        headers = {"Content-Type": content_type}
        async with self._session.request(method, path, params=params, data=data, headers=headers) as response:
            await _raise_for(response)
            answer: dict[str, Any] = await response.json()
            return answer


async def _raise_for(response: aiohttp.ClientResponse) -> None:
    if response.status < 400:
        return
    text = await response.text()
    try:
        message = json.loads(text)["message"]
    except (ValueError, LookupError, TypeError):
        message = text[:200]
    raise ApiError(response.status, f"{response.status} {message}")

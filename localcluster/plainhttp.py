"""Small reads over HTTP, without a client library: is it up, is it there."""

from __future__ import annotations

import contextlib
import json
import socket
import ssl
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any, Final

# A busy machine answers late; the caller's deadline finds out a machine that hangs.
_TIMEOUT_S: Final = 30.0


class Reader:
    """GET from one server.

    Args:
        base: URL without a path.
        pki: folder with `ca.crt` and the `admin` pair of the API server; None for plain HTTP.
    """

    def __init__(self, base: str, pki: Path | None = None) -> None:
        handlers: list[urllib.request.BaseHandler] = [urllib.request.ProxyHandler({})]
        if pki is not None:
            context = ssl.create_default_context(cafile=pki / "ca.crt")
            context.load_cert_chain(pki / "admin.crt", pki / "admin.key")
            handlers.append(urllib.request.HTTPSHandler(context=context))
        # No proxy, whatever the environment says: everything here is on loopback.
        self._opener = urllib.request.build_opener(*handlers)
        self._base = base

    def get(self, path: str) -> bytes | None:
        """The body of a 200, or None for anything else, an unreachable server included."""
        try:
            with self._opener.open(self._base + path, timeout=_TIMEOUT_S) as response:
                return bytes(response.read())
        except (OSError, urllib.error.HTTPError):
            return None

    def json(self, path: str) -> Any:
        """The decoded body of a 200, or None."""
        body = self.get(path)
        return None if body is None else json.loads(body)


def listens(port: int) -> bool:
    """Whether a server accepts connections at a port of loopback."""
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=_TIMEOUT_S):
        return True
    return False

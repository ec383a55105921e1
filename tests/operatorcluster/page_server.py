"""A server of pages on loopback, whose clients may hang up in the middle of an answer: Prometheus does at its scrape timeout."""

from __future__ import annotations

import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class PageServer(ThreadingHTTPServer):
    """Listens on a port of its own.

    Args:
        handler: answers requests, each in a thread that nobody waits for.
    """

    daemon_threads = True

    def __init__(self, handler: type[BaseHTTPRequestHandler]) -> None:
        super().__init__(("127.0.0.1", 0), handler)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Print what went wrong, unless it is the client's own doing."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)

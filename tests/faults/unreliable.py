"""A proxy in front of the real Prometheus that can be down, slow, dripping, empty, stuck or lying."""

from __future__ import annotations

import contextlib
import json
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

_SLOW_S, _PATIENCE_S = 30.0, 180.0
Change = Callable[[dict[str, Any]], None]


class UnreliablePrometheus:
    """The proxy; `being` says what becomes of every question."""

    def __init__(self) -> None:
        self._behind = ""
        self._mode = "through"
        self._changed = threading.Event()
        self._answers: dict[str, bytes] = {}
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self._answer))
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def _answer(self, request: BaseHTTPRequestHandler, form: bytes | None) -> None:
        mode = self._mode
        if mode == "down":
            request.close_connection = True
            return
        if mode == "slow":
            self._changed.wait(_SLOW_S)
        try:
            body = self._body(mode, request.path, form, request.headers.get("Content-Type", ""))
        except OSError:
            request.send_error(HTTPStatus.BAD_GATEWAY)
            return
        request.send_response(HTTPStatus.OK)
        request.send_header("Content-Type", "application/json")
        request.send_header("Content-Length", str(len(body)))
        request.end_headers()
        for byte in body if mode == "dripping" else b"":
            request.wfile.write(bytes([byte]))
            if self._changed.wait(1.0):
                request.close_connection = True
                return
        request.wfile.write(body)

    def before(self, address: str) -> str:
        """Stand in front of a Prometheus; returns the address to ask instead."""
        self._behind = address
        return self.url

    def _body(self, mode: str, path: str, form: bytes | None, kind: str) -> bytes:
        key = f"{path} {form!r}"
        if mode == "stuck" and key in self._answers:
            return self._answers[key]
        request = urllib.request.Request(
            self._behind + path, data=form, headers={"Content-Type": kind} if form else {}
        )
        with urllib.request.urlopen(request, timeout=_PATIENCE_S) as answer:
            body = bytes(answer.read())
        self._answers[key] = body
        change = _CHANGES.get(mode)
        if change is None:
            return body
        document = json.loads(body)
        change(document)
        return json.dumps(document).encode()

    @contextlib.contextmanager
    def running(self) -> Iterator[UnreliablePrometheus]:
        """Serve for as long as the block lasts."""
        thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.1})
        thread.start()
        try:
            yield self
        finally:
            self._changed.set()
            self._server.shutdown()
            self._server.server_close()
            thread.join()

    @contextlib.contextmanager
    def being(self, mode: str) -> Iterator[None]:
        """Treat every question so while the block lasts."""
        self._mode = mode
        self._changed.clear()
        try:
            yield
        finally:
            self._mode = "through"
            self._changed.set()


def _handler(answer: Callable[[BaseHTTPRequestHandler, bytes | None], None]) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            # Who asked may have gone.
            with contextlib.suppress(OSError):
                answer(self, None)

        def do_POST(self) -> None:
            with contextlib.suppress(OSError):
                answer(self, self.rfile.read(int(self.headers["Content-Length"])))

        def log_message(self, *_: object) -> None:
            pass

    return Handler


def _empty(document: dict[str, Any]) -> None:
    document["data"]["result"] = []


def _not_a_number(document: dict[str, Any]) -> None:
    for series in document["data"]["result"]:
        if "value" in series:
            series["value"][1] = "NaN"


_CHANGES: dict[str, Change] = {"empty": _empty, "nan": _not_a_number}

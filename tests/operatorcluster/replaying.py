"""A proxy in front of Prometheus that can get stuck: it then gives its last answers again, as a broken cache does."""

from __future__ import annotations

import threading
import urllib.error
import urllib.request
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from types import TracebackType
from typing import Self

from operatorcluster.page_server import PageServer

_PATIENCE_S = 180.0


class Replaying:
    """The proxy.

    Attributes:
        url: where it listens.
        stuck: set: every question that was answered before gets the same answer again.
        repeated: how many were.

    Args:
        behind: URL of the Prometheus that it asks.
    """

    def __init__(self, behind: str) -> None:
        self.stuck = threading.Event()
        self.repeated = 0
        answers: dict[tuple[str, bytes | None], tuple[str, bytes]] = {}
        proxy = self

        class Stuck(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self._answer(None)

            def do_POST(self) -> None:
                self._answer(self.rfile.read(int(self.headers["Content-Length"])))

            def _answer(self, form: bytes | None) -> None:
                asked = self.path, form
                if proxy.stuck.is_set() and asked in answers:
                    proxy.repeated += 1
                else:
                    try:
                        with urllib.request.urlopen(behind + self.path, form, _PATIENCE_S) as answer:
                            answers[asked] = answer.headers["Content-Type"], answer.read()
                    except urllib.error.HTTPError as error:
                        self.send_error(error.code)
                        return
                    except OSError:
                        self.send_error(HTTPStatus.BAD_GATEWAY)
                        return
                kind, body = answers[asked]
                self.send_response(HTTPStatus.OK)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                pass

        self._server = PageServer(Stuck)
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.1})
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

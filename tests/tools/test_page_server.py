"""A server of the tests' pages: who hangs up is no defect of a page, and a defect is still shown."""

from __future__ import annotations

import socket
import threading
from http.server import BaseHTTPRequestHandler

import pytest

from operatorcluster.page_server import PageServer


class Page(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        raise {"/gone": BrokenPipeError("who asked has gone"), "/wrong": ValueError("a defect")}[self.path]

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def asked():
    """Asks for a page and returns when the server has ended the connection, and so said what it has to say."""
    with PageServer(Page) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()

        def ask(path: str) -> None:
            with socket.create_connection(server.server_address[:2]) as connection:
                connection.sendall(f"GET {path} HTTP/1.0\r\n\r\n".encode())
                assert connection.recv(1) == b""

        yield ask
        server.shutdown()
        thread.join()


def test_a_client_that_hangs_up_is_no_error(asked, capsys):
    asked("/gone")
    assert capsys.readouterr().err == ""


def test_a_defect_of_a_page_is_shown(asked, capsys):
    asked("/wrong")
    assert "a defect" in capsys.readouterr().err

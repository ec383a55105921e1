"""How commands ask a Prometheus: credentials from environment and files, sent where they belong and shown nowhere."""

from __future__ import annotations

import base64
import contextlib
import json
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from breakeven.cli.doctor import command
from breakeven.cli.prometheus_options import AskedPrometheus, read_matcher
from breakeven.errors import BreakevenError, InputError
from breakeven.serving.promql import Matcher

SECRET = "s3cret"


def server(url="http://prometheus:9090", *, timeout_s=5.0, **given):
    options = (
        dict.fromkeys(one.name for one in command.params)
        | {"url": url, "label": (), "tenant_header": "X-Scope-OrgID"}
        | given
    )
    return AskedPrometheus.of(options, timeout_s)


@pytest.mark.parametrize(
    ("text", "matcher"),
    [
        ("cluster=eu", Matcher("cluster", "=", "eu")),
        ("pod=~chat-a-.*", Matcher("pod", "=~", "chat-a-.*")),
        ('pod=~"chat-a-.*"', Matcher("pod", "=~", "chat-a-.*")),
        ("pod!=chat-b", Matcher("pod", "!=", "chat-b")),
        ("pod!~chat-b.*", Matcher("pod", "!~", "chat-b.*")),
        ("path=a=b", Matcher("path", "=", "a=b")),
        ("tenant=", Matcher("tenant", "=", "")),
    ],
)
def test_a_matcher_is_that_of_promql(text, matcher):
    assert read_matcher(text) == matcher


@pytest.mark.parametrize("text", ["pod", "1pod=x", "po d=x", "pod~x", "pod=~(", "=x", ""])
def test_what_is_no_matcher_is_refused(text):
    with pytest.raises(InputError):
        read_matcher(text)


def test_credentials_come_from_the_environment_and_from_files(monkeypatch, tmp_path):
    monkeypatch.setenv("TOKEN", SECRET)
    file = tmp_path / "secret"
    file.write_text(f"{SECRET}\n")
    basic = base64.b64encode(b"reader:s3cret").decode()
    assert server(bearer_token_env="TOKEN").client.headers == {"Authorization": "Bearer s3cret"}
    assert server(bearer_token_file=file).client.headers == {"Authorization": "Bearer s3cret"}
    assert server(basic_user="reader", basic_password_env="TOKEN").client.headers == {
        "Authorization": f"Basic {basic}"
    }
    assert server(basic_user="reader", basic_password_file=file).client.headers == {
        "Authorization": f"Basic {basic}"
    }
    assert server(tenant="llm").client.headers == {"X-Scope-OrgID": "llm"}
    assert server(tenant_env="TOKEN", tenant_header="THANOS-TENANT").client.headers == {
        "THANOS-TENANT": "s3cret"
    }
    assert SECRET not in repr(server(bearer_token_env="TOKEN"))


@pytest.mark.parametrize(
    "given",
    [
        {"url": "http://reader:s3cret@prometheus:9090"},
        {"url": "reader:s3cret@prometheus:9090"},
        {"url": "http://prometheus:9090?token=s3cret"},
        {"url": "http://prometheus:9090#s3cret"},
        {"bearer_token_env": "NOT_SET"},
        {"bearer_token_env": "TWO_LINES"},
        {"bearer_token_env": "TOKEN", "basic_user": "reader", "basic_password_env": "TOKEN"},
        {"basic_user": "reader"},
        {"basic_password_env": "TOKEN"},
        {"tenant": "s3cret\r\nX: y"},
        {"tenant": "llm", "tenant_header": "X: y"},
    ],
)
def test_a_wrong_credential_is_refused_and_not_repeated(monkeypatch, given):
    monkeypatch.setenv("TOKEN", SECRET)
    monkeypatch.setenv("TWO_LINES", f"{SECRET}\r\nX: y")
    with pytest.raises(InputError) as refused:
        server(**given)
    assert SECRET not in str(refused.value)


def test_a_key_without_certificate_and_a_file_that_is_none_are_refused(tmp_path):
    file = tmp_path / "pem"
    file.write_text("no certificate")
    for given in (
        {"client_key": file},
        {"client_cert": file},
        {"ca": file},
        {"client_cert": file, "client_key": file},
    ):
        with pytest.raises(InputError):
            server(**given)


@pytest.fixture
def asked():
    """Loopback servers: one answers, one redirects to it. Yields both addresses and the headers that arrived."""
    seen = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            seen.append((self.server.server_address[1], dict(self.headers)))
            elsewhere = self.server is servers[1]
            self.send_response(307 if elsewhere else 200)
            if elsewhere:
                self.send_header("Location", f"http://127.0.0.1:{servers[0].server_port}{self.path}")
            self.end_headers()
            row = {"metric": {"position": "0"}, "value": [1, "2.5"]}
            nan = {"metric": {}, "value": [1, "NaN"]}
            data = {"resultType": "vector", "result": [row, nan]}
            self.wfile.write(json.dumps({"status": "success", "data": data}).encode())

        def log_message(self, *_):
            pass

    servers = [HTTPServer(("127.0.0.1", 0), Handler) for _ in range(2)]
    threads = [threading.Thread(target=one.serve_forever, args=(0.02,)) for one in servers]
    for thread in threads:
        thread.start()
    yield [f"http://127.0.0.1:{one.server_port}" for one in servers], seen
    for one, thread in zip(servers, threads, strict=True):
        one.shutdown()
        thread.join()
        one.server_close()


@pytest.mark.parametrize(
    ("chunk", "pause_s", "problem"),
    [
        (b" " * 65536, 0.0, "answered with more than 16 MiB"),
        (b" ", 0.05, "gave no whole answer within 0.5 s"),
    ],
)
def test_an_answer_without_end_is_refused_by_its_size_and_by_its_time(chunk, pause_s, problem):
    ended = threading.Event()

    class Endless(BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200)
            self.end_headers()
            with contextlib.suppress(OSError):
                while not ended.wait(pause_s):
                    self.wfile.write(chunk)

        def log_message(self, *_):
            pass

    endless = HTTPServer(("127.0.0.1", 0), Endless)
    threading.Thread(target=endless.serve_forever, kwargs={"poll_interval": 0.01}).start()
    try:
        asked = server(f"http://127.0.0.1:{endless.server_port}", timeout_s=0.5 if pause_s else 30.0)
        with pytest.raises(BreakevenError, match=problem):
            asked.at("up")
    finally:
        ended.set()
        endless.shutdown()
        endless.server_close()


def test_what_is_asked_carries_the_credential_and_a_redirect_is_not_sent_it(monkeypatch, asked):
    monkeypatch.setenv("TOKEN", SECRET)
    (answering, redirecting), seen = asked
    given = {"bearer_token_env": "TOKEN", "tenant": "llm"}
    assert server(answering, **given).at("up") == [({"position": "0"}, 2.5)]
    headers = {name.lower(): value for name, value in seen[0][1].items()}
    assert headers["authorization"] == "Bearer s3cret"
    assert headers["x-scope-orgid"] == "llm"
    with pytest.raises(BreakevenError, match="redirects, which is not followed"):
        server(redirecting, **given).at("up")
    assert len(seen) == 2


@pytest.fixture
def victoria_metrics():
    """A loopback server that refuses functions of native histograms; yields its address and the paths that were asked."""
    seen = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            seen.append(self.path)
            self.send_response(422 if "histogram_" in self.path else 200)
            self.end_headers()
            row = {"metric": {"pod": "a"}, "value": [1, "2.5"]}
            data = {"resultType": "vector", "result": [row]}
            partial = "partly" in self.path
            self.wfile.write(json.dumps({"status": "success", "isPartial": partial, "data": data}).encode())

        def log_message(self, *_):
            pass

    one = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=one.serve_forever, args=(0.02,))
    thread.start()
    yield f"http://127.0.0.1:{one.server_port}", seen
    one.shutdown()
    thread.join()
    one.server_close()


def test_a_server_without_native_histograms_is_asked_again_without_them(victoria_metrics):
    url, seen = victoria_metrics
    promql = "increase(a_count[5m]) or histogram_count(increase(a[5m]))"
    asked = server(url)
    assert asked.at(promql) == [({"pod": "a"}, 2.5)]
    assert len(seen) == 3, "the question, a probe of the language, and the question without them"
    assert asked.at(promql) == [({"pod": "a"}, 2.5)]
    assert len(seen) == 4
    with pytest.raises(BreakevenError, match="HTTP 422"):
        asked.at("histogram_quantile(0.5, a)")
    assert len(seen) == 5


def test_an_answer_without_the_share_of_a_store_is_refused(victoria_metrics):
    url, seen = victoria_metrics
    with pytest.raises(BreakevenError, match="answered in part: a store behind it is down"):
        server(url).at("partly")
    assert "partial_response=false&deny_partial_response=1" in seen[0]


def test_labels_have_the_names_that_a_command_gives(victoria_metrics):
    url, seen = victoria_metrics
    server(url, label=("pod=exported_pod",)).at('sum by(namespace,pod)(x{pod="chat"})')
    assert "sum+by%28namespace%2Cexported_pod%29%28x%7Bexported_pod%3D%22chat%22%7D%29" in seen[0]
    with pytest.raises(InputError, match="--label: 'engine=x'; expected namespace=LABEL or pod=LABEL"):
        server(url, label=("engine=x",))

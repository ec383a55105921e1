"""`breakeven doctor` against a Prometheus that answers from a table."""

from __future__ import annotations

import json
import threading
import urllib.parse
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from golden.documents import DATA, breakeven, refused, same_as_stored

# Growth of two pods' pages: 1200 requests in 300 s, 32 tokens each, 13 steps after the first token.
FIGURES = {
    "vllm:request_success_total": 1200,
    "vllm:generation_tokens_total": 38400,
    "vllm:time_to_first_token_seconds_count": 1200,
    "vllm:time_to_first_token_seconds_sum": 67,
    "vllm:inter_token_latency_seconds_count": 15900,
    "vllm:inter_token_latency_seconds_sum": 353,
    "vllm:e2e_request_latency_seconds_sum": 420,
    "vllm:e2e_request_latency_seconds_count": 1200,
    "vllm:num_requests_waiting": 0,
    "vllm:kv_cache_usage_perc": 0.2,
    "vllm:num_preemptions_total": 0,
    "vllm:request_prompt_tokens_sum": 600000,
    "vllm:request_prompt_tokens_count": 1200,
    "vllm:request_generation_tokens_sum": 38400,
    "vllm:request_generation_tokens_count": 1200,
    "vllm:spec_decode_num_drafts_total": 15900,
    # Last, because every query names it: figures are those of engines that have it.
    "vllm:num_requests_running": 2,
}
ACCEPTED = "vllm:spec_decode_num_accepted_tokens_per_pos_total"


def vector(query: str) -> list[dict]:
    if ACCEPTED in query:
        by_position = {"0": 12700, "1": 9600}
        return [{"metric": {"position": p}, "value": [0, str(v)]} for p, v in by_position.items()]
    if "delta(" in query:
        # Neither queue nor batch has grown.
        return [{"metric": {}, "value": [0, "0"]}]
    value = next(value for name, value in FIGURES.items() if f"{name}{{" in query)
    return [{"metric": {}, "value": [0, str(value)]}]


@contextmanager
def answering(answer: bytes | None = None, status: int = 200) -> Iterator[tuple[str, list[str]]]:
    """Serve /api/v1/query on loopback; yields the address and the queries asked."""
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            query = urllib.parse.parse_qs(urllib.parse.urlsplit(self.path).query)["query"][0]
            asked.append(query)
            found = vector(query) if answer is None else []
            document = {"status": "success", "data": {"resultType": "vector", "result": found}}
            body = json.dumps(document).encode() if answer is None else answer
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *arguments: object) -> None:
            """Stay quiet."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", asked
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


PROFILE = ["--profile", "points.csv", "--method", "eagle3", "--k", "3"]


def test_the_json_with_a_profile_is_the_golden_one() -> None:
    with answering() as (url, asked):
        done = breakeven("doctor", "--prometheus", url, "--model", 'a"b', *PROFILE, "--json")
    assert (done.returncode, done.stderr) == (0, "")
    same_as_stored("doctor", json.loads(done.stdout))
    # A model's name is data: its quote is escaped, in every query.
    assert all('model_name="a\\"b"' in query for query in asked)


def test_the_text_says_the_same() -> None:
    with answering() as (url, _):
        done = breakeven("doctor", "--prometheus", url, "--model", "chat", *PROFILE)
    stored = json.loads((DATA / "doctor.json").read_text())
    answer = {True: "Yes", False: "No", None: "?"}[stored["pays"]]
    assert done.stdout.splitlines()[0] == f"Does speculation pay? {answer}: {stored['sentence']}"
    assert [line[2:] for line in done.stdout.splitlines() if line.startswith("! ")] == [
        f"{finding['cause']}: {finding['evidence']}" for finding in stored["findings"]
    ]


def test_a_prometheus_without_a_series_of_the_model_is_said_and_no_success() -> None:
    empty = b'{"status":"success","data":{"resultType":"vector","result":[]}}'
    with answering(empty) as (url, _):
        done = breakeven("doctor", "--prometheus", url, "--model", "chat")
    assert done.returncode == 1
    assert "?: Prometheus holds no vLLM series of this model" in done.stdout


def test_other_acceptance_and_lengths_are_judged_as_predict_does() -> None:
    given = ("--tokens-per-step", "1.6", "--prompt-tokens", "600", "--output-tokens", "150")
    with answering() as (url, _):
        done = breakeven("doctor", "--prometheus", url, "--model", "chat", *PROFILE, *given, "--json")
    found = json.loads(done.stdout)
    # 1200 requests in 300 s at two pods.
    at = ("--rps", "2", "--prompt-tokens", "600", "--output-tokens", "150", "--json")
    eagle = breakeven("predict", *PROFILE[1:], "--tokens-per-step", "1.6", *at)
    none = breakeven("predict", "points.csv", "--method", "none", *at)
    latency = [json.loads(one.stdout)["latency_s"] for one in (none, eagle)]
    assert found["speedup"] == pytest.approx(latency[0] / latency[1])


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["--prometheus", "ftp://x", "--model", "m"], 1, "expected an http:// or https:// URL"),
        (["--prometheus", "http://127.0.0.1:9", "--model", "m"], 1, "is not reached"),
        (["--prometheus", "http://127.0.0.1:9", "--model", "m", "--match", "x"], 1, "expected LABEL=VALUE"),
        (["--prometheus", "http://x", "--model", "m", "--profile", "points.csv"], 1, "the arm that runs"),
        (["--prometheus", "http://x", "--model", "m", "--prompt-tokens", "9"], 1, "a profile to judge"),
        (["--model", "m"], 2, "--prometheus"),
    ],
)
def test_wrong_inputs(arguments: list[str], code: int, says: str) -> None:
    refused(breakeven("doctor", *arguments, "--json"), code, says)


@pytest.mark.parametrize(
    ("answer", "status", "says"),
    [
        (b"<html>", 200, "answered with something that is not Prometheus' JSON"),
        (
            b'{"status":"error","error":"bad"}',
            200,
            "refused the query: no reason that this API knows; bad; expected an answer of Prometheus' HTTP API",
        ),
        (
            b'{"status":"success","data":{"resultType":"vector"}}',
            200,
            "answered with something that is no instant vector",
        ),
        (b"no", 403, "HTTP 403; expected a credential"),
    ],
)
def test_answers_that_are_none(answer: bytes, status: int, says: str) -> None:
    with answering(answer, status) as (url, _):
        refused(breakeven("doctor", "--prometheus", url, "--model", "m", "--json"), 1, says)

"""Cost of reading Prometheus' answers about 10,000 pods, by the libraries that could do it and by the client: seven answers of 1,500 pods each.

Beside a heap of 2.8 million objects, as the operator's may be about a thousand services: what a reader leaves to the garbage
collector is paid for by the size of the heap.

    .venv/bin/python tests/bench/bench_answers.py
"""

from __future__ import annotations

import contextlib
import functools
import json
import multiprocessing
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from http.server import BaseHTTPRequestHandler, HTTPServer
from multiprocessing.connection import Connection
from typing import Any

import msgspec
import pydantic
import pydantic_core
from typing_extensions import TypedDict

from breakeven.prometheus_queries import Prometheus

_ANSWERS, _PODS, _STATISTICS, _ROUNDS = 7, 1500, 21, 5
_HEAP = 700_000

Rows = Sequence[tuple[Any, float]]


class _TypedRow(TypedDict):
    metric: dict[str, str]
    value: tuple[float, str]


class _TypedData(TypedDict):
    result: list[_TypedRow]


class _TypedAnswer(TypedDict):
    data: _TypedData


class _StructValue(msgspec.Struct, array_like=True, gc=False):
    time_s: float
    text: str


class _StructRow(msgspec.Struct, gc=False):
    metric: dict[str, str]
    value: _StructValue


class _StructData(msgspec.Struct):
    result: list[_StructRow]


class _StructAnswer(msgspec.Struct):
    data: _StructData


_ADAPTER = pydantic.TypeAdapter(_TypedAnswer)
_DECODER = msgspec.json.Decoder(_StructAnswer)


def by_pydantic_core(body: bytes) -> Rows:
    return [
        (row["metric"], float(row["value"][1])) for row in pydantic_core.from_json(body)["data"]["result"]
    ]


def by_pydantic_types(body: bytes) -> Rows:
    return [(row["metric"], float(row["value"][1])) for row in _ADAPTER.validate_json(body)["data"]["result"]]


def by_msgspec(body: bytes) -> Rows:
    return [(row.metric, float(row.value.text)) for row in _DECODER.decode(body).data.result]


def by_client(url: str, _body: bytes) -> Rows:
    return [(one.labels, one.value) for one in Prometheus(url, {}, 60.0).instant("up")]


@contextlib.contextmanager
def served(body: bytes) -> Iterator[str]:
    """A Prometheus, in a process of its own, that has one answer; yields its address."""
    mine, its = multiprocessing.Pipe()
    process = multiprocessing.Process(target=_serve, args=(body, its))
    process.start()
    try:
        yield f"http://127.0.0.1:{mine.recv()}"
    finally:
        process.terminate()
        process.join()


def _serve(body: bytes, pipe: Connection) -> None:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    pipe.send(server.server_port)
    server.serve_forever()


def answer() -> bytes:
    """One answer to a fleet query."""
    rows = [
        {
            "metric": {
                "namespace": f"llm-{pod // 100}",
                "pod": f"vllm-{pod // 10}-5d4f8c6b7d-bb{pod % 10}2z",
                "model_name": "org/chat-8b",
                "stat": f"statistic_{number}",
            },
            "value": [1763920000.123, str(3.14159 * pod + number)],
        }
        for pod in range(_PODS)
        for number in range(_STATISTICS)
    ]
    data = {"resultType": "vector", "result": rows}
    return json.dumps({"status": "success", "data": data}).encode()


def main() -> int:
    body = answer()
    with served(body) as url:
        readers: dict[str, Callable[[bytes], Rows]] = {
            "pydantic_core": by_pydantic_core,
            "pydantic types": by_pydantic_types,
            "msgspec": by_msgspec,
            "client": functools.partial(by_client, url),
        }
        heap = [{"list": [number], "dict": {"tuple": (number,)}} for number in range(_HEAP)]
        if len({repr(reader(body)) for reader in readers.values()}) != 1:
            raise ValueError("the readers differ in what they read")
        took_s: dict[str, list[float]] = {name: [] for name in readers}
        for _ in range(_ROUNDS):
            for name, reader in readers.items():
                began_s = time.process_time()
                for _ in range(_ANSWERS):
                    reader(body)
                took_s[name].append(time.process_time() - began_s)
    print(f"{_ANSWERS} answers of {len(body) / 1e6:.1f} MB beside {4 * len(heap):,} objects, s of CPU")  # noqa: T201
    for name, each in took_s.items():
        print(f"{name:20s} {min(each):.2f} to {max(each):.2f}")  # noqa: T201
    return 0


if __name__ == "__main__":
    sys.exit(main())

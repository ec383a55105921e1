"""Streaming users of a target, written apart from every client of the product: sockets, HTTP/1.1 and server-sent events.

A request counts as answered if its stream ended with `[DONE]` after as many tokens as were asked for. Everything else is
lost: a refused connection, another status than 200, a stream that was cut or that said nothing for half a minute.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from localcluster.plainhttp import Reader
from operatorcluster.beside import beside
from operatorcluster.stage import Place
from operatorcluster.target_engine import MODEL, OUTPUT_TOKENS, PROMPT_TOKENS

_SILENCE_S = 30.0
_FOLLOW_S = 0.2
# kube-proxy acts about this long after the API server knows that a pod is going.
_LAG_S = 0.5


@dataclass
class Ledger:
    """Requests by how they ended; `answered` by the clock of their last byte."""

    sent: int = 0
    answered: int = 0
    lost: Counter[str] = field(default_factory=Counter)


@contextlib.contextmanager
def streaming(place: Place, rps: float, app: str, ledger: Ledger, **fields: Any) -> Iterator[None]:
    """Send so many requests per second to the Ready pods until the block ends; then wait for the last answers.

    Args:
        place: where. app: label of the pods.
        rps: requests per second.
        ledger: counts them.
        fields: further ones of each request's body.
    """

    def users(ended: threading.Event) -> None:
        asyncio.run(_users(place, rps, app, ledger, ended, fields))

    with beside(users):
        yield


async def _users(
    place: Place, rps: float, app: str, ledger: Ledger, stop: threading.Event, fields: Mapping[str, Any]
) -> None:
    draw = random.Random(5)
    endpoints: list[str] = []
    following = asyncio.create_task(_follow(place, app, endpoints))
    requests: set[asyncio.Task[None]] = set()
    while not stop.is_set():
        await asyncio.sleep(draw.expovariate(rps))
        if endpoints:
            task = asyncio.create_task(_request(draw.choice(endpoints), ledger, fields))
            requests.add(task)
            task.add_done_callback(requests.discard)
    following.cancel()
    await asyncio.gather(*requests)


async def _follow(place: Place, app: str, endpoints: list[str]) -> None:
    """Keep the addresses of the Ready pods; an API server that is away leaves the last ones in force."""
    cluster = place.stage.cluster
    api = Reader(cluster.api_url, cluster.state_dir / "pki")
    path = f"/api/v1/namespaces/{place.name}/pods?labelSelector=app%3D{app}"
    while True:
        found = _ready(await asyncio.to_thread(api.json, path))
        if found is not None:
            asyncio.get_running_loop().call_later(_LAG_S, endpoints.__setitem__, slice(None), found)
        await asyncio.sleep(_FOLLOW_S)


def _ready(answer: Any) -> list[str] | None:
    if answer is None:
        return None
    return [
        pod["status"]["podIP"]
        for pod in answer["items"]
        if "deletionTimestamp" not in pod["metadata"]
        and any(c["type"] == "Ready" and c["status"] == "True" for c in pod["status"].get("conditions", ()))
    ]


async def _request(host: str, ledger: Ledger, fields: Mapping[str, Any]) -> None:
    ledger.sent += 1
    writer = None
    try:
        reader, writer = await asyncio.wait_for(asyncio.open_connection(host, 8000), _SILENCE_S)
        body = json.dumps(
            {
                "model": MODEL,
                "prompt": [1] * PROMPT_TOKENS,
                "max_tokens": OUTPUT_TOKENS,
                "ignore_eos": True,
                "stream": True,
                "stream_options": {"include_usage": True},
                **fields,
            }
        ).encode()
        head = (
            f"POST /v1/completions HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
        )
        writer.write(head.encode() + body)
        ended = await _ending(reader)
    except TimeoutError:
        ended = "silent"
    except OSError as error:
        ended = type(error).__name__
    finally:
        if writer is not None:
            writer.close()
    if ended == "answered":
        ledger.answered += 1
    else:
        ledger.lost[ended] += 1


async def _ending(reader: asyncio.StreamReader) -> str:
    """How a stream ended, in a word or two."""
    status = (await asyncio.wait_for(reader.readline(), _SILENCE_S)).split(b" ", 2)
    if len(status) < 2:
        return "closed without an answer"
    if status[1] != b"200":
        return f"HTTP {status[1].decode()}"
    tokens = 0
    while line := await asyncio.wait_for(reader.readline(), _SILENCE_S):
        # Chunk sizes stand on lines of their own, which begin otherwise.
        if not line.startswith(b"data: "):
            continue
        if line.startswith(b"data: [DONE]"):
            return "answered" if tokens == OUTPUT_TOKENS else f"{tokens} tokens"
        usage = json.loads(line[6:]).get("usage")
        tokens = usage["completion_tokens"] if usage else tokens
    return "cut off"

"""Users of the demo: an open loop of streaming requests to the Ready pods behind a Service's selector.

There is no kube-proxy on a one-machine cluster (endpoints refuse loopback addresses), so the client does what
kube-proxy does: it follows the pods that are Ready and not being deleted, and learns of a change with a lag, as
real nodes do. That lag is why a pod that is asked to stop still gets requests for a moment, and why draining
needs a preStop sleep. A request is sent once: whatever fails is counted, nothing is retried.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import aiohttp

# kube-proxy and CoreDNS typically act within a second of the API's change; slower would need a longer preStop sleep.
ENDPOINT_LAG_S = 1.0


@dataclass(frozen=True, slots=True)
class RequestShape:
    """The shape of every request of the demo."""

    prompt_tokens: int
    output_tokens: int


@dataclass(frozen=True, slots=True)
class RequestOutcome:
    """One request: when it was sent (wall clock), where, how long it took; `error` is None if it was answered whole."""

    sent_s: float
    pod: str
    latency_s: float
    ttft_s: float
    output_tokens: int
    error: str | None


@dataclass(slots=True)
class Endpoints:
    """The pods a client believes in: what the API said, `lag_s` ago."""

    lag_s: float = ENDPOINT_LAG_S
    _believed: dict[str, str] = field(default_factory=dict)

    @classmethod
    def fixed(cls, urls: dict[str, str]) -> Endpoints:
        """Pods (name to base URL) that are believed in at once."""
        return cls(_believed=dict(urls))

    def learn(self, ready: dict[str, str]) -> None:
        """Take in the Ready pods (name to base URL); they count after the lag."""
        asyncio.get_running_loop().call_later(self.lag_s, self._believe, dict(ready))

    def _believe(self, ready: dict[str, str]) -> None:
        self._believed = ready

    @property
    def urls(self) -> dict[str, str]:
        """Pod name to base URL, as believed now."""
        return self._believed


class Traffic:
    """Poisson arrivals at a rate that can be changed, spread over the believed endpoints, least loaded first."""

    def __init__(self, model: str, shape: RequestShape, endpoints: Endpoints, *, seed: int) -> None:
        self.endpoints = endpoints
        self.outcomes: list[RequestOutcome] = []
        self._model = model
        self.shape = shape
        self._random = random.Random(seed)
        self._rate_rps = 0.0
        self._rate_changed = asyncio.Event()
        self._in_flight: Counter[str] = Counter()
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def rate_rps(self) -> float:
        """Offered rate over all replicas now."""
        return self._rate_rps

    @property
    def in_flight(self) -> int:
        """Requests sent and not yet ended."""
        return len(self._tasks)

    def set_rate(self, rate_rps: float) -> None:
        """Offer this rate from now on; 0 stops sending."""
        self._rate_rps = rate_rps
        self._rate_changed.set()

    def body(self) -> Mapping[str, Any]:
        """The body of the next request to `/v1/completions`."""
        return {
            "model": self._model,
            "prompt": [1] * self.shape.prompt_tokens,
            "max_tokens": self.shape.output_tokens,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
        }

    async def run(self) -> None:
        """Send until cancelled, then wait for what is in flight: nobody hangs up on a running answer."""
        timeout = aiohttp.ClientTimeout(total=120)
        connector = aiohttp.TCPConnector(limit=0, force_close=True)
        async with aiohttp.ClientSession(timeout=timeout, connector=connector) as session:
            with contextlib.suppress(asyncio.CancelledError):
                await self._send_forever(session)
            if self._tasks:
                await asyncio.wait(self._tasks)

    async def _send_forever(self, session: aiohttp.ClientSession) -> None:
        due = time.monotonic()
        while True:
            self._rate_changed.clear()
            if self._rate_rps <= 0:
                await self._rate_changed.wait()
                due = time.monotonic()
                continue
            due += self._random.expovariate(self._rate_rps)
            with contextlib.suppress(TimeoutError):
                # A new rate redraws the wait: the exponential law has no memory, so this biases nothing.
                await asyncio.wait_for(self._rate_changed.wait(), max(0.0, due - time.monotonic()))
                due = time.monotonic()
                continue
            if self.endpoints.urls:
                task = asyncio.create_task(self._request(session))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
            else:
                self.outcomes.append(RequestOutcome(time.time(), "", 0.0, 0.0, 0, "no ready pod"))

    async def _request(self, session: aiohttp.ClientSession) -> None:
        urls = self.endpoints.urls
        pod = min(urls, key=lambda name: (self._in_flight[name], self._random.random()))
        self._in_flight[pod] += 1
        sent, started = time.time(), time.perf_counter()
        first: float | None = None
        tokens, error = 0, None
        body = self.body()
        try:
            async with session.post(f"{urls[pod]}/v1/completions", json=body) as response:
                if response.status != 200:
                    error = f"HTTP {response.status}"
                async for line in response.content:
                    if not line.startswith(b"data: "):
                        continue
                    first = first or time.perf_counter()
                    # Only the last chunk carries usage; parsing every chunk would cost more than the engine does.
                    if b'"usage":{' in line or b'"usage": {' in line:
                        tokens = int(json.loads(line[6:])["usage"]["completion_tokens"])
            if error is None and tokens != body["max_tokens"]:
                error = f"cut off after {tokens} of {body['max_tokens']} tokens"
        except (aiohttp.ClientError, TimeoutError, OSError) as problem:
            error = f"{type(problem).__name__}: {problem}"
        finally:
            self._in_flight[pod] -= 1
        ended = time.perf_counter()
        ttft_s = (first or ended) - started
        self.outcomes.append(RequestOutcome(sent, pod, ended - started, ttft_s, tokens, error))


def mean_latency_s(
    outcomes: Iterable[RequestOutcome], since_s: float, until_s: float
) -> tuple[float, int] | None:
    """Mean end-to-end latency and number of the answered requests sent in a window; None if there were none."""
    latencies = [o.latency_s for o in outcomes if o.error is None and since_s <= o.sent_s < until_s]
    return (sum(latencies) / len(latencies), len(latencies)) if latencies else None

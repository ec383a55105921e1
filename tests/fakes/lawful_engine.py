"""A small engine that obeys L = C1 + n * C2 by construction, so that what the driver measures has a known truth."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web


@dataclass
class LawfulEngine:
    """Serves completions whose token interval grows linearly with the number of requests in the engine.

    Each token takes `token_s + company_s * (others in the engine)`, so a request of g tokens takes
    g * (token_s + n * company_s): C1 = g * token_s and C2 = g * company_s. Both are multiplied by `drift` of the loop's time:
    engines of one machine share it.
    """

    token_s: float = 0.002
    company_s: float = 0.0002
    chunk_tokens: int = 4
    tokens_per_word: float = 1.5
    speculative_tokens: int = 0
    require_key: str | None = None
    fail_after: int | None = None
    metrics: bool = True
    drift: Callable[[float], float] = lambda _: 1.0
    model: str = "tiny"
    url: str = ""
    open: int = 0
    peak: int = 0
    served: int = 0
    aborted: int = 0
    begun: int = 0
    tokens: int = 0
    bodies: list[dict[str, Any]] = field(default_factory=list)

    async def completions(self, request: web.Request) -> web.StreamResponse:
        if self.require_key and request.headers.get("Authorization") != f"Bearer {self.require_key}":
            return web.json_response({"error": {"message": "Unauthorized"}}, status=401)
        body = await request.json()
        self.bodies.append(body)
        if self.fail_after is not None and len(self.bodies) > self.fail_after:
            return web.json_response({"error": {"message": "no"}}, status=500)
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        self.open += 1
        self.peak = max(self.peak, self.open)
        try:
            await self._stream(response, body)
        except (asyncio.CancelledError, ConnectionResetError):
            self.aborted += 1
            raise
        finally:
            self.open -= 1
        return response

    async def _stream(self, response: web.StreamResponse, body: dict[str, Any]) -> None:
        left = body["max_tokens"]
        clock = asyncio.get_running_loop().time
        due = clock()
        while left > 0:
            tokens = min(self.chunk_tokens, left)
            # Against the clock of the stream, so that late wake-ups do not add up.
            due += tokens * (self.token_s + self.company_s * (self.open - 1)) * self.drift(clock())
            await asyncio.sleep(due - clock())
            self.begun += left == body["max_tokens"]
            left -= tokens
            self.tokens += tokens
            piece = {"choices": [{"text": " w" * tokens, "finish_reason": None if left else "length"}]}
            await response.write(f"data: {json.dumps(piece)}\n\n".encode())
        prompt = body.get("prompt") or " ".join(message["content"] for message in body["messages"])
        count = len(prompt) if isinstance(prompt, list) else round(len(prompt.split()) * self.tokens_per_word)
        usage = {"choices": [], "usage": {"prompt_tokens": count, "completion_tokens": body["max_tokens"]}}
        await response.write(f"data: {json.dumps(usage)}\n\ndata: [DONE]\n\n".encode())
        self.served += 1

    async def models(self, request: web.Request) -> web.Response:
        return web.json_response({"object": "list", "data": [{"id": self.model}]})

    async def health(self, request: web.Request) -> web.Response:
        return web.Response()

    async def metrics_page(self, request: web.Request) -> web.Response:
        if not self.metrics:
            return web.Response(status=404)
        label = 'engine="0",model_name="tiny"'
        lines = [
            f"vllm:generation_tokens_total{{{label}}} {self.tokens}",
            f"vllm:time_to_first_token_seconds_count{{{label}}} {self.begun}",
            f"vllm:inter_token_latency_seconds_count{{{label}}} {max(0, self.tokens - self.begun)}",
            f"vllm:num_preemptions_total{{{label}}} 0",
            f"vllm:num_requests_running{{{label}}} {self.open}",
            f"vllm:num_requests_waiting{{{label}}} 0",
            f"vllm:kv_cache_usage_perc{{{label}}} 0.25",
        ]
        if self.speculative_tokens:
            lines += [f"vllm:spec_decode_num_drafts_total{{{label}}} 0"]
            lines += [
                f'vllm:spec_decode_num_accepted_tokens_per_pos_total{{{label},position="{position}"}} 0'
                for position in range(self.speculative_tokens)
            ]
        return web.Response(text="\n".join(lines) + "\n")


@contextlib.asynccontextmanager
async def serving(engine: LawfulEngine) -> AsyncIterator[LawfulEngine]:
    app = web.Application()
    app.router.add_post("/v1/completions", engine.completions)
    app.router.add_post("/v1/chat/completions", engine.completions)
    app.router.add_get("/v1/models", engine.models)
    app.router.add_get("/health", engine.health)
    app.router.add_get("/metrics", engine.metrics_page)
    runner = web.AppRunner(app, handler_cancellation=True, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    engine.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    try:
        yield engine
    finally:
        await runner.cleanup()

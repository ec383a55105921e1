"""The HTTP endpoints of the simulated vLLM."""

from __future__ import annotations

import asyncio
import json
import time
import uuid
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import asdict, dataclass, field

import numpy as np
from aiohttp import web
from prometheus_client import (
    CONTENT_TYPE_LATEST,
    CollectorRegistry,
    GCCollector,
    PlatformCollector,
    ProcessCollector,
    generate_latest,
)

from breakeven_sim.engine.answers import ChunkWriter, whole_answer
from breakeven_sim.engine.drafting import TextSource
from breakeven_sim.engine.exposition import EngineMetrics
from breakeven_sim.engine.http_metrics import HttpMetrics
from breakeven_sim.engine.language import Answered, Language, MadeUp, prompt_logprobs, text_key
from breakeven_sim.engine.prefix_cache import PrefixCache
from breakeven_sim.engine.protocol import (
    DetokenizeBody,
    Generation,
    RequestError,
    TokenizeBody,
    check_fields,
    check_model,
    parse_body,
    parse_generation,
)
from breakeven_sim.engine.realtime import PacedEngine, Stream
from breakeven_sim.engine.requests import Request
from breakeven_sim.engine.serve_arguments import VERSION
from breakeven_sim.engine.tokens import detokenize, tokenize

_Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
_NOT_COUNTED = frozenset({"/metrics", "/health", "/ping", "/version", "/load", "/server_info", "/sim/clock"})
_EVERY_ANSWER = {"Server": "uvicorn", "Vary": "Origin"}
_STRIDE = 7919  # requests begin at different places of the made-up text


@dataclass(frozen=True, slots=True)
class NamedModel:
    """The model that an engine serves.

    Attributes:
        names: model names answered to.
        root: the model behind them.
        max_model_len: tokens of one request.
        refuses: fields of requests that it refuses.
    """

    names: tuple[str, ...]
    root: str
    max_model_len: int
    refuses: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class AnswerSource:
    """Lengths and words of answers, and the drafts that they accept.

    Attributes:
        texts: what drafts get accepted; `None` without speculation.
        natural_output_tokens: mean length of answers that may end by themselves; `None`: they never do.
        seed: of natural lengths.
        language: of greedy answers.
    """

    texts: TextSource | None = None
    natural_output_tokens: float | None = None
    seed: int = 0
    language: Language = field(default_factory=Language)

    def spoken(self, generation: Generation, number: int, *, batched: bool) -> tuple[Answered, int]:
        """The answer to a request and its number of tokens; the text of load, which nobody reads, is made up."""
        greedy = generation.greedy
        if greedy is None:
            total, reason = self._length(generation, number)
            return MadeUp(number * _STRIDE, total, reason), total
        if greedy.schema is not None:
            filled = self.language.fill(greedy.prompt_ids, greedy.schema, batched=batched, number=number)
            return filled.cut(generation.max_tokens), min(len(filled.token_ids), generation.max_tokens)
        total, reason = self._length(generation, text_key(greedy.prompt_ids))
        spoken = self.language.speak(greedy.prompt_ids, total, reason, batched=batched, number=number)
        return spoken, len(spoken.token_ids)

    def _length(self, generation: Generation, key: int) -> tuple[int, str]:
        """Output tokens of a request and why it ends there; the same for the same key."""
        mean = self.natural_output_tokens
        if generation.ignore_eos or mean is None:
            return generation.max_tokens, "length"
        # A key of its own: the text of a request must not depend on whether its length was drawn.
        natural = int(np.random.default_rng((self.seed, key, 1)).geometric(1.0 / mean))
        total = max(natural, generation.min_tokens, 1)
        return (total, "stop") if total < generation.max_tokens else (generation.max_tokens, "length")


class VllmApi:
    """Handlers over one paced engine.

    Args:
        paced: the engine in real time.
        metrics: its page.
        model: the model that is served.
        answers: source of the answers.
        api_keys: accepted bearer tokens; empty: everybody may.
    """

    def __init__(
        self,
        paced: PacedEngine,
        metrics: EngineMetrics,
        model: NamedModel,
        answers: AnswerSource,
        api_keys: tuple[str, ...] = (),
    ) -> None:
        self._paced = paced
        self._metrics = metrics
        self._model = model
        self._answers = answers
        self._authorizations = frozenset(f"Bearer {key}" for key in api_keys)
        self._created = int(time.time())
        self._count = 0
        self.draining = False
        self._closing = False
        self.quiet = asyncio.Event()
        """Set while no request of any kind is open."""
        self.quiet.set()
        self.prefixes: PrefixCache | None = None
        """Prefixes of prompts that were computed; None if prompts share nothing."""
        self._busy: set[web.RequestHandler] = set()
        self._registry = CollectorRegistry()
        GCCollector(self._registry)
        PlatformCollector(self._registry)
        ProcessCollector(registry=self._registry)
        self._registry.register(metrics)
        self._http = HttpMetrics(self._registry)

    def application(self) -> web.Application:
        """The routes, behind authorisation and HTTP metrics."""
        app = web.Application(middlewares=[self._frame], client_max_size=64 * 2**20)
        app.add_routes(
            [
                web.post("/v1/completions", self._completions),
                web.post("/v1/chat/completions", self._chat),
                web.get("/v1/models", self._models),
                web.post("/tokenize", self._tokenize),
                web.post("/detokenize", self._detokenize),
                web.get("/health", self._health, allow_head=False),
                web.get("/ping", self._health),
                web.post("/ping", self._health),
                web.get("/version", self._version),
                web.get("/load", self._load),
                web.get("/metrics", self._metrics_page),
                web.get("/sim/clock", self._clock),
            ]
        )
        return app

    def hang_up(self, connections: Iterable[web.RequestHandler]) -> None:
        """End connections that wait for no answer; the others end with the answer they wait for."""
        self._closing = True
        for connection in connections:
            if connection not in self._busy:
                connection.force_close()

    @web.middleware
    async def _frame(self, request: web.Request, handler: _Handler) -> web.StreamResponse:
        began = time.perf_counter()
        self._busy.add(request.protocol)
        self.quiet.clear()
        response: web.StreamResponse
        try:
            if self._authorizations and request.path.startswith("/v1"):
                given = request.headers.get("Authorization", "")
                if given not in self._authorizations:
                    return _json({"error": "Unauthorized"}, status=401)
            response = await handler(request)
        except RequestError as refused:
            response = _json(refused.body, status=refused.status)
        except web.HTTPException as refused:
            response = _json({"detail": refused.reason}, status=refused.status)
            if isinstance(refused, web.HTTPMethodNotAllowed):
                response.headers["Allow"] = ", ".join(sorted(refused.allowed_methods))
        finally:
            self._busy.discard(request.protocol)
            if not self._busy:
                self.quiet.set()
        if not response.prepared:
            response.headers.update(_EVERY_ANSWER)
            if self._closing:
                response.force_close()
        if request.path not in _NOT_COUNTED:
            self._http.observe(request, response, time.perf_counter() - began)
        return response

    # Generation -------------------------------------------------------------------------------------------

    async def _completions(self, request: web.Request) -> web.StreamResponse:
        return await self._generate(request, chat=False)

    async def _chat(self, request: web.Request) -> web.StreamResponse:
        return await self._generate(request, chat=True)

    async def _generate(self, http: web.Request, *, chat: bool) -> web.StreamResponse:
        if self.draining:
            raise RequestError(500, "cannot schedule new futures after shutdown", "InternalServerError")
        raw = await http.read()
        check_fields(raw, self._model.refuses)
        generation = parse_generation(
            raw,
            chat=chat,
            names=self._model.names,
            max_model_len=self._model.max_model_len,
            speculates=self._answers.texts is not None,
            with_ids=self.prefixes is not None,
        )
        if generation.refusal is not None:
            return await _refused(http, generation.refusal, stream=generation.stream)
        number = self._count
        self._count += 1
        batched = self._paced.in_flight > 0
        spoken, total = self._answers.spoken(generation, number, batched=batched)
        texts = self._answers.texts
        text = texts.draw(number, total, generation.prompt_tokens) if texts is not None else None
        cached = self.prefixes.look_up(generation.prompt_ids) if self.prefixes is not None else 0
        request = Request(number, 0.0, generation.prompt_tokens, total, text, cached_tokens=cached)
        stream = self._paced.submit(request)
        identifier = f"{'chatcmpl' if chat else 'cmpl'}-{uuid.uuid4().hex[:16]}"
        try:
            if generation.stream:
                return await self._streamed(http, generation, stream, identifier, spoken)
            finished = False
            while not finished:
                _, finished = await stream.more()
        except (asyncio.CancelledError, ConnectionError):
            if not stream.finished:
                # An aborted request counts in first tokens, tokens and steps, and in no series of finished requests: vLLM does the same.
                self._paced.abort(stream.request)
            raise
        self._metrics.record_finished(stream.request, spoken.finish_reason, generation.max_tokens)
        judged, greedy = None, generation.greedy
        if greedy is not None and greedy.prompt_logprobs is not None:
            opinions = self._answers.language.judge(greedy.prompt_ids)
            judged = prompt_logprobs(opinions, greedy.prompt_ids, greedy.prompt_logprobs)
        return _json(whole_answer(generation, identifier, int(time.time()), spoken, judged))

    async def _streamed(
        self, http: web.Request, generation: Generation, stream: Stream, identifier: str, spoken: Answered
    ) -> web.StreamResponse:
        response = web.StreamResponse(
            headers={"Content-Type": "text/event-stream; charset=utf-8", **_EVERY_ANSWER}
        )
        writer = ChunkWriter(generation, identifier, int(time.time()))
        sent, finished, reason = 0, False, spoken.finish_reason
        await response.prepare(http)
        head = writer.opening()
        while not finished:
            tokens, finished = await stream.more()
            data = head + writer.chunk(
                spoken.piece(sent, tokens), sent + tokens, reason if finished else None
            )
            head = b""
            sent += tokens
            if finished:
                self._metrics.record_finished(stream.request, reason, generation.max_tokens)
                data += writer.closing(sent)
            await response.write(data)
        await response.write_eof()
        return response

    # Everything else --------------------------------------------------------------------------------------

    async def _models(self, _: web.Request) -> web.Response:
        permission = {
            "id": f"modelperm-{uuid.uuid4().hex[:16]}",
            "object": "model_permission",
            "created": int(time.time()),
            "allow_create_engine": False,
            "allow_sampling": True,
            "allow_logprobs": True,
            "allow_search_indices": False,
            "allow_view": True,
            "allow_fine_tuning": False,
            "organization": "*",
            "group": None,
            "is_blocking": False,
        }
        cards = [
            {
                "id": name,
                "object": "model",
                "created": self._created,
                "owned_by": "vllm",
                "root": self._model.root,
                "parent": None,
                "max_model_len": self._model.max_model_len,
                "permission": [permission],
            }
            for name in self._model.names
        ]
        return _json({"object": "list", "data": cards})

    async def _tokenize(self, http: web.Request) -> web.Response:
        body = parse_body(await http.read(), TokenizeBody)
        check_model(body.model, self._model.names)
        tokens = tokenize(body.text())
        answer = {
            "count": len(tokens),
            "max_model_len": self._model.max_model_len,
            "tokens": [number for number, _ in tokens],
            "token_strs": [piece for _, piece in tokens] if body.return_token_strs else None,
        }
        return _json(answer)

    async def _detokenize(self, http: web.Request) -> web.Response:
        body = parse_body(await http.read(), DetokenizeBody)
        check_model(body.model, self._model.names)
        return _json({"prompt": detokenize(body.tokens)})

    async def _load(self, _: web.Request) -> web.Response:
        # Stays 0 in vLLM too, unless --enable-server-load-tracking is given.
        return _json({"server_load": 0})

    async def _health(self, _: web.Request) -> web.Response:
        return web.Response(status=503 if self._paced.killed else 200)

    async def _version(self, _: web.Request) -> web.Response:
        return _json({"version": VERSION})

    async def _metrics_page(self, _: web.Request) -> web.Response:
        return web.Response(
            body=generate_latest(self._registry), headers={"Content-Type": CONTENT_TYPE_LATEST}
        )

    async def _clock(self, _: web.Request) -> web.Response:
        return web.Response(text=json.dumps(asdict(self._paced.clock())), content_type="application/json")


async def _refused(http: web.Request, refusal: RequestError, *, stream: bool) -> web.StreamResponse:
    """The engine's own refusal; a stream has begun by then, and ends with the error."""
    if not stream:
        raise refusal
    response = web.StreamResponse(
        headers={"Content-Type": "text/event-stream; charset=utf-8", **_EVERY_ANSWER}
    )
    await response.prepare(http)
    await response.write(f"data: {json.dumps(refusal.body)}\n\ndata: [DONE]\n\n".encode())
    await response.write_eof()
    return response


def _json(body: object, status: int = 200) -> web.Response:
    """JSON as vLLM sends it: no blanks, no charset."""
    encoded = json.dumps(body, separators=(",", ":"), ensure_ascii=False).encode()
    return web.Response(body=encoded, status=status, content_type="application/json")

"""The only socket of the driver: streamed completions and the metrics page of one engine."""

from __future__ import annotations

import asyncio
import json
import os
import ssl
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import aiohttp

from breakeven.errors import BreakevenError
from breakeven.load_driver.dataset import Prompt
from breakeven.load_driver.sent_workload import Sampling
from breakeven.load_driver.window import CUT_OFF, RequestRecord

# The last event has the usage; the limit leaves room for the longest text piece in front of it.
_TAIL_BYTES = 8192
# A real page of metrics has 60 to 300 kB; it is read while load is generated.
_LARGEST_PAGE_MIB = 8
# In every event that carries output, and not in the last one with the usage.
_TOKENS_EVENT = b'"finish_reason"'
# A chat's first event names the role and has no output.
_ROLE_EVENT = b'"role"'
# A request without its last byte by then has failed.
_REQUEST_TIMEOUT_S = 600.0


class EngineError(BreakevenError):
    """The engine cannot be reached or answers what no vLLM answers; one line.

    Attributes:
        errors: how often each error ended a request of the engine, the most frequent one first; empty if no request is behind it.
    """

    def __init__(self, text: str, errors: Mapping[str, int] | None = None) -> None:
        self.errors = errors or {}
        super().__init__(text)

    @property
    def usual(self) -> str | None:
        """The most frequent error; None without any."""
        return next(iter(self.errors), None)


class InFlight:
    """Number of open requests, and its integral over time.

    A count taken when a step's output arrives would miss the requests that ended with that step: one in seven where
    an answer takes seven steps. The time average over the step counts them, and all that wait for the next one.
    """

    def __init__(self) -> None:
        self.open = 0
        self._request_s = 0.0
        self._since_s = 0.0

    def request_s(self, now_s: float) -> float:
        """Seconds that requests were open until now, summed over requests."""
        return self._request_s + self.open * (now_s - self._since_s)

    def change(self, by: int, now_s: float) -> None:
        """Count a request that begins (1) or ends (-1) now."""
        self._request_s, self._since_s = self.request_s(now_s), now_s
        self.open += by


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Address of the engine, and settings of requests to it.

    Attributes:
        url: base address, `http://host:port` or https.
        model: served model name; None if it is the only one the engine serves.
        api_key: sent as a bearer token; never shown.
        ca_file: CA certificate for https; None takes the certificates of the system.
        check_hostname: whether the certificate must name the host; a pod asked by its address has one that does not.
    """

    url: str
    model: str | None = None
    api_key: str | None = field(default=None, repr=False)
    ca_file: Path | None = None
    check_hostname: bool = True


class EngineClient:
    """One engine, one connection pool; an async context manager.

    Completion requests fix the output length (`ignore_eos`, `min_tokens` = `max_tokens`), stream, and ask for the
    token usage in the last event. Only that event is parsed: parsing every token's JSON costs several times what the
    rest of the driver costs and shows up as send lag. Without a sampling the likeliest tokens are taken.
    """

    def __init__(self, endpoint: Endpoint, sampling: Sampling | None = None) -> None:
        self._endpoint = endpoint
        self._sampling = (sampling or Sampling()).body()
        self._base = endpoint.url.rstrip("/").removesuffix("/v1")
        self._session: aiohttp.ClientSession | None = None
        self._model = endpoint.model
        self._inflight = InFlight()

    async def __aenter__(self) -> Self:
        headers = {"Authorization": f"Bearer {self._endpoint.api_key}"} if self._endpoint.api_key else {}
        tls: ssl.SSLContext | bool = True
        if self._endpoint.ca_file is not None:
            try:
                tls = ssl.create_default_context(cafile=str(self._endpoint.ca_file))
                tls.check_hostname = self._endpoint.check_hostname
            except (OSError, ssl.SSLError) as error:
                raise EngineError(
                    f"{self._endpoint.ca_file}: {error}; expected a CA certificate in PEM"
                ) from error
        # No limit: a pool that makes requests wait for a connection turns an open loop into a closed one.
        self._session = aiohttp.ClientSession(
            # vLLM's server closes idle connections after 5 s; reusing one at that moment would fail a request.
            connector=aiohttp.TCPConnector(limit=0, ssl=tls, keepalive_timeout=2.0),
            headers=headers,
            timeout=aiohttp.ClientTimeout(total=_REQUEST_TIMEOUT_S),
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._session is not None:
            await self._session.close()

    @property
    def session(self) -> aiohttp.ClientSession:
        """The open connection pool."""
        if self._session is None:
            raise RuntimeError("the client is used outside its context")
        return self._session

    async def model(self) -> str:
        """The model name in requests: the configured one, which must be served, or the first that the engine serves."""
        page = await self._get("/v1/models")
        try:
            served = [str(entry["id"]) for entry in json.loads(page)["data"]]
        except (ValueError, KeyError, TypeError) as error:
            raise EngineError(
                f"{self._base}/v1/models: not a list of models; expected an OpenAI API"
            ) from error
        if not served:
            raise EngineError(f"{self._base}/v1/models: no model; expected one")
        if self._model is None:
            self._model = served[0]
        if self._model not in served:
            raise EngineError(
                f"{self._base}: model {self._model!r} is not served; expected one of {', '.join(served)}"
            )
        return self._model

    async def version(self) -> str | None:
        """The version that `/version` states, kept with the points; None if it states none."""
        try:
            return str(json.loads(await self._get("/version"))["version"])
        except (EngineError, ValueError, KeyError, TypeError):
            return None

    async def metrics_page(self) -> str | None:
        """The metrics page as it is now, unparsed; None if the engine has none."""
        try:
            async with self.session.get(f"{self._base}/metrics") as answer:
                return await self._text(answer, "/metrics") if answer.status == 200 else None
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise EngineError(f"{self._base}/metrics: {_why(error)}; expected an answer") from error

    async def wait_until_ready(self, deadline_s: float, pause_s: float = 1.0) -> None:
        """Return once `/health` answers 200; after the deadline the last answer is in the error."""
        end_s = time.monotonic() + deadline_s
        while True:
            try:
                async with self.session.get(
                    f"{self._base}/health", timeout=aiohttp.ClientTimeout(total=5)
                ) as answer:
                    if answer.status == 200:
                        return
                    seen = f"HTTP {answer.status}"
            except (aiohttp.ClientError, TimeoutError, OSError) as error:
                seen = _why(error)
            if time.monotonic() + pause_s > end_s:
                said = f"{self._base}/health: {seen} for {deadline_s:.0f} s; expected 200"
                raise EngineError(said, {seen: 1})
            await asyncio.sleep(pause_s)

    async def complete(self, prompt: Prompt, output_tokens: int, record: RequestRecord) -> None:
        """Send one request for exactly so many tokens, and fill in its record as the answer streams.

        Failures are in the record, never raised. Its `sent_s` is set here, at the moment of sending.
        """
        chat = not isinstance(prompt, str)
        path = "/v1/chat/completions" if chat else "/v1/completions"
        body: dict[str, Any] = {
            "model": self._model,
            "messages" if chat else "prompt": prompt,
            "max_tokens": output_tokens,
            "min_tokens": output_tokens,
            "ignore_eos": True,
            **self._sampling,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        record.sent_s = time.monotonic()
        self._inflight.change(1, record.sent_s)
        begun_s, begun = record.sent_s, self._inflight.request_s(record.sent_s)
        try:
            async with self.session.post(f"{self._base}{path}", json=body) as answer:
                if answer.status != 200:
                    record.error = f"HTTP {answer.status}"
                    return
                tail = b""
                async for piece in answer.content.iter_any():
                    now_s = time.monotonic()
                    if record.first_token_s is None:
                        record.first_token_s = now_s
                    steps = piece.count(_TOKENS_EVENT) - (piece.count(_ROLE_EVENT) if chat else 0)
                    if steps > 0 and now_s > begun_s:
                        until = self._inflight.request_s(now_s)
                        record.steps += steps
                        record.others_met += steps * ((until - begun) / (now_s - begun_s) - 1)
                        begun_s, begun = now_s, until
                    tail = (tail + piece)[-_TAIL_BYTES:]
            record.error = _read_usage(tail, record)
        except (aiohttp.ClientError, OSError) as error:
            record.error = _why(error)
        except TimeoutError:
            record.error = f"no end after {_REQUEST_TIMEOUT_S:g} s"
        except asyncio.CancelledError:
            record.error = CUT_OFF
            raise
        finally:
            record.done_s = time.monotonic()
            self._inflight.change(-1, record.done_s)

    async def text_of(self, token_ids: Sequence[int]) -> str:
        """The text of tokens, by the engine's tokenizer."""
        document = await self.whole("/detokenize", {"tokens": list(token_ids)})
        return str(document.get("prompt", "")) if isinstance(document, Mapping) else ""

    async def whole(self, path: str, body: Mapping[str, Any]) -> Any:
        """The JSON of an answer that does not stream, to a body that gets the model's name; errors show nothing of request and answer."""
        where = f"{self._base}{path}"
        self._inflight.change(1, time.monotonic())
        try:
            async with self.session.post(where, json={"model": self._model, **body}) as answer:
                if answer.status != 200:
                    raise _refused(where, answer.status)
                return json.loads(await self._text(answer, path))
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise EngineError(f"{where}: {_why(error)}; expected an answer") from None
        except ValueError:
            raise EngineError(f"{where}: no JSON; expected an answer of an OpenAI API") from None
        finally:
            self._inflight.change(-1, time.monotonic())

    async def _get(self, path: str) -> str:
        try:
            async with self.session.get(f"{self._base}{path}") as answer:
                if answer.status != 200:
                    raise _refused(f"{self._base}{path}", answer.status)
                return await self._text(answer, path)
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise EngineError(f"{self._base}{path}: {_why(error)}; expected an engine there") from error

    async def _text(self, answer: aiohttp.ClientResponse, path: str) -> str:
        """The text of an answer that is no stream of tokens; one larger than any page of an engine is refused."""
        body = bytearray()
        async for chunk in answer.content.iter_any():
            body += chunk
            if len(body) > _LARGEST_PAGE_MIB << 20:
                raise EngineError(
                    f"{self._base}{path}: more than {_LARGEST_PAGE_MIB} MiB; expected a page of an engine"
                )
        return body.decode(errors="replace")


def _refused(where: str, status: int) -> EngineError:
    """The error of an answer with another status than 200."""
    error = f"HTTP {status}"
    return EngineError(f"{where}: {error}; expected 200", {error: 1})


def _why(error: Exception) -> str:
    """What happened to a connection, in the system's words."""
    if isinstance(error, TimeoutError):
        return "no answer in time"
    parts = (getattr(error, name, None) for name in ("os_error", "certificate_error"))
    cause = next((one for one in parts if one is not None), error)
    if isinstance(cause, OSError) and (cause.errno or 0) > 0 and not isinstance(cause, ssl.SSLError):
        return os.strerror(cause.errno or 0)
    return getattr(cause, "strerror", None) or "the connection broke off"


def _read_usage(tail: bytes, record: RequestRecord) -> str | None:
    """Take the token counts from the end of a stream; returns what is wrong with it, None if nothing."""
    events = [line[5:].strip() for line in tail.split(b"\n") if line.startswith(b"data:")]
    if not events or events[-1] != b"[DONE]":
        return "the stream broke off"
    for event in reversed(events[:-1]):
        try:
            content = json.loads(event)
        except ValueError:
            continue
        if not isinstance(content, dict):
            continue
        if content.get("error"):
            return "error in the stream"
        usage = content.get("usage")
        if isinstance(usage, dict):
            counts = (usage.get(name) for name in ("prompt_tokens", "completion_tokens"))
            record.prompt_tokens, record.output_tokens = (
                one if isinstance(one, int) else 0 for one in counts
            )
            return None if record.output_tokens > 0 else "no output tokens"
    return "no usage in the stream"

"""The OpenAI wire format as vLLM 0.32 speaks it: requests checked, answers and chunks rendered.

Tokens are counted without a tokenizer, so that a client can know them beforehand: a prompt of token ids has as many
tokens as ids; in a text every word (between white space) counts one token per six characters begun.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

_WORD_CHARACTERS = 6
_VOCABULARY = tuple(f" w{i}" for i in range(1000))
_DEFAULT_COMPLETION_TOKENS = 16
SYSTEM_FINGERPRINT = "vllm-0.32.0-simulated"


class ApiError(Exception):
    """An answer other than 200, in the shape that vLLM gives it.

    Args:
        status: HTTP status.
        message: for a person.
        kind: vLLM's error type.
        parameter: the field at fault.
    """

    def __init__(
        self, status: int, message: str, kind: str = "BadRequestError", parameter: str | None = None
    ) -> None:
        super().__init__(message)
        self.status = status
        self.body = {"error": {"message": message, "type": kind, "param": parameter, "code": status}}


@dataclass(frozen=True, slots=True)
class Generation:
    """A request that passed the checks.

    Attributes:
        chat: chat completion rather than completion.
        model: the name the client used.
        prompt_tokens: counted as described above.
        max_tokens: output tokens at most.
        min_tokens: output tokens at least.
        ignore_eos: run to `max_tokens` whatever the text.
        stream: answer in chunks.
        include_usage: end the stream with a usage chunk.
        continuous_usage: every chunk carries usage.
    """

    chat: bool
    model: str
    prompt_tokens: int
    max_tokens: int
    min_tokens: int
    ignore_eos: bool
    stream: bool
    include_usage: bool
    continuous_usage: bool


def count_tokens(text: str) -> int:
    """Tokens of a text: per word one for every six characters begun."""
    return sum(-(-len(word) // _WORD_CHARACTERS) for word in text.split())


def parse_body(raw: bytes) -> dict[str, Any]:
    """A JSON object, or vLLM's answer to something else."""
    try:
        body = json.loads(raw)
    except ValueError as problem:
        reason = problem.msg if isinstance(problem, json.JSONDecodeError) else "not UTF-8"
        detail = (
            "1 validation error:\n  {'type': 'json_invalid', 'loc': 'body.1', 'msg': 'JSON decode error', "
            f"'input': '<dict of 0 items>', 'ctx': {{'error': {reason!r}}}}}"
        )
        raise ApiError(400, detail, "Bad Request", "body.1") from None
    if not isinstance(body, dict):
        raise _invalid("body", "Input should be a valid dictionary")
    return body


def parse_generation(
    body: Mapping[str, Any], *, chat: bool, names: Sequence[str], max_model_len: int
) -> Generation:
    """Check a request against the model's length and names.

    Raises:
        ApiError: 404 for another model, 400 for what does not fit or is not understood.
    """
    model = body.get("model") or names[0]
    if model not in names:
        known = f"The model `{model}` does not exist. Valid aliases: {', '.join(names)}."
        raise ApiError(404, known, "NotFoundError", "model")
    if body.get("n", 1) != 1:
        raise ApiError(400, "the simulated engine answers n=1 only", parameter="n")
    prompt_tokens = _chat_tokens(body.get("messages")) if chat else _prompt_tokens(body.get("prompt"))
    if prompt_tokens < 1:
        raise ApiError(
            400, "You must provide a non-empty prompt.", parameter="messages" if chat else "prompt"
        )
    room = max_model_len - prompt_tokens
    if room < 1:
        raise ApiError(
            400,
            f"This model's maximum context length is {max_model_len} tokens. However, your request has {prompt_tokens} "
            f"input tokens. Please reduce the length of the input messages. (parameter=input_tokens, value={prompt_tokens})",
            parameter="input_tokens",
        )
    options = body.get("stream_options") or {}
    if not isinstance(options, dict):
        raise _invalid("body.stream_options", "Input should be a valid dictionary")
    max_tokens = _max_tokens(body, chat, room, max_model_len, prompt_tokens)
    return Generation(
        chat=chat,
        model=model,
        prompt_tokens=prompt_tokens,
        max_tokens=max_tokens,
        min_tokens=min(_whole(body, "min_tokens") or 0, max_tokens),
        ignore_eos=bool(body.get("ignore_eos", False)),
        stream=bool(body.get("stream", False)),
        include_usage=bool(options.get("include_usage", False)),
        continuous_usage=bool(options.get("continuous_usage_stats", False)),
    )


def text_of(start: int, tokens: int) -> str:
    """`tokens` words of the made-up text, from place `start` on; needs no escaping in JSON."""
    size = len(_VOCABULARY)
    return "".join([_VOCABULARY[(start + i) % size] for i in range(tokens)])


def usage(prompt_tokens: int, completion_tokens: int) -> dict[str, Any]:
    """Token counts as vLLM reports them."""
    return {
        "prompt_tokens": prompt_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
        "completion_tokens": completion_tokens,
    }


class ChunkWriter:
    """Renders a stream's chunks; what does not change from chunk to chunk is rendered once.

    Args:
        generation: the request.
        identifier: `cmpl-...` or `chatcmpl-...`.
        created: Unix time of the answer.
    """

    def __init__(self, generation: Generation, identifier: str, created: int) -> None:
        self._generation = generation
        kind = "chat.completion.chunk" if generation.chat else "text_completion"
        self._head = f'data: {{"id":"{identifier}","object":"{kind}","created":{created},"model":{json.dumps(generation.model)},"choices":['
        if generation.chat:
            self._open, self._close = '{"index":0,"delta":{"content":"', '"},"logprobs":null,'
            self._tail = '"token_ids":null}]'
        else:
            self._open, self._close = '{"index":0,"text":"', '","logprobs":null,'
            self._tail = '"prompt_token_ids":null,"token_ids":null}]'

    def opening(self) -> bytes:
        """What goes before the first token: a chat's role."""
        if not self._generation.chat:
            return b""
        role = '{"index":0,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}],'
        return f'{self._head}{role}"prompt_token_ids":null,"prompt_text":null}}\n\n'.encode()

    def chunk(self, text: str, generated: int, finish_reason: str | None) -> bytes:
        """One chunk; `generated` counts all output tokens so far."""
        if finish_reason is not None:
            ending = f'"finish_reason":"{finish_reason}","stop_reason":null,'
        elif self._generation.chat:
            ending = '"finish_reason":null,'
        else:
            ending = '"finish_reason":null,"stop_reason":null,'
        counts = ""
        if self._generation.continuous_usage:
            counts = f',"usage":{json.dumps(usage(self._generation.prompt_tokens, generated))}'
        return f"{self._head}{self._open}{text}{self._close}{ending}{self._tail}{counts}}}\n\n".encode()

    def closing(self, generated: int) -> bytes:
        """Usage if asked for, and the end mark."""
        last = b"data: [DONE]\n\n"
        if not self._generation.include_usage:
            return last
        counts = json.dumps(usage(self._generation.prompt_tokens, generated), separators=(",", ":"))
        return (
            f'{self._head}],"usage":{counts},"system_fingerprint":"{SYSTEM_FINGERPRINT}"}}\n\n'.encode()
            + last
        )


def whole_answer(
    generation: Generation, identifier: str, created: int, text: str, generated: int, reason: str
) -> dict[str, Any]:
    """The answer of a request that does not stream."""
    choice: dict[str, Any] = {"index": 0}
    details: dict[str, Any] = {}
    if generation.chat:
        absent = dict.fromkeys(("refusal", "annotations", "audio", "function_call", "reasoning"))
        choice["message"] = {"role": "assistant", "content": text, **absent}
        choice |= {
            "logprobs": None,
            "finish_reason": reason,
            "stop_reason": None,
            "token_ids": None,
            "routed_experts": None,
        }
        details = {"prompt_tokens_details": None, "completion_tokens_details": None}
        extra = dict.fromkeys(("prompt_logprobs", "prompt_token_ids", "prompt_text"))
    else:
        choice |= {
            "text": text,
            "logprobs": None,
            "finish_reason": reason,
            "stop_reason": None,
            "token_ids": None,
        }
        choice |= {"prompt_logprobs": None, "prompt_token_ids": None, "routed_experts": None}
        extra = {}
    return {
        "id": identifier,
        "object": "chat.completion" if generation.chat else "text_completion",
        "created": created,
        "model": generation.model,
        "choices": [choice],
        "service_tier": None,
        "system_fingerprint": SYSTEM_FINGERPRINT,
        "usage": usage(generation.prompt_tokens, generated) | details,
        **extra,
        "kv_transfer_params": None,
        "ec_transfer_params": None,
        "metrics": None,
    }


def _invalid(place: str, message: str) -> ApiError:
    return ApiError(
        400, f"1 validation error:\n  {{'loc': '{place}', 'msg': '{message}'}}", "Bad Request", place
    )


def _whole(body: Mapping[str, Any], key: str) -> int | None:
    value = body.get(key)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int):
        raise _invalid(f"body.{key}", "Input should be a valid integer")
    return value


def _max_tokens(
    body: Mapping[str, Any], chat: bool, room: int, max_model_len: int, prompt_tokens: int
) -> int:
    key = "max_completion_tokens" if chat and body.get("max_completion_tokens") is not None else "max_tokens"
    asked = _whole(body, key)
    if asked is None:
        return room if chat else min(_DEFAULT_COMPLETION_TOKENS, room)
    if asked < 1:
        raise ApiError(
            400, f"{key} must be at least 1, got {asked}. (parameter={key}, value={asked})", parameter=key
        )
    if asked > max_model_len:
        raise ApiError(
            400,
            f"{key}={asked} cannot be greater than max_model_len={max_model_len}. Please request fewer output tokens. "
            f"(parameter={key}, value={asked})",
            parameter=key,
        )
    if asked > room:
        raise ApiError(
            400,
            f"'max_tokens' or 'max_completion_tokens' is too large: {asked}. This model's maximum context length is "
            f"{max_model_len} tokens and your request has {prompt_tokens} input tokens ({asked} > {max_model_len} - "
            f"{prompt_tokens}). (parameter={key}, value={asked})",
            parameter=key,
        )
    return asked


def _prompt_tokens(prompt: Any) -> int:
    """Tokens of a completion's prompt: a text, ids, or a list of one of them."""
    if isinstance(prompt, str):
        return count_tokens(prompt)
    if isinstance(prompt, list) and prompt:
        if all(isinstance(item, int) for item in prompt):
            return len(prompt)
        if len(prompt) == 1:
            return _prompt_tokens(prompt[0])
        raise ApiError(400, "the simulated engine takes one prompt per request", parameter="prompt")
    raise _invalid(
        "body.prompt", "Field required" if prompt is None else "Input should be a valid string or list"
    )


def _chat_tokens(messages: Any) -> int:
    """Tokens of all messages' texts; the simulated chat template adds none."""
    if not isinstance(messages, list) or not all(isinstance(message, dict) for message in messages):
        raise _invalid(
            "body.messages", "Field required" if messages is None else "Input should be a valid list"
        )
    total = 0
    for message in messages:
        content = message.get("content")
        if isinstance(content, str):
            total += count_tokens(content)
        elif isinstance(content, list):
            total += sum(
                count_tokens(part["text"])
                for part in content
                if isinstance(part, dict) and isinstance(part.get("text"), str)
            )
    return total

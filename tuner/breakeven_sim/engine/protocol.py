"""Requests as vLLM 0.32 takes them: bodies checked, refusals in its shape and mostly in its words.

vLLM declares its bodies in pydantic and passes pydantic's errors on. So does this module, and therefore coerces values
and words errors in the same way. Fields without an effect here are ignored, as vLLM ignores fields it does not know.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from breakeven_sim.engine.tokens import count_tokens, tokenize

_SAMPLING_EPS = 1e-5


class RequestError(Exception):
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
        prompt_tokens: as `tokens` counts them; a prompt of ids has as many as ids.
        max_tokens: output tokens at most.
        min_tokens: output tokens at least.
        ignore_eos: run to `max_tokens` whatever the text.
        stream: answer in chunks.
        include_usage: end the stream with a usage chunk.
        continuous_usage: every chunk carries usage.
        prompt_ids: of the tokens; empty if nobody asked for them.
        greedy: what the model's own answer follows from; None if its text means nothing.
        refusal: what the engine says to it in place of an answer: vLLM checks some fields only once it takes a request up,
            when the headers of a stream are sent; None if the engine takes the request.
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
    refusal: RequestError | None = None
    greedy: GreedyRequest | None = None
    prompt_ids: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class GreedyRequest:
    """A request whose answer is the model's own: at temperature 0, and of a length that is not imposed; or one that is judged.

    Attributes:
        prompt_ids: as the tokenizer has them.
        schema: of the demanded JSON, or of the demanded tool's parameters; None if the answer is free.
        tool: name of the tool that must be called; None if no tool must.
        named: whether the request names that tool, rather than demanding any.
        return_token_ids: whether the answer carries the ids of prompt and output.
        prompt_logprobs: choices per token of the prompt that the answer carries; None without judgement.
    """

    prompt_ids: tuple[int, ...]
    schema: Mapping[str, Any] | None = None
    tool: str | None = None
    named: bool = False
    return_token_ids: bool = False
    prompt_logprobs: int | None = None


class _StreamOptions(BaseModel):
    include_usage: bool = False
    continuous_usage_stats: bool = False


class _Sampling(BaseModel):
    """Fields that completions and chats have in common."""

    model: str | None = None
    max_tokens: int | None = None
    min_tokens: int = 0
    n: int | None = 1
    temperature: float | None = None
    top_p: float | None = None
    min_p: float | None = None
    logit_bias: dict[str, float] | None = None
    ignore_eos: bool = False
    stream: bool | None = False
    stream_options: _StreamOptions | None = None
    return_token_ids: bool | None = None
    prompt_logprobs: int | None = None
    response_format: dict[str, Any] | None = None


class CompletionBody(_Sampling):
    """Body of /v1/completions."""

    max_tokens: int | None = 16
    prompt: list[int] | list[list[int]] | str | list[str] | None = None


class ChatBody(_Sampling):
    """Body of /v1/chat/completions."""

    max_completion_tokens: int | None = None
    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None


class _Anything(BaseModel, extra="allow"):
    """Body of which only the names of its fields matter."""


class TokenizeBody(BaseModel):
    """Body of /tokenize: a prompt, or the messages of a chat."""

    model: str | None = None
    prompt: str | None = None
    messages: list[dict[str, Any]] | None = None
    return_token_strs: bool | None = False

    def text(self) -> str:
        """The text to tokenize.

        Raises:
            ApiError: neither is given.
        """
        if self.prompt is None and self.messages is None:
            given = f"<dict of {len(self.model_fields_set)} items>"
            raise _invalid(
                ("missing", f"body.{field}", "Field required", given) for field in ("prompt", "messages")
            )
        return self.prompt if self.prompt is not None else " ".join(_contents(self.messages or []))


class DetokenizeBody(BaseModel):
    """Body of /detokenize."""

    model: str | None = None
    tokens: list[int]


_Body = TypeVar("_Body", bound=BaseModel)


def parse_body(raw: bytes, kind: type[_Body]) -> _Body:
    """Check the fields of a body.

    Raises:
        ApiError: what vLLM answers to a body that is not JSON or whose fields are wrong.
    """
    if not raw:
        raise _invalid([("missing", "body", "Field required", "None")])
    try:
        loaded = json.loads(raw)
    except ValueError as problem:
        reason, at = "Expecting value", 0
        if isinstance(problem, json.JSONDecodeError):
            reason, at = problem.msg, problem.pos
        detail = (
            f"1 validation error:\n  {{'type': 'json_invalid', 'loc': 'body.{at}', 'msg': 'JSON decode error', "
            f"'input': '<dict of 0 items>', 'ctx': {{'error': {reason!r}}}}}"
        )
        raise RequestError(400, detail, "Bad Request", f"body.{at}") from None
    try:
        return kind.model_validate(loaded, from_attributes=True)
    except ValidationError as refused:
        raise _invalid(
            (error["type"], _place(error["loc"]), error["msg"], _shown(error["input"]))
            for error in refused.errors()
        ) from None


def check_fields(raw: bytes, refused: Sequence[str]) -> None:
    """Refuse a body with one of the fields that this version refuses.

    Raises:
        ApiError: 400 that names the field.
    """
    if not refused:
        return
    body = parse_body(raw, _Anything).model_extra or {}
    for name in refused:
        if body.get(name) is not None:
            raise RequestError(400, f"{name} is not supported by this version.", parameter=name)


def check_model(asked: str | None, names: Sequence[str]) -> str:
    """The name the client used, the first one if none.

    Raises:
        ApiError: 404 for a model that is not served.
    """
    model = asked or names[0]
    if model not in names:
        known = f"The model `{model}` does not exist. Valid aliases: {', '.join(names)}."
        raise RequestError(404, known, "NotFoundError", "model")
    return model


def parse_generation(
    raw: bytes,
    *,
    chat: bool,
    names: Sequence[str],
    max_model_len: int,
    speculates: bool = False,
    with_ids: bool = False,
) -> Generation:
    """Check a request against the model's length and names, and against what a speculating engine takes; `with_ids`: keep its tokens.

    Raises:
        ApiError: 404 for another model, 400 for what does not fit or is not understood.
    """
    body = parse_body(raw, ChatBody) if chat else parse_body(raw, CompletionBody)
    options = body.stream_options or _StreamOptions()
    if options.model_fields_set and not body.stream:
        raise _refused("stream_options", "Stream options can only be defined when `stream=True`.")
    if isinstance(body, CompletionBody) and body.prompt in (None, ""):
        raise _refused("prompt", "Either prompt or prompt_embeds must be provided and non-empty.")
    model = check_model(body.model, names)
    _check_sampling(body)
    prompt_tokens = (
        _chat_tokens(body, max_model_len)
        if isinstance(body, ChatBody)
        else _prompt_tokens(body, max_model_len)
    )
    max_tokens = _max_tokens(body, max_model_len - prompt_tokens, max_model_len)
    if body.min_tokens < 0:
        raise RequestError(400, f"min_tokens must be greater than or equal to 0, got {body.min_tokens}.")
    if body.min_tokens > max_tokens:
        raise RequestError(
            400, f"min_tokens must be less than or equal to max_tokens={max_tokens}, got {body.min_tokens}."
        )
    return Generation(
        chat=chat,
        model=model,
        prompt_tokens=prompt_tokens,
        max_tokens=max_tokens,
        min_tokens=body.min_tokens,
        ignore_eos=body.ignore_eos,
        stream=bool(body.stream),
        include_usage=options.include_usage,
        # Without a usage chunk at the end vLLM leaves out the other usage counts as well.
        continuous_usage=options.include_usage and options.continuous_usage_stats,
        refusal=_refused_while_speculating(body) if speculates else None,
        greedy=_greedy(body),
        prompt_ids=tuple(_prompt_ids(body)) if with_ids else (),
    )


def _greedy(body: ChatBody | CompletionBody) -> GreedyRequest | None:
    """The request whose answer is the model's own; None for load: nobody reads its text."""
    if body.prompt_logprobs is None and (body.temperature != 0 or body.ignore_eos):
        return None
    tool, named = _demanded_tool(body) if isinstance(body, ChatBody) else (None, False)
    wanted = body.response_format or {}
    by_format = (
        (wanted.get("json_schema") or {}).get("schema") if wanted.get("type") == "json_schema" else None
    )
    return GreedyRequest(
        prompt_ids=tuple(_prompt_ids(body)),
        schema=(tool.get("parameters") or {}) if tool is not None else by_format,
        tool=str(tool.get("name")) if tool is not None else None,
        named=named,
        return_token_ids=bool(body.return_token_ids),
        prompt_logprobs=body.prompt_logprobs,
    )


def _demanded_tool(body: ChatBody) -> tuple[Mapping[str, Any] | None, bool]:
    """The function of the tool that the answer must call, and whether the request names it."""
    functions = [dict(one.get("function") or {}) for one in body.tools or ()]
    if isinstance(body.tool_choice, dict):
        name = (body.tool_choice.get("function") or {}).get("name")
        return next((one for one in functions if one.get("name") == name), None), True
    return (functions[0] if functions and body.tool_choice == "required" else None), False


def _prompt_ids(body: ChatBody | CompletionBody) -> Iterable[int]:
    if isinstance(body, ChatBody):
        return (number for text in _contents(body.messages) for number, _ in tokenize(text))
    prompt: Any = body.prompt
    if isinstance(prompt, list) and not isinstance(prompt[0], int):
        prompt = prompt[0]
    return (number for number, _ in tokenize(prompt)) if isinstance(prompt, str) else prompt


def _refused_while_speculating(body: _Sampling) -> RequestError | None:
    """The answer to sampling that vLLM does not combine with speculation."""
    if (body.min_p or 0.0) > _SAMPLING_EPS or body.logit_bias:
        return RequestError(
            400,
            "The min_p and logit_bias sampling parameters are not yet supported with speculative decoding.",
        )
    return None


def _check_sampling(body: _Sampling) -> None:
    """Refuse what vLLM refuses; the values change nothing here."""
    if body.n is not None and body.n < 1:
        raise RequestError(400, f"n must be at least 1, got {body.n}.")
    if body.n not in (None, 1):
        raise RequestError(400, "the simulated engine answers n=1 only", parameter="n")
    if body.temperature is not None and body.temperature < 0:
        raise _refused(
            "temperature", f"temperature must be non-negative, got {body.temperature}.", body.temperature
        )
    if body.top_p is not None and not 0 < body.top_p <= 1:
        raise _refused("top_p", f"top_p must be in (0, 1], got {body.top_p}.", body.top_p)
    if body.min_p is not None and not 0 <= body.min_p <= 1:
        raise RequestError(400, f"min_p must be in [0, 1], got {body.min_p}.")
    if body.prompt_logprobs is not None:
        if body.stream and (body.prompt_logprobs > 0 or body.prompt_logprobs == -1):
            raise _refused("prompt_logprobs", "`prompt_logprobs` are not available when `stream=True`.")
        if body.prompt_logprobs < 0 and body.prompt_logprobs != -1:
            raise _refused(
                "prompt_logprobs", "`prompt_logprobs` must be a positive value or -1.", body.prompt_logprobs
            )


def _prompt_tokens(body: CompletionBody, max_model_len: int) -> int:
    """Tokens of a completion's prompt: a text, ids, or a list of one of them."""
    prompt: Any = body.prompt
    if isinstance(prompt, list) and not (prompt and isinstance(prompt[0], int)):
        if not prompt:
            raise RequestError(400, "You must pass at least one prompt")
        if len(prompt) > 1:
            raise RequestError(400, "the simulated engine takes one prompt per request", parameter="prompt")
        prompt = prompt[0]
    if isinstance(prompt, str):
        return _fitting(count_tokens(prompt), max_model_len, counted_to_the_end=False)
    return _fitting(len(prompt), max_model_len, counted_to_the_end=True)


def _chat_tokens(body: ChatBody, max_model_len: int) -> int:
    """Tokens of all messages' texts; the simulated chat template adds none."""
    if not body.messages:
        raise RequestError(
            400, "Cannot apply chat template to an empty conversation. Provide at least one message."
        )
    total = sum(count_tokens(text) for text in _contents(body.messages))
    return _fitting(total, max_model_len, counted_to_the_end=False)


def _contents(messages: Iterable[dict[str, Any]]) -> Iterable[str]:
    for message in messages:
        content = message.get("content")
        parts = content if isinstance(content, list) else [{"text": content}]
        yield from (
            part["text"] for part in parts if isinstance(part, dict) and isinstance(part.get("text"), str)
        )


def _fitting(tokens: int, max_model_len: int, *, counted_to_the_end: bool) -> int:
    if tokens < 1:
        raise RequestError(400, "The decoder prompt cannot be empty")
    if tokens > max_model_len:
        # vLLM's tokenizer stops one token beyond the limit; ids it need not tokenize.
        shown = tokens if counted_to_the_end else max_model_len + 1
        raise _refused(
            "input_tokens",
            f"This model's maximum context length is {max_model_len} tokens. However, your prompt contains "
            f"{'' if counted_to_the_end else 'at least '}{shown} input tokens, which exceeds this limit even without "
            "any output tokens. Please reduce the length of the input prompt.",
            shown,
        )
    return tokens


def _max_tokens(body: _Sampling, room: int, max_model_len: int) -> int:
    """Output tokens at most: what was asked for, cut to the room beside the prompt."""
    key, asked = "max_tokens", body.max_tokens
    if isinstance(body, ChatBody) and body.max_completion_tokens is not None:
        key, asked = "max_completion_tokens", body.max_completion_tokens
    if asked is not None and asked > max_model_len:
        raise _refused(
            key,
            f"{key}={asked} cannot be greater than max_model_len={max_model_len}. Please request fewer output tokens.",
            asked,
        )
    most = room if asked is None else min(asked, room)
    if most < 1:
        raise _refused("max_tokens", f"max_tokens must be at least 1, got {most}.", most)
    return most


def _refused(parameter: str, message: str, value: float | None = None) -> RequestError:
    shown = "" if value is None else f", value={value}"
    return RequestError(400, f"{message} (parameter={parameter}{shown})", parameter=parameter)


def _invalid(errors: Iterable[tuple[str, str, str, str]]) -> RequestError:
    """Pydantic's errors (type, place, message, input) as vLLM strings them together."""
    found = list(errors)
    lines = [
        f"  {{'type': {kind!r}, 'loc': {place!r}, 'msg': {message!r}, 'input': {given!r}}}"
        for kind, place, message, given in found
    ]
    count = f"{len(lines)} validation error{'s' if len(lines) > 1 else ''}"
    return RequestError(400, "\n".join([f"{count}:", *lines]), "Bad Request", found[0][1])


def _place(path: Sequence[int | str]) -> str:
    """The field's path; which member of a union was tried is left out."""
    return ".".join(["body", *(str(key) for key in path if key != "str" and "[" not in str(key))])


def _shown(value: Any) -> str:
    if isinstance(value, list | dict):
        return f"<{type(value).__name__} of {len(value)} items>"
    return str(value)

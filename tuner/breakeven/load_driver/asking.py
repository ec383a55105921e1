"""The answer gate's requests to one engine: first its answers, together and alone; on another engine their judgement, one by one."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Mapping, Sequence
from typing import Any, TypeGuard

from breakeven.answering.answer import (
    MOST_JUDGED_TOKENS,
    AnswerSet,
    GivenAnswer,
    JudgedSet,
    JudgedTokens,
    JudgementError,
    flaw_of,
    judged_answer,
)
from breakeven.answering.prompt_set import ANSWER_TOKENS, Form, GatePrompt, shipped_prompts, with_own
from breakeven.load_driver.client import EngineClient, EngineError
from breakeven.load_driver.dataset import Dataset
from breakeven.load_driver.window import TURNED_AWAY

# One of so many requests is asked alone too: alone an answer takes its whole latency.
_ALONE_EVERY = 10
_TOOL = "act"


def gate_prompts(own: Dataset | None) -> tuple[GatePrompt, ...]:
    """The requests of the gate: the user's own in place of the shipped free ones, if there are any."""
    if own is None:
        return shipped_prompts()
    named = ((f"own-{number}", one.prompt) for number, one in enumerate(own.requests, start=1))
    return with_own(
        GatePrompt(name, text=one) if isinstance(one, str) else GatePrompt(name, messages=one)
        for name, one in named
    )


async def ask(
    client: EngineClient,
    arm: str,
    prompts: Sequence[GatePrompt],
    longest_s: float,
    tokens: int = ANSWER_TOKENS,
) -> AnswerSet:
    """The greedy answers of an engine that nobody else uses: all requests together, then every tenth alone.

    Requests without an answer within `longest_s` count as refused.
    """
    await client.model()
    end_s = time.monotonic() + longest_s
    together = await asyncio.gather(
        *(_one(client, prompt, tokens, end_s, batched=True) for prompt in prompts)
    )
    alone = [await _one(client, prompt, tokens, end_s, batched=False) for prompt in prompts[::_ALONE_EVERY]]
    answers = [*together, *alone]
    found = tuple(one for one in answers if one is not None)
    return AnswerSet(arm, found, len(answers) - len(found))


async def refuses(client: EngineClient, prompt: GatePrompt, longest_s: float, tokens: int) -> bool:
    """Whether an engine answers a request with an error; one that takes longer, or turns it away, does not."""
    path, body = _request(prompt, tokens)
    try:
        async with asyncio.timeout(longest_s):
            await client.whole(path, body)
    except EngineError as error:
        return error.usual != TURNED_AWAY
    except TimeoutError:
        return False
    return False


async def judge(client: EngineClient, given: AnswerSet, longest_s: float) -> JudgedSet:
    """The judgement of answers by an engine that does not speculate: one at a time, because logits of all tokens are large.

    Answers beyond `MOST_JUDGED_TOKENS`, and all that are not judged within `longest_s`, are left out.
    """
    await client.model()
    end_s = time.monotonic() + longest_s
    judged: list[JudgedTokens] = []
    for answer in given.answers:
        ids = [*answer.prompt_ids, *answer.token_ids]
        left_s = end_s - time.monotonic()
        if len(ids) > MOST_JUDGED_TOKENS or left_s <= 0:
            continue
        body = {"prompt": ids, "max_tokens": 1, "temperature": 0, "prompt_logprobs": 1}
        try:
            async with asyncio.timeout(left_s):
                document = await client.whole("/v1/completions", body)
            judged.append(judged_answer(answer, _choice(document).get("prompt_logprobs")))
        except (EngineError, JudgementError, TimeoutError):
            continue
    return JudgedSet(given, tuple(judged))


async def _one(
    client: EngineClient, prompt: GatePrompt, tokens: int, end_s: float, *, batched: bool
) -> GivenAnswer | None:
    """One answer; None if the engine refused it, or gave none in time."""
    path, body = _request(prompt, tokens)
    try:
        async with asyncio.timeout(max(0.0, end_s - time.monotonic())):
            document = await client.whole(path, body)
        return _answer(prompt, document, batched=batched)
    except (EngineError, TimeoutError):
        return None


def _request(prompt: GatePrompt, tokens: int) -> tuple[str, dict[str, Any]]:
    body: dict[str, Any] = {"max_tokens": tokens, "temperature": 0, "return_token_ids": True}
    if prompt.messages is None:
        return "/v1/completions", body | {"prompt": prompt.text}
    body["messages"] = [dict(message) for message in prompt.messages]
    if prompt.form is Form.JSON:
        wanted = {"name": "answer", "schema": prompt.schema}
        body["response_format"] = {"type": "json_schema", "json_schema": wanted}
    if prompt.form is Form.TOOL:
        function = {"name": _TOOL, "description": "Does what was asked.", "parameters": prompt.schema}
        body |= {"tools": [{"type": "function", "function": function}], "tool_choice": "required"}
    return "/v1/chat/completions", body


def _choice(document: object) -> Mapping[str, Any]:
    choices = document.get("choices") if isinstance(document, Mapping) else None
    if not isinstance(choices, list) or not choices or not isinstance(choices[0], Mapping):
        raise EngineError("the answer has no choice; expected one")
    return choices[0]


def _answer(prompt: GatePrompt, document: Mapping[str, Any], *, batched: bool) -> GivenAnswer:
    choice = _choice(document)
    prompt_ids = choice.get("prompt_token_ids") or document.get("prompt_token_ids")
    token_ids, reason = choice.get("token_ids"), str(choice.get("finish_reason") or "")
    if not _are_ids(prompt_ids) or not _are_ids(token_ids):
        raise EngineError("the answer has no token ids (return_token_ids); expected a vLLM that gives them")
    flaw = flaw_of(prompt, _text(prompt, choice), token_ids, reason)
    return GivenAnswer(prompt.name, prompt.form, batched, tuple(prompt_ids), tuple(token_ids), reason, flaw)


def _are_ids(found: object) -> TypeGuard[list[int]]:
    return isinstance(found, list) and bool(found) and all(isinstance(one, int) for one in found)


def _text(prompt: GatePrompt, choice: Mapping[str, Any]) -> str | None:
    """The text that is held to the demanded form; None if a demanded tool was not called."""
    message = _fields(choice.get("message"))
    called = message.get("tool_calls")
    calls = called if isinstance(called, list) else []
    given = [_fields(_fields(one).get("function")).get("arguments") for one in calls]
    if prompt.form is Form.TOOL:
        return given[0] if given and isinstance(given[0], str) else None
    text = message.get("content") if prompt.messages is not None else choice.get("text")
    # A model that reasons may spend all of its tokens on that, and one that has tools may only call them.
    whole = bool(calls) and all(isinstance(one, str) for one in given)
    told = json.dumps(calls, sort_keys=True) if whole else None
    found = (text, message.get("reasoning"), message.get("reasoning_content"), told)
    return next((one for one in found if isinstance(one, str) and one), "")


def _fields(found: object) -> Mapping[str, Any]:
    return found if isinstance(found, Mapping) else {}

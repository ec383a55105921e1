"""Answers as vLLM 0.32 gives them: whole answers and the chunks of a stream, field by field as captured."""

from __future__ import annotations

import json
from typing import Any

from breakeven_sim.engine.language import Answered
from breakeven_sim.engine.protocol import Generation

SYSTEM_FINGERPRINT = "vllm-0.32.0-simulated"
_FINGERPRINT = f'"system_fingerprint":"{SYSTEM_FINGERPRINT}"'
_NO_DETAILS: dict[str, Any] = {"prompt_tokens_details": None, "completion_tokens_details": None}


def usage(prompt_tokens: int, completion_tokens: int) -> dict[str, Any]:
    """Token counts as vLLM reports them."""
    return {
        "prompt_tokens": prompt_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
        "completion_tokens": completion_tokens,
    }


class ChunkWriter:
    """Renders a stream's chunks; the part that all chunks share is rendered once.

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
        """The chunk before the first token: a chat's role."""
        if not self._generation.chat:
            return b""
        role = '{"index":0,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}]'
        return (
            f'{self._head}{role}{self._counts(0)},"prompt_token_ids":null,"prompt_text":null}}\n\n'.encode()
        )

    def chunk(self, text: str, generated: int, finish_reason: str | None) -> bytes:
        """One chunk; `generated` counts all output tokens so far."""
        if finish_reason is not None:
            ending = f'"finish_reason":"{finish_reason}","stop_reason":null,'
        elif self._generation.chat:
            ending = '"finish_reason":null,'
        else:
            ending = '"finish_reason":null,"stop_reason":null,'
        # The fingerprint stands in the last chunk, which is the usage chunk where one follows.
        last = finish_reason is not None and not self._generation.include_usage
        mark = f",{_FINGERPRINT}" if last else ""
        counts = self._counts(generated)
        return f"{self._head}{self._open}{text}{self._close}{ending}{self._tail}{counts}{mark}}}\n\n".encode()

    def closing(self, generated: int) -> bytes:
        """Usage if asked for, and the end mark."""
        last = b"data: [DONE]\n\n"
        if not self._generation.include_usage:
            return last
        counts = _compact(usage(self._generation.prompt_tokens, generated))
        return f'{self._head}],"usage":{counts},{_FINGERPRINT}}}\n\n'.encode() + last

    def _counts(self, generated: int) -> str:
        if not (self._generation.continuous_usage and self._generation.include_usage):
            return ""
        counts = usage(self._generation.prompt_tokens, generated)
        if self._generation.chat:
            counts["completion_tokens_details"] = None
        return f',"usage":{_compact(counts)}'


def whole_answer(
    generation: Generation,
    identifier: str,
    created: int,
    spoken: Answered,
    judged: list[dict[str, Any] | None] | None = None,
) -> dict[str, Any]:
    """The answer of a request that does not stream; `judged` is its field `prompt_logprobs`."""
    greedy = generation.greedy
    ids = greedy if greedy is not None and greedy.return_token_ids else None
    prompt_ids, token_ids = (None, None) if ids is None else (list(ids.prompt_ids), list(spoken.token_ids))
    tool = greedy.tool if greedy is not None else None
    reason = "tool_calls" if tool is not None and greedy and not greedy.named else spoken.finish_reason
    choice: dict[str, Any] = {"index": 0}
    ending = {"logprobs": None, "finish_reason": reason, "stop_reason": None, "token_ids": token_ids}
    if generation.chat:
        absent = dict.fromkeys(("refusal", "annotations", "audio", "function_call", "reasoning"))
        choice["message"] = {"role": "assistant", "content": spoken.text, **absent}
        if tool is not None:
            called = {"id": f"call_{identifier[-8:]}", "type": "function"}
            function = {"name": tool, "arguments": spoken.text}
            choice["message"] |= {"content": None, "tool_calls": [{**called, "function": function}]}
        choice |= {**ending, "routed_experts": None}
        extra = {"prompt_logprobs": judged, "prompt_token_ids": prompt_ids, "prompt_text": None}
    else:
        choice |= {"text": spoken.text, **ending}
        choice |= {"prompt_logprobs": judged, "prompt_token_ids": prompt_ids, "routed_experts": None}
        extra = {}
    return {
        "id": identifier,
        "object": "chat.completion" if generation.chat else "text_completion",
        "created": created,
        "model": generation.model,
        "choices": [choice],
        "service_tier": None,
        "system_fingerprint": SYSTEM_FINGERPRINT,
        "usage": usage(generation.prompt_tokens, len(spoken.token_ids)) | _NO_DETAILS,
        **extra,
        "kv_transfer_params": None,
        "ec_transfer_params": None,
        "metrics": None,
    }


def _compact(counts: dict[str, Any]) -> str:
    return json.dumps(counts, separators=(",", ":"))

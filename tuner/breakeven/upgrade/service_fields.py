"""Requests that a service may send, each with one field that versions of engines have accepted or refused; pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string"}},
    "required": ["name"],
    "additionalProperties": False,
}
_FUNCTION = {"name": "act", "description": "Does what was asked.", "parameters": _SCHEMA}
_TOOL = {"type": "function", "function": _FUNCTION}
_NAMED = {"type": "function", "function": {"name": "act"}}

FIELDS: Mapping[str, Mapping[str, Any]] = {
    "tools": {"tools": [_TOOL], "tool_choice": _NAMED},
    "tool_choice auto": {"tools": [_TOOL], "tool_choice": "auto"},
    "response_format json_schema": {
        "response_format": {"type": "json_schema", "json_schema": {"name": "answer", "schema": _SCHEMA}}
    },
    "response_format json_object": {"response_format": {"type": "json_object"}},
    "logprobs": {"logprobs": True, "top_logprobs": 1},
    "logit_bias": {"logit_bias": {"1": -1.0}},
    "min_p": {"min_p": 0.1},
    "min_tokens": {"min_tokens": 2},
    "top_k": {"top_k": 10},
    "top_p": {"top_p": 0.9},
    "seed": {"seed": 1},
    "n": {"n": 2},
    "stop": {"stop": ["\n\n\n"]},
    "presence_penalty": {"presence_penalty": 0.1},
    "frequency_penalty": {"frequency_penalty": 0.1},
    "repetition_penalty": {"repetition_penalty": 1.1},
    "bad_words": {"bad_words": ["never"]},
}
"""What is added to a short chat, by the name that reports have."""

FIELD_TOKENS = 8


def request_with(field: str) -> dict[str, Any]:
    """Body of a chat with one of the fields."""
    asked = {"role": "user", "content": "Name a colour."}
    return {"messages": [asked], "max_tokens": FIELD_TOKENS, "temperature": 0.7, **FIELDS[field]}

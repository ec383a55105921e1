"""Answers of one engine to the gate's requests, their file, and their judgement by an engine that does not speculate."""

from __future__ import annotations

import gzip
import json
import math
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from pydantic import TypeAdapter, ValidationError

from breakeven.answering.prompt_set import Form, GatePrompt
from breakeven.errors import BreakevenError, InputError
from breakeven.intake import json_value, wrong_field

# A loop: so many tokens at the end that repeat with a period of at most so many.
_LOOP_TOKENS = 64
_LONGEST_PERIOD = 16
_MOST_BYTES = 16 * 2**20
_OF_GZIP = 31
_EXPECTED = "answers that `breakeven answers` or a calibration wrote"


class Flaw(StrEnum):
    """The way in which an answer is no answer at all."""

    EMPTY = "empty"
    INVALID = "invalid"
    LOOPING = "looping"


@dataclass(frozen=True, slots=True)
class GivenAnswer:
    """One answer.

    Attributes:
        prompt: name of the request.
        batched: whether it was asked together with the others; else alone.
        prompt_ids, token_ids: as the engine's tokenizer has them.
        finish_reason: vLLM's word for the answer's end.
    """

    prompt: str
    form: Form
    batched: bool
    prompt_ids: tuple[int, ...]
    token_ids: tuple[int, ...]
    finish_reason: str
    flaw: Flaw | None = None

    def __repr__(self) -> str:
        """Name and length; no token may end in a log by way of a traceback."""
        return f"Answer({self.prompt!r}, {len(self.token_ids)} tokens)"


@dataclass(frozen=True, slots=True)
class AnswerSet:
    """All answers of one arm: one per request and way of asking; `refused` requests got none, or none in time."""

    arm: str
    answers: tuple[GivenAnswer, ...] = ()
    refused: int = 0

    def packed(self) -> bytes:
        """The file's bytes: compressed JSON, the same for the same answers."""
        text = _SETS.dump_json(self)
        return gzip.compress(text, mtime=0)

    @classmethod
    def unpacked(cls, data: bytes, where: str) -> AnswerSet:
        """Read the bytes of such a file.

        Raises:
            InputError: it is no such file; shows nothing of its content.
        """
        # A small file may unpack to any size: no more of it is unpacked than an answer set has.
        unpacking = zlib.decompressobj(wbits=_OF_GZIP)
        try:
            text = unpacking.decompress(data, _MOST_BYTES)
        except zlib.error:
            text = b""
        if not text or not unpacking.eof:
            raise InputError(where, "no compressed JSON", _EXPECTED)
        try:
            return _SETS.validate_python(json_value(text, where, _EXPECTED))
        except ValidationError as error:
            raise wrong_field(error, where, "an answer has") from None


_SETS = TypeAdapter(AnswerSet)


def flaw_of(
    prompt: GatePrompt, text: str | None, token_ids: Sequence[int], finish_reason: str
) -> Flaw | None:
    """The flaw of an answer; `text` is None if the demanded tool call is missing.

    An answer that was cut off at its longest may be invalid JSON by right, and is not held to its form.
    """
    if _loops(token_ids):
        return Flaw.LOOPING
    if prompt.form.constrained and finish_reason != "length" and not _fits(text, prompt.schema or {}):
        return Flaw.INVALID
    if prompt.form is Form.FREE and not (text or "").strip():
        return Flaw.EMPTY
    return None


def _loops(token_ids: Sequence[int]) -> bool:
    tail = tuple(token_ids[-_LOOP_TOKENS:])
    if len(tail) < _LOOP_TOKENS:
        return False
    return any(tail[period:] == tail[:-period] for period in range(1, _LONGEST_PERIOD + 1))


_TYPES: Mapping[str, type | tuple[type, ...]] = {
    "string": str,
    "integer": int,
    "boolean": bool,
    "array": list,
    "object": dict,
}


def _fits(text: str | None, schema: Mapping[str, Any]) -> bool:
    """Whether a text is JSON with the fields that the schema requires, of their types."""
    try:
        found = json.loads(text or "")
    except (ValueError, RecursionError):
        return False
    if not isinstance(found, dict):
        return False
    fields = schema.get("properties", {})
    return all(
        name in found and isinstance(found[name], _TYPES.get(fields.get(name, {}).get("type", ""), object))
        for name in schema.get("required", ())
    )


MOST_JUDGED_TOKENS = 2048
"""Tokens of prompt and answer together that are judged: an engine holds logits of them all times its vocabulary."""


class JudgementError(BreakevenError):
    """An engine's answer holds no judgement of the tokens; one line without their content."""


@dataclass(frozen=True, slots=True)
class JudgedTokens:
    """An answer and the judge's opinion of its tokens.

    `gaps`: log-probability of the first choice less log-probability of the token (nats); 0 for the first choice.
    """

    answer: GivenAnswer
    gaps: tuple[float, ...]

    @property
    def widest_gap(self) -> float:
        """The largest gap (nats); 0 if every token is the first choice."""
        return max(self.gaps, default=0.0)

    def first_beyond(self, gap: float) -> int | None:
        """Position of the first token with a wider gap, from 0; None if there is none."""
        return next((place for place, found in enumerate(self.gaps) if found > gap), None)


@dataclass(frozen=True, slots=True)
class JudgedSet:
    """All answers of one arm, and the judged ones among them."""

    given: AnswerSet
    judged: tuple[JudgedTokens, ...] = ()


def judged_answer(answer: GivenAnswer, prompt_logprobs: object) -> JudgedTokens:
    """Read the judgement from the field `prompt_logprobs` of vLLM's answer.

    The field has one entry per token of the prompt: null for the first, then an object that holds the token itself and the
    first choice by token id, each with `logprob` and `rank`. The answer's prompt and tokens were sent, in this order, as the prompt.

    Raises:
        JudgementError: an entry is missing, or is none.
    """
    begin, end = len(answer.prompt_ids), len(answer.prompt_ids) + len(answer.token_ids)
    if not isinstance(prompt_logprobs, list) or len(prompt_logprobs) < end:
        count = len(prompt_logprobs) if isinstance(prompt_logprobs, list) else "no"
        raise JudgementError(f"{answer.prompt}: {count} prompt_logprobs; expected {end}")
    gaps = tuple(
        _gap(entry, token, f"{answer.prompt}: prompt_logprobs[{place}]")
        for place, (entry, token) in enumerate(
            zip(prompt_logprobs[begin:end], answer.token_ids, strict=True), start=begin
        )
    )
    return JudgedTokens(answer, gaps)


def _gap(entry: object, token: int, where: str) -> float:
    if not isinstance(entry, Mapping) or str(token) not in entry:
        raise JudgementError(f"{where}: not the token that was sent; expected it beside the first choice")
    own = entry[str(token)]
    rank, best = _number(own, "rank", where), max(_number(one, "logprob", where) for one in entry.values())
    gap = best - _number(own, "logprob", where)
    return gap if rank > 1 else 0.0


def _number(one: Any, field: str, where: str) -> float:
    value = one.get(field) if isinstance(one, Mapping) else None
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise JudgementError(f"{where}.{field}: no number; expected one")
    return float(value)

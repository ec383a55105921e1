"""A tiny language: the next token follows from the three before it, so that greedy answers and their judgement agree.

The model is the same with and without speculation. Engines differ in two ways alone: among other requests a near-tie may be
turned round, as rounding does, and a method may break answers, as its costs say. Everything is drawn by hashing, never from a
generator: the same request has the same answer, on this engine and on any other.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from breakeven_sim.engine.costs import BrokenAnswers
from breakeven_sim.engine.tokens import VOCABULARY_SIZE, continued, detokenize, made_up_text, tokenize

_MASK = 2**64 - 1
_FACTOR = 0x9E3779B97F4A7C15
_WIDEST_TIE = 0.12
_END = VOCABULARY_SIZE
_WRONG_EVERY = 8
_LOOP = 4


class TokenOpinion(NamedTuple):
    """The model's opinion of one token: its place among all tokens, its log-probability, and the first choice's log-probability."""

    rank: int
    logprob: float
    first: int
    first_logprob: float


class Answered(Protocol):
    """An answer as a server sends it, whole or in pieces."""

    @property
    def token_ids(self) -> Sequence[int]:
        """Of the whole answer."""
        ...

    @property
    def text(self) -> str:
        """The whole answer."""
        ...

    @property
    def finish_reason(self) -> str:
        """Length or stop."""
        ...

    def piece(self, start: int, tokens: int) -> str:
        """The text of some of the tokens, ready to stand in JSON."""
        ...


@dataclass(frozen=True, slots=True)
class MadeUp:
    """The answer to a request of load: words that mean nothing.

    Attributes:
        start: its first word's place in the made-up text. tokens: its length.
        finish_reason: length or stop.
    """

    start: int
    tokens: int
    finish_reason: str

    @property
    def token_ids(self) -> Sequence[int]:
        """Of the whole answer."""
        return range(self.start, self.start + self.tokens)

    @property
    def text(self) -> str:
        """The whole answer."""
        return made_up_text(self.start, self.tokens)

    def piece(self, start: int, tokens: int) -> str:
        """The text of some of the tokens; it needs no escaping."""
        return made_up_text(self.start + start, tokens)


@dataclass(frozen=True, slots=True)
class Spoken:
    """One greedy answer.

    Attributes:
        token_ids: at least one.
        text: the answer, or the arguments of a tool call.
        finish_reason: length or stop.
    """

    token_ids: tuple[int, ...]
    text: str
    finish_reason: str

    def piece(self, start: int, tokens: int) -> str:
        """The text of some of the tokens, escaped for JSON."""
        if not self.text:
            return ""
        part = self.token_ids[start : start + tokens]
        return json.dumps(continued(part) if start else detokenize(part), ensure_ascii=False)[1:-1]

    def cut(self, most: int) -> Spoken:
        """The answer that ends after so many tokens."""
        if len(self.token_ids) <= most:
            return self
        kept = self.token_ids[:most]
        return Spoken(kept, detokenize(kept), "length")


@dataclass(frozen=True, slots=True)
class Language:
    """The language of one engine.

    Attributes:
        near_ties: share of places at which the second choice is as good as the first.
        broken: how the engine's method breaks answers; None if it does not.
        seed: of which requests are answered wrongly.
    """

    near_ties: float = 0.0
    broken: BrokenAnswers | None = None
    seed: int = 0

    def speak(
        self,
        prompt_ids: Sequence[int],
        tokens: int,
        reason: str = "length",
        *,
        batched: bool,
        number: int = 0,
    ) -> Spoken:
        """The greedy answer of so many tokens.

        Args:
            prompt_ids: of the request.
            tokens: length of a sound answer.
            reason: why it ends there.
            batched: whether other requests are in the engine.
            number: of the request: which near-ties are turned round differs from one to the next.
        """
        broken, draw = self.broken, _hash(*prompt_ids, self.seed, batched)
        wrong = broken is not None and number >= broken.from_request and _share(draw) < broken.share
        if wrong and broken is not None and broken.kind == "empty":
            return Spoken((_END,), "", "stop")
        found = [*_begin(prompt_ids)]
        for position in range(tokens):
            spoilt = wrong and broken is not None and position >= broken.from_token
            if spoilt and broken is not None and broken.kind == "loop" and position >= _LOOP:
                found.append(found[-_LOOP])
            elif spoilt and position % _WRONG_EVERY == 0:
                found.append(_hash(draw, position) % VOCABULARY_SIZE)
            else:
                found.append(self._chosen(found, (number, position) if batched else None))
        ids = tuple(found[3:])
        return Spoken(ids, detokenize(ids), reason)

    def fill(
        self, prompt_ids: Sequence[int], schema: Mapping[str, Any], *, batched: bool, number: int = 0
    ) -> Spoken:
        """The answer to request `number` that a grammar demands: JSON by a schema."""
        text = json.dumps(_by_schema(schema, _hash(*prompt_ids)), separators=(",", ":"))
        draw, broken = _hash(*prompt_ids, self.seed, batched, 1), self.broken
        if broken is not None and number >= broken.from_request and _share(draw) < broken.grammar_share:
            text = text[:-1]
        return Spoken(tuple(number for number, _ in tokenize(text)), text, "stop")

    def judge(self, ids: Sequence[int]) -> list[TokenOpinion]:
        """The opinion of each token after the first, given those before it."""
        known = [*_begin(()), *ids]
        return [self._opinion(known[place - 3 : place], known[place]) for place in range(4, len(known))]

    def _chosen(self, before: Sequence[int], draw: tuple[int, int] | None) -> int:
        mixed = _hash(*before[-3:])
        turned = draw is not None and self._tied(mixed) and _hash(*draw, self.seed) & 1
        return _second(mixed) if turned else mixed % VOCABULARY_SIZE

    def _tied(self, mixed: int) -> bool:
        return _share(mixed * _FACTOR & _MASK) < self.near_ties

    def _opinion(self, before: Sequence[int], token: int) -> TokenOpinion:
        mixed = _hash(*before)
        first, tied = mixed % VOCABULARY_SIZE, self._tied(mixed)
        best = -0.75 if tied else -0.1
        if token == first:
            return TokenOpinion(1, best, first, best)
        if token == _second(mixed):
            gap = _WIDEST_TIE * _share(mixed) + 0.001 if tied else 1.5 + 6 * _share(mixed)
            return TokenOpinion(2, best - gap, first, best)
        own = _hash(mixed, token)
        return TokenOpinion(3 + own % (VOCABULARY_SIZE - 2), best - 8.0 - 10 * _share(own), first, best)


def prompt_logprobs(
    judged: Sequence[TokenOpinion], ids: Sequence[int], wanted: int
) -> list[dict[str, Any] | None]:
    """The field of vLLM's answer: null for the first token, then the token itself and the first choice by id.

    Args:
        judged: each token's but the first.
        ids: of the prompt.
        wanted: choices beside the token; 0: the token alone.
    """
    found: list[dict[str, Any] | None] = [None]
    for token, one in zip(ids[1:], judged, strict=True):
        entry = {str(token): _entry(token, one.logprob, one.rank)}
        if wanted:
            entry.setdefault(str(one.first), _entry(one.first, one.first_logprob, 1))
        found.append(entry)
    return found


def _entry(token: int, logprob: float, rank: int) -> dict[str, Any]:
    return {"logprob": logprob, "rank": rank, "decoded_token": detokenize((token,))}


def _begin(prompt_ids: Sequence[int]) -> tuple[int, int, int]:
    """The last three tokens, filled up from the left."""
    last = (0, 0, 0, *prompt_ids[-3:])
    return last[-3], last[-2], last[-1]


def text_key(prompt_ids: Sequence[int]) -> int:
    """A number that is the same for the same prompt."""
    return _hash(*prompt_ids)


def _hash(*numbers: int) -> int:
    mixed = 0
    for number in numbers:
        mixed = ((mixed ^ (number & _MASK)) * _FACTOR + 1) & _MASK
        mixed ^= mixed >> 29
    return mixed


def _share(mixed: int) -> float:
    return (mixed >> 11) / 2**53


def _second(mixed: int) -> int:
    return (mixed + 1 + (mixed >> 40) % (VOCABULARY_SIZE - 1)) % VOCABULARY_SIZE


def _by_schema(schema: Mapping[str, Any], draw: int) -> Any:
    kind = schema.get("type")
    if kind == "object":
        fields = schema.get("properties") or {}
        return {name: _by_schema(one, _hash(draw, place)) for place, (name, one) in enumerate(fields.items())}
    if kind == "array":
        count = int(schema.get("minItems") or 1)
        return [_by_schema(schema.get("items") or {}, _hash(draw, place)) for place in range(count)]
    if kind == "boolean":
        return bool(draw & 1)
    return draw % 100 if kind in {"integer", "number"} else detokenize((draw % VOCABULARY_SIZE,))

"""The judgement of an answer by an engine that does not speculate: per token its gap to the first choice."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from breakeven.answering.answer import AnswerSet, GivenAnswer
from breakeven.errors import BreakevenError

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


def by_prompt(judged: Sequence[JudgedTokens]) -> dict[str, list[JudgedTokens]]:
    """The answers of each request, in the order of the first."""
    found: dict[str, list[JudgedTokens]] = {}
    for one in judged:
        found.setdefault(one.answer.prompt, []).append(one)
    return found

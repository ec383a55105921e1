"""Judged answers of an engine whose rounding and whose faults are known, for the answer gate's tests and its bench."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np

from breakeven.answering.answer import AnswerSet, Flaw, GivenAnswer, JudgedSet, JudgedTokens
from breakeven.answering.prompt_set import Form, GatePrompt, shipped_prompts

_ALONE_EVERY = 10
_TIE_NATS = 0.06
_FAULT_NATS = 12.0


def judged_world(
    seed: int,
    *,
    arm: str = "eagle3/3",
    tie_share: float = 0.01,
    tie_nats: float = _TIE_NATS,
    broken_share: float = 0.0,
    fault_nats: float = _FAULT_NATS,
    tokens: int = 128,
    prompts: int | None = None,
    flawed: Collection[str] = (),
    flaw: Flaw = Flaw.INVALID,
) -> JudgedSet:
    """The answers of one start of an engine, and what a sound judge holds of them.

    Args:
        seed: of the draws.
        arm: its name.
        tie_share: share of tokens that rounding has turned round, each by a gap of mean `tie_nats`.
        tie_nats: mean width of such ties.
        broken_share: share of free answers that are wrong from some place on: every eighth token by about `fault_nats`.
        fault_nats: mean gap of a wrong token.
        tokens: of an answer.
        prompts: how many of the shipped requests; None: all.
        flawed: names of requests whose answers have a flaw.
        flaw: which one.
    """
    rng = np.random.default_rng(seed)
    asked = shipped_prompts()[:prompts]
    ways = [(one, True) for one in asked] + [(one, False) for one in asked[::_ALONE_EVERY]]
    judged = []
    for prompt, batched in ways:
        gaps = rng.exponential(tie_nats, tokens) * (rng.random(tokens) < tie_share)
        if rng.random() < broken_share and prompt.form is Form.FREE:
            begin = int(rng.integers(tokens // 2))
            gaps[begin::8] = fault_nats * rng.uniform(0.5, 1.5, len(gaps[begin::8]))
        given = _answer(prompt, rng, tokens, batched=batched, flaw=flaw if prompt.name in flawed else None)
        judged.append(JudgedTokens(given, tuple(gaps.tolist())))
    return JudgedSet(AnswerSet(arm, tuple(one.answer for one in judged)), tuple(judged))


def _answer(
    prompt: GatePrompt, rng: np.random.Generator, tokens: int, *, batched: bool, flaw: Flaw | None
) -> GivenAnswer:
    ids = tuple(rng.integers(1000, size=tokens).tolist())
    return GivenAnswer(prompt.name, prompt.form, batched, (1, 2, 3), ids, "stop", flaw)

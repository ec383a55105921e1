"""The drafts that a request's text accepts, step by step.

Drawn and recorded text have one representation. `yields[i]` is the number of tokens of a step with unlimited drafts that
starts when i output tokens exist: accepted drafts and the bonus token, so at least 1. To replay draft length k, each step
advances by min(yields[i], k + 1). Changing k changes the steps, never the text.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from breakeven_sim.engine.costs import Text

MAX_DRAFTS = 64
"""Longest run of accepted drafts that is counted exactly; vLLM's drafters stay far below it."""


@dataclass(frozen=True, slots=True)
class DraftedText:
    """The text of one request as a drafter sees it.

    Attributes:
        yields: tokens of an unlimited step started at each output index; at least as long as the output.
        matches: whether such a step drafts anything; `None`: every step does.
    """

    yields: Sequence[int]
    matches: Sequence[bool] | None = None


@dataclass(frozen=True, slots=True)
class DecodePlan:
    """The decode steps of one request at a fixed k, from where it stands to its end.

    Attributes:
        advance: tokens gained per step (the last one cut at the request's end).
        drafted: drafts verified per step: k, or 0 if the lookup found nothing.
        accepted: drafts accepted per step, before the cut: what vLLM counts.
        drafts_at_all: false if k is 0, so that no zeros are summed.
        scheduled: drafts per step that vLLM counts as drafted, where it verifies fewer; None if only verified drafts count.
    """

    advance: NDArray[np.int64]
    drafted: NDArray[np.int64]
    accepted: NDArray[np.int64]

    drafts_at_all: bool = True
    scheduled: int | None = None

    def __len__(self) -> int:
        return len(self.advance)


def plan_steps(text: DraftedText, generated: int, total: int, k: int) -> DecodePlan:
    """Replay draft length k from output index `generated` until `total` tokens exist."""
    yields, matches = text.yields, text.matches
    advance: list[int] = []
    drafted: list[int] = []
    accepted: list[int] = []
    at = generated
    while at < total:
        drafts = k if matches is None or matches[at] else 0
        gained = min(yields[at], drafts + 1)
        drafted.append(drafts)
        accepted.append(gained - 1)
        advance.append(min(gained, total - at))
        at += gained
    return DecodePlan(np.array(advance, np.int64), np.array(drafted, np.int64), np.array(accepted, np.int64))


def plain_steps(generated: int, total: int) -> DecodePlan:
    """The steps without drafts: one token each."""
    ones = np.ones(total - generated, np.int64)
    zeros = np.zeros(total - generated, np.int64)
    return DecodePlan(ones, zeros, zeros, drafts_at_all=False)


def survival(rate: float, decay: float, positions: int = MAX_DRAFTS) -> NDArray[np.float64]:
    """P(first i drafts all accepted), i = 1..positions, in text of one difficulty.

    Source: design notes of the length-biased mixture: a_i = rate * exp(-decay*(i-1)), multiplied up.
    """
    i = np.arange(1, positions + 1)
    return np.asarray(rate**i * np.exp(-decay * i * (i - 1) / 2))


def mean_tokens_per_step(text: Text, k: int) -> float:
    """E(k) of the mixture; a step that drafts nothing yields one token."""
    if k == 0:
        return 1.0
    steps = 0.0
    for rate, share, match in (
        (text.easy_rate, text.easy_share, text.easy_match),
        (text.hard_rate, 1 - text.easy_share, text.hard_match),
    ):
        steps += share / (1.0 + match * float(survival(rate, text.depth_decay, k).sum()))
    return 1.0 / steps


class TextSource:
    """Draws texts of easy and hard stretches; the same seed and request give the same text for every k.

    Args:
        text: the mixture.
        seed: of the whole simulation.
        imposed: unconditional survival per position that replaces the mixture (vLLM's synthetic acceptance).
    """

    def __init__(self, text: Text, seed: int, imposed: Sequence[float] | None = None) -> None:
        self._seed = seed
        if imposed is None:
            curves = [survival(text.easy_rate, text.depth_decay), survival(text.hard_rate, text.depth_decay)]
            self._match = np.array([text.easy_match, text.hard_match])
            self._easy_share = text.easy_share
            self._familiar = text.familiar_context_tokens
        else:
            curves = [np.asarray(imposed, np.float64)] * 2
            self._match = np.ones(2)
            self._easy_share = 1.0
            self._familiar = None
        # Ascending, so that searchsorted counts the positions whose survival lies at or below a uniform draw.
        self._rising = [np.ascontiguousarray(curve[::-1]) for curve in curves]
        mean_easy = text.mean_easy_stretch_tokens
        share = self._easy_share
        self._lengths = (mean_easy, max(1.0, mean_easy * (1 - share) / share) if share > 0 else 1.0)

    def draw(self, number: int, total: int, prompt_tokens: int = 0) -> DraftedText:
        """The text of request `number` (its place in the order of arrival) with `total` output tokens after its prompt."""
        random = np.random.default_rng((self._seed, number))
        uniform = random.random(total)
        if 0.0 < self._easy_share < 1.0:
            hard = self._stretches(random, total)
        else:
            hard = np.full(total, self._easy_share == 0.0)
        if self._familiar is not None:
            hard[max(math.ceil(self._familiar) - prompt_tokens, 0) :] = True
        yields = np.where(hard, self._count(1, uniform), self._count(0, uniform))
        if self._match.min() == 1.0:
            return DraftedText(yields.tolist())
        matches = random.random(total) < self._match[hard.astype(np.int64)]
        return DraftedText(yields.tolist(), matches.tolist())

    def _count(self, kind: int, uniform: NDArray[np.float64]) -> NDArray[np.int64]:
        rising = self._rising[kind]
        return 1 + len(rising) - np.searchsorted(rising, uniform, side="right")

    def _stretches(self, random: np.random.Generator, total: int) -> NDArray[np.bool_]:
        """True where the text is hard: alternating geometric stretches, begun at a random token of the text."""
        kind = int(random.random() >= self._easy_share)
        hard = np.empty(total, np.bool_)
        at = 0
        while at < total:
            # Geometric lengths have no memory, so the stretch that the first token falls into needs no correction.
            length = int(random.geometric(1.0 / self._lengths[kind]))
            hard[at : at + length] = bool(kind)
            at += length
            kind = 1 - kind
        return hard

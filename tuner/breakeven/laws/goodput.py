"""The engine step by step: which draft length yields most tokens per second at a batch size.

    T_step(B, k) = delta + gamma*B*(k+1) + a_ctx*KV_tokens + draft(B, k)
    goodput(B, k) = B*E(k) / T_step(B, k)

(SmartSpec, arXiv 2406.14066; AdaSpec.) All draft lengths are searched: with a flat draft cost goodput has more than
one local maximum, and stopping at the first picks no speculation where a long draft wins. Arrays over batch sizes and
draft lengths have shape (..., K) with draft lengths last.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from breakeven.laws.arrays import FloatArray, at_least, nonnegative, positive


@dataclass(frozen=True, slots=True)
class StepCosts:
    """Durations that make up one engine step.

    Attributes:
        base_s: delta, every step (s).
        token_s: gamma, per verified token (s).
        kv_token_s: a_ctx, per token in the KV cache (s).
        draft_s: drafting at all, per step (s); a block drafter has only this.
        draft_position_s: per draft position, whatever the batch (s): one forward of an autoregressive drafter.
        draft_token_s: per drafted token (s).
    """

    base_s: float
    token_s: float
    kv_token_s: float = 0.0
    draft_s: float = 0.0
    draft_position_s: float = 0.0
    draft_token_s: float = 0.0

    def __post_init__(self) -> None:
        for name in self.__slots__:
            nonnegative(name, getattr(self, name))

    def step_s(self, batch: ArrayLike, k: ArrayLike, kv_tokens: ArrayLike = 0.0) -> FloatArray:
        """Duration (s) of a step of `batch` requests at draft length k with `kv_tokens` in the cache in all.

        Raises:
            ValueError: an argument is negative.
        """
        requests, length = nonnegative("batch", batch), nonnegative("k", k)
        verify = self.base_s + self.token_s * requests * (length + 1.0)
        draft = self.draft_s * (length > 0) + length * (self.draft_position_s + self.draft_token_s * requests)
        return np.asarray(verify + self.kv_token_s * nonnegative("kv_tokens", kv_tokens) + draft)


def goodput(batch: ArrayLike, tokens_per_step: ArrayLike, step_s: ArrayLike) -> FloatArray:
    """Tokens per second (1/s) of a batch: B*E/T.

    Raises:
        ValueError: the step has no duration, or another argument is negative.
    """
    return np.asarray(
        nonnegative("batch", batch)
        * nonnegative("tokens_per_step", tokens_per_step)
        / positive("step_s", step_s)
    )


def time_per_token(tokens_per_step: ArrayLike, step_s: ArrayLike, *, worst_case: bool = False) -> FloatArray:
    """Time per output token (s) of every request of a batch: T/E on average.

    Args:
        tokens_per_step: E, at least 1.
        step_s: duration of the step (s).
        worst_case: a step that yields one token only; E times stricter than the mean.

    Raises:
        ValueError: an argument is outside its range.
    """
    divisor = at_least("tokens_per_step", tokens_per_step, 1.0)
    return np.asarray(nonnegative("step_s", step_s) / (1.0 if worst_case else divisor))


def allowed(tpot_s: ArrayLike, limit_s: float | None) -> NDArray[np.bool_]:
    """Mask of draft lengths (last axis) that keep the limit; if none does, of those with the lowest time per token.

    Args:
        tpot_s: `time_per_token`, shape (..., K).
        limit_s: TPOT limit (s); `None`: everything is allowed.

    Raises:
        ValueError: the limit is not above 0.
    """
    times = np.asarray(tpot_s, dtype=float)
    if limit_s is None:
        return np.ones(times.shape, dtype=bool)
    within = times <= positive("limit_s", limit_s)
    least = times <= times.min(axis=-1, keepdims=True)
    return np.asarray(np.where(within.any(axis=-1, keepdims=True), within, least))


def best_draft_length(tokens_per_second: ArrayLike, permitted: ArrayLike | None = None) -> NDArray[np.intp]:
    """Index (last axis) of the draft length with the highest goodput; of equals the first, which drafts least.

    Args:
        tokens_per_second: `goodput`, shape (..., K).
        permitted: `allowed`, shape (..., K); `None`: everything is.
    """
    values = np.asarray(tokens_per_second, dtype=float)
    if permitted is not None:
        values = np.where(permitted, values, -np.inf)
    return np.asarray(np.argmax(values, axis=-1))

"""A draft length per batch size, in the form that vLLM takes (`num_speculative_tokens_per_batch_size`).

A schedule is not free and not no speculation: k = 0 inside the engine still feeds the drafter (a time per token 6.6 to
21.6 % longer was measured). Switching costs time too: in one study 7/3/2 lost to a fixed 3 from concurrency 8 up. It is one
more arm, measured against a real pod without speculation and never assumed to be better.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from breakeven.laws.arrays import BoolArray, FloatArray
from breakeven.tiers import Schedule


def schedule(
    step_s: ArrayLike,
    tokens_per_step: ArrayLike,
    draft_lengths: Sequence[int],
    *,
    tpot_limit_s: float | None = None,
    worst_case: bool = False,
    tolerance: float = 0.005,
) -> Schedule:
    """Choose the draft length with the highest goodput per batch size, in as few ranges as possible.

    A range may give away up to `tolerance` of the goodput at its batch sizes: differences of that size are noise, and
    each range costs the engine graphs. Within it the draft length with the highest sum of relative goodput is taken.

    Args:
        step_s: duration of a step (s) at batch sizes 1..N and each draft length, shape (N, K).
        tokens_per_step: E at each draft length, shape (K,) or (N, K).
        draft_lengths: ascending, shape (K,).
        tpot_limit_s: time per token to keep (s); where no draft length does, the fastest is taken.
        worst_case: hold the limit for steps that yield one token.
        tolerance: relative goodput that merging may give away.

    Raises:
        ValueError: shapes do not fit, draft lengths do not rise from at least 0, or the tolerance is not in [0, 1).
    """
    durations = np.asarray(step_s, dtype=float)
    lengths = [int(k) for k in draft_lengths]
    if durations.ndim != 2 or durations.shape[1] != len(lengths) or durations.shape[0] == 0:
        raise ValueError(f"step_s: shape {durations.shape}; expected (batch sizes, {len(lengths)})")
    if lengths != sorted(set(lengths)) or lengths[0] < 0:
        raise ValueError(f"draft_lengths: {lengths!r} do not rise from at least 0")
    if not 0 <= tolerance < 1:
        raise ValueError(f"tolerance: {tolerance!r} is not in [0, 1)")
    batches = np.arange(1, durations.shape[0] + 1)
    output = goodput(batches[:, None], tokens_per_step, durations)
    tpot_s = durations / (1.0 if worst_case else np.asarray(tokens_per_step, dtype=float))
    permitted = _allowed(tpot_s, tpot_limit_s)
    # All draft lengths are searched: with a flat draft cost goodput has more than one local maximum.
    best = np.argmax(np.where(permitted, output, -np.inf), axis=-1)
    relative = output / np.take_along_axis(output, best[:, None], axis=-1)
    acceptable = permitted & (relative >= 1.0 - tolerance)
    return Schedule(_merge(relative, acceptable, lengths))


def goodput(batch: ArrayLike, tokens_per_step: ArrayLike, step_s: ArrayLike) -> FloatArray:
    """Tokens per second (1/s) of a batch: B*E/T (SmartSpec, arXiv 2406.14066)."""
    return np.asarray(np.asarray(batch) * np.asarray(tokens_per_step) / np.asarray(step_s), dtype=float)


def _allowed(tpot_s: FloatArray, limit_s: float | None) -> BoolArray:
    """Draft lengths (last axis) that keep the limit; if none does, the lengths with the lowest time per token."""
    if limit_s is None:
        return np.ones(tpot_s.shape, dtype=bool)
    within = tpot_s <= limit_s
    least = tpot_s <= tpot_s.min(axis=-1, keepdims=True)
    return np.asarray(np.where(within.any(axis=-1, keepdims=True), within, least))


def _merge(
    relative: FloatArray, acceptable: BoolArray, lengths: Sequence[int]
) -> tuple[tuple[int, int], ...]:
    """The fewest tiers that cover the batch sizes: each extends as long as one draft length is acceptable in all of it."""
    tiers: list[tuple[int, int]] = []
    start, last = 0, len(acceptable)
    while start < last:
        common, stop = acceptable[start], start + 1
        while stop < last and (common & acceptable[stop]).any():
            common = common & acceptable[stop]
            stop += 1
        total = np.where(common, relative[start:stop].sum(axis=0), -np.inf)
        k = lengths[int(np.argmax(total))]
        # Two neighbouring tiers may have chosen the same length.
        if not tiers or tiers[-1][1] != k:
            tiers.append((start + 1, k))
        start = stop
    return tuple(tiers)

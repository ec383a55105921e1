"""A draft length per batch size, in the form that vLLM takes (`num_speculative_tokens_per_batch_size`).

A schedule is not free and not no speculation: k = 0 inside the engine still feeds the drafter (a time per token 6.6 to
21.6 % longer was measured), and switching costs (7/3/2 lost to a fixed 3 from concurrency 8 up in one study). It is one
more arm to be measured against a real pod without speculation, never assumed better.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from breakeven.laws.arrays import FloatArray
from breakeven.laws.goodput import allowed, best_draft_length, goodput, time_per_token


@dataclass(frozen=True, slots=True)
class Schedule:
    """Draft length by batch size.

    Attributes:
        ranges: (lowest batch, highest batch, draft length), inclusive, without gap, starting at 1.
    """

    ranges: tuple[tuple[int, int, int], ...]

    def __post_init__(self) -> None:
        expected = 1
        for low, high, k in self.ranges:
            if low != expected or high < low or k < 0:
                raise ValueError(
                    f"range ({low}, {high}, {k}): expected one that starts at {expected}, with k >= 0"
                )
            expected = high + 1
        if not self.ranges:
            raise ValueError("ranges: empty; expected at least one that starts at 1")

    @property
    def num_speculative_tokens(self) -> int:
        """The largest draft length, which vLLM reserves at start-up; 0 where nothing is ever drafted."""
        return max(k for _, _, k in self.ranges)

    @property
    def speculates(self) -> bool:
        """Whether it ever drafts; vLLM refuses a configuration that does not: run without one."""
        return self.num_speculative_tokens > 0

    def at(self, batch: int) -> int:
        """Draft length at a batch size; beyond the last range as vLLM does: the last one goes on.

        Raises:
            ValueError: batch is below 1.
        """
        if batch < 1:
            raise ValueError(f"batch: {batch!r} is below 1")
        return next((k for _, high, k in self.ranges if batch <= high), self.ranges[-1][2])


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
        draft_lengths: the draft lengths, ascending, shape (K,).
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
    permitted = allowed(time_per_token(tokens_per_step, durations, worst_case=worst_case), tpot_limit_s)
    best = best_draft_length(output, permitted)
    relative = output / np.take_along_axis(output, best[:, None], axis=-1)
    acceptable = permitted & (relative >= 1.0 - tolerance)
    return Schedule(_merge(relative, acceptable, lengths))


def _merge(
    relative: FloatArray, acceptable: np.ndarray[tuple[int, ...], np.dtype[np.bool_]], lengths: Sequence[int]
) -> tuple[tuple[int, int, int], ...]:
    """Cover the batch sizes by the fewest ranges: each goes on as long as one draft length is acceptable in it."""
    ranges: list[tuple[int, int, int]] = []
    start, last = 0, len(acceptable)
    while start < last:
        common, stop = acceptable[start], start + 1
        while stop < last and (common & acceptable[stop]).any():
            common = common & acceptable[stop]
            stop += 1
        total = np.where(common, relative[start:stop].sum(axis=0), -np.inf)
        ranges.append((start + 1, stop, lengths[int(np.argmax(total))]))
        start = stop
    # Two neighbouring ranges may have chosen the same length.
    merged = [ranges[0]]
    for low, high, k in ranges[1:]:
        if merged[-1][2] == k:
            merged[-1] = (merged[-1][0], high, k)
        else:
            merged.append((low, high, k))
    return tuple(merged)

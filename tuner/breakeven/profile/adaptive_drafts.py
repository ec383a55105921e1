"""Drafts that an engine with adaptive verification verifies, by batch size, from the tokens that its steps yielded.

Such an engine drafts k tokens in every step and counts all of them as drafted, also those that it does not verify. So accepted over
drafted falls with the load while the drafter stays as good. The tokens per step are counted right, and say how many drafts it
verified at least: those that would have yielded as much at a fixed length.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from breakeven.laws.step_law import Tier


def adaptive_tiers(
    k: int, seen: Sequence[tuple[float, float]], yields: Callable[[int], float]
) -> tuple[Tier, ...]:
    """Tiers of scalars between which the drafts verified change.

    `seen` has the mean number in flight and the tokens per step of each row, at least one; `yields` gives the tokens per step at a
    fixed draft length of 1 and more.
    """
    inflight, tokens = (np.array(column, dtype=float) for column in zip(*sorted(seen), strict=True))
    by_length = np.maximum.accumulate([1.0, *(yields(length) for length in range(1, k + 1))])
    tiers = []
    for first in _batches(float(inflight[-1])):
        e = float(np.interp(np.log(first), np.log(np.maximum(inflight, 1.0)), tokens))
        verified = np.interp(e, by_length, np.arange(k + 1.0))
        tiers.append(Tier(first, np.asarray(float(k)), np.asarray(e), np.asarray(verified)))
    return tuple(tiers)


def _batches(most: float) -> Iterator[int]:
    """Batch sizes 1, 2, 3, 4, 6, 8, 12, ... up to the largest."""
    first, half = 1, 1
    while first <= max(most, 1.0):
        yield first
        half = first // 2 if first & (first - 1) == 0 else first // 3
        first += max(half, 1)

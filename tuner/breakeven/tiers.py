"""A draft length per batch size as a value: vLLM's `num_speculative_tokens_per_batch_size`, and as text in points and profiles."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Self

from breakeven.arm import ADAPTIVE
from breakeven.errors import InputError

LARGEST_BATCH = 1_000_000
"""No engine decodes as many requests in one step."""

ADAPTIVE_FORM = re.compile(rf"{ADAPTIVE}:([1-9][0-9]{{0,2}})")
"""The text of adaptive verification with the drafts of a step."""

_RANGE = re.compile(r"([0-9]{1,7})-([0-9]{0,7}):([0-9]{1,4})")
_FORM = "ranges of batch sizes with a draft length each, such as 1-8:5,9-32:2,33-:0"


@dataclass(frozen=True, slots=True)
class AdaptiveDrafts:
    """The engine's own choice in each step of how many of its drafts, at least 1, it verifies: as many as pay."""

    num_speculative_tokens: int

    def __str__(self) -> str:
        return ADAPTIVE


@dataclass(frozen=True, slots=True)
class Schedule:
    """Draft length by batch size. Equal schedules draft the same at every batch size.

    Attributes:
        tiers: (first batch size, draft length), ascending, the first at 1. A tier holds until the next one begins, the
            last one for ever, as in vLLM. Neighbours differ in draft length.
    """

    tiers: tuple[tuple[int, int], ...]

    def __post_init__(self) -> None:
        firsts = [first for first, _ in self.tiers]
        lengths = [k for _, k in self.tiers]
        if not firsts or firsts[0] != 1 or firsts != sorted(set(firsts)) or min(lengths) < 0:
            raise ValueError(f"tiers {self.tiers!r}: expected rising batch sizes from 1, with k >= 0")
        if any(k == following for k, following in itertools.pairwise(lengths)):
            raise ValueError(f"tiers {self.tiers!r}: expected neighbours that differ in k")

    @classmethod
    def of_ranges(cls, ranges: Iterable[tuple[int, int | None, int]], where: str) -> Self:
        """The schedule that vLLM makes of a table: (first batch size, last one or None for all beyond, k), in any order.

        A gap goes on with the draft length before it, and so do batches beyond the last range.

        Raises:
            InputError: no range, none that starts at 1, two that overlap, or a negative draft length.
        """
        tiers: list[tuple[int, int]] = []
        last: int | None = 0
        for first, end, k in sorted(ranges, key=lambda one: one[0]):
            if not tiers and first != 1:
                raise InputError(where, f"begins at batch size {first}", "its first range at 1")
            if last is None or first <= last:
                raise InputError(where, f"ranges overlap at batch size {first}", "ranges apart")
            if (end is not None and end < first) or k < 0:
                raise InputError(where, f"range {first}-{end}:{k}", "first <= last and k >= 0")
            if not tiers or tiers[-1][1] != k:
                tiers.append((first, k))
            last = end
        if not tiers:
            raise InputError(where, "no range", _FORM)
        return cls(tuple(tiers))

    @classmethod
    def parse(cls, text: str, where: str) -> Self:
        """Read `1-8:5,9-32:2,33-:0`: inclusive ranges of the batch size, each with its draft length; `str` writes it.

        Raises:
            InputError: another form, or as `of_ranges`.
        """
        found: list[tuple[int, int | None, int]] = []
        for part in text.split(","):
            match = _RANGE.fullmatch(part.strip())
            if match is None or int(match[1]) > LARGEST_BATCH:
                raise InputError(where, f"{part.strip()[:40]!r} is no range of batch sizes", _FORM)
            found.append((int(match[1]), int(match[2]) if match[2] else None, int(match[3])))
        return cls.of_ranges(found, where)

    def __str__(self) -> str:
        ends = [str(first - 1) for first, _ in self.tiers[1:]]
        return ",".join(f"{first}-{end}:{k}" for (first, k), end in zip(self.tiers, [*ends, ""], strict=True))

    def ranges(self, largest_batch: int) -> tuple[tuple[int, int, int], ...]:
        """The table as vLLM takes it, up to a batch size: (first, last, k), inclusive, without gap."""
        reached = [tier for tier in self.tiers if tier[0] <= largest_batch]
        ends = [first - 1 for first, _ in reached[1:]] + [largest_batch]
        return tuple((first, end, k) for (first, k), end in zip(reached, ends, strict=True))

    @property
    def num_speculative_tokens(self) -> int:
        """The largest draft length, which vLLM reserves at start-up; 0 where nothing is ever drafted."""
        return max(k for _, k in self.tiers)

    @property
    def last(self) -> int:
        """Draft length of the largest batches."""
        return self.tiers[-1][1]

    @property
    def speculates(self) -> bool:
        """Whether it ever drafts."""
        return self.num_speculative_tokens > 0

    def at(self, batch: int) -> int:
        """Draft length at a batch size; raises ValueError below 1."""
        if batch < 1:
            raise ValueError(f"batch: {batch!r} is below 1")
        return next(k for first, k in reversed(self.tiers) if first <= batch)


Drafts = int | Schedule | AdaptiveDrafts
"""How long is drafted: one length, a length per batch size, or as long as pays."""

"""The prefix cache: a whole block that several prompts begin with is computed once; the least recently used one goes first."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence


class PrefixCache:
    """Blocks of tokens by all that stands before them.

    Simplified: blocks are there from the moment their prompt comes, and blocks of answers are not kept.

    Args:
        blocks: of the KV pool, the most that are kept.
        block_tokens: tokens of a block.
        drops_last: the last block that is found is computed again, because the drafter needs its hidden states (EAGLE and MTP).
    """

    def __init__(self, blocks: int, block_tokens: int, *, drops_last: bool = False) -> None:
        self._most = blocks
        self._block_tokens = block_tokens
        self._drops_last = drops_last
        self._kept: OrderedDict[int, None] = OrderedDict()

    def look_up(self, ids: Sequence[int]) -> int:
        """Tokens of a prompt that need not be computed; its blocks are kept from now on. At least one token is left to compute."""
        size, key, found, going_on = self._block_tokens, 0, 0, True
        for start in range(0, len(ids) - size + 1, size):
            key = hash((key, tuple(ids[start : start + size])))
            going_on = going_on and key in self._kept
            found += going_on
            self._kept[key] = None
            self._kept.move_to_end(key)
        while len(self._kept) > self._most:
            self._kept.popitem(last=False)
        usable = min(found, (len(ids) - 1) // size)
        return max(usable - self._drops_last, 0) * size

"""Tokens that a drafter would have got accepted at each token of an answer, and the steps that follow from them.

Look-ups are replayed by the rules of vLLM 0.32: `ngram` as its proposer matches, `suffix` as arctic-inference 0.1.1 keeps and
reads its trees. Two things differ there: answers come one after the other, and no cached answer is evicted (vLLM keeps 10,000).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Tokens = Sequence[int]
LONGEST = 8
"""Draft lengths from 1 to this one are replayed."""


class Drafts(NamedTuple):
    """What a drafter drafts behind each known prefix of one answer, and what of it the answer confirms; tokens.

    Both have the shape (answer tokens, draft lengths): row i is the step that follows the answer's token i.
    """

    drafted: NDArray[np.int8]
    accepted: NDArray[np.int8]


class NgramRule(NamedTuple):
    """Tokens that must match at least, and are matched at most: `prompt_lookup_min`, `prompt_lookup_max`; vLLM's default is 5 and 5."""

    shortest: int = 5
    longest: int = 5


class SuffixRule(NamedTuple):
    """`suffix_decoding_max_tree_depth`, `..._max_spec_factor` and `..._min_token_prob` with vLLM's defaults."""

    depth: int = 24
    factor: float = 1.0
    min_probability: float = 0.1


def ngram_drafts(prompt: Tokens, answer: Tokens, rule: NgramRule) -> Drafts:
    """Drafts of the tokens behind the earliest occurrence of the longest matching end of the text."""
    text, start = [*prompt, *answer], len(prompt)
    sources = [0] * len(answer)
    for n in range(rule.shortest, rule.longest + 1):
        seen: dict[tuple[int, ...], int] = {}
        for end in range(n, len(text)):
            first = seen.setdefault(tuple(text[end - n : end]), end)
            if end > start and first < end:
                # A longer match comes later in this loop, and goes before a shorter one.
                sources[end - start - 1] = first
    drafted, accepted = ([0] * len(answer) for _ in range(2))
    for index, source in enumerate(sources[:-1]):
        if source:
            now = start + index + 1
            drafted[index] = min(LONGEST, now - source)
            accepted[index] = _confirmed(text[source : source + drafted[index]], text, now)
    # A shorter draft is the beginning of a longer one.
    k = np.arange(1, LONGEST + 1)
    return Drafts(*(np.minimum(np.array(one)[:, None], k).astype(np.int8) for one in (drafted, accepted)))


def _confirmed(draft: Tokens, text: Tokens, now: int) -> int:
    """Tokens of a draft that the text goes on with at `now`."""
    count = 0
    for drafted, token in zip(draft, text[now : now + len(draft)], strict=False):
        if drafted != token:
            break
        count += 1
    return count


def model_drafts(hits: Sequence[bool]) -> Drafts:
    """Drafts of a model whose first choice behind each token of an answer is the next one, or not.

    The accepted drafts are the answer's own text, so one pass over it gives the choices of every step.
    """
    accepted, run = [0] * len(hits), 0
    for index in reversed(range(len(hits))):
        run = run + 1 if hits[index] else 0
        accepted[index] = run
    k = np.arange(1, LONGEST + 1)
    shape = (len(hits), LONGEST)
    return Drafts(
        np.broadcast_to(k.astype(np.int8), shape),
        np.minimum(np.array(accepted, int)[:, None], k).astype(np.int8),
    )


_END = -1


class _Node:
    """A text that occurred at least twice: how often, and what followed it.

    A follower that occurred once is the place of its first token, from which the rest of its sequence follows, else a node. `likeliest` is
    the most frequent follower; of equal ones the last to become so, as the library orders them.
    """

    __slots__ = ("count", "followers", "likeliest")

    def __init__(self, count: int, follower: int | None, place: int) -> None:
        self.count = count
        self.followers: dict[int, int | _Node] = {} if follower is None else {follower: place}
        self.likeliest = follower


class SuffixTree:
    """All texts up to a depth that occurred in some sequences, and those that the last sequence ends with.

    Texts that occurred once are kept as a place in the sequence: they need no work while it grows, and little memory.
    """

    def __init__(self, depth: int) -> None:
        self.depth = depth
        self.tokens: list[int] = []
        self.root = _Node(0, None, 0)
        self.ends: list[_Node] = []
        """Nodes of the last sequence's ends that occurred before, by length from 1 without a gap."""

    def begin(self) -> None:
        """Begin another sequence."""
        self.tokens.append(_END)
        self.ends = []

    def append(self, token: int) -> None:
        """Add a token to the last sequence."""
        tokens, place, depth = self.tokens, len(self.tokens), self.depth
        tokens.append(token)
        ends = []
        length = 0
        for node in (self.root, *self.ends):
            length += 1
            followers = node.followers
            follower = followers.get(token)
            if follower is None:
                followers[token] = place
                if node.likeliest is None:
                    node.likeliest = token
                continue
            if isinstance(follower, int):
                after = follower + 1
                behind = tokens[after] if length < depth else _END
                follower = _Node(2, None if behind == _END else behind, after)
                followers[token] = follower
            else:
                follower.count += 1
            leading = node.likeliest
            if leading != token and leading is not None:
                best = followers[leading]
                if follower.count >= (1 if isinstance(best, int) else best.count):
                    node.likeliest = token
            if length < depth:
                ends.append(follower)
        # An end of length n occurred before only if the end of length n - 1 did: no gaps.
        self.ends = ends

    def following(
        self, place: _Node | int, length: int, most: int, least: float
    ) -> tuple[list[int], list[float]]:
        """The likeliest tokens behind a text of `length`, and the probability of each by counts: at most `most`, down to `least`."""
        drafts: list[int] = []
        probabilities: list[float] = []
        probability, room = 1.0, min(most, self.depth - length)
        while isinstance(place, _Node) and len(drafts) < room and place.likeliest is not None:
            token = place.likeliest
            follower = place.followers[token]
            probability *= (follower.count if isinstance(follower, _Node) else 1) / place.count
            if probability < least:
                return drafts, probabilities
            drafts.append(token)
            probabilities.append(probability)
            place = follower if isinstance(follower, _Node) else follower + 1
        if isinstance(place, int):
            for token in self.tokens[place : place + room - len(drafts)]:
                if token == _END:
                    break
                drafts.append(token)
                probabilities.append(probability)
        return drafts, probabilities

    def find(self, text: Tokens) -> _Node | int | None:
        """The node of a text, or the place behind its only occurrence; None if it never occurred."""
        node: _Node | int = self.root
        for token in text:
            if isinstance(node, int):
                if node >= len(self.tokens) or self.tokens[node] != token:
                    return None
                node += 1
                continue
            follower = node.followers.get(token)
            if follower is None:
                return None
            node = follower + 1 if isinstance(follower, int) else follower
        return node


class SuffixDrafter:
    """Suffix decoding over answers that come one after the other: each drafts from its own text and from all answers before."""

    def __init__(self, rule: SuffixRule) -> None:
        self.rule = rule
        self.answers = SuffixTree(rule.depth)

    def learn(self, answer: Tokens) -> None:
        """Take an answer that later ones draft from, without drafting along it."""
        self.answers.begin()
        for token in answer:
            self.answers.append(token)

    def drafts(self, prompt: Tokens, answer: Tokens) -> Drafts:
        """Drafts along one answer, which later answers draft from."""
        own = SuffixTree(self.rule.depth)
        own.begin()
        self.answers.begin()
        for token in prompt:
            own.append(token)
        drafted, accepted = (np.zeros((len(answer), LONGEST), np.int8) for _ in range(2))
        for index, token in enumerate(answer):
            own.append(token)
            self.answers.append(token)
            known = index + 1
            if known == len(answer):
                break
            # Of equal scores the draft from the own text is taken, and within a tree the draft behind the longer match.
            best = self._best(own, own.ends)
            shared = self._best(self.answers, self._ends(prompt, answer, known))
            best = [
                b if a is None or (b is not None and b[0] > a[0]) else a
                for a, b in zip(best, shared, strict=True)
            ]
            for k, one in enumerate(best):
                if one is not None:
                    drafted[index, k] = count = min(k + 1, len(one[1]))
                    accepted[index, k] = _confirmed(one[1][:count], answer, known)
        return Drafts(drafted, accepted)

    def _best(self, tree: SuffixTree, ends: Sequence[_Node | int]) -> list[tuple[float, list[int]] | None]:
        """The draft with the largest sum of probabilities, with that sum, for each draft length; None if nothing matches."""
        best: list[tuple[float, list[int]] | None] = [None] * LONGEST
        for length, end in enumerate(ends, start=1):
            most = min(LONGEST, int(length * self.rule.factor + 1e-6))
            drafts, probabilities = tree.following(end, length, most, self.rule.min_probability)
            sums = list(accumulate(probabilities))
            for k in range(LONGEST):
                if sums:
                    score = sums[min(k, len(sums) - 1)]
                    before = best[k]
                    if before is None or score >= before[0]:
                        best[k] = (score, drafts)
        return best

    def _ends(self, prompt: Tokens, answer: Tokens, known: int) -> Sequence[_Node | int]:
        """Where earlier answers hold the end of this text, by its length; the prompt's end belongs to the text and to no answer."""
        ends: list[_Node | int] = [*self.answers.ends]
        while known <= len(ends) < self.rule.depth - 1:
            before = len(ends) + 1 - known
            if before > len(prompt):
                break
            found = self.answers.find([*prompt[len(prompt) - before :], *answer[:known]])
            if found is None:
                break
            ends.append(found)
        return ends

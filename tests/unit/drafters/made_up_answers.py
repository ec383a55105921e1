"""Pairs of prompt and answer as token ids in which phrases come back; the same for a seed on every machine."""

from __future__ import annotations

import random


def made_up_answers(seed: int, vocabulary: int, count: int = 30) -> list[tuple[list[int], list[int]]]:
    """Prompts of up to 120 tokens and answers of up to 100."""
    rng = random.Random(seed)
    phrases = [[rng.randrange(vocabulary) for _ in range(rng.randrange(4, 30))] for _ in range(30)]

    def text(length: int) -> list[int]:
        tokens: list[int] = []
        while len(tokens) < length:
            words = [int(rng.paretovariate(0.6)) % vocabulary for _ in range(6)]
            tokens += rng.choice(phrases) if rng.random() < 0.5 else words
        return tokens[:length]

    return [(text(rng.randrange(1, 120)), text(rng.randrange(2, 100))) for _ in range(count)]

"""What one request asks for: a prompt of about P tokens and exactly G tokens of output.

Prompts differ from their first word on, because a repeated prefix would be served from the engine's prefix cache and
its prefill would cost nothing. Acceptance depends on the text: made-up prose drafts better than random tokens and
worse than code, so what is measured here about acceptance holds for the prompts that were used; with `texts` those
are the user's own.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from breakeven.errors import InputError

# Any vocabulary of a served model is larger; ids below hold control tokens in most of them.
_FIRST_TOKEN_ID = 256
_LAST_TOKEN_ID = 999

_SUBJECTS = (
    "the old engineer",
    "a young doctor",
    "our neighbour",
    "the whole committee",
    "every student",
    "the night train",
    "a quiet river",
    "the second report",
    "my grandmother",
    "this small company",
    "the city council",
    "a careful reader",
    "the first winter",
    "their new machine",
    "the market",
    "an honest answer",
)
_VERBS = (
    "explained",
    "remembered",
    "carried",
    "followed",
    "measured",
    "described",
    "changed",
    "opened",
    "questioned",
    "repaired",
    "collected",
    "crossed",
    "promised",
    "compared",
    "finished",
    "considered",
)
_OBJECTS = (
    "the long road to the harbour",
    "a box of letters",
    "the results of the last year",
    "three different plans",
    "the garden behind the house",
    "a simple rule",
    "the price of bread",
    "the map on the wall",
    "an unexpected visitor",
    "the work of many hands",
    "the sound of the rain",
    "a page of numbers",
    "the oldest bridge",
    "a better question",
    "the story from the beginning",
    "what everybody had seen",
)
_LINKS = (
    "because",
    "although",
    "while",
    "before",
    "after",
    "so that",
    "and later",
    "but then",
)


class Prompts(Protocol):
    """A source of prompts; the same index always gives the same prompt."""

    def prompt(self, index: int) -> str | list[int]:
        """Prompt number `index` as text or as token ids, in the form `/v1/completions` takes."""
        ...


@dataclass(frozen=True, slots=True)
class Workload:
    """What every request of a sweep asks for.

    Attributes:
        prompt_tokens: wanted prompt length; what the engine counted is what a point reports.
        output_tokens: exact output length (`ignore_eos`, `min_tokens` = `max_tokens`).
        seed: of prompts and arrivals; the same seed repeats the same sweep.
        name: the user's name for it, copied into each point's `workload` column.
    """

    prompt_tokens: int = 256
    output_tokens: int = 128
    seed: int = 0
    name: str | None = None

    @property
    def identity(self) -> str:
        """Points with the same identity belong to one sweep and may be continued together."""
        return "/".join(
            filter(None, [f"p{self.prompt_tokens}-g{self.output_tokens}-s{self.seed}", self.name])
        )

    def __post_init__(self) -> None:
        if self.prompt_tokens < 1:
            raise InputError("prompt tokens", str(self.prompt_tokens), "at least 1")
        if self.output_tokens < 2:
            raise InputError("output tokens", str(self.output_tokens), "at least 2 (TPOT needs two tokens)")


@dataclass(frozen=True, slots=True)
class ProsePrompts:
    """Sentences of everyday words, `words` words long; the engine's tokenizer decides how many tokens that is."""

    words: int
    seed: int

    def prompt(self, index: int) -> str:
        """Text number `index`; two texts share no first clause except by chance (one in four thousand)."""
        chance = random.Random(f"{self.seed}/{index}")  # noqa: S311  # prose, not secrets
        words: list[str] = []
        while len(words) < self.words:
            clause = f"{chance.choice(_SUBJECTS)} {chance.choice(_VERBS)} {chance.choice(_OBJECTS)}"
            link = chance.choice(_LINKS)
            words += f"{clause} {link}".split()
        return " ".join(words[: self.words])

    def resized(self, wanted_tokens: int, counted_tokens: float) -> ProsePrompts:
        """Scale the number of words after the engine counted `counted_tokens` per prompt of the present size."""
        return ProsePrompts(max(1, round(self.words * wanted_tokens / max(1.0, counted_tokens))), self.seed)


@dataclass(frozen=True, slots=True)
class TokenPrompts:
    """Random token ids: exactly `tokens` of them under any tokenizer, and text that no drafter can guess."""

    tokens: int
    seed: int

    def prompt(self, index: int) -> list[int]:
        """Token ids number `index`."""
        chance = random.Random(f"{self.seed}/{index}")  # noqa: S311  # load, not secrets
        return [chance.randint(_FIRST_TOKEN_ID, _LAST_TOKEN_ID) for _ in range(self.tokens)]


@dataclass(frozen=True, slots=True)
class TextPrompts:
    """The user's own prompts, each used in turn; fewer prompts than requests means that the prefix cache helps."""

    texts: Sequence[str]

    def __post_init__(self) -> None:
        if not self.texts:
            raise InputError("prompts", "no prompt in the file", "one prompt per line")

    def prompt(self, index: int) -> str:
        """Text number `index`, starting over at the end of the list."""
        return self.texts[index % len(self.texts)]

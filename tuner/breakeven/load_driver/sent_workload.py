"""One request's content: a prompt of about so many tokens, and exactly so many tokens of output.

Prompts differ from their first word on, because a repeated prefix would be served from the engine's prefix cache and
its prefill would cost nothing; `prefix_share` is the part of them that is meant to repeat. Acceptance depends on the text:
made-up prose drafts better than random tokens and worse than code. A measured acceptance holds for the text that was
sent, and every point names it.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import Any, TypeAlias

from breakeven.errors import InputError
from breakeven.load_driver.dataset import Dataset, Prompt, RecordedRequest
from breakeven.load_driver.lengths import (
    LengthDistribution,
    LengthPair,
    LogNormalLengths,
    digest,
    uniform,
)

SYNTHETIC = "synthetic text"
"""The name of made-up prose in points: acceptance on it is a guess about any other text."""
PROMPTS_PER_POINT = 1_000_000
"""Point number n uses the prompts from n times this on: points of one sweep never share a made-up prompt."""

_SUBJECTS = (
    "the old engineer", "a young doctor", "our neighbour", "the whole committee", "every student",
    "the night train", "a quiet river", "the second report", "my grandmother", "this small company",
    "the city council", "a careful reader", "the first winter", "their new machine", "the market",
    "an honest answer",
)  # fmt: skip
_VERBS = (
    "explained", "remembered", "carried", "followed", "measured", "described", "changed", "opened",
    "questioned", "repaired", "collected", "crossed", "promised", "compared", "finished", "considered",
)  # fmt: skip
_OBJECTS = (
    "the long road to the harbour", "a box of letters", "the results of the last year",
    "three different plans", "the garden behind the house", "a simple rule", "the price of bread",
    "the map on the wall", "an unexpected visitor", "the work of many hands", "the sound of the rain",
    "a page of numbers", "the oldest bridge", "a better question", "the story from the beginning",
    "what everybody had seen",
)  # fmt: skip
_LINKS = (
    "because", "although", "while", "before", "after", "so that", "and later", "but then",
)  # fmt: skip


# Field: lowest and highest value that vLLM takes, and whether only whole numbers are meant.
_RANGES: dict[str, tuple[float, float, bool]] = {
    "temperature": (0.0, 10.0, False),
    "top_p": (1e-6, 1.0, False),
    "top_k": (-1, 1_000_000, True),
    "min_p": (0.0, 1.0, False),
    "presence_penalty": (-2.0, 2.0, False),
    "frequency_penalty": (-2.0, 2.0, False),
    "repetition_penalty": (1e-6, 10.0, False),
    "seed": (0, 2**63 - 1, True),
}


@dataclass(frozen=True, slots=True)
class Sampling:
    """Sampling fields; a field that is None is left to the engine. At temperature 0, the likeliest token, drafts are accepted most often."""

    temperature: float = 0.0
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    seed: int | None = None

    def __post_init__(self) -> None:
        for name, (low, high, whole) in _RANGES.items():
            value = getattr(self, name)
            if value is None:
                continue
            if not (math.isfinite(value) and low <= value <= high) or (whole and value != int(value)):
                kind = "a whole number" if whole else "a number"
                raise InputError(name, f"{value:g}", f"{kind} from {low:g} to {high:g}")

    def body(self) -> dict[str, Any]:
        """The fields as they stand in a request's body."""
        given = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: value for name, value in given.items() if value is not None}


@dataclass(frozen=True, slots=True)
class SentWorkload:
    """The requests of a sweep.

    Attributes:
        prompt_tokens: mean prompt length that is wanted; a point reports the length that the engine counted.
        output_tokens: mean output length; every answer is exactly as long as drawn (`ignore_eos`, `min_tokens`).
        seed: of prompts, lengths and arrivals; the same seed repeats the same sweep.
        name: the user's name for it, copied into each point's `workload` column.
        lengths: how lengths scatter about the means; None if not at all.
        prefix_share: share of a mean prompt that all prompts begin with, from 0 to 1.
        dataset: the user's own requests, in place of made-up prose.
        label: which text it is, in a few words, if the dataset's name does not show it.
    """

    prompt_tokens: int = 256
    output_tokens: int = 128
    seed: int = 0
    name: str | None = None
    lengths: LengthDistribution | None = None
    sampling: Sampling = field(default_factory=Sampling)
    prefix_share: float = 0.0
    dataset: Dataset | None = None
    label: str | None = None

    @property
    def identity(self) -> str:
        """Points with the same identity belong to one sweep and may be continued together."""
        special = self.lengths, self.sampling, self.prefix_share, self.dataset
        differs = special != (None, Sampling(), 0.0, None)
        content = self.dataset.digest if self.dataset is not None else None
        what = digest(self.lengths, self.sampling, self.prefix_share, content)
        tokens = f"p{self.prompt_tokens}-g{self.output_tokens}-s{self.seed}" + (f"-{what}" if differs else "")
        return "/".join(filter(None, [tokens, self.name]))

    @property
    def text(self) -> str:
        """Name of the text that is sent, on which acceptance is measured."""
        if self.label:
            return self.label[:64]
        if self.dataset is not None:
            return self.dataset.name[:64]
        return SYNTHETIC

    @property
    def drawn(self) -> LengthDistribution:
        """The distribution of lengths, a fixed one where nothing else was asked for."""
        return self.lengths or LogNormalLengths(self.prompt_tokens, self.output_tokens)

    def answers(self) -> OutputLengths:
        """Lengths of the answers, from the dataset if it has them."""
        return self.drawn if self.dataset is None else DatasetRequests(self.dataset, self.drawn, self.seed)

    def prompts(self) -> Prompts | None:
        """Source of prompts; None for made-up prose, which has to be sized by the engine's tokenizer first."""
        return None if self.dataset is None else DatasetRequests(self.dataset, self.drawn, self.seed)

    def prose(self) -> ProsePrompts:
        """Made-up prose of one word per token, to be resized."""
        return ProsePrompts(self.prompt_tokens, self.seed, self.lengths, self.prefix_share)

    def __post_init__(self) -> None:
        if self.prompt_tokens < 1:
            raise InputError("prompt tokens", str(self.prompt_tokens), "at least 1")
        if self.output_tokens < 2:
            raise InputError("output tokens", str(self.output_tokens), "at least 2 (TPOT needs two tokens)")
        if not 0 <= self.prefix_share <= 1:
            raise InputError("prefix share", f"{self.prefix_share:g}", "a share from 0 to 1")
        if self.dataset is not None and self.prefix_share:
            raise InputError("dataset", "beside a shared prefix", "a dataset alone: its prompts are its own")


@dataclass(frozen=True, slots=True)
class ProsePrompts:
    """Sentences of everyday words; the engine's tokenizer decides how many tokens that is.

    Lengths scatter about a mean number of words, of which all prompts begin with a share.
    """

    words: int
    seed: int
    lengths: LengthDistribution | None = None
    prefix_share: float = 0.0

    def prompt(self, index: int) -> str:
        """Text number `index`; beyond a shared prefix two texts share no first clause but by chance (one in four thousand)."""
        wanted, shared = self._words_of(index), round(self.prefix_share * self.words)
        prefix = self._prose("prefix", min(shared, wanted))
        return " ".join([*prefix, *self._prose(str(index), wanted - len(prefix))])

    def relative_length(self, index: int) -> float:
        """Length of text number `index` over the length of a mean text."""
        return self._words_of(index) / self.words

    def resized(self, wanted_tokens: float, counted_tokens: float) -> ProsePrompts:
        """Scale the number of words after the engine counted `counted_tokens` per prompt of the present mean length."""
        return replace(self, words=max(1, round(self.words * wanted_tokens / max(1.0, counted_tokens))))

    def _words_of(self, index: int) -> int:
        if self.lengths is None:
            return self.words
        drawn = self.lengths.pair(index).prompt_tokens / self.lengths.mean_prompt_tokens
        return max(1, round(self.words * drawn))

    def _prose(self, number: str, count: int) -> list[str]:
        chance = random.Random(f"{self.seed}/{number}")  # noqa: S311  # prose, not secrets
        words: list[str] = []
        while len(words) < count:
            clause = f"{chance.choice(_SUBJECTS)} {chance.choice(_VERBS)} {chance.choice(_OBJECTS)}"
            link = chance.choice(_LINKS)
            words += f"{clause} {link}".split()
        return words[:count]


@dataclass(frozen=True)
class DatasetRequests:
    """A dataset's lines, drawn so that every stretch of requests has short and long answers in the file's shares.

    Points of one sweep that differ in their mean length cannot stand in one law. Lines whose answers are equally long come
    in an order that the seed gives: a file sorted by subject would change in mid-sweep. With fewer lines than requests the prefix
    cache helps. `others` draws the output length of a line that names none.
    """

    dataset: Dataset
    others: LengthDistribution
    seed: int

    def prompt(self, index: int) -> Prompt:
        """Prompt number `index`."""
        return self._line(index).prompt

    def pair(self, index: int) -> LengthPair:
        """Output length of that line; its prompt is as long as it is, whatever is drawn."""
        drawn = self.others.pair(index)
        return drawn._replace(output_tokens=self._line(index).output_tokens or drawn.output_tokens)

    def outputs(self) -> Sequence[int]:
        """Lengths of all lines that name one, else drawn lengths."""
        known = [one.output_tokens for one in self.dataset.requests if one.output_tokens is not None]
        return known or self.others.outputs()

    def _line(self, index: int) -> RecordedRequest:
        return self._ordered[int(uniform(self.seed, index)[0] * len(self._ordered))]

    @cached_property
    def _ordered(self) -> Sequence[RecordedRequest]:
        lines = list(self.dataset.requests)
        random.Random(f"{self.seed}/order").shuffle(lines)  # noqa: S311  # load, not secrets
        return sorted(lines, key=lambda line: line.output_tokens or 0)


Prompts: TypeAlias = ProsePrompts | DatasetRequests
"""A source of prompts; the same index always gives the same prompt."""

OutputLengths: TypeAlias = LengthDistribution | DatasetRequests
"""Lengths of answers; the same index always gives the same length, and `outputs` has lengths that represent all requests."""

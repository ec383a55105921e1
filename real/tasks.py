"""Tasks for a language model, each with other words of its own to copy; and how many tokens a step gave for each, as a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile

from breakeven.arm import NO_SPECULATION, Arm
from real.findings import Row, number

TASK_TOKENS = 96
TASK_HEAD = ("task", "arm", "tokens", "E", "seconds", "none, s", "answer beside none's")
_TEXT = (
    "The harbour master walked along the pier at dawn. He counted the boats, wrote their names into a book, and looked at"
    " the sky. A grey cloud stood over the island, so he rang the bell twice and told the fishermen to wait until noon. Nobody"
    " liked it, but nobody rowed out either. By eleven the storm had passed, and the first boat left with two men aboard."
)
_CODE = """def total(items, rate):
    result = 0
    for item in items:
        result = result + item.price * item.count
    if rate:
        result = result + result * rate
    return result"""
MIX_HEAD = ("mix", "arm then", "E, live", "the operator's decision")
TASKS: Mapping[str, str] = {
    "repeat": f"Repeat this text word for word:\n\n{_TEXT}",
    "summary": f"Summarise this text in three sentences:\n\n{_TEXT}",
    "rename in code": f"Rename the variable result to amount, and give the whole function:\n\n{_CODE}",
    "chat": "My neighbour plays the drums every evening. How do I tell him that it disturbs me?",
    "JSON": "Give a JSON object of a person with name, age, town, and a list of three hobbies. Answer with JSON only.",
    "story": "Tell the story of a clockmaker whose clocks run backwards on Sundays.",
}
_COPYING, _TALKING = ("repeat", "summary", "rename in code"), ("chat", "JSON", "story")
MIXES: Mapping[str, tuple[str, ...]] = {
    "copying": _COPYING,
    "half of each": (*_COPYING, *_TALKING),
    "talking": _TALKING,
}


@dataclass(frozen=True, slots=True)
class MixSeen:
    """The operator's view at the end of a while of one mix of tasks.

    Attributes:
        mix: its name.
        arm: what every pod runs then; empty during a roll.
        tokens_per_step: live E as the operator counts it; empty without.
        reason, message: of its decision.
    """

    mix: str
    arm: str
    tokens_per_step: str
    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class TaskAnswer:
    """A greedy answer to one task by one engine that did nothing else.

    Attributes:
        task: its name.
        arm: what ran.
        text: the answer.
        tokens: its length.
        tokens_per_step: E by the engine's counters; None if nothing was decoded.
        seconds: how long it took.
    """

    task: str
    arm: Arm
    text: str
    tokens: int
    tokens_per_step: float | None
    seconds: float


def mix_rows(seen: Sequence[MixSeen]) -> list[Row]:
    """A row for each mix, in the order in which they came."""
    return [
        (one.mix, one.arm or "a roll", one.tokens_per_step or "-", f"{one.reason}: {one.message}")
        for one in seen
    ]


def task_rows(answers: Sequence[TaskAnswer]) -> list[Row]:
    """A row for each task and arm that drafts; its answer is compared with that of no speculation."""
    plain = {one.task: one for one in answers if one.arm == NO_SPECULATION}
    return [
        (
            one.task,
            str(one.arm),
            str(one.tokens),
            number(one.tokens_per_step, 3),
            f"{one.seconds:.1f}",
            f"{plain[one.task].seconds:.1f}" if one.task in plain else "-",
            _beside(one.text, plain[one.task].text) if one.task in plain else "-",
        )
        for one in answers
        if one.arm != NO_SPECULATION
    ]


def _beside(text: str, plain: str) -> str:
    if text == plain:
        return "equal"
    alike = takewhile(lambda pair: pair[0] == pair[1], zip(text, plain, strict=False))
    return f"differs from character {sum(1 for _ in alike) + 1}"

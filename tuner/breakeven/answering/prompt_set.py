"""The requests of the answer gate: the shipped set, or the user's own prompts with the shipped JSON and tool calls beside them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import Any

PROMPTS_FILE = Path(__file__).with_name("shipped_prompts.json")
ANSWER_TOKENS = 256
"""Output tokens of an answer at most: a drafter's cache needs some room to go wrong."""
MOST_OWN_PROMPTS = 93
# Each makes another answer of the same request: what differs rarely shows only in many answers.
_MANNERS = {
    "a": "",
    "b": "\n\nBegin with what matters most, and use short sentences.",
    "c": "\n\nAnswer in great detail, as if to a colleague who will check every word.",
}
_LEDGER = ("bolts", "lamps", "ropes", "tiles", "jars", "hinges", "brushes")


class Form(StrEnum):
    """The form that a request demands of its answer."""

    FREE = "free"
    JSON = "json"
    TOOL = "tool"

    @property
    def constrained(self) -> bool:
        """Whether a grammar chooses among the tokens: then the model's first choice need not be allowed."""
        return self is not Form.FREE


@dataclass(frozen=True, slots=True)
class GatePrompt:
    """One request of the gate.

    Attributes:
        name: as results call it; says nothing of the content.
        messages: the conversation; None if there is a `text` to be completed.
        schema: JSON schema of the answer, or of the tool's parameters; None for a free answer.
    """

    name: str
    messages: tuple[Mapping[str, str], ...] | None = None
    text: str | None = None
    form: Form = Form.FREE
    schema: Mapping[str, Any] | None = None

    def __repr__(self) -> str:
        """The name alone; no prompt may end in a log by way of a traceback."""
        return f"GatePrompt({self.name!r})"


@cache
def shipped_prompts() -> tuple[GatePrompt, ...]:
    """The shipped set: prose, code, languages, long context, copying, JSON by schema and tool calls."""
    found = []
    for entry in json.loads(PROMPTS_FILE.read_text(encoding="utf-8")):
        content, form = entry["text"], Form(entry.get("form", "free"))
        if (lines := entry.get("ledger_lines")) is not None:
            content = f"{_ledger(lines)}\n\n{content}"
        for letter, manner in _MANNERS.items() if form is Form.FREE else [("", "")]:
            found.append(
                GatePrompt(
                    name=f"{entry['name']}{letter}",
                    messages=({"role": "user", "content": f"{content}{manner}"},),
                    form=form,
                    schema=entry.get("schema"),
                )
            )
    return tuple(found)


def with_own(own: Iterable[GatePrompt]) -> tuple[GatePrompt, ...]:
    """The user's prompts in place of the shipped free ones; the shipped ones of a demanded form stay."""
    kept = tuple(own)[:MOST_OWN_PROMPTS]
    return (*kept, *(prompt for prompt in shipped_prompts() if prompt.form.constrained))


def _ledger(lines: int) -> str:
    """A list that is long and different in each line, made by rule so that it need not be stored."""
    return "\n".join(
        f"Entry {number}: shelf {number * 7 % 43 + 1} holds {number * 31 % 97 + 3} {_LEDGER[number % len(_LEDGER)]}."
        for number in range(1, lines + 1)
    )

"""The user's own requests: a file of JSON lines, each with a prompt or messages, and how long its answer was.

Refusals, an InputError each, name the line and the field, never what stands there: prompts are their owner's business.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from breakeven.errors import InputError
from breakeven.intake import file_text
from breakeven.load_driver.lengths import MOST_TOKENS, digest

_EXPECTED = 'JSON lines such as {"prompt": "...", "output_tokens": 120}'
# Text, lines and requests are in memory together: several times this, in a driver that may use 512 MiB.
_MOST_BYTES = 32 * 2**20
_MOST_REQUESTS = 100_000


Prompt: TypeAlias = str | tuple[dict[str, str], ...]
"""The content of one request: text, or the messages of a conversation, as `/v1/chat/completions` takes them."""


@dataclass(frozen=True, slots=True)
class RecordedRequest:
    """One line of a dataset; its prompt is never shown.

    Attributes:
        output_tokens: how long the answer is; None if the line names no length.
        category: of its text, such as `coding`; None if the line names none.
    """

    prompt: Prompt
    output_tokens: int | None = None
    category: str | None = None


@dataclass(frozen=True, slots=True)
class Dataset:
    """Requests of a file, in its order; at least one.

    Attributes:
        name: name of the file, as points and profile call it.
        digest: eight hexadecimal digits of the file's content; another file is another sweep.
    """

    requests: tuple[RecordedRequest, ...]
    name: str
    digest: str

    def __repr__(self) -> str:
        """Name and size; no prompt may end in a log by way of a traceback."""
        return f"Dataset({self.name!r}, {len(self.requests)} requests)"


def read_dataset(path: Path, name: str | None = None, category: str | None = None) -> Dataset:
    """Read a file of JSON lines, of at most 32 MiB and 100,000 requests; points call it by the name, or by the file's own.

    With a category, as SPEED-Bench's files name it, only lines of it count.
    """
    if path.exists() and path.stat().st_size > _MOST_BYTES:
        raise InputError(str(path), "more than 32 MiB", f"a smaller sample of {_EXPECTED}")
    return dataset_of(file_text(path, _EXPECTED), str(path), name or path.stem, category)


def dataset_of(text: str, where: str, name: str, category: str | None = None) -> Dataset:
    """Read the content of such a file; blank lines do not count. `where` is its name in refusals, `name` in points."""
    lines = [(number, line) for number, line in enumerate(text.split("\n"), start=1) if line.strip()]
    if not lines:
        raise InputError(where, "no request", _EXPECTED)
    if len(lines) > _MOST_REQUESTS:
        raise InputError(where, f"{len(lines)} requests", f"at most {_MOST_REQUESTS}")
    read = [_request(line, f"{where}: line {number}") for number, line in lines]
    if category is None:
        return Dataset(tuple(read), name, digest(text))
    kept = tuple(one for one in read if one.category == category)
    if not kept:
        others = len({one.category for one in read if one.category is not None})
        raise InputError(
            where, f"no request of category {category!r}", f"one of the {others} that its lines name"
        )
    return Dataset(kept, f"{name} {category}", digest(category, text))


def _request(line: str, where: str) -> RecordedRequest:
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        raise InputError(where, "not JSON", _EXPECTED) from None
    if not isinstance(found, dict):
        raise InputError(where, "no object", _EXPECTED)
    prompt, messages = found.get("prompt"), found.get("messages")
    if (prompt is None) == (messages is None):
        what = "neither prompt nor messages" if prompt is None else "both prompt and messages"
        raise InputError(where, what, "one of the two")
    asked = _text(prompt, f"{where}, prompt") if messages is None else _chat(messages, f"{where}, messages")
    category = found.get("category")
    if category is not None and not isinstance(category, str):
        raise InputError(f"{where}, category", "no text", "a name such as coding")
    tokens = found.get("output_tokens")
    if tokens is not None and (type(tokens) is not int or not 1 <= tokens <= MOST_TOKENS):
        expected = f"a whole number from 1 to {MOST_TOKENS}"
        raise InputError(f"{where}, output_tokens", "no number of tokens", expected)
    return RecordedRequest(asked, tokens, category)


def _chat(messages: Any, where: str) -> Prompt:
    if not isinstance(messages, list) or not messages:
        raise InputError(where, "no list of messages", 'such as [{"role": "user", "content": "..."}]')
    found = []
    for position, message in enumerate(messages):
        here = f"{where}[{position}]"
        if not isinstance(message, dict):
            raise InputError(here, "no object", "a message with role and content")
        found.append({key: _text(message.get(key), f"{here}.{key}") for key in ("role", "content")})
    return tuple(found)


def _text(value: Any, where: str) -> str:
    if not isinstance(value, str) or not value.strip():
        raise InputError(where, "no text", "a text that is not blank")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise InputError(where, "half a surrogate pair", "text that UTF-8 can hold") from None
    return value

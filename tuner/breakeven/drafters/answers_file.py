"""Finished answers out of logs that people have: pairs of prompt and answer as token ids, from ids or from texts and a tokenizer.

A refusal names line and field, never what stands there: prompts and answers are their owner's business.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from breakeven.errors import InputError
from breakeven.intake import file_text, json_value, kind_of, package

_EXPECTED = "JSON lines with prompt and answer (OpenAI, LiteLLM or Langfuse), vLLM's log at DEBUG, or parquet"
_CHOICE = ("choices", 0)
# Ids before texts: they need no tokenizer, and are what the engine saw.
_PROMPTS: tuple[tuple[str | int, ...], ...] = (
    ("prompt_token_ids",),
    (*_CHOICE, "prompt_token_ids"),
    ("response", *_CHOICE, "prompt_token_ids"),
    ("messages",),
    ("request", "messages"),
    ("body", "messages"),
    ("input", "messages"),
    ("prompt",),
    ("request", "prompt"),
    ("input",),
)
_ANSWERS: tuple[tuple[str | int, ...], ...] = (
    ("output_token_ids",),
    ("token_ids",),
    (*_CHOICE, "token_ids"),
    ("response", *_CHOICE, "token_ids"),
    (*_CHOICE, "message"),
    (*_CHOICE, "text"),
    ("response", *_CHOICE, "message"),
    ("response", *_CHOICE, "text"),
    ("response", "body", *_CHOICE, "message"),
    ("output", *_CHOICE, "message"),
    ("response",),
    ("completion",),
    ("output",),
    ("answer",),
)
_ASKED = re.compile(r"Request (\S+) details: .*prompt_token_ids: \[([0-9, ]*)\], prompt_embeds")
_GENERATED = re.compile(
    r"Generated response (\S+)(?: \(streaming (delta|complete)\))? details: output_token_ids: [\[(]([0-9, ]*)[\])]"
)

Said = str | list[int] | list[dict[str, Any]]
"""Text, token ids, or the messages of a conversation."""
_Row = tuple[str, Said, Said | None, str]
"""Its place, the prompt, the answer if it has one (a request that failed has none), and its group."""


@dataclass(frozen=True, slots=True)
class FinishedAnswer:
    """One finished answer as token ids, and the value of the column that groups answers; neither is ever shown as text."""

    prompt: tuple[int, ...]
    tokens: tuple[int, ...]
    group: str = ""

    def __repr__(self) -> str:
        """Sizes alone: no answer may end in a log by way of a traceback."""
        return f"FinishedAnswer({len(self.prompt)} + {len(self.tokens)} tokens)"


def read_answers(
    path: Path, tokenizer: Path | None = None, by: str | None = None
) -> tuple[list[FinishedAnswer], int]:
    """The answers of a file in its order, of two tokens and more; and how many rows had none.

    Args:
        path: JSON lines or a JSON list, vLLM's log at DEBUG, or parquet (needs pyarrow).
        tokenizer: folder of the model's tokenizer; needed where the file has texts (needs transformers).
        by: column whose value groups answers.

    Raises:
        InputError: no such answers, a line that is none, texts without a tokenizer, or a package that is not installed.
    """
    encode = _encoder(tokenizer)
    found, left_out = [], 0
    for where, asked, answered, group in _pairs(path, by):
        tokens = () if answered is None else encode(answered, where, False)
        # The first token comes of the prompt's step: a lone one has no step that could be sped up.
        if len(tokens) > 1:
            found.append(FinishedAnswer(encode(asked, where, True), tokens, group))
        else:
            left_out += 1
    if not found:
        raise InputError(str(path), "no answer of two tokens and more", _EXPECTED)
    return found, left_out


def _pairs(path: Path, by: str | None) -> Iterator[_Row]:
    if path.suffix == ".parquet":
        rows = package("pyarrow.parquet", "a parquet file").read_table(path).to_pylist()
        yield from (_pair(row, f"{path}: row {number}", by) for number, row in enumerate(rows, start=1))
        return
    text = file_text(path, _EXPECTED)
    begin = text.lstrip()[:1]
    if begin not in ("[", "{") and "details: output_token_ids: " in text:
        yield from _logged(text, str(path))
    elif begin == "[":
        rows = json_value(text, str(path), _EXPECTED)
        yield from (_pair(row, f"{path}: item {number}", by) for number, row in enumerate(rows, start=1))
    else:
        lines = ((number, line) for number, line in enumerate(text.split("\n"), start=1) if line.strip())
        for number, line in lines:
            where = f"{path}: line {number}"
            try:
                row = json.loads(line)
            except (ValueError, RecursionError):
                raise InputError(where, "not JSON", _EXPECTED) from None
            yield _pair(row, where, by)


def _logged(text: str, where: str) -> Iterator[_Row]:
    """Requests of vLLM's log whose answer is whole in it, by the lines that `--enable-log-requests --enable-log-outputs` write."""
    asked = {found[1]: _ids(found[2]) for found in _ASKED.finditer(text)}
    answered: dict[str, list[int]] = {}
    for found in _GENERATED.finditer(text):
        pieces = answered.get(found[1], []) if found[2] == "delta" else []
        answered[found[1]] = pieces + _ids(found[3])
    for name, tokens in answered.items():
        if name in asked:
            yield where, asked[name], tokens, ""


def _ids(text: str) -> list[int]:
    return [int(one) for one in text.split(",") if one.strip()]


def _pair(row: Any, where: str, by: str | None) -> _Row:
    if not isinstance(row, Mapping):
        raise InputError(where, kind_of(row), f"an object: {_EXPECTED}")
    asked, answered = (_first(row, places) for places in (_PROMPTS, _ANSWERS))
    # A record for fine-tuning has the answer as the last message.
    if answered is None and _is_chat(asked) and asked[-1].get("role") == "assistant":
        asked, answered = asked[:-1], asked[-1]
    if _is_chat(answered):
        answered = answered[-1]
    if asked is None:
        raise InputError(where, "no prompt", "prompt, messages or input")
    named = None if by is None else _first(row, (tuple(by.split(".")), ("metadata", *by.split("."))))
    if isinstance(named, Mapping | list):
        raise InputError(where, f"{by} is {kind_of(named)}", "a text, a number or a boolean to group by")
    # What is no Unicode is no JSON document either.
    group = "" if by is None else "-" if named is None else str(named).encode(errors="replace").decode()[:80]
    said = None if answered is None else _said(answered, f"{where}, answer")
    return where, _said(asked, f"{where}, prompt"), said, group


def _first(row: Any, places: Sequence[tuple[str | int, ...]]) -> Any:
    """The value at the first of some places that has one, neither null nor empty."""
    for place in places:
        value: Any = row
        for step in place:
            value = _unpacked(value)
            if isinstance(step, int):
                value = value[step] if isinstance(value, list) and len(value) > step else None
            else:
                value = value.get(step) if isinstance(value, Mapping) else None
        if value is not None and value not in ("", [], {}):
            found = _unpacked(value)
            # An answer in JSON is a text. A message, a conversation or token ids in JSON are what an export made of them.
            is_message = isinstance(found, Mapping) and "role" in found
            return found if is_message or _is_chat(found) or str(place[-1]).endswith("token_ids") else value
    return None


def _unpacked(value: Any) -> Any:
    """What a text holds that is JSON of an object or a list, as columns of exported tables are; anything else as it is."""
    if not isinstance(value, str) or value.lstrip()[:1] not in ("{", "["):
        return value
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        return value


TEXT_COLUMNS = frozenset(place[0] for place in (*_PROMPTS, *_ANSWERS))
"""Columns that hold somebody's words: no group is named by them."""


def _is_chat(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(one, Mapping) and "role" in one for one in value)


def _said(value: Any, where: str) -> Said:
    if isinstance(value, Mapping):
        # An answer that only calls a tool has no text.
        value = "" if value.get("content") is None and value.get("tool_calls") else value.get("content")
    if (
        isinstance(value, list)
        and value
        and all(isinstance(one, Mapping) and isinstance(one.get("text"), str) for one in value)
    ):
        value = "".join(one["text"] for one in value)
    said: Said = value
    if isinstance(value, str) or _is_chat(value):
        return said
    if isinstance(value, list) and all(type(one) is int and one >= 0 for one in value):
        return said
    raise InputError(where, kind_of(value), "a text, token ids, or messages with role and content")


def _encoder(tokenizer: Path | None) -> Callable[[Said, str, bool], tuple[int, ...]]:
    """Token ids of what was said; a conversation by the chat template, up to where the answer begins."""
    coder: Any = None

    def encode(said: Said, where: str, is_prompt: bool) -> tuple[int, ...]:
        nonlocal coder
        if not isinstance(said, str) and not _is_chat(said):
            return tuple(said)  # type: ignore[arg-type]
        if tokenizer is None:
            raise InputError(
                where, "text", "token ids, or --tokenizer with the folder of the model's tokenizer"
            )
        if coder is None:
            transformers = package("transformers", "text")
            try:
                coder = transformers.AutoTokenizer.from_pretrained(str(tokenizer), local_files_only=True)
            except (ImportError, OSError, ValueError):
                expected = "the folder of a tokenizer (tokenizer.json)"
                raise InputError(str(tokenizer), "no tokenizer that transformers reads", expected) from None
        if isinstance(said, str):
            return tuple(coder(said, add_special_tokens=is_prompt)["input_ids"])
        try:
            text = coder.apply_chat_template(said, tokenize=False, add_generation_prompt=True)
        except Exception as error:  # noqa: BLE001 - templates are programs of the model's maker and raise what they like
            raise InputError(
                where, f"{type(error).__name__} of the chat template", "messages that it takes"
            ) from None
        return tuple(coder(text, add_special_tokens=False)["input_ids"])

    return encode


def renumbered(answers: Sequence[FinishedAnswer]) -> Iterator[str]:
    """The answers as JSON lines of other token ids, in order of first use: look-ups draft the same, and no tokenizer reads them."""
    numbers: dict[int, int] = {}
    for answer in answers:
        ids = [
            [numbers.setdefault(token, len(numbers)) for token in part]
            for part in (answer.prompt, answer.tokens)
        ]
        yield json.dumps({"prompt_token_ids": ids[0], "output_token_ids": ids[1]}) + "\n"

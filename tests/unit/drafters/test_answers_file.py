"""Logs that people have, and the line that refuses what is none."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from breakeven.drafters import answers_file
from breakeven.drafters.answers_file import FinishedAnswer, read_answers, renumbered
from breakeven.errors import InputError
from breakeven.intake import package

_CHAT = [{"role": "user", "content": "ab"}]
_SAID = {"role": "assistant", "content": "cde"}
_TEXTS: list[dict[str, Any]] = [
    {"messages": [*_CHAT, _SAID]},
    {"messages": _CHAT, "response": {"choices": [{"message": _SAID}]}},
    {"request": {"messages": _CHAT}, "response": {"body": {"choices": [{"message": _SAID}]}}},
    {"input": {"messages": _CHAT}, "output": _SAID},
    {"input": _CHAT, "output": "cde"},
    {"prompt": "ab", "completion": "cde"},
    {"prompt": "ab", "choices": [{"text": "cde"}]},
]
# Columns of exported tables hold objects as JSON.
_TEXTS += [
    {name: value if isinstance(value, str) else json.dumps(value) for name, value in row.items()}
    for row in _TEXTS
]


class _Letters:
    """A tokenizer of letters, in place of one of transformers; the real one reads texts in tests/realvllm."""

    @classmethod
    def from_pretrained(cls, folder: str, *, local_files_only: bool) -> _Letters:
        assert local_files_only
        if folder == "nothing":
            raise OSError
        return cls()

    def __call__(self, text: str, *, add_special_tokens: bool) -> dict[str, list[int]]:
        del add_special_tokens
        return {"input_ids": [ord(letter) - 97 for letter in text]}

    def apply_chat_template(self, messages: list[dict[str, str]], **_: Any) -> str:
        return "".join(one["content"] for one in messages)


@pytest.fixture
def letters(monkeypatch: pytest.MonkeyPatch) -> None:
    class Transformers:
        AutoTokenizer = _Letters

    monkeypatch.setattr(answers_file, "package", lambda _name, _what: Transformers)


def _read(tmp_path: Path, *rows: Any, **options: Any) -> list[FinishedAnswer]:
    path = tmp_path / "answers.jsonl"
    path.write_text("\n".join(json.dumps(row) for row in rows), encoding="utf-8")
    return read_answers(path, **options)[0]


@pytest.mark.usefixtures("letters")
@pytest.mark.parametrize("row", _TEXTS, ids="+".join)
def test_each_tools_record_has_the_same_tokens(tmp_path: Path, row: dict[str, Any]) -> None:
    assert _read(tmp_path, row, tokenizer=Path("model")) == [FinishedAnswer((0, 1), (2, 3, 4))]


def test_token_ids_need_no_tokenizer_and_come_before_texts(tmp_path: Path) -> None:
    rows = [
        {"prompt_token_ids": [5, 6], "output_token_ids": [7, 8], "task": "code"},
        {"prompt": "x", "choices": [{"prompt_token_ids": [5, 6], "token_ids": [7, 8], "text": "y"}]},
        {"prompt_token_ids": [5, 6], "output_token_ids": [7, 8], "metadata": {"task": 3}},
        {"prompt_token_ids": [5, 6], "output_token_ids": [7]},
    ]
    found = _read(tmp_path, *rows, by="task")
    assert found == [FinishedAnswer((5, 6), (7, 8), group) for group in ("code", "-", "3")]
    (tmp_path / "list.json").write_text(json.dumps(rows), encoding="utf-8")
    assert read_answers(tmp_path / "list.json", by="task") == (found, 1)


@pytest.mark.usefixtures("letters")
def test_an_answer_in_json_is_a_text_and_exported_token_ids_are_ids(tmp_path: Path) -> None:
    rows = [
        {"prompt": "ab", "output": '{"content": "c"}'},
        {"prompt": "ab", "output": "[3, 4]"},
        {"prompt_token_ids": "[0, 1]", "output_token_ids": "[3, 4]", "metadata": '{"task": "code"}'},
    ]
    found = _read(tmp_path, *rows, tokenizer=Path("model"), by="task")
    assert [len(one.tokens) for one in found] == [16, 6, 2]
    assert found[2] == FinishedAnswer((0, 1), (3, 4), "code")


def test_vllms_log_gives_whole_answers(tmp_path: Path) -> None:
    path = tmp_path / "vllm.log"
    path.write_text(
        "DEBUG [request_logger.py:52] Request cmpl-1 details: prompt: 'a', prompt_token_ids: [1, 2], prompt_embeds shape: None.\n"
        "DEBUG [request_logger.py:101] Generated response cmpl-1 details: output_token_ids: [3, 4]\n"
        "DEBUG Request cmpl-2 details: prompt: None, prompt_token_ids: [1], prompt_embeds shape: None.\n"
        "DEBUG Generated response cmpl-2 (streaming delta) details: output_token_ids: [5]\n"
        "DEBUG Generated response cmpl-2 (streaming delta) details: output_token_ids: (6, 7)\n"
        "DEBUG Generated response cmpl-2 (streaming complete) details: output_token_ids: None\n"
        "DEBUG Generated response cmpl-3 details: output_token_ids: [9, 9]\n",
        encoding="utf-8",
    )
    assert read_answers(path) == ([FinishedAnswer((1, 2), (3, 4)), FinishedAnswer((1,), (5, 6, 7))], 0)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("{", "answers.jsonl: line 1: not JSON; expected"),
        ("3", "line 1: 3; expected an object"),
        ('{"prompt": "secret"}', "no answer of two tokens and more"),
        ('{"prompt": "secret", "output": "secret", "task": {"secret": 1}}', "task is an object"),
        ('{"output": "secret"}', "line 1: no prompt; expected"),
        (
            '{"prompt": "secret", "output": "secret"}',
            "line 1: text; expected token ids, or --tokenizer",
        ),
        ('{"prompt": [1, -2], "output": [1, 2]}', "line 1, prompt: a list; expected a text, token ids"),
        ('{"prompt_token_ids": [1], "output_token_ids": [2]}', "no answer of two tokens and more"),
        ("", "no answer of two tokens and more"),
    ],
)
def test_a_refusal_names_the_line_and_no_text(tmp_path: Path, text: str, line: str) -> None:
    path = tmp_path / "answers.jsonl"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(InputError) as refused:
        read_answers(path, by="task")
    assert line in str(refused.value)
    assert "secret" not in str(refused.value)


@pytest.mark.usefixtures("letters")
def test_a_folder_without_a_tokenizer_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="nothing: no tokenizer that transformers reads"):
        _read(tmp_path, {"prompt": "ab", "completion": "cd"}, tokenizer=Path("nothing"))


def test_a_package_that_is_not_installed_is_named() -> None:
    with pytest.raises(
        InputError, match="needs no_such_package, which is not installed; expected pip install"
    ):
        package("no_such_package.part", "a file")


def test_renumbered_answers_have_the_same_repetitions_and_no_token_id_of_a_model() -> None:
    lines = [
        json.loads(line)
        for line in renumbered([FinishedAnswer((900, 7), (900, 8)), FinishedAnswer((8,), (7, 7))])
    ]
    assert lines == [
        {"prompt_token_ids": [0, 1], "output_token_ids": [0, 2]},
        {"prompt_token_ids": [2], "output_token_ids": [1, 1]},
    ]


def test_a_request_that_failed_or_only_called_a_tool_is_left_out_and_counted(tmp_path: Path) -> None:
    good = {"prompt_token_ids": [5], "output_token_ids": [7, 8], "task": 0}
    failed = {"messages": [{"role": "user", "content": "a"}], "response": None}
    path = tmp_path / "answers.jsonl"
    path.write_text("\n".join(json.dumps(row) for row in (good, failed)), encoding="utf-8")
    assert read_answers(path, by="task") == ([FinishedAnswer((5,), (7, 8), "0")], 1)


@pytest.mark.usefixtures("letters")
@pytest.mark.parametrize(
    ("output", "tokens"),
    [
        ([{"role": "assistant", "content": "cde"}], (2, 3, 4)),
        (
            {"role": "assistant", "content": [{"type": "text", "text": "cd"}, {"type": "text", "text": "e"}]},
            (2, 3, 4),
        ),
    ],
)
def test_an_answer_of_parts_is_its_text_without_the_template(
    tmp_path: Path, output: Any, tokens: tuple[int, ...]
) -> None:
    assert _read(tmp_path, {"input": "ab", "output": output}, tokenizer=Path("m")) == [
        FinishedAnswer((0, 1), tokens)
    ]


@pytest.mark.usefixtures("letters")
def test_a_tool_call_has_no_text(tmp_path: Path) -> None:
    called = {"role": "assistant", "content": None, "tool_calls": [{"id": "1"}]}
    path = tmp_path / "answers.jsonl"
    path.write_text(
        json.dumps({"input": "ab", "output": called}) + "\n" + json.dumps(_TEXTS[5]), encoding="utf-8"
    )
    assert read_answers(path, Path("m")) == ([FinishedAnswer((0, 1), (2, 3, 4))], 1)

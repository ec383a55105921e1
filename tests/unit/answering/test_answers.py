"""Requests, answers and judgements: what is read, what is refused, and that nothing of them is shown."""

from __future__ import annotations

import gzip
import json
import tracemalloc

import pytest

from breakeven.answering.answer import AnswerSet, Flaw, GivenAnswer, JudgementError, flaw_of, judged_answer
from breakeven.answering.prompt_set import Form, GatePrompt, shipped_prompts, with_own
from breakeven.errors import InputError

ANSWER = GivenAnswer("code-1", Form.FREE, True, (11, 12), (21, 22, 23), "length")
JSON = next(prompt for prompt in shipped_prompts() if prompt.form is Form.JSON)
FREE = shipped_prompts()[0]


def entry(token: int, logprob: float, rank: int) -> dict[str, object]:
    return {str(token): {"logprob": logprob, "rank": rank, "decoded_token": " x"}}


def kind(prompt: GatePrompt) -> str:
    return prompt.name.rsplit("-", 1)[0]


def test_the_shipped_set_is_small_and_of_every_kind():
    prompts = shipped_prompts()
    assert {kind(prompt) for prompt in prompts} == {
        "prose",
        "code",
        "language",
        "copy",
        "long",
        "json",
        "tool",
    }
    assert len({prompt.name for prompt in prompts}) == len(prompts)
    # Six faults are significant: a tenth of so many are nine.
    assert sum(prompt.form is Form.FREE for prompt in prompts) == 93
    lengths = [len(prompt.messages[0]["content"]) for prompt in prompts if prompt.messages]
    assert 2000 < max(lengths) < 6000
    assert sum(lengths) < 80_000


def test_own_prompts_stand_in_for_the_free_ones_alone():
    own = [GatePrompt(f"own-{n}", text="secret") for n in range(120)]
    found = with_own(own)
    assert len([prompt for prompt in found if kind(prompt) == "own"]) == 93
    assert {kind(prompt) for prompt in found[93:]} == {"json", "tool"}


def test_nothing_of_prompt_and_answer_is_shown():
    assert "secret" not in repr(GatePrompt("own-1", text="secret"))
    assert "21" not in repr(ANSWER)
    assert "21" not in repr(AnswerSet("none", (ANSWER,)))


def test_answers_come_back_from_their_file():
    given = AnswerSet("ngram/4", (ANSWER,), 2)
    assert AnswerSet.unpacked(given.packed(), "file") == given
    assert given.packed() == given.packed()


@pytest.mark.parametrize(
    "data",
    [b"", b"text", b"{", b'{"arm": "secret", "answers": [3]}'],
    ids=["none", "text", "broken", "other"],
)
@pytest.mark.parametrize("pack", [bytes, gzip.compress], ids=["plain", "packed"])
def test_another_file_is_refused_in_one_line_without_its_content(data, pack):
    with pytest.raises(InputError) as refused:
        AnswerSet.unpacked(pack(data), "none.json.gz")
    assert str(refused.value).startswith("none.json.gz")
    assert "secret" not in str(refused.value)


def test_a_judgement_has_the_gap_of_each_token_of_the_answer():
    field = [
        None,
        entry(12, -9.0, 40) | entry(5, -0.5, 1),
        entry(21, -0.25, 1),
        entry(22, -1.0, 2) | entry(9, -0.875, 1),
        entry(23, -22.0, 12_458) | entry(9, -0.25, 1),
    ]
    found = judged_answer(ANSWER, json.loads(json.dumps(field)))
    assert found.gaps == pytest.approx((0.0, 0.125, 21.75))
    assert found.widest_gap == pytest.approx(21.75)
    assert found.first_beyond(1.0) == 2


@pytest.mark.parametrize(
    "field",
    [
        None,
        [],
        [None] * 4,
        [None] * 5,
        [None, {}, entry(21, 0.0, 1), entry(99, 0.0, 1), entry(23, 0.0, 1)],
        [None, {}, entry(21, 0.0, 1), {"22": {"logprob": None, "rank": 1}}, entry(23, 0.0, 1)],
        [None, {}, entry(21, 0.0, 1), {"22": {"logprob": -1.0}}, entry(23, 0.0, 1)],
        [None, {}, entry(21, 0.0, 1), {"22": 3}, entry(23, 0.0, 1)],
    ],
)
def test_a_field_that_is_no_judgement_is_refused(field):
    with pytest.raises(JudgementError, match="code-1"):
        judged_answer(ANSWER, field)


@pytest.mark.parametrize(
    ("prompt", "text", "tokens", "reason", "flaw"),
    [
        (FREE, "some words", range(200), "length", None),
        (FREE, " \n", (5,), "stop", Flaw.EMPTY),
        (FREE, "la la", (1, 2, 3) * 30, "length", Flaw.LOOPING),
        (FREE, "short", (1, 1, 1), "stop", None),
        (JSON, '{"title": "A", "author": "B", "year": 3}', range(9), "stop", None),
        (JSON, '{"title": "A", "author": "B", "year": "3"}', range(9), "stop", Flaw.INVALID),
        (JSON, '{"title": "A", "author": "B"}', range(9), "stop", Flaw.INVALID),
        (JSON, '{"title": "A", "auth', range(9), "stop", Flaw.INVALID),
        (JSON, '{"title": "A", "auth', range(9), "length", None),
        (JSON, "[1]", range(9), "stop", Flaw.INVALID),
        (JSON, None, range(9), "tool_calls", Flaw.INVALID),
    ],
)
def test_flaws_are_what_no_sound_answer_has(prompt, text, tokens, reason, flaw):
    assert flaw_of(prompt, text, tuple(tokens), reason) is flaw


def test_a_small_file_that_unpacks_to_a_large_one_is_refused_before_it_does():
    bomb = gzip.compress(b" " * (64 * 2**20))
    tracemalloc.start()
    with pytest.raises(InputError, match=r"no compressed JSON"):
        AnswerSet.unpacked(bomb, "none.answers")
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 48 * 2**20

"""The user's own requests: what a line may say, and refusals that show no prompt."""

from __future__ import annotations

import json

import pytest

from breakeven.errors import InputError
from breakeven.load_driver.dataset import dataset_of, read_dataset
from breakeven.load_driver.sent_workload import DatasetRequests, SentWorkload

SECRET = "xyzzy-not-for-logs"


def test_a_line_is_a_prompt_or_a_conversation_with_the_length_of_its_answer(tmp_path):
    file = tmp_path / "support.jsonl"
    lines = [
        {"prompt": "one", "output_tokens": 30, "colour": "red"},
        {"messages": [{"role": "system", "content": "be brief"}, {"role": "user", "content": "two"}]},
    ]
    file.write_text("\n".join(map(json.dumps, lines)) + "\n\n")
    found = read_dataset(file)
    assert found.name == "support"
    assert [one.output_tokens for one in found.requests] == [30, None]
    assert found.requests[0].prompt == "one"
    assert found.requests[1].prompt == (
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": "two"},
    )


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("{", "not JSON"),
        ("[" * 100_000, "not JSON"),
        (f'"{SECRET}"', "no object"),
        ("{}", "neither prompt nor messages; expected one of the two"),
        (f'{{"prompt": "{SECRET}", "messages": []}}', "both prompt and messages"),
        ('{"prompt": "  "}', "prompt: no text; expected a text that is not blank"),
        (f'{{"prompt": ["{SECRET}"]}}', "prompt: no text"),
        ('{"prompt": "\\ud800"}', "half a surrogate pair"),
        ('{"messages": []}', "messages: no list of messages"),
        (f'{{"messages": ["{SECRET}"]}}', "messages[0]: no object"),
        (f'{{"messages": [{{"role": "user", "text": "{SECRET}"}}]}}', "messages[0].content: no text"),
        (f'{{"prompt": "{SECRET}", "output_tokens": "{SECRET}"}}', "output_tokens: no number of tokens"),
        (f'{{"prompt": "{SECRET}", "output_tokens": true}}', "output_tokens: no number of tokens"),
        (f'{{"prompt": "{SECRET}", "output_tokens": 0}}', "a whole number from 1 to 1048576"),
        (f'{{"prompt": "{SECRET}", "output_tokens": 1e3}}', "no number of tokens"),
    ],
)
def test_a_line_that_is_no_request_is_named_and_never_shown(line, said):
    with pytest.raises(InputError) as refused:
        dataset_of(f'{{"prompt": "fine"}}\n{line}\n', "d.jsonl", "d")
    text = str(refused.value)
    assert text.startswith("d.jsonl: line 2")
    assert said in text
    assert "\n" not in text
    assert SECRET not in text


SPEED_BENCH = "\n".join(
    json.dumps({"category": category, "messages": [{"role": "user", "content": f"{SECRET} {n}"}]})
    for n, category in enumerate(["coding", "math", "coding", "writing"])
)


def test_the_lines_of_one_category_are_a_dataset_of_their_own():
    whole, coding, maths = (dataset_of(SPEED_BENCH, "q.jsonl", "q", one) for one in (None, "coding", "math"))
    assert [len(one.requests) for one in (whole, coding, maths)] == [4, 2, 1]
    assert (whole.name, coding.name) == ("q", "q coding")
    assert len({whole.digest, coding.digest, maths.digest}) == 3


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (SPEED_BENCH, "no request of category 'maths'; expected one of the 3 that its lines name"),
        ('{"prompt": "a", "category": 3}', "line 1, category: no text"),
    ],
)
def test_a_category_that_is_not_there_or_is_no_name_is_one_line_without_a_prompt(text, said):
    with pytest.raises(InputError) as refused:
        dataset_of(text, "q.jsonl", "q", "maths")
    assert said in str(refused.value)
    assert SECRET not in str(refused.value)


def test_a_file_without_a_request_or_with_too_many_is_refused():
    with pytest.raises(InputError, match="no request"):
        dataset_of("\n \n", "d.jsonl", "d")
    with pytest.raises(InputError, match="100001 requests; expected at most 100000"):
        dataset_of('{"prompt": "a"}\n' * 100_001, "d.jsonl", "d")


def test_a_file_too_large_for_the_drivers_memory_is_refused_unread(tmp_path):
    file = tmp_path / "huge.jsonl"
    with file.open("wb") as target:
        target.truncate(32 * 2**20 + 1)
    with pytest.raises(InputError, match="more than 32 MiB"):
        read_dataset(file)


def test_what_python_prints_of_a_dataset_holds_no_prompt():
    dataset = dataset_of(json.dumps({"prompt": SECRET}), "d.jsonl", "d")
    assert (
        SECRET
        not in repr(dataset) + repr(SentWorkload(dataset=dataset)) + SentWorkload(dataset=dataset).identity
    )


def test_every_stretch_of_requests_has_short_and_long_answers_in_the_files_shares():
    """Left in the file's order, the first point would see the short half and the second the long one."""
    lengths = [20] * 100 + [400] * 100
    text = "\n".join(json.dumps({"prompt": f"p{n}", "output_tokens": g}) for n, g in enumerate(lengths))
    dataset = dataset_of(text, "d.jsonl", "d")
    drawn = SentWorkload(dataset=dataset).answers()
    for point in range(1, 9):
        outputs = [drawn.pair(point * 1_000_000 + number).output_tokens for number in range(100)]
        assert sum(outputs) / 100 == pytest.approx(210, rel=0.05)
    assert sorted(set(drawn.outputs())) == [20, 400]


def test_prompt_and_answer_of_one_request_are_of_one_line_and_all_lines_come_up():
    text = "\n".join(json.dumps({"prompt": str(g), "output_tokens": g}) for g in range(10, 60))
    workload = SentWorkload(dataset=dataset_of(text, "d.jsonl", "d"))
    prompts, answers = workload.prompts(), workload.answers()
    assert isinstance(prompts, DatasetRequests)
    assert all(prompts.prompt(index) == str(answers.pair(index).output_tokens) for index in range(200))
    assert {prompts.prompt(index) for index in range(200)} == {str(g) for g in range(10, 60)}


def test_another_file_is_another_sweep_and_the_default_one_is_what_it_was():
    one, two = (dataset_of(json.dumps({"prompt": text}), "d.jsonl", "d") for text in ("a", "b"))
    assert SentWorkload(dataset=one).identity != SentWorkload(dataset=two).identity
    assert SentWorkload().identity == "p256-g128-s0"
    assert SentWorkload(dataset=one).text == "d"
    assert SentWorkload().text == "synthetic text"
    assert SentWorkload(label="synthetic acceptance").text == "synthetic acceptance"


def test_a_dataset_beside_another_text_is_refused():
    dataset = dataset_of('{"prompt": "a"}', "d.jsonl", "d")
    with pytest.raises(InputError, match="a dataset alone"):
        SentWorkload(dataset=dataset, prefix_share=0.5)

"""Differences between the real and the simulated engine: which count, and which do not."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from real import model
from real.likeness import answer_differences, asked_of, flag_differences, page_differences

ANSWERS = json.loads((Path(__file__).parents[2] / "engine" / "vllm_0_32_answers.json").read_text())
PAGE = """# HELP vllm:num_requests_running In batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="chat"} 0.0
# HELP vllm:iteration_tokens Per step.
# TYPE vllm:iteration_tokens histogram
vllm:iteration_tokens_bucket{engine="0",le="1.0",model_name="chat"} 3.0
vllm:iteration_tokens_bucket{engine="0",le="+Inf",model_name="chat"} 4.0
vllm:iteration_tokens_count{engine="0",model_name="chat"} 4.0
vllm:iteration_tokens_sum{engine="0",model_name="chat"} 9.0
"""


def answer(**changes):
    text = '{"id":"cmpl-1","created":5,"choices":[{"text":" a market"}],"usage":{"total_tokens":7}}'
    return {
        "method": "POST", "path": "/v1/completions", "json": {"prompt": "x"}, "status": 200,
        "type": "application/json", "text": text,
    } | changes  # fmt: skip


def test_counts_are_no_difference():
    assert page_differences(PAGE, PAGE.replace(" 9.0", " 12.0")) == []


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("num_requests_running", "num_requests_active", "vllm has it"),
        ("gauge", "counter", "vllm:num_requests_running"),
        ('engine="0",model_name', 'engine="0",rank="0",model_name', "labels"),
        ('le="1.0"', 'le="2.0"', "2.0 +Inf"),
    ],
)
def test_names_types_labels_and_buckets_are(old, new, words):
    differences = page_differences(PAGE, PAGE.replace(old, new))
    assert differences
    assert words.lower() in " ".join(differences).lower()


def test_identifiers_times_and_words_are_no_difference():
    other = answer(text='{"id":"cmpl-2","created":9,"choices":[{"text":" b"}],"usage":{"total_tokens":7}}')
    assert answer_differences([answer()], [other]) == []


@pytest.mark.parametrize(
    "changes",
    [
        {"status": 400},
        {"type": "text/plain"},
        {"text": '{"id":"cmpl-1","created":5,"choices":[{"text":"w"}],"usage":{"total_tokens":8}}'},
        {"text": '{"id":"cmpl-1","created":5,"choices":[{"text":""}],"usage":{"total_tokens":7}}'},
    ],
)
def test_status_kind_counts_and_an_answer_without_words_are(changes):
    (line,) = answer_differences([answer()], [answer(**changes)])
    assert line.startswith("POST /v1/completions")


def stream(*pieces):
    events = [f'{{"choices":[{{"text":"{words}","finish_reason":{reason}}}]}}' for words, reason in pieces]
    return "".join(f"data: {event}\n\n" for event in [*events, "[DONE]"])


def test_how_many_pieces_a_stream_came_in_is_no_difference():
    single = stream((" a", "null"), (" b", "null"), (" c", "null"), (" d", '"length"'))
    merged = stream((" a b", "null"), (" c", "null"), (" d", '"length"'))
    assert answer_differences([answer(text=single)], [answer(text=merged)]) == []


def test_how_a_stream_ends_is():
    ended = stream((" a", "null"), (" b", '"length"'))
    assert answer_differences([answer(text=ended)], [answer(text=stream((" a", "null"), (" b", '"stop"')))])
    assert answer_differences([answer(text=ended)], [answer(text=ended.replace("[DONE]", ""))])


def test_a_difference_late_in_an_answer_is_shown():
    text = '{"usage":{"prompt_tokens":' + "1," * 200 + '"total_tokens":8}}'
    (line,) = answer_differences([answer(text=text)], [answer(text=text.replace("8}}", "9}}"))])
    assert "8}}" in line
    assert "9}}" in line


def test_a_flag_that_one_of_them_lacks_or_reads_otherwise_is_a_difference():
    real = {
        "flags": [{"names": ["--port"], "takes": "one", "type": "int"}, {"names": ["--seed"], "takes": "one"}]
    }
    assert flag_differences(real, real) == []
    other = {"flags": [{"names": ["--port"], "takes": "one"}, {"names": ["--new"], "takes": "nothing"}]}
    assert [line.partition(" ")[0] for line in flag_differences(real, other)] == ["--new", "--port", "--seed"]


def test_the_stored_requests_are_asked_of_another_model_in_words_it_knows():
    asked = asked_of(ANSWERS, "chat")["answers"]
    assert len(asked) == len(ANSWERS["answers"])
    text = json.dumps(asked)
    assert "tiny" not in text
    assert "w1 w2" not in text
    assert set(asked[15]["json"]["prompt"].split()) <= set(model.prose_words())
    assert not {"status", "text", "type"} & {key for row in asked for key in row}
    assert "/v1/models/chat" in {row["path"] for row in asked}
